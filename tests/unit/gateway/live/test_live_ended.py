"""Calls that ended: latencies of 15 minutes by tenant, refusals of a minute by reason; of one process and of many."""

import time
from random import Random

import msgspec
import pytest

from gateway.live import ended as module
from gateway.live.ended import (
    LATENCY_PART_S,
    NO_POOL,
    REFUSAL_PART_S,
    SHOWN_S,
    EndedCalls,
    EndedChanges,
    EndedEverywhere,
    EndedRow,
)
from gateway.live.recent_counts import bucket_of, quantiles
from gateway.observability.telemetry import CallTrace
from policies.types import Outcome, Reason, Usage


class Clock:
    def __init__(self):
        self.now = 10_000.0

    def __call__(self):
        return self.now


def make(clock=None):
    return EndedCalls({"tiny": "p", "other": "q"}.get, clock=clock or Clock())


def shown(calls):
    """What is shown of the calls of one process."""
    here = EndedEverywhere(calls)
    here.look()
    return here


def stream(tenant="a", ttft_s=0.2, tpot_s=0.05, *, tokens=11, model="tiny", outcome=Outcome.COMPLETED):
    trace = CallTrace("/v1/chat/completions", tenant_id=tenant, tier_id="t", model=model, stream=True, status=200)
    ended_s = time.perf_counter()
    trace.first_token_s = ended_s - tpot_s * (tokens - 1)
    trace.started_s = trace.first_token_s - ttft_s
    trace.usage, trace.outcome = Usage(5, 0, tokens), outcome
    return trace


def refusal(tenant="a", reason=Reason.QUEUE_FULL, model="tiny", tier="t"):
    return CallTrace(
        "/v1/chat/completions", tenant_id=tenant, tier_id=tier, model=model, status=429, reason=reason
    )  # fmt: skip


def test_quantiles_are_right_within_nine_percent_over_seven_orders_of_magnitude():
    rng = Random(4)
    for scale in (0.0005, 0.01, 1.0, 300.0):
        values = sorted(scale * rng.lognormvariate(0, 0.7) for _ in range(4000))
        counts = {}
        for each in values:
            counts[bucket_of(each)] = counts.get(bucket_of(each), 0) + 1
        for of, found in zip((0.5, 0.99), quantiles(counts, (0.5, 0.99)), strict=True):
            assert found == pytest.approx(values[int(of * len(values)) - 1], rel=0.1)


def test_calls_whose_key_is_refused_count_for_no_pool_until_a_minute_is_over():
    clock = Clock()
    calls = make(clock)
    for status, tenant in ((401, None), (401, None), (429, None), (404, None), (401, "a")):
        calls.ended(CallTrace("/v1/chat/completions", tenant_id=tenant, status=status))
    assert shown(calls).refused(NO_POOL) == {"401": 2, "429": 1}
    assert shown(calls).refused("p") == {}
    clock.now += 70.0
    assert shown(calls).refused(NO_POOL) == {}


def test_latencies_are_of_the_tenant_and_the_pool():
    calls = make()
    for ttft_s in (0.1, 0.2, 0.9):
        calls.ended(stream(ttft_s=ttft_s))
    calls.ended(stream("b", ttft_s=5.0))
    calls.ended(stream(ttft_s=7.0, model="other"))
    (median, high), tpot_s = shown(calls).latencies("p", "a")
    assert (median, high) == (pytest.approx(0.2, rel=0.1), pytest.approx(0.9, rel=0.1))
    assert tpot_s[0] == pytest.approx(0.05, rel=0.1)
    assert shown(calls).latencies("p", "b")[0][0] == pytest.approx(5.0, rel=0.1)
    assert shown(calls).latencies("p", "nobody") == (None, None)


def test_a_stream_that_was_cut_has_a_ttft_and_no_tpot():
    calls = make()
    calls.ended(stream(outcome=Outcome.CLIENT_DISCONNECTED))
    ttft_s, tpot_s = shown(calls).latencies("p", "a")
    assert ttft_s is not None
    assert tpot_s is None


def test_refusals_are_counted_by_reason_for_a_minute():
    clock = Clock()
    calls = make(clock)
    for reason in (Reason.QUEUE_FULL, Reason.QUEUE_FULL, Reason.RATE_LIMITED):
        calls.ended(refusal(reason=reason))
    calls.ended(refusal("b", Reason.SHED, model="other"))
    here = shown(calls)
    assert here.refused("p") == {"queue_full": 2, "rate_limited": 1}
    assert here.refused("q") == {"shed": 1}
    assert here.refused_of("p", "a") == {"queue_full": 2, "rate_limited": 1}
    assert (here.refused_of("p", "b"), here.refused_of("q", "b")) == ({}, {"shed": 1})
    assert (here.refused_tenants("p"), here.refused_tenants("q")) == ({"a"}, {"b"})
    clock.now += 59
    here.look()
    assert here.refused("p") == {"queue_full": 2, "rate_limited": 1}
    clock.now += 1 + 2 * REFUSAL_PART_S
    here.look()
    assert here.refused("p") == {}
    assert here.refused_of("p", "a") == {}


def test_a_call_that_found_no_pool_is_counted_nowhere():
    calls = make()
    calls.ended(refusal(tier=None))
    calls.ended(refusal(model="gone"))
    assert calls.changes(0).rows == []


def test_latencies_are_forgotten_after_a_quarter_of_an_hour():
    clock = Clock()
    calls = make(clock)
    calls.ended(stream(ttft_s=4.0))
    clock.now += 15 * 60 - 1
    calls.ended(stream(ttft_s=0.1))
    here = shown(calls)
    assert here.latencies("p", "a")[0][1] == pytest.approx(4.0, rel=0.1)
    clock.now += LATENCY_PART_S + 1
    here.look()
    assert here.latencies("p", "a")[0][1] == pytest.approx(0.1, rel=0.1)


