"""Backfilling: which requests of one queue a poll still dispatches when the request that is next fits at no backend.

EASY backfilling (Lifka, "The ANL/IBM SP Scheduling System", 1995): the backend that will have room for that request
first is held for it, and later requests are dispatched to other backends. The held backend takes only requests that do
not delay the held request. A tier may use its own reserve there. A light tenant (FairQueue.is_light) may send a request
that leaves the held request its room, or ends before that starts (BackendCapacity.spares). Other tenants may not,
because they would leave no gap to a light tenant.

Passing over a tenant without end would break every fairness bound. So a tenant is passed over only by tenants that are
not too far ahead of it: by no more than the possible cost of their requests in flight, and of those in flight at the
held backend; without a cap on shares only the latter count (policies/fairness/bounds.py: G and H). If the next tenant
is further ahead, every backend that the request passed over may go to is closed for the rest of the round: to its tier,
and to all tiers without a reserve. Tiers with a reserve may then still enter their own reserve, and nothing else.

In an order that is not fair (Fairness.is_fair), no request passes another.
"""

from collections.abc import Callable, Iterator

from policies.capacity.backend import BackendCapacity
from policies.capacity.candidates import Candidates
from policies.fleet.fleet import OPEN, Access, BackendHold, Fleet
from policies.queueing.fair_queue import FairQueue
from policies.reservation import Reservation
from policies.types import Request

PASSED_MAX = 8  # requests that fit nowhere and may be passed in one poll: each costs as much as a dispatch
NO_TIERS: frozenset[str] = frozenset()


PassedOver = tuple[str, Request]
"""A tenant's next request, which fits nowhere, after the id of its tier."""


