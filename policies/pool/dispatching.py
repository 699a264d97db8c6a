"""Dispatching: which waiting requests of a pool one poll sends, and which requests are sent on arrival.

A poll dispatches from each queue until no request that may be next fits, or until it has decided enough. A request that
arrives while no request waits need not be queued: if it fits, it is sent as the poll would send it.
"""

from collections.abc import Sequence

from policies.accounts.ledger import InFlight
from policies.pool.backfill import BackfillRound
from policies.pool.scheduler_parts import SchedulerParts
from policies.queueing.fair_queue import FairQueue
from policies.types import Action, Dispatch, Request


class Dispatching:
    """The part of a Scheduler that chooses which waiting requests one poll (a call of Scheduler.poll) dispatches."""

    def __init__(self, parts: SchedulerParts, asked_max: int) -> None:
        """After one decision, `from_queue` takes no further request once backends were asked `asked_max` times."""
        self._queues, self._arrangement, self._fleet = parts.queues, parts.arrangement, parts.fleet
        self._slot_fitting, self._ledger, self._tenants = parts.slot_fitting, parts.ledger, parts.tenants
        self._drain, self._preemption = parts.admission_rules.drain, parts.preemption
        self._asked_max = asked_max
        self._sessions = parts.sessions

    def rounds(self, now: float) -> Sequence[tuple[FairQueue, BackfillRound]]:
        """A round for each queue that may dispatch to a backend that is open."""
        fleet, fair_queues, unreserved = self._fleet, self._arrangement.fair_queues, self._slot_fitting.unreserved
        candidates, shared = fleet.open_at(now), fair_queues.shared
        if shared is not None:
            return ((shared, BackfillRound(now, shared, candidates, fleet, unreserved)),) if candidates else ()
        return [
            (fair_queue, BackfillRound(now, fair_queue, its_own, fleet, unreserved))
            for fair_queue, its_own in fair_queues.candidates(candidates)
        ]

    def from_queue(
        self, fair_queue: FairQueue, this_round: BackfillRound, actions: list[Action], actions_max: int
    ) -> bool:
        """Dispatch until no request that may be next fits, or `actions` has `actions_max` entries. Returns True where
        it stopped before, because backends were asked too often. It dispatches at least one request before that, so a
        driver that polls on comes to an end, even where new facts let every poll begin again.
        """
        fleet, dispatched = self._fleet, len(actions)
        asked_max, fitting, now = fleet.asked + self._asked_max, self._slot_fitting, this_round.now
        slot, predict = fitting.slot, fitting.sizing.predict
        this_round.begin_again()
        # Returned requests were chosen and charged already: they precede any new choice.
        for request_id in list(fair_queue.first):
            request = self._queues.get(request_id)
            tier_id = self._tenants.tier_id(request.tenant_id)
            is_next = fair_queue.competes(request.tenant_id) and tier_id not in this_round.blocked
            if is_next and this_round.candidates and len(actions) < actions_max:
                if this_round.refuses(tier_id, request, predict):
                    continue
                entry = slot(request, tier_id, this_round)
                if entry is not None:
                    self._sent(entry, fair_queue, actions, now)
        while this_round.candidates and len(actions) < actions_max and (choice := this_round.next(predict)) is not None:
            tier_id, request = choice
            entry = slot(request, tier_id, this_round)
            if entry is not None:
                self._sent(entry, fair_queue, actions, now)
            if fleet.asked >= asked_max and len(actions) > dispatched:
                return True
        return False

    def at_once(self, request: Request, now: float) -> Dispatch | None:
        """Dispatch a request that was admitted now, without queueing it, if no other decision is due and one step
        brings the accounts to the same state; None: the request has to wait, if only for the next poll.
        """
        arrangement, state = self._arrangement, self._tenants.states[request.tenant_id]
        fair_queue, tenant = arrangement.fair_queues.shared, state.tenant
        if fair_queue is None or not arrangement.serves_at_once or request.backend_ids is not None:
            return None
        if tenant.in_flight_max is not None or state.group is not None or tenant.keys:
            return None  # limits are counted where it waits
        candidates, output_tokens = self._fleet.open_at(now), self._slot_fitting.sizing.predict(request)
        entry = self._slot_fitting.fit(request, tenant.tier_id, candidates, output_tokens, now)
        if entry is None:
            return None
        if self._fleet.negative_cache.is_used:  # nothing waits any more
            self._fleet.negative_cache.forget()
        fair_queue.served_at_once(state, entry, self._ledger.opened(entry))
        state.in_flight += 1
        self._drain.dispatched(request.tenant_id, arrived_at=request.arrived_at, queued=0, now=now)
        self._queues.changed = None
        return self._told(entry)

    def _sent(self, entry: InFlight, fair_queue: FairQueue, actions: list[Action], now: float) -> None:
        """The entry's request, which waits in this queue, has its slot: it is dispatched."""
        request = entry.request
        fair_queue.opened(entry, self._ledger.opened(entry))
        if request.produced_tokens:
            self._ledger.interruptions.sent_again_tokens += request.context_tokens
        self._queues.remove(request.id)
        self._arrangement.fair_queues.leave(request, sent=True)
        fair_queue.first.pop(request.id, None)
        queued = len(self._queues.deadlines)
        self._drain.dispatched(request.tenant_id, arrived_at=request.arrived_at, queued=queued, now=now)
        self._tenants.dispatched(request.tenant_id, fair_queue)
        actions.append(self._told(entry))

    def _told(self, entry: InFlight) -> Dispatch:
        """What the driver is told of an entry that is in flight from now on."""
        sessions, expected_tokens = self._sessions, 0
        if sessions is not None and (entry.request.program_id is not None or sessions.tenants):
            expected_tokens = sessions.sent(entry)
        request = entry.request
        quiet_tokens = entry.expected_output if entry.expected_output < entry.sized_output else entry.sized_output
        if self._arrangement.needs_every_token:
            quiet_tokens = 0.0
        may_be_preempted = self._preemption.is_on and self._preemption.may_preempt(request)
        if may_be_preempted:
            self._preemption.sent(entry)
        may_be_preempted |= request.is_resumable
        cached, number = entry.usage.cached_tokens, entry.reservation.sender_number
        return Dispatch(
            request.id,
            entry.backend_id,
            quiet_tokens,
            cached,
            may_be_preempted,
            number,
            entry.sized_output,
            cached if cached > expected_tokens else expected_tokens,
        )
