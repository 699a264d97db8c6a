"""One poll's dispatching from one lane: what becomes of whoever is next and fits nowhere, and who may go before it?

EASY backfilling (Lifka, "The ANL/IBM SP Scheduling System", 1995): one backend is held for it, the one that will have
room for it first, and the others go on elsewhere. Only what does not delay the request may enter the held backend: a
tier's own reserve is left to it, and a tenant with nothing in flight may send what will have ended by then or is not in
the way (BackendCapacity.spares). Others would fill every gap, and leave none to a light tenant.

Passing over a tenant without end would break every promise of fairness. So it is passed only for tenants that are
ahead of it by no more than what they have in flight, and what was in flight at the held backend, can turn out to be
worth; without a cap on shares only the latter counts (policies/fairness/bounds.py: G and H). Where the next would be
further ahead, every backend that the request may go to is closed for the rest of the round: to its tier, and to all
tiers without a reserve. Tiers that have one may then still enter their own, and nothing else.

An order that is not fair lets nobody pass.
"""

from typing import NamedTuple

from policies.capacity.backend import BackendCapacity
from policies.capacity.candidates import Candidates
from policies.fleet.fleet import BackendHold, Fleet
from policies.queueing.fair_queue import FairQueue, any_request
from policies.reservation import Reservation
from policies.types import Request

PASSED_MAX = 8  # heads that fit nowhere and are looked at in one poll: each costs as much as a dispatch
NO_TIERS: frozenset[str] = frozenset()


class PassedOver(NamedTuple):
    """A tenant's next request that fits nowhere, and its tier."""

    tier_id: str
    request: Request


class BackfillRound:
    """The backends that have room in one poll, and which requests wait for them in vain."""

    __slots__ = (
        "_asked_for",
        "_closed",
        "_fair_queue",
        "_fleet",
        "_held",
        "_held_for",
        "_is_settled",
        "_passed",
        "_passed_over",
        "_too_far",
        "_unreserved",
        "blocked",
        "candidates",
        "is_closed",
        "now",
    )  # fmt: skip

    def __init__(
        self,
        now: float,
        fair_queue: FairQueue,
        candidates: list[BackendCapacity],
        fleet: Fleet,
        unreserved: frozenset[str],
    ) -> None:
        """`unreserved` are the tiers without a reserve."""
        self.now = now
        self.candidates = Candidates(candidates)
        self.blocked: set[str] = set()  # tiers to which all candidates are closed
        self.is_closed = False  # all of them are, to these and perhaps not to all
        self._fair_queue = fair_queue
        self._fleet = fleet
        self._unreserved = unreserved
        self._closed: dict[str, frozenset[str]] = {}  # backend id -> tiers to which it is closed besides
        self._passed_over: set[str] = set()  # tenants whose next fits nowhere
        self._passed: dict[str, PassedOver] = {}  # those of them that others may pass
        self._held: dict[str, BackendHold] = {}  # by backend
        self._held_for: dict[str, BackendHold] = {}  # the same by request
        self._is_settled = True  # all who are passed have the backend that is held for them, where one was left
        self._asked_for: Request | None = None  # the last one of which it was asked whom it may not pass
        self._too_far: PassedOver | None = None  # of these, the first

    def next(self) -> tuple[str, Request] | None:
        """The request that is next, and its tier."""
        return self._fair_queue.next(self.blocked, self._may_go if self._passed_over else any_request)

    def open_to(self, tier_id: str, request: Request) -> list[BackendCapacity]:
        """The candidates that the request may go to."""
        self._asked_for = None
        closed, ids = self._closed, request.backend_ids
        if ids is None and not closed:
            return self.candidates  # what is closed is all of them, to tiers that are blocked
        return [
            each
            for each in self.candidates
            if (ids is None or each.id in ids) and tier_id not in closed.get(each.id, NO_TIERS)
        ]

    @property
    def is_anyone_passed(self) -> bool:
        return bool(self._passed)

    @property
    def reserve_only_at(self) -> frozenset[str]:
        """Ids of backends where only a tier's own reserve is left; `is_closed` says it of all."""
        return frozenset(self._closed)

    def may_enter(self, request: Request, capacity: BackendCapacity, reservation: Reservation) -> bool:
        """Whether the request, which would occupy this much and has room there, may go before all that are passed."""
        if self._asked_for is not request:  # the same for all backends that have room for it
            self._settle()
            self._asked_for, self._too_far = request, self._first_not_to_pass(request)
        if self._too_far is not None:
            return False
        held = self._held.get(capacity.id)
        if held is None:
            return True
        if capacity.fits(reservation, reserve_only=True):
            return True  # into what the operator, or what was learnt, holds free for its tier
        return not self._fair_queue.use(request.tenant_id).requests and capacity.spares(held.needed, reservation)

    def found_none(self, tier_id: str, request: Request) -> None:
        """The request has no place in this round, or none that it may take before others."""
        too_far, self._too_far = self._too_far, None
        if too_far is not None:
            self._close(too_far)
            return
        passed = PassedOver(tier_id, request)
        self._passed_over.add(request.tenant_id)
        if self.is_closed or not self._fair_queue.order.is_fair or len(self._passed) >= PASSED_MAX:
            self._close(passed)
        else:
            self._passed[request.tenant_id] = passed
            self._is_settled = False

    def _may_go(self, request: Request) -> bool:
        return request.tenant_id not in self._passed_over

    def _close(self, passed: PassedOver) -> None:
        """Nothing goes before this one any more: all that it may go to is kept for it."""
        tier_ids = self._unreserved | {passed.tier_id}
        request = passed.request
        self._passed.pop(request.tenant_id, None)
        if request.backend_ids is None:
            self.is_closed = True
            self.blocked |= tier_ids
            return
        closed = self._closed
        for candidate in self.candidates:
            if candidate.id in request.backend_ids:
                closed[candidate.id] = closed.get(candidate.id, NO_TIERS) | tier_ids
        self.blocked |= frozenset.intersection(*(closed.get(each.id, NO_TIERS) for each in self.candidates))

    def _settle(self) -> None:
        """Hold a backend for everybody who is passed. It is looked for when somebody could pass, not before."""
        if self._is_settled:
            return
        self._is_settled = True
        for passed in self._passed.values():
            if passed.request.id not in self._held_for:
                self._hold_for(passed)

    def _hold_for(self, passed: PassedOver) -> None:
        fair_queue, fleet, request = self._fair_queue, self._fleet, passed.request
        hold = fair_queue.held.get(request.id)
        if hold is None or hold.backend_id in self._held or not fleet.is_open(hold.backend_id, self.now):
            hold = fleet.soonest(
                request, passed.tier_id, fair_queue.output_tokens(request), besides=self._held, now=self.now
            )
            if hold is None:
                return  # every backend is held for somebody who goes before
            fair_queue.held[request.id] = hold
        self._held[hold.backend_id] = hold
        self._held_for[request.id] = hold

    def _first_not_to_pass(self, request: Request) -> PassedOver | None:
        """The first of those who are passed whom the request's tenant is too far ahead of."""
        fair_queue = self._fair_queue
        for passed in self._passed.values():
            if not fair_queue.may_pass(
                request.tenant_id, passed.request.tenant_id, self._held_for.get(passed.request.id)
            ):
                return passed
        return None
