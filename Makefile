# Two commands a newcomer needs: `make run` and `make test`. Both do all the set-up.
# The system's Python, where it can make environments and extensions: distributions compile theirs with optimizations,
# which pyenv by itself does not. The tests then take 28 % less CPU, an answer 14 %.
ifeq ($(origin PYTHON), undefined)
PYTHON := $(shell /usr/bin/python3 -c 'import ensurepip, os, sys, sysconfig, venv; \
            header = os.path.join(sysconfig.get_path("include"), "Python.h"); \
            sys.exit(sys.version_info < (3, 11) or not os.path.exists(header))' 2>/dev/null && echo /usr/bin/)python3
endif
VENV   ?= .venv
BIN     = $(VENV)/bin
RUNS    = $(VENV)/.runs
STAMP   = $(VENV)/.ready
WORKERS = $$((2 * $$(nproc) + 1))
FORKS   = -m pytest -p tests.forked_workers --workers
FORKED  = $(BIN)/python $(FORKS)
FIRST  ?= $$(date +%s)
COPY    = build/compiled
# What calls compiled modules, or could give them what they do not take. The rest runs as `make test` runs it.
RUN_COMPILED = unit/policies unit/backends $(addprefix unit/gateway/, api budgets cluster continuation \
                 forwarding http intake live observability scheduling shared_order steering) \
               properties conformance simulation integration/gateway integration/test_relay.py
LOCK    = $(BIN)/uv pip compile -q -c constraints.txt --generate-hashes --no-annotate --python-version 3.11.16 \
            --python-platform linux --custom-compile-command "make lock"
NODE    = tests/clients/node/node_modules/.package-lock.json

.PHONY: help run chart reference plugin web test tests test-long test-web test-calm test-calm-own test-calm-mutants test-group-mutants test-continue-mutants seeds-cluster test-cluster test-soak calm-page sbom test-docs test-mutants check format test-vllm test-k8s demo-fairness demo-slo demo-replicas demo-continue demo-agents tables simulate-cluster report-prediction bench bench-relay bench-peers bench-check bench-calls bench-decision bench-overload bench-workers bench-replicas bench-simulate bench-step-time bench-observability bench-redis-faults bench-large-bodies bench-turns bench-scale bench-live lock clean wheel test-compiled test-newer
.DEFAULT_GOAL := help

# Tests start processes by the hundred: each would compile all modules anew, and each pytest rewrite all tests.
unexport PYTHONDONTWRITEBYTECODE

help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

# What runs is installed first: the tests' packages are six times as large.
$(RUNS): pyproject.toml constraints.txt install.py
	$(PYTHON) install.py $(VENV) --only-binary :all: -c constraints.txt -e .
	touch $(RUNS)

$(STAMP): $(RUNS)
	$(PYTHON) install.py $(VENV) -c constraints.txt -e ".[export,kubernetes,simulate]" --group dev
	touch $(STAMP)

run: $(RUNS)  ## serve on 127.0.0.1:8080 with the embedded engine as backend
	$(BIN)/fairlead serve

check: $(STAMP)  ## ruff and mypy
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

chart: $(STAMP)  ## make the chart's schema and README, and what the example says of settings, from the configuration and values
	$(BIN)/python helm/generate.py

reference: $(STAMP)  ## write docs/reference/commands.md of the command line, and the tables of metrics.md
	$(BIN)/python tests/docs/reference.py

wheel: $(STAMP)  ## build fairlead's wheel with compiled decisions and meters, in dist/; needs a C compiler
	FAIRLEAD_COMPILE=1 $(BIN)/python -m pip wheel -q --no-deps --no-build-isolation -w dist .

plugin: $(STAMP)  ## build the wheel of fairlead-vllm, which goes into vLLM's environment, in dist/
	$(BIN)/python -m pip wheel -q --no-deps -w dist backends/vllm_plugin

$(NODE): tests/clients/node/package-lock.json
	@if command -v npm >/dev/null; then npm ci --prefix $(@D)/.. --ignore-scripts --no-audit --no-fund --silent \
	  --prefer-offline --fetch-retries=0 \
	  || echo "npm could not install the clients for Node: their tests are left out" >&2; fi

web: $(STAMP)  ## fetch the packages of the page that vendored.toml pins, from npm
	$(BIN)/python vendor_web.py

# Half of the time of tests is waiting, so there are more workers than cores, and mypy fills what they leave.
test:  ## ruff, mypy and all tests that need no real vLLM, but for the long ones
	$(MAKE) --no-print-directory -j 2 check tests

tests: $(STAMP) $(NODE)
	$(FORKED) $(WORKERS)

test-long: $(STAMP)  ## the long tests: more of what `make test` does little of, published tables, an image; 2,000 seeds
	$(FORKED) 2 --timeout 900 -m long
	$(BIN)/python -m tests.simulation.cluster --seeds 1000 --first $(FIRST)
	$(BIN)/python -m tests.simulation.cluster --seeds 1000 --first $(FIRST) --cuts

