"""Do the tests of the 64 checks notice when a mechanism is missing? Takes them out of a copy, one at a time.

    python -m tests.mutants.calm [--list] [CHECK ...]

Each mutant is one mechanism of the gateway taken out: a text of a source file that another one replaces. The tests of
its check run with it and have to fail. What became of each is written beside the figures of the checks, for
docs/results/calm.md. The exit code is 1 where a mutant survives.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.calm.table import FIGURES, ROOT

COPIED = ("gateway", "backends", "policies", "tests", "pyproject.toml", "requirements.lock")
HANGS_S = 240.0  # more than the slowest of these tests takes on a busy machine
FAILED = 1  # pytest's exit code where tests failed; others say that they did not run
GATEWAY_TESTS = "tests/integration/gateway"


@dataclass(frozen=True)
class Mutant:
    """A mechanism of a check, the text that takes it out, and the tests that have to notice."""

    check: int
    mechanism: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def applied(self, text: str) -> str:
        """The file's text without the mechanism. Raises ValueError where the text is not there once."""
        if text.count(self.before) != 1:
            raise ValueError(f"check {self.check}: {self.file} has {self.before!r} {text.count(self.before)} times")
        return text.replace(self.before, self.after)


def calm(name: str) -> tuple[str, ...]:
    return (f"tests/calm/{name}",)


