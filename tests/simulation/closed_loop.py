"""Clients that each send again when they are answered, before engines whose size nothing tells, and a quiet tenant
beside them: what waits inside the engines, and what the gateway takes for their size.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from random import Random

from backends.engine.coefficients import COEFFICIENTS
from backends.engine.engine import Engine
from backends.simulation.requests import Arrival
from backends.simulation.world import KnownSteps, SimulatedCall, World
from policies.scheduler import Scheduler
from policies.types import Reason, Tenant, Tier
from tests.simulation.arrivals import even

KV_TOKENS = 8 << 20  # so many that nothing waits for memory
CLIENTS = 8  # of the flood, for each seat
SCRAPED_S = 0.25  # PollTimes.busy_s
SETTLED_S = 2.0  # until then a window grows
QUIET_PER_S = 2.0
FLOOD, QUIET = "flood", "quiet"

Tokens = Callable[[Random], int]


@dataclass(frozen=True)
class Mix:
    """The flood's prompts and answers, in tokens."""

    prompt: Tokens = lambda rng: rng.randint(50, 200)
    output: Tokens = lambda rng: rng.randint(50, 250)


SHORT = Mix()
LONG = Mix(prompt=lambda rng: 8000 if rng.random() < 0.05 else rng.randint(50, 200))  # one in twenty takes four steps


@dataclass
class Inside:
    """One engine: the requests that waited inside it, and for how long at most the limit was below its seats."""

    seats: int
    waited_s: float = 0.0  # requests times seconds, after SETTLED_S
    most: int = 0
    under_s: float = 0.0
    full_at: float | None = None  # when all its seats were taken first, but for one in fifty
    waiting: int = 0
    under_since: float | None = None


class ClosedLoop(World):
    """The flood and the quiet tenant for some seconds; the rest is left undone."""

    def __init__(
        self,
        engines: Mapping[str, Engine],
        *,
        seconds: float = 40.0,
        mix: Mix = SHORT,
        given: int | None = None,
        steps: KnownSteps | None = None,
        phase: float = 0.0,
        is_streamed: bool = True,
        seed: int = 0,
        tiers: Sequence[Tier] = (Tier("default"),),
    ) -> None:
        """`given`: the seats that are configured. The first scrape comes after `phase` of the time between two."""
        tenants = [Tenant(FLOOD, tier_id=tiers[0].id), Tenant(QUIET, tier_id=tiers[-1].id)]
        self._pool = Scheduler(tenants=tenants, tiers=tiers, admission=(), wait_s_max=1e6)
        super().__init__(
            self._pool, engines, requests_running_max=given, metrics_every_s=SCRAPED_S, steps=steps or KnownSteps()
        )
        self._seconds, self._mix, self._phase_s, self._is_streamed = seconds, mix, phase * SCRAPED_S, is_streamed
        self._rng = Random(seed)
        self._looked_at = 0.0
        self.inside = {name: Inside(each._slots.requests_running_max) for name, each in engines.items()}
        self.ttft_s: list[float] = []
        """Of the quiet tenant."""

    def play(self) -> "ClosedLoop":
        for record in self.run(self._arrivals_of()):
            if record.tenant_id == QUIET and record.first_token_latency_s is not None:
                self.ttft_s.append(record.first_token_latency_s)
            if self.now >= self._seconds:
                break
        return self

    @property
    def tokens(self) -> int:
        totals = [slot.engine.snapshot() for slot in self._slots.values()]
        return sum(each.emitted_tokens_total + each.prompt_tokens_total for each in totals)

    def waiting_mean(self, name: str) -> float:
        return self.inside[name].waited_s / (self._seconds - SETTLED_S)

    def limit(self, name: str) -> int:
        return self._pool.snapshot(self.now).backends[name].requests_limit

    def _arrivals_of(self) -> Iterator[Arrival]:
        clients = CLIENTS * sum(each.seats for each in self.inside.values())
        first = [self._next(0.0) for _ in range(clients)]
        quiet = even(QUIET, QUIET_PER_S, duration_s=self._seconds, prompt_tokens=100, output_tokens=16, rng=self._rng)
        return merge(first, quiet, key=lambda arrival: arrival.at_s)

    def _next(self, at_s: float) -> Arrival:
        output = self._mix.output(self._rng)
        return Arrival(FLOOD, at_s, self._mix.prompt(self._rng), output, output)

    def _end(self, call: SimulatedCall, *, total_latency_s: float | None, rejected: Reason | None = None) -> None:
        super()._end(call, total_latency_s=total_latency_s, rejected=rejected)
        if call.arrival.tenant_id == FLOOD and self.now < self._seconds:
            self._at(self.now, lambda now: self._submit(self._next(now), now))

    def _report_tokens(self, call: SimulatedCall, now: float) -> None:
        if self._is_streamed or call.emitted == call.arrival.output_tokens:
            super()._report_tokens(call, now)

    def _measure(self, now: float) -> None:
        super()._measure(now)
        if not now and self._phase_s:  # the next one is early
            self._at(self._phase_s, super()._measure)

    def _begin_steps(self, now: float) -> None:
        super()._begin_steps(now)
        until = min(now, self._seconds)
        for name, each in self.inside.items():
            each.waited_s += each.waiting * max(0.0, until - max(self._looked_at, SETTLED_S))
            slots = self._slots[name].engine._slots
            each.waiting = len(slots.waiting)
            each.most = max(each.most, each.waiting)
            if each.full_at is None and len(slots.running) >= 0.98 * each.seats:
                each.full_at = now
            if self._pool._fleet.backends[name].sequences_limit >= each.seats:
                each.under_since = None
            else:
                each.under_since = now if each.under_since is None else each.under_since
                each.under_s = max(each.under_s, now - each.under_since)
        self._looked_at = until


def engine(seats: int) -> Engine:
    return Engine(COEFFICIENTS["a800-llama3.1-8b"], kv_tokens_max=KV_TOKENS, requests_running_max=seats)


def percentile(seconds: Sequence[float], part: float) -> float:
    return sorted(seconds)[int(part * (len(seconds) - 1))]
