"""Judges of a run: the rules that hold for every workload, and one call each.

They watch what a Recorder tells and raise ViolationError at the entry that breaks the rule. None of them shares
code with the Scheduler: `ServiceBound` and `InFlightLimits` trust only the books, `WorkConservation` also
reads the Scheduler's own view of its backends.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from math import ceil
from typing import Protocol

from backends.simulation.books import Books, TenantBooks, require
from backends.simulation.recording import Entry, Listener, Polled, Progressed, TenantsChanged
from policies.cost import LinearPrice
from policies.types import BackendView, Dispatch, Request, Snapshot

LINEAR = LinearPrice()


class Watch:
    """Books and judges over one Scheduler: give it to a Recorder as its listener."""

    def __init__(self, books: Books, judges: Iterable[Listener] = ()) -> None:
        self.books = books
        self._listeners: list[Listener] = [books, *judges]

    def __call__(self, entry: Entry) -> None:
        for listener in self._listeners:
            listener(entry)


class InFlightLimits:
    """No tenant has more in flight than its limit, no backend more sequences than it runs at once.

    An idle backend always takes one request, however many sequences that is. Limits that are lowered bind
    what comes after: they are judged when something is dispatched.
    """

    def __init__(self, books: Books) -> None:
        self._books = books

    def __call__(self, entry: Entry) -> None:
        if not isinstance(entry, Polled):
            return
        for action in entry.actions:
            if isinstance(action, Dispatch):
                self._judge_backend(action.backend_id)
                self._judge_tenant(self._books.requests[action.request_id].request.tenant_id)

    def _judge_backend(self, backend_id: str) -> None:
        limit = self._books.loads[backend_id].requests_running_max
        within = limit is None or self._books.sequences_at[backend_id] <= limit
        alone = self._books.requests_at[backend_id] == 1
        require(within or alone, f"{backend_id} runs {limit} sequences at most")

    def _judge_tenant(self, tenant_id: str) -> None:
        books = self._books.tenants[tenant_id]
        limit = books.tenant.in_flight_max
        require(limit is None or len(books.in_flight) <= limit, f"{tenant_id} has {limit} in flight at most")


class SchedulerView(Protocol):
    """What the Scheduler says of itself."""

    def snapshot(self, now: float) -> Snapshot: ...
    def waits_for(self, request_id: str) -> str | None: ...


class WorkConservation:
    """After a poll the request that was chosen could not be placed anywhere.

    The judge does not know whom the policy chose, so it asks that not every request that might have been chosen
    would surely fit: with its whole output allowance, beside what the other tiers' reserves keep free. And
    no backend idles while somebody may go there. With a queue per backend both are asked of each. Judged at most every
    `every_s` seconds of the run: a snapshot costs time in proportion to the number of tenants.
    """

    def __init__(
        self, books: Books, scheduler: SchedulerView, *, every_s: float = 0.0, oldest_first: bool = True
    ) -> None:
        """`oldest_first` says that of a tenant only its oldest request may be chosen."""
        self._books = books
        self._scheduler = scheduler
        self._every_s = every_s
        self._oldest_first = oldest_first
        self._judged_at = float("-inf")

    def __call__(self, entry: Entry) -> None:
        if not isinstance(entry, Polled) or entry.now - self._judged_at < self._every_s:
            return
        self._judged_at = entry.now
        queues = self._queues()
        if not queues:
            return
        backends = [
            (backend_id, view)
            for backend_id, view in self._scheduler.snapshot(entry.now).backends.items()
            if self._open(backend_id, entry.now)
        ]
        for waited_for, tenants in queues.items():
            reachable = [each for each in backends if waited_for in (None, each[0])]
            self._judge(list(tenants.values()), reachable, entry.now)

    def _queues(self) -> dict[str | None, dict[str, list[Request]]]:
        """What may be chosen next, by the backend that it waits for (None: any) and tenant."""
        queues: dict[str | None, dict[str, list[Request]]] = {}
        for tenant_id, books in self._books.tenants.items():
            for request in books.queued.values() if _may_send(books) else ():
                waited_for = self._scheduler.waits_for(request.id)
                mine = queues.setdefault(waited_for, {}).setdefault(tenant_id, [])
                if not mine or not self._oldest_first:
                    mine.append(request)
                if waited_for is None and self._oldest_first:
                    break
        return queues

    def _judge(self, tenants: list[list[Request]], backends: list[tuple[str, BackendView]], now: float) -> None:
        for backend_id, _ in backends:
            if not self._books.requests_at[backend_id]:
                may_go = [mine[0].id for mine in tenants if all(_will_do(request, backend_id) for request in mine)]
                require(not may_go, f"{backend_id} idle while {may_go} wait")
        requests = [request for mine in tenants for request in mine]
        stuck = any(not self._surely_fits(request, *backend) for request in requests for backend in backends)
        require(stuck or not backends, f"{requests[0].id} waits although it fits, at {now}")

    def _open(self, backend_id: str, now: float) -> bool:
        load = self._books.loads.get(backend_id)
        return load is not None and load.available and now >= self._books.held_until.get(backend_id, 0.0)

    def _surely_fits(self, head: Request, backend_id: str, backend: BackendView) -> bool:
        if not _will_do(head, backend_id):
            return False
        tier_id = self._books.tenants[head.tenant_id].tenant.tier_id
        others = [tier.reserve_ratio for tier in self._books.tiers.values() if tier.id != tier_id]
        kept = sum(ceil(ratio * backend.requests_limit) for ratio in others)
        sequences = self._books.sequences_at[backend_id] + backend.foreign_requests + kept + head.choices
        if sequences > backend.requests_limit:
            return False
        if backend.tokens_limit is None:
            return True
        rounding = self._books.loads[backend_id].kv_block_tokens * head.choices + 1
        needed = head.prompt_tokens + head.output_tokens_max + rounding
        held = backend.reserved_tokens + backend.foreign_tokens + sum(others) * backend.tokens_limit
        return held + needed <= backend.tokens_limit


@dataclass(slots=True)
class _Span:
    """How far one tenant's weighted service was ahead of another's since both were backlogged."""

    low: float
    high: float


class ServiceBound:
    """Two tenants of a tier that are backlogged over an interval get service that differs by 2 (U + Q) there at most.

    U = max(w_p L_in, w_q F): the price of the longest prompt, or of as many output tokens as the requests in
    flight can hold at once (`in_flight_tokens_max`, F; by default the prompts and output limits of those seen in
    flight together). Service is divided by weight, the bound by the smaller one (VTC, Theorem 4.4 and section 4.3, with
    the engine's batch replaced by what the gateway has in flight). Tenants with a limit in flight are left out:
    what they cannot use is no service they are owed. Judged at most every `every_s` seconds of the run.
    """

    def __init__(
        self,
        books: Books,
        *,
        price: LinearPrice = LINEAR,
        in_flight_tokens_max: float | None = None,
        ahead_service: float = 0.0,
        every_s: float = 0.0,
    ) -> None:
        """`ahead_service` is what the policy's own parameter lets a tenant get ahead: a slack Q, a quantum K."""
        self._books = books
        self._ahead_service = ahead_service
        self._price = price
        self._tokens_max = in_flight_tokens_max
        self._every_s = every_s
        self._judged_at = float("-inf")
        self._prompt_tokens_max = 0
        self._in_flight_tokens_max = 0
        self._spans: dict[tuple[str, str], _Span] = {}
        self.spread_max = 0.0
        """The largest difference seen within one interval, in service over weight."""

    @property
    def bound(self) -> float:
        """2 (U + Q) for tenants of weight 1, in service, from what was seen so far."""
        tokens = self._in_flight_tokens_max if self._tokens_max is None else self._tokens_max
        u = max(self._price.prompt * self._prompt_tokens_max, self._price.output * tokens)
        return 2 * (u + self._ahead_service)

    def __call__(self, entry: Entry) -> None:
        if isinstance(entry, TenantsChanged):
            self._spans.clear()  # the theorem speaks of intervals of constant configuration
        elif isinstance(entry, Polled):
            self._note_sizes()
            if entry.now - self._judged_at >= self._every_s:
                self._judged_at = entry.now
                self._judge()
        elif not isinstance(entry, Progressed):
            self._forget_those_who_left()

    def _judge(self) -> None:
        self._forget_those_who_left()
        backlogged = [books for books in self._books.tenants.values() if _backlogged(books)]
        for one, other in combinations(backlogged, 2):
            if one.tenant.tier_id == other.tenant.tier_id:
                self._judge_pair(one, other)

    def _judge_pair(self, one: TenantBooks, other: TenantBooks) -> None:
        ahead = one.service / one.tenant.weight - other.service / other.tenant.weight
        span = self._spans.setdefault((one.tenant.id, other.tenant.id), _Span(ahead, ahead))
        span.low, span.high = min(span.low, ahead), max(span.high, ahead)
        spread = span.high - span.low
        self.spread_max = max(self.spread_max, spread)
        bound = self.bound / min(one.tenant.weight, other.tenant.weight)
        require(spread <= bound, f"{one.tenant.id} and {other.tenant.id} differ by {spread:.1f}, bound {bound:.1f}")

    def _forget_those_who_left(self) -> None:
        if self._spans:
            waiting = {tenant_id for tenant_id, books in self._books.tenants.items() if _backlogged(books)}
            self._spans = {pair: span for pair, span in self._spans.items() if waiting.issuperset(pair)}

    def _note_sizes(self) -> None:
        running = [books.request for books in self._books.requests.values() if books.backend_id is not None]
        longest = max((request.prompt_tokens for request in running), default=0)
        self._prompt_tokens_max = max(self._prompt_tokens_max, longest)
        tokens = sum(request.prompt_tokens + request.output_tokens_max for request in running)
        self._in_flight_tokens_max = max(self._in_flight_tokens_max, tokens)


def _backlogged(books: TenantBooks) -> bool:
    return bool(books.queued) and books.tenant.in_flight_max is None


def _may_send(books: TenantBooks) -> bool:
    """Whether the tenant's own limit does not keep back what it has queued."""
    limit = books.tenant.in_flight_max
    return limit is None or len(books.in_flight) < limit


def _will_do(request: Request, backend_id: str) -> bool:
    return request.backend_ids is None or backend_id in request.backend_ids
