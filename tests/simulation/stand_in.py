"""A backend that says nothing of itself, and clients in a closed loop before it, under a virtual clock.

The Scheduler is the real one; the backend is arithmetic: how many tokens a second one answer gets beside n others, or
so many seats and a line before them. What it can do may change while it runs.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import inf
from random import Random

from policies.prediction import Oracle
from policies.scheduler import Scheduler
from policies.types import BackendLoad, Dispatch, Outcome, Request, Tenant, Usage

TICK_S = 0.25  # at which a backend that changes is looked at anew
REPORTS_EVERY_S = 1.0


@dataclass(frozen=True)
class Kind:
    """What a client asks for. A token of it takes `work` times as long as others, one of its prompt `prefill` times."""

    output: tuple[int, int] = (100, 100)
    prompt: tuple[int, int] = (100, 100)
    streamed: bool = True
    work: float = 1.0
    prefill: float = 0.0


@dataclass(frozen=True)
class Clients:
    """So many of one tenant, each with one call at a time, from one time to another."""

    number: int
    kinds: Sequence[Kind] = (Kind(),)
    tenant_id: str = "A"
    from_s: float = 0.0
    until_s: float = inf


@dataclass(slots=True)
class _Call:
    request: Request
    clients: Clients
    work: float
    streamed: bool
    ends_at_work: float = 0.0
    began_at: float = 0.0


@dataclass(slots=True)
class Done:
    """An answer: when it ended, of how many tokens, for which tenant, and for how long the backend had it."""

    at_s: float
    tokens: int
    tenant_id: str
    duration_s: float


@dataclass
class Backend:
    """`token_s(n, now)` is the time of one token where n answers are computed; at most `slots(now)` are at once, and
    others wait in the order in which they came.
    """

    token_s: Callable[[int, float], float]
    slots: Callable[[float], float] = lambda _now: inf


def affine(base_s: float, each_s: float, slow: Callable[[float], float] = lambda _now: 1.0) -> Backend:
    return Backend(lambda n, now: slow(now) * (base_s + each_s * n))


def in_slot(slots: float, token_s: float, slow: Callable[[float], float] = lambda _now: 1.0) -> Backend:
    return Backend(lambda _n, now: slow(now) * token_s, lambda _now: slots)


@dataclass
class Play:
    """One run: the answers in order of their end."""

    backend: Backend
    clients: Iterable[Clients]
    load: BackendLoad = field(default_factory=lambda: BackendLoad("gpu"))
    tenants: Sequence[Tenant] = (Tenant("A"), Tenant("B"))
    seed: int = 1
    noise: float = 0.0
    """Of what an answer takes: its standard deviation as a part of it."""
    options: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.options = {"share_ratio_max": 1.0, "prediction": Oracle()} | self.options
        self.scheduler = Scheduler(tenants=self.tenants, **self.options)
        self.done: list[Done] = []
        self.in_flight: dict[str, _Call] = {}
        self.in_flight_at: list[tuple[float, int]] = []
        self._waiting: dict[str, _Call] = {}
        self._inside: list[tuple[float, str]] = []  # what is computed, by the work at which it ends
        self._line: list[str] = []
        self._work = self._now = self._computed = 0.0
        self._computed_at = [(0.0, 0.0)]
        self._services_at: list[tuple[float, dict[str, float]]] = []
        self._happenings: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._rng = Random(self.seed)
        self._poll_due = False

    def run(self, until_s: float) -> "Play":
        for clients in self.clients:
            for _ in range(clients.number):
                self._at(clients.from_s, lambda clients=clients: self._ask(clients))
        for tick in range(int(until_s / TICK_S)):
            self._at(tick * TICK_S, lambda: self._computed_at.append((self._now, self._computed)))
        self._report()
        while self._now < until_s:
            self._step(until_s)
        return self

    def throughput(self, from_s: float, until_s: float) -> float:
        """Of what was computed then, per second: a part of an answer counts as such."""
        then = [each for each in self._computed_at if from_s <= each[0] <= until_s]
        return (then[-1][1] - then[0][1]) / (then[-1][0] - then[0][0])

    def service(self, tenant_id: str, from_s: float, until_s: float) -> float:
        """What the tenant was charged then."""
        then = [services[tenant_id] for at_s, services in self._services_at if from_s <= at_s <= until_s]
        return then[-1] - then[0]

    def durations_s(self, from_s: float, until_s: float) -> list[float]:
        return [done.duration_s for done in self.done if from_s <= done.at_s < until_s]

    def limit(self) -> float:
        return self.scheduler._fleet.backends["gpu"].usable[0]

    def _at(self, at_s: float, happening: Callable[[], None]) -> None:
        heappush(self._happenings, (at_s, next(self._numbers), happening))

    def _step(self, until_s: float) -> None:
        n = len(self._inside)
        token_s = self.backend.token_s(max(1, n), self._now)
        ends_at = self._now + (self._inside[0][0] - self._work) * token_s if n else inf
        wakeup = self.scheduler.next_wakeup()
        at = min(self._happenings[0][0] if self._happenings else inf, ends_at, until_s, wakeup or inf)
        at = max(at, self._now)
        self._work += (at - self._now) / token_s
        self._computed += n * (at - self._now) / token_s
        self._now = at
        if at == ends_at:
            self._work = self._inside[0][0]
            while self._inside and self._inside[0][0] <= self._work + 1e-12:
                self._end(heappop(self._inside)[1])
        while self._happenings and self._happenings[0][0] <= at:
            heappop(self._happenings)[2]()
        if self._poll_due or wakeup == at:
            self._decide()
        self._fill()

    def _ask(self, clients: Clients) -> None:
        if not clients.from_s <= self._now < clients.until_s:
            return
        kind = self._rng.choice(clients.kinds)
        output, prompt = self._rng.randint(*kind.output), self._rng.randint(*kind.prompt)
        request = Request(
            f"r{next(self._numbers)}", clients.tenant_id, "m", self._now, prompt, output, output_tokens_known=output
        )
        noisy = max(0.1, self._rng.gauss(1.0, self.noise)) if self.noise else 1.0
        work = (output * kind.work + prompt * kind.prefill) * noisy
        self._waiting[request.id] = _Call(request, clients, work, kind.streamed)
        self.scheduler.submit(request, self._now)
        self._poll_due = True

    def _decide(self) -> None:
        self._poll_due = False
        for action in self.scheduler.poll(self._now):
            call = self._waiting.pop(action.request_id)
            assert isinstance(action, Dispatch), action
            call.began_at = self._now
            self.in_flight[action.request_id] = call
            self._line.append(action.request_id)

    def _fill(self) -> None:
        while self._line and len(self._inside) < self.backend.slots(self._now):
            call = self.in_flight[self._line.pop(0)]
            call.ends_at_work = self._work + call.work
            heappush(self._inside, (call.ends_at_work, call.request.id))
            if call.streamed:  # its first token is there soon
                token_s = self.backend.token_s(len(self._inside), self._now)
                self._at(self._now + token_s, lambda call=call: self._told(call, 1))

    def _told(self, call: _Call, tokens: int) -> None:
        if call.request.id in self.in_flight:
            self.scheduler.tokens(call.request.id, Usage(call.request.prompt_tokens, 0, tokens), self._now)

    def _end(self, request_id: str) -> None:
        call = self.in_flight.pop(request_id)
        tokens = call.request.output_tokens_max
        usage = Usage(call.request.prompt_tokens, 0, tokens)
        self.scheduler.finished(request_id, Outcome.COMPLETED, self._now, None, usage)
        self.done.append(Done(self._now, tokens, call.request.tenant_id, self._now - call.began_at))
        self._poll_due = True
        self._ask(call.clients)

    def _report(self) -> None:
        self.in_flight_at.append((self._now, len(self.in_flight)))
        tenants = self.scheduler.snapshot(self._now).tenants
        self._services_at.append((self._now, {tenant_id: view.service for tenant_id, view in tenants.items()}))
        self.scheduler.load_changed([self.load], self._now)
        self._at(self._now + REPORTS_EVERY_S, self._report)
        self._poll_due = True