MUTANTS = (
    Mutant(
        1, "idle connections are kept for 30 s", "gateway/http/server.py",
        "keepalive_timeout=KEEPALIVE_S,", "keepalive_timeout=0.2,",
        calm("test_01_idle_connections.py"),
    ),
    Mutant(
        2, "a client of HTTP/1.0 gets a body without chunks", "gateway/forwarding/relay.py",
        "self._chunked = request.version >= HttpVersion11", "self._chunked = True",
        calm("test_02_500_streams_arrive_whole.py"),
    ),
    Mutant(
        5, "the tenant with the least counter is served next", "gateway/config/scheduling.py",
        'fairness: Fairness = PolicySettings(policy="vtc")', 'fairness: Fairness = PolicySettings(policy="fifo")',
        calm("test_05_a_hog_beside_nine.py::test_all_waiting_tenants_are_served_alike"),
    ),
    Mutant(
        6, "service counts over the tenant's weight", "policies/fairness/tiers.py",
        "charged(tenant.id, service / weight, outstanding / weight)", "charged(tenant.id, service, outstanding)",
        calm("test_06_tokens_by_weights.py"),
    ),
    Mutant(
        7, "a queue has a limit", "policies/admission/bounded.py",
        "if len(queues) >= self.requests_max or", "if",
        calm("test_07_a_full_queue_answers_at_once.py"),
    ),
    Mutant(
        9, "a backend gets no more requests than it can run", "policies/capacity/backend.py",
        "load.requests_running_max or RUNNING_MAX_UNKNOWN * load.engines", "8 * RUNNING_MAX_UNKNOWN",
        calm("test_09_overload_leaves_no_trace.py::test_an_engine_of_a_configured_size"),
    ),
    Mutant(
        10, "/metrics is written in slices", "gateway/observability/metrics.py",
        "SLICE_SAMPLES: Final = 200", "SLICE_SAMPLES: Final = 10**9",
        (f"{GATEWAY_TESTS}/test_gateway_metrics.py::test_a_thousand_tenants_hold_up_the_event_loop_for_at_most_5_ms",),
    ),
    Mutant(
        11, "a long body is read in slices, and its values are counted", "gateway/intake/request_parsing.py",
        "if len(data) < LONG_BYTES:", "if True:",
        (f"{GATEWAY_TESTS}/test_gateway_long_bodies.py",),
    ),
    Mutant(
        23, "a member that reaches neither Redis nor a leader leads itself", "gateway/cluster/member.py",
        "self._connected_to is None:\n            self._lead_alone(now)",
        "self._connected_to is None:\n            pass",
        calm("test_23_redis_is_frozen.py"),
    ),
    Mutant(
        24, "a new leader goes on from what counts against limits per minute", "gateway/cluster/leader.py",
        "            order.scheduler.windows_restored(kept.windows, now)\n", "",
        calm("test_24_redis_comes_back_empty.py"),
    ),
    Mutant(
        26, "the end waits 2 s for spans that are not taken", "gateway/observability/shipping.py",
        "CLOSE_S_MAX = 2.0", "CLOSE_S_MAX = 60.0",
        calm("test_26_a_collector_that_never_answers.py"),
    ),
    Mutant(
        31, "bytes per token are learnt from counted prompts", "gateway/api/token_counts.py",
        "return TOKENS_PER_BYTE_AT_FIRST if ratio is None else ratio.tokens_per_byte",
        "return TOKENS_PER_BYTE_AT_FIRST",
        calm("test_31_answers_without_usage.py"),
    ),
    Mutant(
        32, "a target of another authority than Host is refused", "gateway/http/server.py",
        "    _, is_absolute, rest = target", "    return True\n    _, is_absolute, rest = target",
        calm("test_32_never_laxer_than_haproxy.py"),
    ),
    Mutant(
        35, "all header fields together are limited", "gateway/http/server.py",
        "HEAD_BYTES_MAX = 64 << 10", "HEAD_BYTES_MAX = 1 << 30",
        calm("test_35_large_heads.py"),
    ),
    Mutant(
        36, "a body is refused once it is over the limit", "gateway/http/server.py",
        "expect(len(body))\n        if len(body) > request.client_max_size:", "expect(len(body))\n        if False:",
        calm("test_36_a_body_over_the_limit.py"),
    ),
    Mutant(
        37, "slow heads are cut", "gateway/http/server.py",
        "keepalive_timeout=KEEPALIVE_S,", "keepalive_timeout=3600.0,",
        calm("test_37_slow_heads_of_300_clients.py"),
    ),
    Mutant(
        38, "the arrival of a body has a time limit", "gateway/intake/request_parsing.py",
        "asyncio.timeout(self._body_timeout_s)", "asyncio.timeout(None)",
        calm("test_38_slow_bodies_of_300_clients.py"),
    ),
    Mutant(
        39, "reading from the backend pauses while the client reads nothing", "gateway/forwarding/relay.py",
        "            self._exchange.pause()\n", "",
        calm("test_39_clients_that_read_nothing.py"),
    ),
    Mutant(
        40, "only an object is a call", "gateway/api/bodies.py",
        "    if type(call) is not dict:\n", "    if False:\n",
        calm("test_40_malformed_json.py"),
    ),
    Mutant(
        43, "the end of an event is found where bytes are cut inside it", "backends/meters/events.py",
        "max(0, len(partial) - 2)", "len(partial)",
        (*calm("test_43_split_streams.py"), "tests/unit/backends/meters/test_chunks.py"),
    ),
    Mutant(
        44, "compressed bodies are refused", "gateway/intake/request_parsing.py",
        "if request.headers.get(hdrs.CONTENT_ENCODING, IDENTITY).lower() != IDENTITY:", "if False:",
        calm("test_44_compressed_bodies.py"),
    ),
    Mutant(
        47, "a revoked key is taken from the ring", "gateway/admin/reconciler.py",
        "key.tenant is not None and not key.revoked:", "key.tenant is not None:",
        calm("test_47_keys_at_rest.py"),
    ),
    Mutant(
        48, "errors do not repeat what a client sent", "gateway/api/values.py",
        "raise BadRequest(f\"'{name}' must be an integer.\", param=name)",
        "raise BadRequest(f\"'{name}' must be an integer, not {value!r}.\", param=name)",
        calm("test_48_canaries.py"),
    ),
    Mutant(
        49, "only listed headers are forwarded", "gateway/api/headers.py",
        '    "x-session-id",\n)', '    "x-session-id",\n    "x-forwarded-host",\n)',
        calm("test_49_nothing_a_client_sends_moves_a_call.py"),
    ),
    Mutant(
        53, "the throttle forgets the oldest address", "gateway/identity/throttle.py",
        "if len(self._buckets) > ADDRESSES_MAX:", "if False:",
        ("tests/integration/admin/test_admin_bad_keys.py",),
    ),
    Mutant(
        59, "what a left stream was sent last is charged", "gateway/forwarding/relay.py",
        "        finally:\n            self._report()\n", "        finally:\n",
        calm("test_59_usage_adds_up_exactly.py"),
    ),
    Mutant(
        60, "the gateway serves on after SIGTERM", "gateway/app.py",
        "await asyncio.sleep(shutdown.lame_duck_s)", "await asyncio.sleep(0)",
        calm("test_60_sigterm_under_load.py"),
    ),
    Mutant(
        61, "replicas share one order by counters", "gateway/config/scheduling.py",
        'fairness: Fairness = PolicySettings(policy="vtc")', 'fairness: Fairness = PolicySettings(policy="fifo")',
        calm("test_61_a_rolling_restart_is_fair.py"),
    ),
    Mutant(
        62, "fields of a later version are left out", "gateway/store/redis_store.py",
        " if name in ENTRY_FIELDS}", "}",
        calm("test_62_two_versions_share_one_redis.py"),
    ),
)  # fmt: skip


