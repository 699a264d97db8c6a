"""Do the tests of the 64 checks notice when a mechanism is missing? Takes them out of a copy, one at a time.

    python -m tests.mutants.calm [--list] [CHECK ...]

Each mutant is one mechanism of the gateway taken out: a text of a source file that another one replaces. The tests of
its check run with it and have to fail. What became of each is written beside the figures of the checks, for
docs/results/calm.md. The exit code is 1 where a mutant survives.
"""

import argparse
import json
import sys
from dataclasses import replace

from tests.calm.table import FIGURES
from tests.mutants.sources import Mutant, run_all

GATEWAY_TESTS = "tests/integration/gateway"
REPLICA_TESTS = "tests/integration/replicas"


def calm(name: str) -> tuple[str, ...]:
    return (f"tests/calm/{name}",)


MUTANTS = (
    Mutant(
        "idle connections are kept for 30 s", "gateway/http/server.py",
        "self._loop.time() - KEEPALIVE_S", "self._loop.time() - 0.2",
        calm("test_01_idle_connections.py"), check=1,
    ),
    Mutant(
        "a client of HTTP/1.0 gets a body without chunks", "gateway/forwarding/answers/relay.py",
        "self._chunked = request.is_new", "self._chunked = True",
        calm("test_02_500_streams_arrive_whole.py"), check=2,
    ),
    Mutant(
        "an event takes a fraction of a millisecond", "gateway/forwarding/answers/relay.py",
        "meter, write = self._meter, self._write\n",
        "meter, write = self._meter, self._write\n        __import__('time').sleep(0.0003)\n",
        calm("test_02_500_streams_arrive_whole.py"), check=2,
    ),
    Mutant(
        "a call is decided in the turn of the loop after its arrival", "gateway/scheduling/deciding.py",
        "self._loop.call_soon(self._pump)", "self._loop.call_later(0.03, self._pump)",
        calm("test_03_a_thousand_calls_a_second.py::test_calls_that_are_due_are_answered_soon"), check=3,
    ),
    Mutant(
        "the tenant with the least counter is served next", "gateway/config/scheduling.py",
        'fairness: Fairness = PolicySettings(policy="vtc")', 'fairness: Fairness = PolicySettings(policy="fifo")',
        calm("test_05_a_hog_beside_nine.py::test_all_waiting_tenants_are_served_alike"), check=5,
    ),
    Mutant(
        "the tenant with the least counter is served next, of tenants with few clients", "gateway/config/scheduling.py",
        'fairness: Fairness = PolicySettings(policy="vtc")', 'fairness: Fairness = PolicySettings(policy="fifo")',
        calm("test_05_a_hog_beside_nine.py::test_of_what_others_wait_for_the_hog_gets_its_share"), check=5,
    ),
    Mutant(
        "a tier has its reserve", "policies/fleet/fleet.py",
        "{tier.id: tier.reserve_ratio for tier in tiers if tier.reserve_ratio}", "{}",
        calm("test_05_a_hog_beside_nine.py::test_first_tokens_of_a_tier_with_a_reserve_come_as_without_it"), check=5,
    ),
    Mutant(
        "service counts over the tenant's weight", "policies/fairness/tree.py",
        "charged(tenant.id, service / weight, outstanding / weight)", "charged(tenant.id, service, outstanding)",
        calm("test_06_tokens_by_weights.py"), check=6,
    ),
    Mutant(
        "a queue has a limit", "policies/admission/bounded.py",
        "if waiting >= self.requests_max or", "if",
        calm("test_07_a_full_queue_answers_at_once.py"), check=7,
    ),
    Mutant(
        "a refusal is decided in the turn of the loop after its arrival", "gateway/scheduling/deciding.py",
        "self._loop.call_soon(self._pump)", "self._loop.call_later(0.1, self._pump)",
        calm("test_07_a_full_queue_answers_at_once.py"), check=7,
    ),
    Mutant(
        "a backend gets no more requests than it can run", "policies/capacity/backend.py",
        "load.requests_running_max or RUNNING_MAX_UNKNOWN * load.engines", "8 * RUNNING_MAX_UNKNOWN",
        calm("test_09_overload_leaves_no_trace.py::test_an_engine_of_a_configured_size"), check=9,
    ),
    Mutant(
        "/metrics is written in slices", "gateway/observability/metrics/page.py",
        "SLICE_SAMPLES: Final = 200", "SLICE_SAMPLES: Final = 10**9",
        (f"{GATEWAY_TESTS}/test_gateway_metrics.py::test_a_thousand_tenants_hold_up_the_event_loop_for_at_most_5_ms",),
        check=10,
    ),
    Mutant(
        "an event keeps the loop for a fraction of a millisecond", "gateway/forwarding/answers/relay.py",
        "meter, write = self._meter, self._write\n",
        "meter, write = self._meter, self._write\n        __import__('time').sleep(0.0003)\n",
        calm("test_10_event_loop_lag.py"), check=10,
    ),
    Mutant(
        "a long body is read in slices, and its values are counted", "gateway/intake/request_parsing.py",
        "if len(received) < LONG_BYTES:", "if True:",
        (f"{GATEWAY_TESTS}/test_gateway_long_bodies.py",), check=11,
    ),
    Mutant(
        "a long body is read in slices, beside other calls", "gateway/intake/request_parsing.py",
        "if len(received) < LONG_BYTES:", "if True:",
        calm("test_11_large_prompts.py::test_fifty_at_once_hold_up_no_other_call"), check=11,
    ),
    Mutant(
        "without a backend a call is refused in the turn of the loop of its arrival",
        "gateway/scheduling/deciding.py",
        "self._of.decide(self._of.now(), arriving)",
        "self._loop.call_later(0.1, lambda: self._of.decide(self._of.now(), arriving))",
        calm("test_19_all_backends_down.py"), check=19,
    ),
    Mutant(
        "a member that reaches neither Redis nor a leader leads itself", "gateway/cluster/campaign.py",
        "link.peer is None:\n            lead.begin_alone(now)",
        "link.peer is None:\n            pass",
        calm("test_23_redis_is_frozen.py"), check=23,
    ),
    Mutant(
        "a new leader goes on from what counts against limits per minute", "gateway/cluster/leader/pool_order.py",
        "KeptWindows(kept.windows, since, share)", "KeptWindows()",
        (f"{REPLICA_TESTS}/test_replicas_groups.py::test_limits_of_a_group_are_exact_over_replicas_and_outlive_a_leader",),
        check=24,
    ),
    Mutant(
        "the end waits 2 s for spans that are not taken", "gateway/observability/batches.py",
        "CLOSE_S_MAX = 2.0", "CLOSE_S_MAX = 60.0",
        calm("test_26_a_collector_that_never_answers.py"), check=26,
    ),
    Mutant(
        "bytes per token are learnt from counted prompts", "gateway/api/token_counts.py",
        "return TOKENS_PER_BYTE_AT_FIRST if ratio is None else ratio.tokens_per_byte",
        "return TOKENS_PER_BYTE_AT_FIRST",
        calm("test_31_answers_without_usage.py"), check=31,
    ),
    Mutant(
        "a target of another authority than Host is refused", "gateway/http/request_reader.py",
        "found is None or found[1].lower() != host.lower()", "found is None",
        calm("test_32_never_laxer_than_haproxy.py"), check=32,
    ),
    Mutant(
        "all header fields together are limited", "gateway/http/request_reader.py",
        "HEAD_BYTES_MAX = 64 << 10", "HEAD_BYTES_MAX = 1 << 30",
        calm("test_35_large_heads.py"), check=35,
    ),
    Mutant(
        "a body is refused once it is over the limit", "gateway/http/request.py",
        "expect(len(body))\n            if len(body) > bytes_max:", "expect(len(body))\n            if False:",
        calm("test_36_a_body_over_the_limit.py"), check=36,
    ),
    Mutant(
        "slow heads are cut", "gateway/http/server.py",
        "self._loop.time() - KEEPALIVE_S", "self._loop.time() - 3600.0",
        calm("test_37_slow_heads_of_300_clients.py"), check=37,
    ),
    Mutant(
        "the arrival of a body has a time limit", "gateway/intake/request_parsing.py",
        "asyncio.timeout(self._body_timeout_s)", "asyncio.timeout(None)",
        calm("test_38_slow_bodies_of_300_clients.py"), check=38,
    ),
    Mutant(
        "reading from the backend pauses while the client reads nothing", "gateway/forwarding/answers/relay.py",
        "            self._exchange.pause()\n", "",
        calm("test_39_clients_that_read_nothing.py"), check=39,
    ),
    Mutant(
        "only an object is a call", "gateway/api/bodies.py",
        "    if type(call) is not dict:\n", "    if False:\n",
        calm("test_40_malformed_json.py"), check=40,
    ),
    Mutant(
        "the end of an event is found where bytes are cut inside it", "backends/meters/events.py",
        "max(0, len(partial) - 2)", "len(partial)",
        (*calm("test_43_split_streams.py"), "tests/unit/backends/meters/test_chunks.py"), check=43,
    ),
    Mutant(
        "compressed bodies are refused", "gateway/intake/request_parsing.py",
        'if "content-encoding" in request.headers and request.headers["content-encoding"].lower() != IDENTITY:',
        "if False:",
        calm("test_44_compressed_bodies.py"), check=44,
    ),
    Mutant(
        "a revoked key is taken from the ring", "gateway/admin/reconciler.py",
        "key.tenant is not None and not key.revoked:", "key.tenant is not None:",
        calm("test_47_keys_at_rest.py"), check=47,
    ),
    Mutant(
        "errors do not repeat what a client sent", "gateway/api/values.py",
        "raise BadRequest(f\"'{name}' must be an integer.\", param=name)",
        "raise BadRequest(f\"'{name}' must be an integer, not {value!r}.\", param=name)",
        calm("test_48_canaries.py"), check=48,
    ),
    Mutant(
        "only listed headers are forwarded", "gateway/api/headers.py",
        '    "x-session-id",\n)', '    "x-session-id",\n    "x-forwarded-host",\n)',
        calm("test_49_nothing_a_client_sends_moves_a_call.py"), check=49,
    ),
    Mutant(
        "the throttle forgets the oldest address", "gateway/identity/throttle.py",
        "if len(self._buckets) > ADDRESSES_MAX:", "if False:",
        ("tests/integration/admin/test_admin_bad_keys.py",), check=53,
    ),
    Mutant(
        "what a left stream was sent last is charged", "gateway/forwarding/answers/relay.py",
        "if left or self.is_disconnected:", "if False:",
        calm("test_59_usage_adds_up_exactly.py"), check=59,
    ),
    Mutant(
        "the gateway serves on after SIGTERM", "gateway/app.py",
        "await asyncio.sleep(shutdown.lame_duck_s)", "await asyncio.sleep(0)",
        calm("test_60_sigterm_under_load.py"), check=60,
    ),
    Mutant(
        "replicas share one order by counters", "gateway/config/scheduling.py",
        'fairness: Fairness = PolicySettings(policy="vtc")', 'fairness: Fairness = PolicySettings(policy="fifo")',
        calm("test_61_a_rolling_restart_is_fair.py"), check=61,
    ),
    Mutant(
        "fields of a later version are left out", "gateway/store/redis_store.py",
        " if name in ENTRY_FIELDS}", "}",
        calm("test_62_two_versions_share_one_redis.py"), check=62,
    ),
)  # fmt: skip