test-web: $(STAMP)  ## the page in a real Chromium (Debian's, installed where this is root; npm brings an OpenID provider); PICTURES=1 writes docs/images
	tests/web/chromium.sh
	tests/web/provider.sh
	PICTURES=$(PICTURES) $(FORKED) 3 -m "not alone" tests/web; many=$$?; \
	$(BIN)/python -m pytest -m alone tests/web && exit $$many

test-compiled: $(STAMP)  ## compile a copy in build/compiled, and run there the tests of what runs compiled
	rm -rf $(COPY) && mkdir -p $(COPY) && git ls-files -z | xargs -0 cp --parents -t $(COPY)
	ln -s $(abspath $(VENV)) $(COPY)/.venv
	cd $(COPY) && FAIRLEAD_COMPILE=1 .venv/bin/python setup.py -q build_ext --inplace
	cd $(COPY) && PYTHONPATH=$(abspath $(COPY)) .venv/bin/python $(FORKS) $(WORKERS) $(addprefix tests/,$(RUN_COMPILED))

test-newer: $(STAMP)  ## the unit tests on each Python newer than 3.11 that is found, in environments in build/
	tests/newer_pythons.sh

test-calm: $(STAMP)  ## 64 checks under load, faults, bad input and upgrades, with their figures; ONLY="5 12" names some
	$(BIN)/python -m tests.calm $(ONLY)

test-calm-own: $(STAMP)  ## of test-calm, the tests that make test does not run
	$(BIN)/python -m tests.calm --own

test-calm-mutants: $(STAMP)  ## take mechanisms of the gateway out, one by one, and see a test of their check fail; ONLY="5 12"
	$(BIN)/python -m tests.mutants.calm $(ONLY)

test-group-mutants: $(STAMP)  ## take checks of the role group-admin out, one by one, and see a test fail
	$(BIN)/python -m tests.mutants.group_admins

test-continue-mutants: $(STAMP)  ## take mechanisms of continuing streams out, one by one, and see a short test fail
	$(BIN)/python -m tests.mutants.continuation

seeds-cluster: $(STAMP)  ## simulated clusters of seeds that never ran before
	$(BIN)/python -m tests.simulation.cluster --seeds 400 --first $(FIRST)
	$(BIN)/python -m tests.simulation.cluster --seeds 400 --first $(FIRST) --cuts

test-cluster: seeds-cluster  ## two minutes of simulated clusters: seeds-cluster, and mechanisms taken out, one by one
	$(BIN)/python -m tests.mutants.cluster

test-soak: $(STAMP)  ## of test-calm, the tests that take minutes; check 4 (memory, descriptors and tasks stay flat) for SOAK_S seconds: 300
	$(BIN)/python -m tests.calm --long

calm-page: $(STAMP)  ## write docs/results/calm.md and docs/security.md of what `make test-calm` recorded
	$(BIN)/python -m tests.calm --page

test-docs: $(STAMP)  ## count words, find banned ones and broken links; run the commands of tutorials and how-tos, and the cheap ones of docs/results
	$(BIN)/python tests/docs/words.py
	$(BIN)/python -m pytest -q tests/unit/pages/test_links.py
	$(BIN)/python tests/docs/results.py
	$(BIN)/python -m tests.docs.commands

test-mutants: $(STAMP)  ## break the scheduler on purpose, mechanism by mechanism, and see published rows notice each
	$(BIN)/python -m tests.mutants.tables

test-vllm: $(STAMP) $(NODE)  ## the suite against a real vLLM for CPU, installed into .vllm on the first run
	PYTHON=$(PYTHON) tests/vllm/install.sh .vllm
	$(BIN)/python -m pytest --timeout 900 tests/conformance/wire tests/vllm

test-k8s: $(STAMP)  ## the chart and discovery against a real kube-apiserver, built in build/k8s on the first run
	tests/k8s/install.sh build/k8s
	tests/k8s/run.sh $(BIN)/python -m pytest tests/k8s

demo-fairness: $(STAMP)  ## FIFO against VTC on a published trace, through the gateway, on a real vLLM
	PYTHON=$(PYTHON) tests/vllm/install.sh .vllm
	$(BIN)/python -m tests.benchmarks.demos.fairness

demo-slo: $(STAMP)  ## a chat beside a flood of long prompts, by envelopes and without, on a real vLLM
	PYTHON=$(PYTHON) tests/vllm/install.sh .vllm
	$(BIN)/python tests/benchmarks/demos/slo.py

demo-replicas: $(STAMP)  ## three replicas with one order, watched while the one that leads is killed and comes back
	$(BIN)/python tests/benchmarks/demos/replicas.py

demo-continue: $(STAMP)  ## streams that outlive their vLLMs: SIGKILL of one of two, a rolling restart of three, preemption
	PYTHON=$(PYTHON) tests/vllm/install.sh .vllm
	$(BIN)/python tests/benchmarks/demos/continuing.py

