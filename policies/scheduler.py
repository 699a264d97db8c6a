"""The scheduler of one pool: a state machine that is told facts and asked for decisions.

    facts      submit, tokens, finished, returned, cancel, spent, load_changed, tenants_changed  (each with `now`)
    decisions  poll(now) -> [Dispatch | Reject]
    time       next_wakeup() -> when poll has something to do although no fact arrived
    view       snapshot(now)

It never waits, reads a clock, calls back or logs, so the asyncio dispatcher, a simulation under a virtual
clock and a replay of recorded facts all run this very object and get the same actions for the same facts.

What is decided, in this order of precedence: limits make a tenant eligible; tiers compete by weighted VTC;
inside the tier the pool's fairness picks the tenant; the head of its queue goes where placement says. If it fits
nowhere the tier stops there: passing over the request for a smaller one would break the bound of VTC. Other
tiers may then still enter their own reserve, and nothing else.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from policies.admission import Admission, BoundedQueues, Gate, RateLimiter
from policies.capacity import KV_HEADROOM_RATIO, BackendCapacity
from policies.cost import LinearPrice, Price
from policies.fairness import Fairness, VirtualTokenCounter
from policies.fairness.tiers import TieredFairness
from policies.fleet import Fleet
from policies.ledger import Charge, InFlight, Ledger
from policies.placement import LeastReserved, Placement
from policies.prediction import Prediction, TenantQuantile
from policies.queues import Queues
from policies.share import SHARE_RATIO_MAX, ShareCap
from policies.types import (
    DEFAULT_TIER,
    Action,
    BackendLoad,
    Dispatch,
    Outcome,
    RateLimits,
    Reason,
    Reject,
    Request,
    Snapshot,
    Tenant,
    TenantView,
    Tier,
    Usage,
)

WAIT_S_MAX = 300.0


@dataclass(slots=True)
class _TenantState:
    tenant: Tenant
    head_id: str | None = None  # the request it competes with for the next dispatch
    removed: bool = False  # goes when its last request has ended


@dataclass(slots=True)
class _Round:
    """The dispatching of one poll."""

    now: float
    candidates: list[BackendCapacity]
    actions: list[Action]
    blocked: set[str] = field(default_factory=set)  # tiers whose next fits nowhere, and those that it leaves no room


class Scheduler:
    """Decides who is served next, and where. One instance per pool."""

    def __init__(
        self,
        *,
        tenants: Iterable[Tenant] = (),
        tiers: Iterable[Tier] = (DEFAULT_TIER,),
        fairness: Callable[[], Fairness] = VirtualTokenCounter,
        price: Price | None = None,
        prediction: Prediction | None = None,
        sizing: Prediction | None = None,
        placement: Placement | None = None,
        admission: Sequence[Admission] | None = None,
        share_ratio_max: float = SHARE_RATIO_MAX,
        headroom_ratio_max: float = KV_HEADROOM_RATIO,
        kv_rule: str = "sum",
        wait_s_max: float = WAIT_S_MAX,
    ) -> None:
        """`prediction` orders tenants, `sizing` reserves room; by default the same predictor does both."""
        self._order = TieredFairness(fairness, tiers)
        self._polled_at = float("-inf")
        self._prediction = prediction or TenantQuantile()
        self._sizing = sizing or self._prediction
        self._predictors = (self._prediction,) if sizing in (None, prediction) else (self._prediction, self._sizing)
        self._share = ShareCap(share_ratio_max, self._order.tier)
        self._wait_s_max = wait_s_max
        self._tenants = {tenant.id: _TenantState(tenant) for tenant in tenants}
        self._queues = Queues()
        self._ledger = Ledger(price or LinearPrice())
        rules = (BoundedQueues(), RateLimiter(self._sizing.predict)) if admission is None else admission
        self._gate = Gate(rules, self._queues)
        self._fleet = Fleet(placement or LeastReserved(), headroom_ratio_max, kv_rule)
        self._set_reserves()
        self._refused: list[Action] = []  # by submit, until the next poll reports them
        self._unsettled: dict[str, InFlight] = {}  # with tokens that no account has seen yet
        self._prepaid: dict[str, None] = {}  # ids of requests that came back, oldest first

    # -- facts ---------------------------------------------------------------------------------------------

    def submit(self, request: Request, now: float) -> None:
        """A request arrived. Its id must not be queued or in flight here; the next poll may refuse it."""
        assert request.id not in self._queues, "an id is in use once"
        assert request.id not in self._ledger.in_flight, "an id is in use once"
        if (refusal := self._refusal(request, now)) is not None:
            self._refused.append(refusal)
            return
        self._queues.append(request, request.arrived_at + self._wait_s_max)
        self._refresh(self._tenants[request.tenant_id])

    def tokens(self, request_id: str, usage: Usage, now: float) -> None:
        """A dispatched request has used this much so far. Facts about a request that ended are ignored."""
        entry = self._ledger.in_flight.get(request_id)
        if entry is None:
            return
        before, entry.usage, entry.reservation.produced_tokens = entry.usage, usage, usage[2]
        if usage[2] <= entry.expected_output and usage[0] == before[0] and usage[1] == before[1]:
            # Within its prediction a token moves service from outstanding to counter, and no key: for the books
            # it is enough to know of the last one before somebody reads them.
            self._unsettled[request_id] = entry
        else:
            self._settle(entry)
            self._resize(entry)

    def finished(self, request_id: str, outcome: Outcome, now: float) -> None:
        """A dispatched request ended. What it was charged stays; a failure before the first token is free."""
        entry = self._ledger.in_flight.get(request_id)
        if entry is None:
            return
        if request_id in self._unsettled:
            self._settle(entry)
        request, output = entry.request, entry.usage.output_tokens
        is_served = outcome is not Outcome.BACKEND_FAILED or output > 0
        if not is_served:
            self._charge(request.tenant_id, self._ledger.forgiven(entry))
        self._gate.settled(request_id, is_served * (entry.usage.prompt_tokens + output), now)
        # An answer that was cut short says only that the whole would have been longer.
        if output and (outcome is Outcome.COMPLETED or output > entry.sized_output):
            for predictor in self._predictors:
                predictor.observed(request, output)
        self._charge(request.tenant_id, self._ledger.closed(entry))
        self._fleet.release(entry)
        self._refresh(self._tenants[request.tenant_id])

    def returned(self, request_id: str, now: float, hold_s: float = 0.0) -> None:
        """The backend did not take a dispatched request: it waits again at its tenant's head, prepaid, and
        keeps the deadline it had. The backend is sent nothing for `hold_s` seconds.
        """
        entry = self._ledger.in_flight.get(request_id)
        if entry is None:
            return
        self._settle(entry)
        self._ledger.returned(entry)
        self._fleet.release(entry)
        self._fleet.hold(entry.backend_id, now + hold_s)
        self._prepaid[request_id] = None
        self._queues.prepend(entry.request, entry.request.arrived_at + self._wait_s_max)
        self._refresh(self._tenants[entry.request.tenant_id])

    def cancel(self, request_id: str, now: float) -> None:
        """The client of a queued request is gone. Unknown ids are ignored."""
        request = self._queues.remove(request_id)
        if request is not None:
            self._left(request, now)

    def spent(self, tenant_id: str, usage: Usage, now: float) -> None:
        """The tenant used this much by a call that was never queued. Tenants that are not here are ignored."""
        state = self._tenants.get(tenant_id)
        if state is not None and not state.removed:
            self._charge(tenant_id, self._ledger.spent(tenant_id, usage))
            self._gate.spent(state.tenant, usage.prompt_tokens + usage.output_tokens, now)

    def load_changed(self, loads: Sequence[BackendLoad], now: float) -> None:
        """The whole live set, newly measured. A backend that is missing gets nothing more; what it runs goes on."""
        self._fleet.measured(loads, self._ledger.in_flight.values())

    def tenants_changed(
        self,
        *,
        changed: Iterable[Tenant] = (),
        removed: Iterable[str] = (),
        tiers: Iterable[Tier] = (),
        now: float,
    ) -> None:
        """Tenants and tiers that are new or different, and tenants that are gone (their queue is refused at the
        next poll). Counters stay as they are when weights, limits or the tier change.
        """
        changed, tiers = list(changed), list(tiers)
        reweighed = list(self._tenants) if tiers else [each.id for each in changed if each.id in self._tenants]
        # What is outstanding stands in the accounts over the old weights: take it out, put it back over the new.
        self._settle_all()
        outstanding = self._ledger.outstanding_by_tenant() if reweighed else {}
        expected = {tenant_id: outstanding.get(tenant_id, 0.0) for tenant_id in reweighed}
        for tenant_id, service in expected.items():
            self._charge(tenant_id, Charge(0.0, -service))
        self._order.set_tiers(tiers)
        self._set_reserves()
        for tenant in changed:
            self._change(tenant)
        for tenant_id, service in expected.items():
            self._charge(tenant_id, Charge(0.0, service))
        for tenant_id in removed:
            self._remove(tenant_id, now)

    # -- decisions -----------------------------------------------------------------------------------------

    def poll(self, now: float) -> list[Action]:
        """All that can be decided now, in the order in which it was decided."""
        actions, self._refused = self._refused, []
        if self._order.reads_counters:
            self._settle_all()
        while (request := self._queues.pop_expired(now)) is not None:
            self._left(request, now)
            reason = Reason.QUEUE_TIMEOUT if self._fleet.any_available() else Reason.NO_BACKEND
            actions.append(self._gate.reject(request, reason, now))
        if self._queues:
            self._dispatch_all(now, actions)
        assert self._fleet.requests() == len(self._ledger.in_flight), "every seat belongs to a request"
        return actions

    def next_wakeup(self) -> float | None:
        """When to poll although no fact arrived: a deadline in the queue, or a held backend that opens."""
        if not self._queues:
            return None
        times = (self._queues.next_deadline(), self._fleet.next_opening(self._polled_at))
        return min((at for at in times if at is not None), default=None)

    # -- view ----------------------------------------------------------------------------------------------

    def snapshot(self, now: float) -> Snapshot:
        """State for people and metrics; costs time in proportion to the number of tenants."""
        self._settle_all()
        return Snapshot(
            now=now,
            queued_requests=len(self._queues),
            queued_bytes=self._queues.body_bytes,
            in_flight_requests=len(self._ledger.in_flight),
            tenants={tenant_id: self._view(state) for tenant_id, state in self._tenants.items()},
            backends=self._fleet.views(),
        )

    def rate_limits(self, tenant_id: str, now: float) -> RateLimits:
        """The tenant's limits per minute as they stand; none for a tenant that is not here."""
        state = self._tenants.get(tenant_id)
        return RateLimits() if state is None else self._gate.limits(state.tenant, now)

    # -- decisions, in parts -------------------------------------------------------------------------------

    def _refusal(self, request: Request, now: float) -> Reject | None:
        state = self._tenants.get(request.tenant_id)
        if state is None or state.removed:
            return self._gate.reject(request, Reason.TENANT_UNKNOWN, now)
        if not self._fleet.any_available():
            return self._gate.reject(request, Reason.NO_BACKEND, now)
        return self._gate.refuse(request, state.tenant, now)

    def _dispatch_all(self, now: float, actions: list[Action]) -> None:
        """Dispatch until nobody who may go next fits."""
        self._polled_at = now
        this_round = _Round(now, self._fleet.open_at(now), actions)
        # Requests that came back were chosen and charged already: they go before any new choice.
        for request_id in list(self._prepaid) if this_round.candidates else ():
            request = self._queues.get(request_id)
            state = self._tenants[request.tenant_id]
            if state.head_id is not None and state.tenant.tier_id not in this_round.blocked:
                self._dispatch(state.tenant.tier_id, request, this_round)
        while this_round.candidates and (choice := self._next(this_round.blocked)) is not None:
            self._dispatch(*choice, this_round)

    def _next(self, blocked: set[str]) -> tuple[str, Request] | None:
        """The request that is next, and its tier, among the tiers that are not blocked."""
        first = self._next_of(blocked, _anyone)
        if (
            first is None
            or not self._order.is_fair
            or self._order.waiting_count() == 1
            or self._within_share(first[1].tenant_id)
        ):
            return first
        # Where everybody who waits is over his share the rest of the room is for whoever is next.
        other = self._next_of(blocked, self._within_share)
        return other if other and self._may_be_passed(first[1].tenant_id, other[1].tenant_id) else first

    def _next_of(self, blocked: set[str], eligible: Callable[[str], bool]) -> tuple[str, Request] | None:
        if len(blocked) == len(self._order.tiers()):
            return None
        passed_over = set(blocked)
        while (tier_id := self._order.pick_tier(lambda tier_id: tier_id not in passed_over)) is not None:
            tenant_id = self._order.pick_tenant(tier_id, eligible)
            if tenant_id is not None:
                return tier_id, self._queues.head(tenant_id)
            passed_over.add(tier_id)
        return None

    def _dispatch(self, tier_id: str, request: Request, this_round: _Round) -> None:
        """Send the request where placement says; if it fits nowhere its tier is blocked."""
        expected, sized = self._prediction.predict(request), self._sizing.predict(request)
        seat = self._fleet.seat(
            request,
            tier_id,
            this_round.candidates,
            output_tokens=sized,
            reserve_only=bool(this_round.blocked),
        )
        if seat is None:
            this_round.blocked |= {tier_id, *self._unreserved}
            return
        backend, reservation = seat
        entry = InFlight(request, backend.id, reservation, expected, sized, Usage(request.prompt_tokens, 0, 0))
        self._charge(request.tenant_id, self._ledger.opened(entry))
        self._queues.remove(request.id)
        self._prepaid.pop(request.id, None)
        self._gate.dispatched(request, this_round.now)
        self._refresh(self._tenants[request.tenant_id])
        quiet_tokens = 0.0 if self._order.reads_counters or self._fleet.reads_progress else min(expected, sized)
        this_round.actions.append(Dispatch(request.id, backend.id, quiet_tokens))
        if not backend.has_seat:
            this_round.candidates.remove(backend)

    def _within_share(self, tenant_id: str) -> bool:
        use = self._ledger.use(tenant_id)
        if not use.requests:
            return True
        tenant, head = self._tenants[tenant_id].tenant, self._queues.head(tenant_id)
        output_tokens = self._sizing.predict(head)
        return self._share.allows(tenant, use, head, output_tokens=output_tokens, limits=self._fleet.limits())

    def _may_be_passed(self, tenant_id: str, other_id: str) -> bool:
        lag = self._order.lag(self._tenants[tenant_id].tenant, self._tenants[other_id].tenant)
        return lag <= self._ledger.in_flight_worth(tenant_id)

    # -- books ---------------------------------------------------------------------------------------------

    def _charge(self, tenant_id: str, charge: Charge) -> None:
        tenant = self._tenants[tenant_id].tenant
        self._order.charged(tenant.tier_id, tenant_id, tenant.weight, charge.service, charge.outstanding)

    def _settle(self, entry: InFlight) -> None:
        """Bring the accounts up to what the entry has used."""
        self._unsettled.pop(entry.request.id, None)
        self._charge(entry.request.tenant_id, self._ledger.charge(entry, entry.usage))

    def _settle_all(self) -> None:
        for entry in list(self._unsettled.values()):
            self._settle(entry)

    def _resize(self, entry: InFlight) -> None:
        """Fit the entry's reservation to the prompt as reported and to an output that outgrew its prediction."""
        tokens = self._fleet.tokens_needed(entry)
        if tokens != entry.reservation.tokens:
            self._ledger.resized(entry, tokens)
            self._fleet.resize(entry, tokens)

    def _left(self, request: Request, now: float) -> None:
        """A request has left the queue without being dispatched."""
        self._gate.settled(request.id, 0, now)
        self._prepaid.pop(request.id, None)
        self._charge(request.tenant_id, self._ledger.refund(request))
        self._refresh(self._tenants[request.tenant_id])

    # -- tenants -------------------------------------------------------------------------------------------

    def _refresh(self, state: _TenantState) -> None:
        """Bring the orders up to what the tenant's queue, requests in flight and limits now say."""
        tenant = state.tenant
        requests = self._queues.of(tenant.id).requests
        in_flight = self._ledger.use(tenant.id).requests
        active = bool(requests or in_flight)
        self._share.set_active(tenant, active=active)
        waits = requests and (tenant.in_flight_max is None or in_flight < tenant.in_flight_max)
        head = next(iter(requests.values())) if waits else None
        before, state.head_id = state.head_id, head.id if head else None
        # A tenant at its in-flight limit is not in the queue as far as fairness goes: it is lifted like one that
        # was away, or it would save up credit that nobody else could use.
        if head is None:
            if before is not None:
                self._order.left(tenant.tier_id, tenant.id)
        elif before is None:
            self._order.joined(tenant.tier_id, tenant.id, head)
        elif before != head.id:
            self._order.advanced(tenant.tier_id, tenant.id, head)
        if state.removed and not active:
            self._forget(tenant)

    def _set_reserves(self) -> None:
        tiers = self._order.tiers()
        self._fleet.set_reserves(tiers)
        self._unreserved = [tier.id for tier in tiers if not tier.reserve_ratio]

    def _change(self, tenant: Tenant) -> None:
        assert self._order.has(tenant.tier_id), "a tenant's tier exists before the tenant"
        state = self._tenants.get(tenant.id)
        if state is None:
            self._tenants[tenant.id] = _TenantState(tenant)
            return
        before = state.tenant
        self._share.set_active(before, active=False)
        if before.tier_id != tenant.tier_id:
            if state.head_id is not None:
                self._order.left(before.tier_id, tenant.id)
                state.head_id = None
            self._order.moved(tenant.id, before.tier_id, tenant.tier_id)
        state.tenant, state.removed = tenant, False
        self._refresh(state)

    def _remove(self, tenant_id: str, now: float) -> None:
        state = self._tenants.get(tenant_id)
        if state is None:
            return
        state.removed = True
        for request_id in list(self._queues.of(tenant_id).requests):
            request = self._queues.remove(request_id)
            assert request is not None, "it was just listed"
            self._refused.append(self._gate.reject(request, Reason.TENANT_UNKNOWN, now))
            self._left(request, now)
        if tenant_id in self._tenants:
            self._refresh(state)

    def _forget(self, tenant: Tenant) -> None:
        del self._tenants[tenant.id]
        self._order.forget(tenant.tier_id, tenant.id)
        self._ledger.forget(tenant.id)
        for predictor in self._predictors:
            predictor.forget(tenant.id)
        self._gate.forget(tenant.id)

    def _view(self, state: _TenantState) -> TenantView:
        tenant = state.tenant
        queue, use = self._queues.of(tenant.id), self._ledger.use(tenant.id)
        standing = self._order.standing(tenant.tier_id, tenant.id)
        return TenantView(
            queued_requests=len(queue.requests),
            queued_bytes=queue.body_bytes,
            in_flight_requests=use.requests,
            in_flight_tokens=use.tokens,
            service=use.service,
            counter=standing.counter,
            key=standing.key,
        )


def _anyone(tenant_id: str) -> bool:  # noqa: ARG001
    return True