def record(mutant: Mutant, test: str | None) -> None:
    """Keep what became of this mutant beside the figures of the checks."""
    kept = json.loads(FIGURES.read_text()) if FIGURES.exists() else {"outcomes": {}, "figures": []}
    present = {mutant.mechanism for mutant in MUTANTS}
    found = {mutant.mechanism: {"check": mutant.check, "file": mutant.file, "test": test}}
    kept["mutants"] = {name: each for name, each in {**kept.get("mutants", {}), **found}.items() if name in present}
    FIGURES.parent.mkdir(parents=True, exist_ok=True)
    FIGURES.write_text(json.dumps(kept, indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the mutants, and run none")
    parser.add_argument("checks", nargs="*", type=int, metavar="CHECK", help="only mutants of these checks")
    asked = parser.parse_args()
    # A long case of a test that does not notice would take more than HANGS_S, and pass for one that hangs.
    short = [replace(mutant, marks="not long") for mutant in MUTANTS]
    chosen = [mutant for mutant in short if not asked.checks or mutant.check in asked.checks]
    if asked.list:
        print("\n".join(f"{mutant.check:2} {mutant.mechanism} ({mutant.file})" for mutant in chosen))
        return 0
    return run_all(chosen, record)


if __name__ == "__main__":
    sys.exit(main())