class BackfillRound:
    """The state of one poll (a call of Scheduler.poll) in one queue: the backends that still have room, and the
    requests that were passed over, because they fit at none of them. Later requests are dispatched (backfilled) only if
    they do not delay these too much. Mutable.
    """

    __slots__ = (
        "_asked_for",
        "_fair_queue",
        "_fleet",
        "_heads",
        "_held",
        "_held_for",
        "_is_all_held",
        "_is_settled",
        "_tier_id",
        "_tier_ids",
        "_too_far",
        "_unreserved",
        "blocked",
        "candidates",
        "closed",
        "is_closed",
        "now",
        "passed",
        "passed_over",
    )  # fmt: skip

    def __init__(
        self,
        now: float,
        fair_queue: FairQueue,
        candidates: list[BackendCapacity],
        fleet: Fleet,
        unreserved: frozenset[str],
    ) -> None:
        """`unreserved` has the ids of the tiers without a reserve."""
        self.now = now
        self.candidates = Candidates(candidates)
        self.blocked: set[str] = set()  # tiers to which all candidates are closed
        self.is_closed = False  # all candidates are closed, to `blocked` but perhaps not to all tiers
        self._fair_queue = fair_queue
        self._fleet = fleet
        self._unreserved = unreserved
        self.closed: dict[str, frozenset[str]] = {}
        """By backend where only a tier's own reserve is left: the tiers to which it alone is closed. To read. For all
        backends see `is_closed`.
        """
        self.passed_over: set[str] = set()
        """The tenants whose next request fits nowhere. To read."""
        self.passed: dict[str, PassedOver] = {}
        """Those of them that others may pass, by tenant. To read."""
        self._held: dict[str, BackendHold] = {}  # by backend
        self._held_for: dict[str, BackendHold] = {}  # the same holds by request
        self._is_all_held = False
        self._is_settled = True  # a backend is held for every passed request, where one was left
        self._tier_ids: Iterator[str] | None = None  # the tiers that are not blocked and follow; None: to be asked for
        self._tier_id = ""
        self._heads: Iterator[Request] | None = None
        """What is next in this tier, of tenants that were not passed over; None: it is another tier's turn."""
        self._asked_for: Request | None = None  # the request that `_too_far` was computed for
        self._too_far: PassedOver | None = None  # the first request that it may not pass

    def next(self, predict: Callable[[Request], float]) -> PassedOver | None:
        """The next request that may have room, with its tier. `predict` gives the predicted output that sizes a
        request's reservation. Requests that certainly have no room are passed over.
        """
        fair_queue, still_refuses, passed_over = self._fair_queue, self._fleet.still_refuses, self.passed_over
        while not passed_over:
            choice = fair_queue.next(self.blocked, ())
            if choice is None or not self.refuses(choice[0], choice[1], predict):
                return choice
        closed, in_flight = self.closed, fair_queue.use.by_tenant
        while (heads := self._heads or self._next_heads()) is not None:
            for head in heads:
                tier_id, request = self._tier_id, head
                if head.tenant_id in in_flight and not fair_queue.may_go_first(head):
                    self.begin_again()  # another search moves what this one walks over
                    tier_id, request = fair_queue.within_shares((tier_id, head), self.blocked, passed_over)
                if not still_refuses(request, tier_id, predict(request), is_closed=self.is_closed, closed=closed):
                    return tier_id, request
                self.found_none(tier_id, request)
                if self._heads is None:
                    break
            else:
                self._heads = None
        return None

    def refuses(self, tier_id: str, request: Request, predict: Callable[[Request], float]) -> bool:
        """Whether the request, which is next, certainly has no room, so that it is passed over. If no request was
        refused before, this one usually fits.
        """
        fleet = self._fleet
        if not self.passed_over and not fleet.negative_cache.is_used:
            return False
        if not fleet.still_refuses(request, tier_id, predict(request), is_closed=self.is_closed, closed=self.closed):
            return False
        self.found_none(tier_id, request)
        return True

    def begin_again(self) -> None:
        """Restart the search for the next request, because the order may have changed."""
        self._tier_ids = self._heads = None

    def _next_heads(self) -> Iterator[Request] | None:
        """What is next in the tier that follows; None: there is none."""
        root = self._fair_queue.order.root
        if self._tier_ids is None:
            assert root.level is not None, "its children are tiers"
            self._tier_ids = root.level.in_order(self.blocked)
        tier_id = next(self._tier_ids, None)
        if tier_id is not None:
            self._tier_id, self._heads = tier_id, root.nodes[tier_id].heads(self.passed_over)
        return self._heads

    def sent(self, backend: BackendCapacity) -> None:
        """Record that a request was sent to this backend, which changes the order."""
        self.begin_again()
        if backend.id in self._fleet.with_slot:
            self.candidates.filled(backend)
        else:
            self.candidates.gone(backend)

    def open_to(self, tier_id: str, request: Request) -> list[BackendCapacity]:
        """The candidates that the request may go to."""
        self._asked_for = None
        closed, ids = self.closed, request.backend_ids
        if ids is None and not closed:
            return self.candidates  # if is_closed, all of them are closed to the blocked tiers
        return [
            each
            for each in self.candidates
            if (ids is None or each.id in ids) and tier_id not in closed.get(each.id, NO_TIERS)
        ]

    def access(self) -> Access:
        """The room that the next request may enter."""
        if not self.passed_over:
            return OPEN
        return Access(self.is_closed, self.closed, self.may_enter if self.passed else None)

    def may_enter(self, request: Request, capacity: BackendCapacity, reservation: Reservation) -> bool:
        """Whether the request, which has room for this reservation at the backend, may pass all passed requests."""
        if self._asked_for is not request:  # the answer is the same for all backends with room for it
            self._settle()
            self._too_far = self._fair_queue.first_not_to_pass(request.tenant_id, self.passed, self._held_for)
            self._asked_for = request
        if self._too_far is not None:
            return False
        held = self._held.get(capacity.id)
        if held is None:
            return True
        if capacity.fits(reservation, reserve_only=True):
            return True  # into the reserve of its tier, set by the operator or learnt
        return self._fair_queue.is_light(request) and capacity.spares(held.needed, reservation)

    def found_none(self, tier_id: str, request: Request) -> None:
        """Record that the request fits nowhere in this round, or nowhere without passing others too far."""
        too_far, self._too_far = self._too_far, None
        if too_far is not None:
            self._close(too_far)
            self.begin_again()  # it is asked again
            return
        passed = tier_id, request
        self.passed_over.add(request.tenant_id)
        if self.is_closed or not self._fair_queue.order.is_fair or len(self.passed) >= PASSED_MAX:
            self._close(passed)
            if self._tier_id in self.blocked:
                self._heads = None
        else:
            self.passed[request.tenant_id] = passed
            self._is_settled = False

    def _close(self, passed: PassedOver) -> None:
        """Let no more requests pass this one: close every backend that it may go to."""
        tier_id, request = passed
        tier_ids = self._unreserved | {tier_id}
        self.passed.pop(request.tenant_id, None)
        if request.backend_ids is None:
            self.is_closed = True
            self.blocked |= tier_ids
            return
        closed = self.closed
        for candidate in self.candidates:
            if candidate.id in request.backend_ids:
                closed[candidate.id] = closed.get(candidate.id, NO_TIERS) | tier_ids
        self.blocked |= frozenset.intersection(*(closed.get(each.id, NO_TIERS) for each in self.candidates))

    def _settle(self) -> None:
        """Hold a backend for each passed request. Called only when a request could pass."""
        if self._is_settled:
            return
        self._is_settled = True
        for tier_id, request in self.passed.values():
            if self._is_all_held:
                return
            if request.id not in self._held_for:
                self._hold_for(request, tier_id)

    def _hold_for(self, request: Request, tier_id: str) -> None:
        fair_queue, fleet = self._fair_queue, self._fleet
        hold = fair_queue.held.get(request.id)
        if hold is None or hold.backend_id in self._held or not fleet.is_open(hold.backend_id, self.now):
            output_tokens = max(0.0, fair_queue.output_tokens(request) - request.produced_tokens)
            hold = fleet.soonest(request, tier_id, output_tokens, besides=self._held, now=self.now)
            if hold is None:
                # Every backend that it may go to is held for an earlier request.
                self._is_all_held = request.backend_ids is None
                return
            fair_queue.held[request.id] = hold
        self._held[hold.backend_id] = hold
        self._held_for[request.id] = hold
