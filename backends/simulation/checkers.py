"""Judges of a run: the rules that hold for every workload, and one call each.

They watch what a Recorder tells and raise ViolationError at the entry that breaks the rule. None of them shares
code with the Scheduler: `ServiceBound` and `InFlightLimits` trust only the books, `WorkConservation` also
reads the Scheduler's own view of its backends.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from math import ceil

from backends.simulation.books import Books, TenantBooks, require
from backends.simulation.recording import Entry, Listener, Polled, Progressed, SchedulerLike, TenantsChanged
from policies.cost import LinearPrice
from policies.types import BackendView, Dispatch, Request

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


class WorkConservation:
    """After a poll the head that was chosen could not be placed anywhere.

    The judge does not know whom the policy chose, so it asks that not every head that might have been chosen
    would surely fit: with its whole output allowance, beside what the other tiers' reserves keep free. And
    no backend idles while somebody may go. Judged at most every `every_s` seconds of the run: a snapshot costs
    time in proportion to the number of tenants.
    """

    def __init__(self, books: Books, scheduler: SchedulerLike, *, every_s: float = 0.0) -> None:
        self._books = books
        self._scheduler = scheduler
        self._every_s = every_s
        self._judged_at = float("-inf")

    def __call__(self, entry: Entry) -> None:
        if not isinstance(entry, Polled) or entry.now - self._judged_at < self._every_s:
            return
        self._judged_at = entry.now
        heads = [head for books in self._books.tenants.values() if (head := _eligible_head(books)) is not None]
        if not heads:
            return
        backends = [
            (backend_id, view)
            for backend_id, view in self._scheduler.snapshot(entry.now).backends.items()
            if self._open(backend_id, entry.now)
        ]
        idle = [backend_id for backend_id, _ in backends if not self._books.requests_at[backend_id]]
        require(not idle, f"{idle} idle while {heads[0].id} waits")
        stuck = any(not self._surely_fits(head, *backend) for head in heads for backend in backends)
        require(stuck or not backends, f"{heads[0].id} waits although it fits, at {entry.now}")

    def _open(self, backend_id: str, now: float) -> bool:
        load = self._books.loads.get(backend_id)
        return load is not None and load.available and now >= self._books.held_until.get(backend_id, 0.0)

    def _surely_fits(self, head: Request, backend_id: str, backend: BackendView) -> bool:
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
    """Two tenants of a tier that are backlogged over an interval get service that differs by 2U there at most.

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
        every_s: float = 0.0,
    ) -> None:
        self._books = books
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
        """2U for tenants of weight 1, in service, from what was seen so far."""
        tokens = self._in_flight_tokens_max if self._tokens_max is None else self._tokens_max
        return 2 * max(self._price.prompt * self._prompt_tokens_max, self._price.output * tokens)

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


def _eligible_head(books: TenantBooks) -> Request | None:
    """The request the tenant would send next, unless its own limit keeps it back."""
    limit = books.tenant.in_flight_max
    if not books.queued or (limit is not None and len(books.in_flight) >= limit):
        return None
    return next(iter(books.queued.values()))
