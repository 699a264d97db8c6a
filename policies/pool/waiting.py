"""Waiting: how requests of a pool enter the order, leave it without being sent, or wait outside of it.

A request is held outside of the order while its API key or its session has no room. Where several processes share one
order, one of them schedules for all. The process that schedules may change, and so may the connections of the others,
while requests wait. Each process then reports its requests again:

- A request that waited is readmitted: it was admitted once, so no rule of admission is asked again. Its charge for an
  earlier dispatch stays prepaid. If that includes output, it was interrupted and goes on from there.
- A request whose process is away is parked: it keeps its prepaid charge and its age, but it is not in the queue, so it
  neither blocks its tenant's other requests nor earns its tenant credit, as at an in-flight limit.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from policies.accounts.ledger import Charge, InFlight, Ledger
from policies.fleet.fleet import Fleet
from policies.pool.accounting import Accounting
from policies.pool.admission import PoolAdmission
from policies.pool.key_holds import KeyHolds
from policies.pool.session_gate import SessionGate
from policies.pool.tenants import Tenants
from policies.queueing.fair_queue import FairQueue
from policies.queues import PoolQueues
from policies.reservation import Reservation
from policies.sessions.checkpoint import SessionsCheckpoint
from policies.types import Action, Reason, Request, Tenant, Usage, Wait


@dataclass(slots=True)
class WaitingRequests:
    """The part of a Scheduler that queues waiting requests, holds them outside of the order, or removes them."""

    queues: PoolQueues
    ledger: Ledger
    fleet: Fleet
    tenants: Tenants
    accounting: Accounting
    admission: PoolAdmission
    sessions: SessionGate | None
    key_holds: KeyHolds = field(init=False)
    parked: dict[str, Request] = field(default_factory=dict)
    """Requests that wait outside of the queue, by id."""

    def __post_init__(self) -> None:
        self.key_holds = KeyHolds(self.tenants.states)

    # -- into the order, and out of it ------------------------------------------------------------------------

    def wait(self, request: Request, ends_at: float, now: float, charge: Charge | None = None) -> None:
        """An admitted request waits, until `ends_at` at the most: in the order, or held where its key or its session
        has no room. `charge`: it was admitted before, and is charged this; it waits at the place that its arrival gives
        it, or first if it was interrupted. None: it is new, and waits last.
        """
        entering = self.enters(request, now)
        self.admission.outage.queued(request if isinstance(entering, Wait) else entering, now)
        if isinstance(entering, Wait):
            if charge is not None:
                self._charge_home(request, charge)
            self.queues.hold(request, ends_at, entering)
            return
        request = entering
        if charge is None:
            self.queues.append(request, ends_at)
            fair_queue = self.accounting.present.fair_queues.enter(request, now)
        else:
            if request.produced_tokens:
                self.queues.prepend(request, ends_at)
            else:
                self.queues.append(request, ends_at, by_arrival=True)
            fair_queue = self._place(request, now)
            fair_queue.charged(request.tenant_id, charge)
        fair_queue.queued(request, now)
        self.tenants.queue_changed(request.tenant_id, fair_queue)

    def left(self, request: Request, now: float) -> None:
        """A request has left the queue for good without being dispatched."""
        sessions = self.sessions
        if self.key_holds.is_held(request) or (sessions is not None and sessions.is_held(request)):
            self.parked[request.id] = request
            self.end_parked(request.id, now)
            self.tenants.left(request.tenant_id)
            return
        if sessions is not None:
            sessions.left(request.id, now)
        self.key_holds.left(request)
        fair_queue = self.accounting.present.fair_queues.leave(request, sent=False)
        self.tenants.admission_rules.settled(request.id, self.ledger.delivered_tokens(request.id), now)
        self.accounting.left(request, fair_queue, now)
        self.tenants.queue_changed(request.tenant_id, fair_queue)

    def reject(self, request: Request, reason: Reason, now: float) -> None:
        """Reject a waiting request, at the next poll."""
        self.queues.remove(request.id)
        self.admission.rejected.append(self.admission.reject(request, reason, now))
        self.left(request, now)

    def reject_overdue(self, now: float, actions: list[Action], actions_max: int) -> None:
        """Reject what has waited too long, or has no backend. What may go to another pool is looked at again."""
        looks, admission, deadlines = 0, self.admission, self.queues.deadlines
        while len(actions) + looks < actions_max and (id_ := deadlines.passed(now)) is not None:
            request = self.queues.get(id_)
            if (until := admission.waits_until(request, now)) is not None:
                deadlines.put(id_, request.tenant_id, until)
                looks += 1
                continue
            self.queues.remove(request.id)
            self.left(request, now)
            actions.append(admission.expired(request, now))
        if not admission.outage.is_on:
            return
        while len(actions) < actions_max and (lost := admission.outage.ended(self.queues, now)) is not None:
            self.queues.remove(lost.id)
            self.left(lost, now)
            actions.append(admission.reject(lost, Reason.NO_BACKEND, now))

    def reassign_stranded(self, now: float) -> None:
        """Find other backends for requests that wait for one that is gone. A request whose `backend_ids` are all gone
        is rejected while other backends serve, because it would block its tenant's later requests.
        """
        if not self.admission.outage.is_waited_out:
            for request in [each for each in self.queues.restricted.values() if not self.fleet.available(each)]:
                self.reject(request, Reason.NO_BACKEND, now)
        self.tenants.move_stranded(now)

    def readmitted(
        self, request: Request, now: float, prepaid: Usage | None = None, usage: Usage | None = None
    ) -> None:
        """A request waits that was admitted before: it was parked here, or waited in another scheduler, which had
        charged it for `prepaid`. With a `usage` beyond that, it was interrupted since, and the excess is charged. It
        joins its tenant's queue by its arrival, unasked by the rules of admission; only a tenant that is gone, or the
        lack of any backend, rejects it, and refunds its prepaid charge.
        """
        assert request.id not in self.queues, "an id is in use once"
        assert request.id not in self.ledger.in_flight, "an id is in use once"
        admission = self.admission
        if any(action.request_id == request.id for action in admission.rejected):
            return  # its rejection was not told yet, and stands
        reason = admission.refuses_again(request)
        if reason is None:
            self._readmit(request if self.sessions is None else self.sessions.named(request), now, prepaid, usage)
            return
        self.parked[request.id] = request
        self._charge_home(request, self._prepay(request, prepaid, usage))
        self.end_parked(request.id, now)
        admission.rejected.append(admission.reject(request, reason, now))

    def _readmit(self, request: Request, now: float, prepaid: Usage | None = None, usage: Usage | None = None) -> None:
        self.parked.pop(request.id, None)
        charge = self._prepay(request, prepaid, usage)
        request = self._continued(request)
        self.wait(request, self.admission.queue_timeout.ends_at(request, now), now, charge)

    # -- outside of it ----------------------------------------------------------------------------------------

    def park(self, request_id: str, now: float) -> None:
        """The process of a queued request is away: the request waits outside of the queue, prepaid, until it is
        `readmitted` or cancelled. If it had entered the order, it still counts against its key's limit. Unknown ids are
        ignored.
        """
        if request_id not in self.queues:
            return
        request = self.parked[request_id] = self.queues.get(request_id)
        if self.key_holds.is_held(request):
            self.queues.remove(request_id)
            self.key_holds.left(request)
        else:
            self._set_aside(request, now)

    def unbind(self, now: float, *, is_due: bool = False) -> None:
        """Turns wait no longer for the backend of their session alone, if it is gone or they have waited long.

        They take their places anew, once there is a backend that they may wait for. `is_due`: no backend has gone since
        it was asked last.
        """
        if self.sessions is None:
            return
        lapsed, fair_queues = self.sessions.lapsed(now, is_due=is_due), self.accounting.present.fair_queues
        if lapsed:
            fair_queues.backends_changed()  # those that have come have a queue now
        for request_id in lapsed:
            request = self.queues.get(request_id)
            if fair_queues.has_place(self.sessions.free(request)):
                self._leave_order(request, now)
                self._readmit(self.sessions.unbound(request), now)

    def limits_changed(self, before: Tenant | None, tenant: Tenant | None, now: float) -> None:
        """The limits of the tenant's keys may be others than before."""
        if before is not None:
            for key_id in self.key_holds.changed(before, tenant):
                self._hold_waiting(before.id, key_id, now)

    def hold_excess(self, request: Request, now: float) -> None:
        """Nothing of the request's key waits in the order while more of it have entered than may be in flight."""
        if self.key_holds.is_over(request):
            self._hold_waiting(request.tenant_id, request.key_id, now)

    def _hold_waiting(self, tenant_id: str, key_id: str, now: float) -> None:
        """Hold all waiting requests of a key; they enter again as there is room."""
        waiting = []
        for each in self.queues.of(tenant_id).all():
            if each.key_id != key_id:
                continue
            if self.key_holds.is_held(each):
                waiting.append(each)
                continue
            request = self._set_aside(each, now)
            waiting.append(request)
            self.queues.hold(request, self.admission.queue_timeout.ends_at(request, now), Wait.KEY_LIMIT)
            self.admission.outage.queued(request, now)
        in_flight = [id_ for id_, entry in self.ledger.in_flight.items() if entry.request.key_id == key_id]
        parked = [id_ for id_, request in self.parked.items() if request.key_id == key_id]
        self.key_holds.begin(tenant_id, key_id, entered=[*in_flight, *parked], waiting=waiting)

    def _set_aside(self, request: Request, now: float) -> Request:
        """Take a waiting request, which its key does not hold, from where it waits. Returns it as it was submitted."""
        sessions = self.sessions
        if sessions is None:
            self._leave_order(request, now)
            return request
        if sessions.is_held(request):
            self.queues.remove(request.id)
        else:
            self._leave_order(request, now)
            request = sessions.unbound(request)
        sessions.left(request.id, now)
        return request

    def _leave_order(self, request: Request, now: float) -> None:
        request_id = request.id
        self.queues.remove(request_id)
        fair_queues = self.accounting.present.fair_queues
        fair_queue = fair_queues.leave(request, sent=False)
        fair_queue.first.pop(request_id, None)
        entry = self.ledger.prepaid.get(request_id)
        if entry is None:
            fair_queue.dropped(request, now)
        else:  # what it may still cost is expected again at its next dispatch
            fair_queue.charged(request.tenant_id, (0.0, -entry.outstanding))
            entry.outstanding = 0.0
            fair_queue.ended(replace(entry, service=0.0), now)
        self.tenants.queue_changed(request.tenant_id, fair_queue)

    def enters(self, request: Request, now: float) -> Request | Wait:
        """The request as it enters the order now, or why it is held."""
        if not self.key_holds.enters(request):
            self.key_holds.hold(request)
            return Wait.KEY_LIMIT
        if self.sessions is None:
            return request
        return self.sessions.enters(request, now) or Wait.SESSION

    def sessions_restored(self, sessions: SessionsCheckpoint, now: float) -> None:
        """Go on from what another scheduler knew of sessions, before any of them waits or runs here."""
        if self.sessions is not None:
            self.sessions.restored(sessions, now)

    def end_parked(self, request_id: str, now: float) -> bool:
        """End a parked request for good and refund its prepaid charge. Returns whether it was parked."""
        request = self.parked.pop(request_id, None)
        if request is None:
            return False
        self.key_holds.left(request)
        if self.sessions is not None:
            self.sessions.left(request_id, now)
        self.tenants.admission_rules.settled(request_id, self.ledger.delivered_tokens(request_id), now)
        entry = self.ledger.prepaid.get(request_id)
        if entry is not None:
            refund = self.ledger.refunded(entry)
            if request.tenant_id in self.tenants.states:
                self._charge_in_home(entry, refund)
            else:
                self.ledger.forget(request.tenant_id)
        return True

    def parked_of(self, tenant_ids: Collection[str]) -> list[Request]:
        """The parked requests of these tenants."""
        return [request for request in self.parked.values() if request.tenant_id in tenant_ids]

    def _charge_home(self, request: Request, charge: Charge) -> None:
        """Charge a request that waits in no order, in the queue where it was charged before."""
        entry = self.ledger.prepaid.get(request.id)
        if entry is not None and request.tenant_id in self.tenants.states:
            self._charge_in_home(entry, charge)

    def _prepay(self, request: Request, prepaid: Usage | None, usage: Usage | None) -> Charge:
        """Count the request as charged for `prepaid`, and return the charge for the excess of `usage` over that."""
        if prepaid is not None and self.ledger.prepaid.get(request.id) is None:
            produced = request.produced_tokens if usage is None else usage.output_tokens
            request = replace(request, produced_tokens=produced)
            entry = InFlight(request, "", NOTHING_RESERVED, 0.0, 0.0, prepaid)
            self.ledger.prepay(entry)
            if usage is not None:
                return self.ledger.charge(entry, usage)
        return 0.0, 0.0

    def _continued(self, request: Request) -> Request:
        """The request with the part of its answer from before an interruption, and with its number of preemptions."""
        entry = self.ledger.prepaid.get(request.id)
        if entry is None:
            return request
        before = entry.request
        return replace(
            request,
            produced_tokens=before.produced_tokens,
            ran_at=before.ran_at,
            preemptions=before.preemptions,
        )

    def _place(self, request: Request, now: float) -> FairQueue:
        """Put the request into a queue. A prepaid request goes first: in the queue where it was charged, where that is
        there and its backend may serve it.
        """
        fair_queues, entry = self.accounting.present.fair_queues, self.ledger.prepaid.get(request.id)
        if entry is None:
            return fair_queues.enter(request, now)
        entry.request = request
        is_there = self._home(entry)[1]
        if is_there and any(each.id == entry.backend_id for each in self.fleet.known(request)):
            fair_queue = fair_queues.enter_again(entry)
        else:
            fair_queue = fair_queues.enter(request, now)
            if not is_there:  # the account that it was charged in went with its backend
                fair_queue.charged(request.tenant_id, (entry.service, 0.0))
            entry.backend_id = fair_queue.backend_id or entry.backend_id
        fair_queue.first[request.id] = None
        return fair_queue

    def _charge_in_home(self, entry: InFlight, charge: Charge) -> None:
        """Charge a prepaid entry. Without any queue all accounts are gone, as that of a backend that goes is."""
        if self.accounting.present.fair_queues.all():
            self._home(entry)[0].charged(entry.request.tenant_id, charge)

    def _home(self, entry: InFlight) -> tuple[FairQueue, bool]:
        """The queue that a prepaid entry is charged in, or any if that is gone, and whether it still exists."""
        for fair_queue in self.accounting.present.fair_queues.all():
            if fair_queue.backend_id in (None, entry.backend_id):
                return fair_queue, True
        return next(iter(self.accounting.present.fair_queues.all())), not entry.backend_id


NOTHING_RESERVED = Reservation("", 1, 0)
