"""What scheduling decisions cost, in microseconds of CPU, at 10 to 100,000 tenants with backlog: one, and many at once.

    python tests/benchmarks/decision/bench.py [--tenants 10 1000 10000] [--decisions 2000] [--backends 4 64]
                                              [--kv-rule sum] [--placement least-reserved] [--full-of seats steps]
                                              [--per-group 100]
    python tests/benchmarks/decision/bench.py --burst 256 [--bursts 20] [--tenants 10 1000 100000] [--backends 1 64] ...

Every tenant has requests waiting all the time and the pool is full, as on a busy gateway: of seats, of KV tokens, or of
what its engines can do in time by the model of their steps (running decodes, or prompts ahead). A cycle
is: one request ends (finished), one poll decides which request is next, the answer streams (tokens), and the tenant
that was served sends its next request (submit). Each fact is timed by itself; the medians are over all cycles, so
a collection of garbage or a neighbour on the machine does not show. The floor is a binary heap of the same size
that is popped and pushed once: what any order that is O(log n) in tenants has to pay.

In a burst many requests end at once (as where an engine had stalled, or a batch ends together), and polls give their
slots away until nothing is left to decide. What is printed is the cost of a dispatch, that is of a poll over its
dispatches (of polls that dispatched eight or more: of fewer the search for what does not fit is most; where no poll of
a run dispatched so many, of all that dispatched any), and of a poll.
Tenants and what waits are kept out of the collector's way, and it runs as rarely as in the gateway.

Targets: at most 20 us per decision (poll with one dispatch) at 10,000 tenants, 2.5 us per tokens(); 30 us per dispatch
of a burst at 64 backends, and no poll over 5 ms.
"""

import argparse
import gc
from collections.abc import Callable
from dataclasses import replace
from heapq import heapify, heapreplace
from itertools import product
from math import ceil
from random import Random
from statistics import median
from time import process_time_ns
from typing import Any

from policies.capacity.backend import KV_RULES
from policies.placement import LATE_PLACEMENT
from policies.scheduler import Scheduler
from policies.step_time import StepTime, StepTimeModel
from policies.types import BackendLoad, Dispatch, Group, Outcome, Request, SloEnvelope, Tenant, Tier, Usage

LOADS = {  # what a backend is full by
    "seats": BackendLoad("gpu", requests_running_max=64, kv_tokens_max=10_000_000, kv_block_tokens=16),
    "KV tokens": BackendLoad("gpu", requests_running_max=1_000, kv_tokens_max=40_000, kv_block_tokens=16),
    "steps": BackendLoad(
        "gpu",
        requests_running_max=1_000,
        kv_tokens_max=10_000_000,
        step_tokens_max=16_384,
        step_time=StepTime(StepTimeModel(0.010, 1e-5, 1e-7, 1e-3), error_ratio=0.05, is_sure=True),
    ),
    "prompts": BackendLoad(
        "gpu",
        requests_running_max=1_000,
        kv_tokens_max=10_000_000,
        step_tokens_max=512,
        step_time=StepTime(StepTimeModel(0.010, 1e-3, 1e-8), error_ratio=0.05, is_sure=True),
    ),
}
COLUMNS = ("submit", "poll", "idle poll", "tokens", "finished")
QUEUED_PER_TENANT = 2
TOKENS_PER_ANSWER = 16
ENVELOPE = SloEnvelope(ttft_s=60.0, tpot_s=0.1)
STEP_S = 0.01
CLOCK_READS = 10_001
BURST_S = 1.0  # apart: prompts of the one before are computed
DISPATCHES_MIN = 8
BURST_COLUMNS = ("p50", "p99", "max")
GC_THRESHOLDS = (5_000, 3, 1_300)  # the gateway's