def test_latencies_are_computed_again_after_some_seconds_where_more_calls_have_ended():
    clock = Clock()
    calls = make(clock)
    calls.ended(stream(ttft_s=4.0))
    here = shown(calls)
    for pause_s, expected_s in ((0.0, 4.0), (SHOWN_S - 1, 4.0), (1.0, 0.1)):
        clock.now += pause_s
        assert here.latencies("p", "a")[0][0] == pytest.approx(expected_s, rel=0.1)
        calls.ended(stream(ttft_s=0.1))
        here.look()


def test_tenants_without_end_take_no_more_than_so_many_rows_and_idle_ones_give_theirs_back(monkeypatch):
    monkeypatch.setattr(module, "ROWS_MAX", 50)
    clock = Clock()
    calls = make(clock)
    for number in range(500):
        calls.ended(refusal(f"t{number}"))
    assert len(calls.changes(0).rows) == 50
    assert shown(calls).refused("p") == {"queue_full": 50}
    clock.now += 200.0
    calls.changes(0)
    clock.now += REFUSAL_PART_S
    for number in range(500, 540):
        calls.ended(refusal(f"t{number}"))
    assert {row.tenant for row in calls.changes(0).rows if row.refused} == {f"t{number}" for number in range(500, 540)}


# -- several processes -----------------------------------------------------------------------------------------------


def tell(here, member, calls):
    """As the leader asks: over the wire."""
    changes = calls.changes(here.since(member))
    here.told(member, msgspec.msgpack.decode(msgspec.msgpack.encode(changes), type=EndedChanges))
    return changes


def test_the_leader_has_the_latencies_and_refusals_of_all_members():
    own, others = make(), [make(), make()]
    here = EndedEverywhere(own)
    for calls, ttft_s in zip((own, *others), (0.1, 0.2, 3.0), strict=True):
        calls.ended(stream(ttft_s=ttft_s))
        calls.ended(refusal())
    here.look()
    for name, calls in zip(("m1", "m2"), others, strict=True):
        tell(here, name, calls)
    (median, high), _ = here.latencies("p", "a")
    assert (median, high) == (pytest.approx(0.2, rel=0.1), pytest.approx(3.0, rel=0.1))
    assert here.refused("p") == {"queue_full": 3}
    assert here.refused_of("p", "a") == {"queue_full": 3}
    here.retain(["m2"])
    assert here.refused("p") == {"queue_full": 2}


def test_a_member_tells_only_what_has_changed_and_that_something_is_over():
    clock = Clock()
    calls, here = make(clock), EndedEverywhere(make(clock))
    calls.ended(refusal("a"))
    calls.ended(refusal("b"))
    assert len(tell(here, "m", calls).rows) == 2
    assert tell(here, "m", calls).rows == []
    calls.ended(refusal("b"))
    assert [row.tenant for row in tell(here, "m", calls).rows] == ["b"]
    assert here.refused_of("p", "b") == {"queue_full": 2}
    assert here.refused_tenants("p") == {"a", "b"}
    clock.now += 100.0
    tell(here, "m", calls)
    assert (here.refused("p"), here.refused_of("p", "b")) == ({}, {})


def test_a_reader_that_has_not_asked_for_long_is_not_left_with_rows_that_have_gone():
    clock = Clock()
    calls, here = make(clock), EndedEverywhere(make(clock))
    calls.ended(refusal("a"))
    tell(here, "m", calls)
    for _ in range(2):  # it is empty, then it is gone
        clock.now += 100.0
        calls.ended(refusal("b"))
    assert [row.tenant for row in tell(here, "m", calls).rows] == ["b"]
    assert (here.refused_tenants("p"), here.refused_of("p", "a")) == ({"b"}, {})


def test_a_process_that_takes_the_place_of_another_of_its_name_replaces_what_that_told():
    first, here = make(), EndedEverywhere(make())
    first.ended(refusal("a"))
    tell(here, "m", first)
    second = make()
    second.ended(refusal("b"))
    tell(here, "m", second)
    assert (here.refused_of("p", "a"), here.refused_of("p", "b")) == ({}, {"queue_full": 1})


def test_calls_that_went_on_count_for_a_minute_where_they_were_not_served_at_any_member():
    clock = Clock()
    own, other = make(clock), make(clock)
    for calls, alias in ((own, "chat"), (other, "chat"), (other, "fast")):
        trace = stream(model="other")
        trace.alias, trace.passed_on = alias, (("tiny", Reason.SLO_UNREACHABLE),)
        calls.ended(trace)
    everywhere = shown(own)
    everywhere.told("b", other.changes(0))
    assert everywhere.passed_on("p") == {"chat": {"slo_unreachable": 2}, "fast": {"slo_unreachable": 1}}
    assert everywhere.passed_on("q") == {}
    clock.now += REFUSAL_PART_S * 7
    everywhere.look()
    everywhere.told("b", other.changes(0))
    assert everywhere.passed_on("p") == {}


def test_of_tenants_whose_calls_are_forgotten_nothing_is_kept():
    clock = Clock()
    calls = make(clock)
    here = EndedEverywhere(calls)
    for number in range(3):
        calls.ended(stream(f"t{number}"))
        here.look()
        clock.now += 30 * 60
        here.look()  # its row is empty, and goes
        here.look()
    assert here._is_old == set()
    here.told("other", EndedChanges(0, 1, {}, {}, [EndedRow("p", "gone", {1: 1}, {}, {})]))
    here.retain(())
    assert here._is_old == set()
