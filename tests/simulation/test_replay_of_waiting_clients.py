"""Why a what-if replays closed loops (docs/results/prediction.md): clients that wait for their answers before they call
again would wait longer, replayed at the times at which they called.

As many callers as twice the engine's slots keep it full. Played again with them waiting, an engine that is a tenth
slower makes them wait about a tenth longer. Played again at the times of the faster engine, the calls come faster than
they are served, and the queue grows for as long as the recording is.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from random import Random
from statistics import median

import pytest

from backends.engine.coefficients import COEFFICIENTS, StepCoefficients
from backends.engine.engine import Engine
from backends.simulation.requests import Arrival, RequestRecord
from backends.simulation.world import SimulatedCall, World
from gateway.simulate.report.series import Timeline
from gateway.simulate.report.tally import Tally
from policies.accounts.cost import LinearPrice
from policies.scheduler import Scheduler
from policies.types import Reason, Tenant

SLOTS = 32
CALLERS = 2 * SLOTS  # as of the demo's flood
CALLS = 600
THINKS_S = 0.002
REAL = COEFFICIENTS["a10g-llama2-7b"]
TIMES = ("base_s", "token_s", "context_token_s", "prefill_base_s", "prefill_token_s", "prefill_request_s", "overhead_s")
SLOWER = replace(REAL, **{name: 1.1 * getattr(REAL, name) for name in TIMES})


class WaitingClients(World):
    """Every caller calls when its last call has ended, whatever the times of the arrivals are."""

    def run(self, arrivals: Iterable[Arrival]) -> Iterable[RequestRecord]:
        self._to_come = deque(arrivals)
        for _ in range(CALLERS):
            self._call_next(0.0)
        return super().run(())

    def _expect_arrival(self) -> None:
        self._upcoming = self._to_come[0] if self._to_come else None

    def _call_next(self, at: float) -> None:
        if self._to_come:
            self._at(at, partial(self._come, self._to_come.popleft()))

    def _come(self, arrival: Arrival, now: float) -> None:
        self._upcoming = arrival
        self._arrive(now)

    def _end(self, call: SimulatedCall, *, total_latency_s: float | None, rejected: Reason | None = None) -> None:
        super()._end(call, total_latency_s=total_latency_s, rejected=rejected)
        self._call_next(self.now + THINKS_S)


def played(world: type[World], engine: StepCoefficients, arrivals: Iterable[Arrival]) -> list[RequestRecord]:
    pool = Scheduler(tenants=[Tenant("flood")], admission=(), wait_s_max=1e6)
    engines = {"engine": Engine(engine, requests_running_max=SLOTS)}
    return list(world(pool, engines, requests_running_max=SLOTS).run(arrivals))


@cache
def happened() -> tuple[Sequence[Arrival], list[RequestRecord]]:
    """The calls as they came at the real engine, and what was measured of them."""
    lengths = Random(1)
    calls = [Arrival("flood", 0.0, 90, output, output) for output in (lengths.randint(48, 208) for _ in range(CALLS))]
    records = played(WaitingClients, REAL, calls)
    recorded = [
        Arrival("flood", each.arrived_at, each.prompt_tokens, each.output_tokens, each.output_tokens)
        for each in sorted(records, key=lambda record: record.arrived_at)
    ]
    return recorded, records


def looped(records: Sequence[RequestRecord]) -> list[Arrival]:
    """The calls, each of which comes as long after the end of the one before as it did; the first of all are as many
    as callers.
    """
    calls = sorted(records, key=lambda record: record.arrived_at)
    ends = sorted(range(len(calls)), key=lambda each: calls[each].arrived_at + (calls[each].total_latency_s or 0.0))
    return [
        Arrival(
            "flood", each.arrived_at, each.prompt_tokens, each.output_tokens, each.output_tokens, number=number,
            waited_for=ends[number - CALLERS] if number >= CALLERS else None, think_s=THINKS_S,
        )
        for number, each in enumerate(calls)
    ]  # fmt: skip


def ttft_s(records: Iterable[RequestRecord]) -> float:
    return median(each.first_token_latency_s for each in records if each.first_token_latency_s is not None)


def test_the_same_engine_replays_what_happened():
    recorded, records = happened()
    assert 0.9 < ttft_s(played(World, REAL, recorded)) / ttft_s(records) < 1.1


def test_at_a_slower_engine_clients_that_wait_wait_that_much_longer():
    recorded, records = happened()
    assert 1.05 < ttft_s(played(WaitingClients, SLOWER, recorded)) / ttft_s(records) < 1.2


def test_calls_that_wait_for_the_end_of_another_are_replayed_as_their_clients_would_call():
    _, records = happened()
    same = list(played(World, REAL, looped(records)))
    assert ttft_s(same) == pytest.approx(ttft_s(records), rel=0.05)  # ends at one time are told apart by their order
    assert 1.05 < ttft_s(played(World, SLOWER, looped(records))) / ttft_s(records) < 1.2


def test_a_call_waits_for_its_end_also_where_no_other_runs_or_comes_meanwhile():
    calls = [Arrival("flood", 0.0, 90, 9, 9, number=0), Arrival("flood", 0.0, 90, 9, 9, waited_for=0, think_s=30.0)]
    first, second = played(World, REAL, calls)
    assert second.arrived_at == pytest.approx(first.total_latency_s + 30.0)


def test_of_clients_that_are_alike_the_first_to_end_makes_the_call_that_came_first():
    """Of two engines the calls end in the other order; the call after the first end comes after the short one."""
    short, long = 9, 900

    def after(**loop):
        calls = [
            Arrival("flood", 0.0, 90, long, long, number=0, **loop),
            Arrival("flood", 0.0, 90, short, short, number=1, **loop),
            Arrival("flood", 0.0, 90, 5, 5, number=2, waited_for=0, think_s=1.0, **loop),
            Arrival("flood", 0.0, 90, 6, 6, number=3, waited_for=1, think_s=2.0, **loop),
        ]
        return {each.output_tokens: each for each in played(World, REAL, calls)}

    alike, apart = after(loop=0), after()
    assert alike[5].arrived_at == pytest.approx(alike[short].total_latency_s + 1.0)
    assert alike[6].arrived_at == pytest.approx(alike[5].arrived_at + alike[5].total_latency_s + 2.0)
    assert apart[5].arrived_at == pytest.approx(apart[long].total_latency_s + 1.0)
    assert apart[6].arrived_at == pytest.approx(apart[short].total_latency_s + 2.0)


def test_the_first_token_of_what_came_before_is_not_measured():
    calls = [Arrival("flood", 0.0, 90, 9, 9, came_before=each) for each in (True, False, False)]
    tally = Tally(LinearPrice(), Timeline())
    for record in played(World, REAL, calls):
        tally.add(record, now=record.arrived_at)
    assert (tally.tenants["flood"].served, tally.ttft().counts.total()) == (3, 2)


def test_at_a_slower_engine_calls_at_the_recorded_times_make_a_queue_that_grows():
    recorded, records = happened()
    replayed = sorted(played(World, SLOWER, recorded), key=lambda record: record.arrived_at)
    assert ttft_s(replayed) > 1.5 * ttft_s(records)
    third = len(replayed) // 3
    assert ttft_s(replayed[-third:]) > 1.25 * ttft_s(replayed[third : 2 * third]), "it grows"