class BusyPool:
    """A pool whose tenants always have something waiting."""

    def __init__(
        self,
        tenants: int,
        load: BackendLoad,
        *,
        backends: int,
        kv_rule: str,
        placement: str,
        queued: int = QUEUED_PER_TENANT,
        per_group: int = 0,
        seed: int = 1,
    ) -> None:
        """`queued` requests of each tenant wait; `per_group` tenants are of one group, 0: there are no groups."""
        self._rng = Random(seed)
        self._number = 0
        self._requests: dict[str, Request] = {}
        self.now = 0.0
        self.in_flight: list[str] = []
        tiers = [Tier("gold", weight=4.0, reserve_ratio=0.05), Tier("default")]
        groups = [
            Group(f"group-{number:05}", weight=1.0 + number % 3, tier_id=tiers[number % 2].id)
            for number in range(ceil(tenants / per_group) if per_group else 0)
        ]
        self.scheduler = Scheduler(
            tenants=[
                Tenant(
                    f"tenant-{number:05}",
                    weight=1.0 + number % 4,
                    tier_id=tiers[number % 2].id,
                    group_id=groups[number % len(groups)].id if groups else None,
                )
                for number in range(tenants)
            ],
            tiers=tiers,
            groups=groups,
            admission=(),
            kv_rule=kv_rule,
            placement=LATE_PLACEMENT[placement](),
        )
        loads = [replace(load, backend_id=f"gpu-{number}") for number in range(backends)]
        self.scheduler.load_changed(loads, self.now)
        for number in range(tenants):
            for _ in range(queued):
                self.scheduler.submit(self.request(f"tenant-{number:05}"), self.now)
        while served := self.dispatched(self.scheduler.poll(self.now)):
            self.refill(served)

    def request(self, tenant_id: str) -> Request:
        self._number += 1
        request = Request(
            id=f"request-{self._number}",
            tenant_id=tenant_id,
            model="model",
            arrived_at=self.now,
            prompt_tokens=self._rng.randrange(20, 800),
            output_tokens_max=self._rng.randrange(100, 500),
            body_bytes=2_000,
            envelope=ENVELOPE if self._number % 2 else None,
        )
        self._requests[request.id] = request
        return request

    def dispatched(self, actions: list) -> list[Request]:
        ids = [action.request_id for action in actions if isinstance(action, Dispatch)]
        self.in_flight.extend(ids)
        return [self._requests[request_id] for request_id in ids]

    def refill(self, served: list[Request]) -> None:
        """Every tenant that was served sends its next request."""
        for request in served:
            self.scheduler.submit(self.request(request.tenant_id), self.now)

    def leave(self) -> Request:
        """A request in flight that is about to end."""
        place = self._rng.randrange(len(self.in_flight))
        self.in_flight[place], self.in_flight[-1] = self.in_flight[-1], self.in_flight[place]
        return self._requests.pop(self.in_flight.pop())


def timed(call: Callable[..., Any], *args: object) -> tuple[float, Any]:
    """Nanoseconds of CPU, and the answer."""
    began = process_time_ns()
    result = call(*args)
    return process_time_ns() - began, result


def nothing(*args: object) -> None:
    """What `timed` itself costs."""


def measure(tenants: int, decisions: int, load: BackendLoad, **pool_options: Any) -> dict[str, float]:
    """Median microseconds of CPU per call."""
    pool = BusyPool(tenants, load, **pool_options)
    scheduler = pool.scheduler
    costs: dict[str, list[float]] = {name: [] for name in ("submit", "poll", "idle poll", "tokens", "finished")}
    while len(costs["poll"]) < decisions:
        pool.now += STEP_S
        ending = pool.leave()
        cost, _ = timed(answer, scheduler, ending, pool.now)
        costs["tokens"].append(cost / TOKENS_PER_ANSWER)
        costs["finished"].append(timed(scheduler.finished, ending.id, Outcome.COMPLETED, pool.now)[0])
        cost, actions = timed(scheduler.poll, pool.now)
        served = pool.dispatched(actions)
        if len(served) == 1:
            costs["poll"].append(cost)
        is_idle = False
        while not is_idle:  # a poll may be cut short
            cost, actions = timed(scheduler.poll, pool.now)
            is_idle = not actions
            served += pool.dispatched(actions)
        costs["idle poll"].append(cost)
        for request in served:
            costs["submit"].append(timed(scheduler.submit, pool.request(request.tenant_id), pool.now)[0])
    assert len(pool.in_flight) == scheduler.snapshot(pool.now, ()).in_flight_requests, "all that was sent may end"
    clock = median(timed(nothing, 1, 2)[0] for _ in range(CLOCK_READS))
    costs_us = {name: (median(values) - clock) / 1e3 for name, values in costs.items() if name != "tokens"}
    return costs_us | {"tokens": (median(costs["tokens"]) - clock / TOKENS_PER_ANSWER) / 1e3}