demo-agents: $(STAMP)  ## 24 agents on one real vLLM: without a gateway, through it, and with sessions admitted while they fit
	PYTHON=$(PYTHON) tests/vllm/install.sh .vllm
	$(BIN)/python tests/benchmarks/demos/agents.py

bench: bench-relay bench-decision bench-simulate bench-observability  ## all benchmarks

bench-relay: $(STAMP)  ## CPU per relayed chunk and per request, beside nginx and a naive relay
	$(BIN)/python tests/benchmarks/relay/bench.py

bench-check: $(STAMP)  ## fail where fairlead is 15 % dearer beside the naive relay than it was; two minutes at most
	$(BIN)/python tests/benchmarks/relay/check.py

bench-calls: $(STAMP)  ## fail where an answer, a stream or a chunk takes 5 % more calls of functions than it did; seconds
	$(BIN)/python tests/benchmarks/relay/check.py --calls

bench-peers: $(STAMP)  ## other gateways beside it, those that are installed in build/peers; the others are named
	$(BIN)/python tests/benchmarks/relay/peers.py

bench-overload: $(STAMP)  ## what modest tenants get of a gateway that is short of CPU, beside greedy ones
	$(BIN)/python tests/benchmarks/overload/two_halves.py

bench-workers: $(STAMP)  ## what a second worker on the same machine gives, and what it costs
	$(BIN)/python tests/benchmarks/workers/bench.py
	$(BIN)/python tests/benchmarks/workers/latency.py

bench-replicas: $(STAMP)  ## what clients of three replicas notice of each failure in the table of failures
	$(BIN)/python tests/benchmarks/replicas/bench.py

bench-scale: $(STAMP)  ## what one more engine and one more idle connection cost
	$(BIN)/python tests/benchmarks/scale/bench.py

bench-decision: $(STAMP)  ## time of a scheduling decision at 10 to 10,000 tenants, one at a time and in bursts
	$(BIN)/python tests/benchmarks/decision/bench.py
	$(BIN)/python tests/benchmarks/decision/reports.py
	$(BIN)/python tests/benchmarks/decision/orders.py
	$(BIN)/python tests/benchmarks/decision/envelopes.py
	$(BIN)/python tests/benchmarks/decision/bench.py --burst 256 --tenants 10 1000 100000 --backends 1 64

bench-simulate: $(STAMP)  ## time and memory of a simulated trace of 100,000 calls
	$(BIN)/python tests/benchmarks/simulate/bench.py

bench-step-time: $(STAMP)  ## how well the step time of a real vLLM is learnt, from reports and from outside
	PYTHON=$(PYTHON) tests/vllm/install.sh .vllm
	$(BIN)/python tests/benchmarks/step_time/bench.py

bench-observability: $(STAMP)  ## CPU per call of traces and metrics, and what reading metrics holds up
	$(BIN)/python tests/benchmarks/observability/bench.py

bench-live: $(STAMP)  ## CPU of the live page's document and stream, with 1,000 tenants, 64 backends and 20 viewers
	$(BIN)/python tests/benchmarks/live/bench.py
	$(BIN)/python tests/benchmarks/live/bench.py --relay

bench-turns: $(STAMP)  ## how long metrics, checkpoints, the admin API and takeovers keep the loop, with thousands of tenants
	$(BIN)/python tests/benchmarks/turns/bench.py
	$(BIN)/python tests/benchmarks/turns/checkpoints.py
	$(BIN)/python tests/benchmarks/takeover/bench.py

bench-large-bodies: $(STAMP)  ## what others wait for while a large body passes, and its memory
	$(BIN)/python tests/benchmarks/large_bodies/bench.py

bench-redis-faults: $(STAMP)  ## what calls wait while the Redis that shares state is frozen, killed, emptied or slow
	$(BIN)/python tests/benchmarks/redis_faults/bench.py

tables: $(STAMP)  ## the published tables again, judged; ONLY=R1,F names some of them
	$(BIN)/python -m tests.evidence $(if $(ONLY),--only $(ONLY))

simulate-cluster: $(STAMP)  ## thousands of simulated clusters with faults, by seed, judged at every step; SEEDS=10000
	$(BIN)/python -m tests.simulation.cluster --seeds $(or $(SEEDS),10000)
	$(BIN)/python -m tests.simulation.cluster --cuts --seeds $(or $(SEEDS),5000)

report-prediction: $(STAMP)  ## how wrong every prediction of output lengths is on three real traces
	$(BIN)/python tests/benchmarks/prediction/report.py

lock: $(STAMP)  ## pin by hash what the image installs and is compiled by: the versions of constraints.txt, for Linux
	$(BIN)/python -m pip install -q -c constraints.txt --group lock
	$(LOCK) pyproject.toml --extra kubernetes -o requirements.lock
	$(LOCK) --group compile -o compile.lock
	$(BIN)/python sbom.py

sbom: $(STAMP)  ## write sbom.cdx.json, the packages of the image with their hashes, from the lock
	$(BIN)/python sbom.py

format: $(STAMP)  ## format and fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove what was built here
	rm -rf $(VENV) build dist *.egg-info
