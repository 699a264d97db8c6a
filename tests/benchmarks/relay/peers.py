"""What others need for the same work: their CPU per chunk and per whole answer, and their memory, beside fairlead's.

    python tests/benchmarks/relay/peers.py [--environments build/peers] [--tests P500,C] [--reps 2] [--missing]

Each peer is measured where its program is found: in --environments/NAME/bin, a virtual environment of its own, as two
of them install a program of one name; else on PATH. Those that are not there are named, with the command that installs
them; --missing only names them. They take turns in the lab of bench.py, each with one worker.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

# This file is a program in the folder of bench.py.
import bench

LITELLM = """
model_list:
  - model_name: mock-model
    litellm_params: {{model: hosted_vllm/mock-model, api_base: "http://127.0.0.1:{backend}/v1", api_key: none}}
litellm_settings: {{set_verbose: false, request_timeout: 600, callbacks: []}}
general_settings: {{master_key: sk-1234, disable_spend_logs: true}}
router_settings: {{num_retries: 0}}
"""
LITELLM_ENVIRONMENT = {
    "LITELLM_MODE": "PRODUCTION", "LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_DOCS": "True",
    "LITELLM_TELEMETRY": "False", "NO_REDOC": "True", "DISABLE_ADMIN_UI": "True",
}  # fmt: skip


@dataclass(frozen=True)
class Peer:
    """A gateway of others: its program, what pip installs it by, and its arguments."""

    program: str
    requirement: str
    arguments: Callable[[Path, int, int], list[str]]


def router(*before: str) -> Callable[[Path, int, int], list[str]]:
    def arguments(_directory: Path, port: int, backend: int) -> list[str]:
        urls = ["--worker-urls", f"http://127.0.0.1:{backend}", "--policy", "round_robin"]
        metrics = ["--prometheus-port", str(bench.free_port()), "--worker-startup-check-interval", "1"]
        return [*before, "--host", "127.0.0.1", "--port", str(port), *urls, *metrics]

    return arguments


def production_stack(_directory: Path, port: int, backend: int) -> list[str]:
    backends = ["--service-discovery", "static", "--static-backends", f"http://127.0.0.1:{backend}"]
    models = ["--static-models", "mock-model", "--static-model-types", "chat", "--routing-logic", "roundrobin"]
    return ["--host", "127.0.0.1", "--port", str(port), "--log-level", "warning", *backends, *models]


def litellm(directory: Path, port: int, backend: int) -> list[str]:
    config = directory / "litellm.yaml"
    config.write_text(LITELLM.format(backend=backend))
    return ["--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]


PEERS = {
    "vllm-router": Peer("vllm-router", "vllm-router", router()),
    "sglang-router": Peer("sglang-router", "sglang-router", router("launch")),
    "production-stack": Peer("vllm-router", "PATH/TO/production-stack", production_stack),
    "litellm": Peer("litellm", "litellm[proxy]", litellm),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--environments", type=Path, default=bench.ROOT / "build" / "peers")
    parser.add_argument("--tests", default="P500,C")
    parser.add_argument("--reps", type=int, default=2)
    parser.add_argument("--missing", action="store_true", help="only name the peers that are not installed")
    options = parser.parse_args()
    found = dict(installed(options.environments))
    for name in PEERS.keys() - found.keys():
        folder = options.environments / name
        print(f"missing: {name}: python -m venv {folder} && {folder}/bin/pip install '{PEERS[name].requirement}'")
    if options.missing:
        return 0
    for name, program in found.items():
        bench.SYSTEMS[name] = command(program, PEERS[name])
    subprocess.run(["make", "-s", "-C", str(bench.HERE)], check=True)
    bench.RESULTS.mkdir(exist_ok=True)
    systems = [name for name in ("nginx", "naive", "fairlead", *found) if bench.available(name)]
    tests = options.tests.split(",")
    with tempfile.TemporaryDirectory(prefix="fairlead-peers-") as directory, ExitStack() as stack:
        lab = bench.Lab(Path(directory), stack, one_process=True)
        runs = list(lab.measure(systems, tests, options.reps))
    bench.print_table(runs, systems, tests)
    return 0


def installed(environments: Path) -> list[tuple[str, str]]:
    """The peers that are there, with the path of their program. A program of PATH could be either of two peers'."""
    found = []
    for name, peer in PEERS.items():
        own = environments / name / "bin" / peer.program
        program = str(own) if own.is_file() else shutil.which(peer.program) if peer.program == name else None
        if program is not None:
            found.append((name, program))
    return found


def command(program: str, peer: Peer) -> bench.Command:
    settings = LITELLM_ENVIRONMENT.items() if peer.program == "litellm" else ()

    def start(directory: Path, port: int, backend: int) -> list[str]:
        return [
            "env",
            *(f"{name}={value}" for name, value in settings),
            program,
            *peer.arguments(directory, port, backend),
        ]

    return start


if __name__ == "__main__":
    sys.exit(main())