def measure_bursts(
    tenants: int, bursts: int, size: int, load: BackendLoad, **pool_options: Any
) -> tuple[list[float], list[float]]:
    """Microseconds of CPU per dispatch and per poll of bursts in which at most `size` requests end at once."""
    pool = BusyPool(tenants, load, queued=max(QUEUED_PER_TENANT, ceil(2 * size / tenants)), **pool_options)
    scheduler = pool.scheduler
    gc.collect()
    gc.freeze()
    thresholds = gc.get_threshold()
    gc.set_threshold(*GC_THRESHOLDS)
    costs_by_dispatches: list[tuple[int, float]] = []
    per_poll: list[float] = []
    for _ in range(bursts):
        pool.now += BURST_S
        for _ in range(min(size, len(pool.in_flight))):
            ending = pool.leave()
            usage = Usage(ending.prompt_tokens, 0, TOKENS_PER_ANSWER)
            scheduler.finished(ending.id, Outcome.COMPLETED, pool.now, None, usage)
        dispatched: list[Request] = []
        is_more = True
        while is_more:
            cost, (actions, is_more) = timed(decide, scheduler, pool.now)
            served = pool.dispatched(actions)
            dispatched += served
            per_poll.append(cost / 1e3)
            if served:
                costs_by_dispatches.append((len(served), cost / 1e3 / len(served)))
        pool.refill(dispatched)
    gc.set_threshold(*thresholds)
    gc.unfreeze()
    dispatches_min = min(DISPATCHES_MIN, max(dispatches for dispatches, _ in costs_by_dispatches))
    return [cost for dispatches, cost in costs_by_dispatches if dispatches >= dispatches_min], per_poll


def decide(scheduler: Scheduler, now: float) -> tuple[list, bool]:
    """A poll, and whether there is more to decide: what the driver asks after each."""
    actions = scheduler.poll(now)
    wakeup_at = scheduler.next_wakeup()
    return actions, wakeup_at is not None and wakeup_at <= now


def spread(costs: list[float]) -> list[float]:
    """p50, p99 and maximum."""
    ranked = sorted(costs)
    return [ranked[int(part * (len(ranked) - 1))] for part in (0.5, 0.99, 1.0)]


def answer(scheduler: Scheduler, request: Request, now: float) -> None:
    for output in range(1, TOKENS_PER_ANSWER + 1):
        scheduler.tokens(request.id, Usage(request.prompt_tokens, 0, output), now)


def heap_floor(tenants: int, rounds: int) -> float:
    """Median microseconds to take the smallest of as many keys and put it back larger."""
    rng = Random(1)
    heap = [(rng.random(), f"tenant-{number:05}") for number in range(tenants)]
    heapify(heap)
    costs = []
    for _ in range(rounds):
        key, tenant_id = heap[0]
        costs.append(timed(heapreplace, heap, (key + rng.random(), tenant_id))[0])
    return (median(costs) - median(timed(nothing, 1, 2)[0] for _ in range(CLOCK_READS))) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tenants", type=int, nargs="+", default=[10, 1_000, 10_000])
    parser.add_argument("--decisions", type=int, default=2_000)
    parser.add_argument("--backends", type=int, nargs="+", default=[4, 64])
    parser.add_argument("--placement", choices=LATE_PLACEMENT, default="least-reserved")
    parser.add_argument("--kv-rule", choices=KV_RULES, default="sum")
    parser.add_argument("--full-of", choices=LOADS, nargs="+", default=[*LOADS], help="what the backends are full of")
    parser.add_argument("--per-group", type=int, default=0, help="tenants of one group; 0: there are no groups")
    parser.add_argument("--burst", type=int, default=0, help="requests that end at once; 0: one at a time")
    parser.add_argument("--bursts", type=int, default=20)
    options = parser.parse_args()
    rules = {"kv_rule": options.kv_rule, "placement": options.placement}
    for backends, name in product(options.backends, options.full_of):
        load = LOADS[name]
        pool = {"backends": backends, "per_group": options.per_group, **rules}
        if options.burst:
            print(
                f"us of CPU, {options.burst} at once, {backends} backends, {', '.join(rules.values())}, full of {name}"
            )
            heads = [f"{what} {column}" for what in ("dispatch", "poll") for column in BURST_COLUMNS]
            print("  ".join(f"{head:>12}" for head in ("tenants", *heads)))
            for tenants in options.tenants:
                costs = measure_bursts(tenants, options.bursts, options.burst, load, **pool)
                figures = [figure for each in costs for figure in spread(each)]
                print(f"{tenants:>12}  " + "  ".join(f"{figure:>12.1f}" for figure in figures), flush=True)
            continue
        print(f"us of CPU per call (median), {backends} backends, {', '.join(rules.values())}, full of {name}")
        print("  ".join(f"{column:>10}" for column in ("tenants", *COLUMNS, "heap floor")))
        for tenants in options.tenants:
            cost = measure(tenants, options.decisions, load, **pool) | {
                "heap floor": heap_floor(tenants, options.decisions)
            }
            print(f"{tenants:>10}  " + "  ".join(f"{cost[column]:>10.2f}" for column in (*COLUMNS, "heap floor")))
            gc.collect()


if __name__ == "__main__":
    main()