def copied(folder: Path) -> Path:
    """A copy of what the tests of mutants run."""
    for name in COPIED:
        source, target = ROOT / name, folder / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
        elif source.exists():
            shutil.copy(source, target)
    return folder


def noticed_by(mutant: Mutant, folder: Path) -> str | None:
    """The test that fails with the mutant, None where none does."""
    file = folder / mutant.file
    text = file.read_text(encoding="utf-8")
    file.write_text(mutant.applied(text), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", **mutant.environment}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "", "-p", "no:cacheprovider", *mutant.tests]
    try:
        ran = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=HANGS_S
        )
    except subprocess.TimeoutExpired:
        return f"{mutant.tests[0]} (hangs)"
    finally:
        file.write_text(text, encoding="utf-8")
    if ran.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", ran.stdout, re.MULTILINE)
    if ran.returncode != FAILED or failed is None:
        raise RuntimeError(f"check {mutant.check}: the tests did not run\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    return failed[1]


def record(found: Mapping[str, Mapping[str, object]]) -> None:
    """Keep what became of these mutants beside the figures of the checks."""
    kept = json.loads(FIGURES.read_text()) if FIGURES.exists() else {"outcomes": {}, "figures": []}
    present = {mutant.mechanism for mutant in MUTANTS}
    kept["mutants"] = {name: each for name, each in {**kept.get("mutants", {}), **found}.items() if name in present}
    FIGURES.parent.mkdir(parents=True, exist_ok=True)
    FIGURES.write_text(json.dumps(kept, indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the mutants, and run none")
    parser.add_argument("checks", nargs="*", type=int, metavar="CHECK", help="only mutants of these checks")
    asked = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if not asked.checks or mutant.check in asked.checks]
    alive = 0
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) if asked.list else copied(Path(made))
        for mutant in chosen:
            if asked.list:
                print(f"{mutant.check:2} {mutant.mechanism} ({mutant.file})")
                continue
            began = time.monotonic()
            test = noticed_by(mutant, folder)
            alive += test is None
            verdict = "ALIVE" if test is None else "killed"
            print(
                f"{verdict:6} {mutant.check:2} {mutant.mechanism}: {test} ({time.monotonic() - began:.0f} s)",
                flush=True,
            )
            record({mutant.mechanism: {"check": mutant.check, "file": mutant.file, "test": test}})
    if not asked.list:
        print(f"{len(chosen) - alive} of {len(chosen)} mutants are killed")
    return int(alive > 0)


if __name__ == "__main__":
    sys.exit(main())
