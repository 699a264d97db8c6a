"""When a queued request will start, as people are told, beside when it starts: under the real Scheduler, two simulated
engines of which one is four times as slow, and clients that call again when their answer has come.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from random import Random
from statistics import median

import pytest

from backends.engine.coefficients import COEFFICIENTS
from backends.engine.engine import Engine
from backends.simulation.requests import Arrival
from backends.simulation.world import SimulatedCall, Slot, World
from policies.scheduler import Scheduler
from policies.types import Reason, Tenant, WaitView

SLOTS = 8
REAL = COEFFICIENTS["a10g-llama2-7b"]
TIMES = ("base_s", "token_s", "context_token_s", "prefill_base_s", "prefill_token_s", "prefill_request_s", "overhead_s")
SLOWER = replace(REAL, **{name: 4 * getattr(REAL, name) for name in TIMES})
CALLERS = {"nightly": 40, "papers": 12, "intern": 5}
TENANTS = [Tenant("nightly"), Tenant("papers", weight=2.0), Tenant("intern", in_flight_max=1)]
LOOKS_S = [60.0 + 2.0 * number for number in range(60)]
ENDS_S = 260.0


class WatchedClients(World):
    """Every caller calls again when its call has ended. Views of what waits are taken at LOOKS_S."""

    def __init__(self, pool: Scheduler, engines: Mapping[str, Engine]) -> None:
        super().__init__(pool, engines, requests_running_max=SLOTS)
        self._pool = pool
        self.views: list[tuple[float, str, str, WaitView]] = []
        self.started: dict[str, float] = {}
        self._lengths = Random(1)
        for tenant, callers in CALLERS.items():
            for _ in range(callers):
                self._call(tenant, 0.0)
        for at in LOOKS_S:
            self._at(at, self._look)

    def _look(self, now: float) -> None:
        waiting = [call.request for call in self._calls.values() if call.slot is None]
        found = self._pool.wait_views([each.id for each in waiting], now)
        self.views += [(now, each.id, each.tenant_id, found[each.id]) for each in waiting if each.id in found]

    def _call(self, tenant: str, at: float) -> None:
        if at < ENDS_S:
            output = self._lengths.randint(60, 140)
            self._at(at, partial(self._come, Arrival(tenant, at, 200, output, output)))

    def _come(self, arrival: Arrival, now: float) -> None:
        self._upcoming = arrival
        self._arrive(now)

    def _expect_arrival(self) -> None:
        self._upcoming = None if self._calls else Arrival("nightly", 0.0, 1, 1, 1)  # some arrival is still to come

    def _dispatch(self, call: SimulatedCall, slot: Slot, now: float) -> None:
        self.started[call.request.id] = now
        super()._dispatch(call, slot, now)

    def _end(self, call: SimulatedCall, *, total_latency_s: float | None, rejected: Reason | None = None) -> None:
        super()._end(call, total_latency_s=total_latency_s, rejected=rejected)
        self._call(call.request.tenant_id, self.now + 0.01)


@cache
def looked() -> tuple[Sequence[tuple[float, str, str, WaitView]], dict[str, float]]:
    pool = Scheduler(tenants=TENANTS, admission=(), wait_s_max=1e6)
    engines = {
        "fast": Engine(REAL, requests_running_max=SLOTS),
        "slow": Engine(SLOWER, requests_running_max=SLOTS),
    }
    world = WatchedClients(pool, engines)
    for _ in world.run(()):
        pass
    return world.views, world.started


def ratios() -> dict[str, list[float]]:
    """Predicted over real time until the start, by tenant, of all that waited longer than 0.2 s more."""
    views, started = looked()
    found = defaultdict(list)
    for at, request_id, tenant, view in views:
        real_s = started[request_id] - at
        if real_s > 0.2:
            assert view.start_s is not None
            found[tenant].append(view.start_s / real_s)
    return found


def figures() -> str:
    """For docs/results/prediction.md."""
    every = [(tenant, found) for tenant, found in ratios().items()]
    every.append(("all", [ratio for _, found in every for ratio in found]))
    return "\n".join(
        f"{tenant}: {len(found)} rows, median {median(found):.2f}, "
        f"{sum(0.5 <= ratio <= 2.0 for ratio in found) / len(found):.0%} within a factor of two"
        for tenant, found in every
    )


def test_the_median_prediction_of_every_tenant_is_near_the_truth():
    for tenant, found in ratios().items():
        assert 0.7 < median(found) < 1.4, tenant


@pytest.mark.parametrize("tenant", ["nightly", "intern"])
def test_most_predictions_are_within_a_factor_of_two(tenant):
    """Also of a tenant that waits for its own limit. The target is 80 %; the bound is wider than what was measured."""
    found = ratios()[tenant]
    assert len(found) > 200
    assert sum(0.5 <= ratio <= 2.0 for ratio in found) > 0.8 * len(found)


def test_each_place_in_the_queue_has_its_own_prediction():
    views, _ = looked()
    last = [view for at, _, tenant, view in views if (at, tenant) == (LOOKS_S[-1], "nightly")]
    by_place = {view.ahead_requests: view.start_s for view in last}
    assert len(by_place) > 20
    assert sorted(by_place) == list(range(len(by_place)))
    starts = [by_place[place] for place in sorted(by_place)]
    assert starts == sorted(set(starts))


if __name__ == "__main__":
    print(figures())  # noqa: T201 - a command
