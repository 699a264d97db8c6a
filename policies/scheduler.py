"""Scheduler: the state machine of one pool. It takes facts and returns decisions.

    facts      submit, tokens, finished, returned, interrupted, cancel, spent, load_changed, measured,
               tenants_changed, policy_changed, restored, adopted (each with `now`)
               told(fact): takes any of these as a value (facts.py), and the facts that a part handles
    decisions  poll(now) -> [Dispatch | Reject | Preempt]; arrived(request, now): `submit` and `poll` in one call
    time       next_wakeup() -> the time of the next poll, if no fact arrives before
    view       snapshot(now), rate_limits(tenant_id, now, key_id), counter(tenant_id), waits_for(request_id, now),
               wait_views(request_ids, now), prefilled(request_id, now), checkpoint(); the `parts` have further views

The scheduler never waits, reads a clock, calls back or logs. So three drivers run this same object: the asyncio
dispatcher, a simulation under a virtual clock, and a replay of recorded facts. The same facts give the same actions.

The scheduler connects its parts, and the rules are in the parts. Admission decides which request enters the queue. The
fair queues (queueing/) decide which request is next (fair_queue.py has the order of precedence). The fleet finds a
backend with room. One poll decides all that can be decided at an instant, up to a limit on its decisions and on the
checks of backends for them. If more remains, `next_wakeup` returns the same instant, for another poll.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from mypy_extensions import mypyc_attr

from policies.accounts.checkpoint import RETURNING_S, ServiceCheckpoint, of_tenants
from policies.accounts.ledger import InFlight
from policies.call_life import LIFE, Event
from policies.facts import Fact, Undelivered
from policies.fairness import FAIRNESS
from policies.placement import PLACEMENT
from policies.pool.backfill import BackfillRound
from policies.pool.dispatching import Dispatching
from policies.pool.policy_switch import choose_policy, predictors, rearrange, restore
from policies.pool.scheduler_parts import SchedulerParts, SchedulerSettings
from policies.pool.snapshot import take_snapshot
from policies.pool.wait_views import wait_views, waits_for
from policies.queueing.fair_queue import FairQueue
from policies.slo.shedding import NOTED_MAX
from policies.types import (
    NO_USAGE,
    Action,
    BackendLoad,
    Cause,
    Group,
    Outcome,
    PolicyChoice,
    RateLimits,
    Reason,
    Request,
    Snapshot,
    Tenant,
    Tier,
    Timing,
    Usage,
    Wait,
    WaitView,
)


@mypyc_attr(allow_interpreted_subclasses=True)
class Scheduler:
    """The scheduler of one pool, which decides which waiting request is sent next, and to which backend. Mutable."""

    def __init__(self, settings: SchedulerSettings | None = None, **changed: Any) -> None:
        """Make a scheduler with these settings (None: the defaults). `changed` overrides single settings."""
        settings = replace(settings or SchedulerSettings(), **changed)
        assert settings.decisions_max > 0, "a poll decides something"
        parts = SchedulerParts(settings)
        self.parts, self._tiers = parts, parts.tiers
        self._queues, self._arrangement = parts.queues, parts.arrangement
        self._fleet, self._prefixes, self._slot_fitting = parts.fleet, parts.prefixes, parts.slot_fitting
        self._ledger, self._accounting, self._attainment = parts.ledger, parts.accounting, parts.attainment
        self._tenants, self._admission, self._admission_rules = parts.tenants, parts.admission, parts.admission_rules
        self._forecaster, self._preemption, self._shedding = parts.forecaster, parts.preemption, parts.shedding
        self._outage, self._waiting, self._draining = parts.outage, parts.waiting, parts.draining
        self._key_holds, self._sessions = parts.waiting.key_holds, parts.sessions
        self._unsettled = parts.accounting.unsettled
        self._dispatching = Dispatching(parts, settings.asked_max)
        self._returned_at = inf  # until then, tenants from before a restart count as returning
        self._rejected = parts.admission.rejected  # the same list: it is changed, never replaced
        self._polled_at = float("-inf")
        self._decisions_max = settings.decisions_max
        self._is_cut_short = False  # the last poll reached `decisions_max` with more to decide
        self._rounds: Sequence[tuple[FairQueue, BackfillRound]] | None = None
        """What the last poll left to decide at its instant, nothing if it was not cut short; None: a fact came since,
        and everything is open.
        """

    # -- facts ---------------------------------------------------------------------------------------------

    def told(self, fact: Fact) -> None:
        """Take any fact as a value, and pass it to the method that its `call` names, here or in the `part` that it
        names. Afterwards the next poll decides everything anew, even at the same instant.
        """
        if fact.part is not None:
            self._rounds = None
            getattr(getattr(self.parts, fact.part), fact.call)(**fact.arguments())
        elif isinstance(fact, Undelivered):
            self.returned(fact.request_id, fact.now, cause=Cause.DRAINED)  # the backend has refused nothing
        else:
            getattr(self, fact.call)(**fact.arguments())

    def submit(self, request: Request, now: float) -> None:
        """A request arrived; the next poll may reject it. Requires an id that no queued or dispatched request has."""
        ends_at = self._admitted_until(request, now)
        if ends_at is not None:
            if self._sessions is not None and request.program_id is None and request.prefix:
                request = self._sessions.named(request)
            self._waiting.wait(request, ends_at, now)

    def arrived(self, request: Request, now: float) -> Sequence[Action]:
        """A request arrived: do exactly what `submit` and then `poll` do, and return the actions. If no other decision
        is due, the request is sent without being queued first, which is faster.
        """
        ends_at = self._admitted_until(request, now)
        if ends_at is None:
            return self.poll(now)
        if self._sessions is not None and request.program_id is None and request.prefix:
            request = self._sessions.named(request)
        is_more = self._rejected or self._queues.deadlines or self._key_holds.freed or self._draining.since
        is_alone = now < ends_at and not is_more and self._decisions_max > 1
        if is_alone and request.program_id is not None and self._sessions is not None:
            is_alone = not self._sessions.may_hold(now)
        dispatch = self._dispatching.at_once(request, now) if is_alone else None
        if dispatch is None:
            self._waiting.wait(request, ends_at, now)
            return self.poll(now)
        self._polled_at, self._is_cut_short, self._rounds = now, False, ()
        if self._forecaster.is_asked:
            self._forecaster.polled()
        return (dispatch,)

    def _admitted_until(self, request: Request, now: float) -> float | None:
        """Until when an arriving request may wait; None: not at all, and the next poll tells its rejection."""
        request_id = request.id
        assert request_id not in self._queues.deadlines, "an id is in use once"
        assert request_id not in self._ledger.in_flight, "an id is in use once"
        assert request_id not in self._waiting.parked, "an id is in use once"
        self._rounds = None
        if now >= self._returned_at:
            self._returned_at = inf
            for fair_queue in self._arrangement.fair_queues.all():
                fair_queue.order.root.all_returned()
        rejection = self._admission.check(request, now, self._waiting.reject)
        if rejection is not None:
            self._rejected.append(rejection)
            return None
        return self._admission.queue_timeout.ends_at(request, now)

    def tokens(self, request_id: str, usage: Usage, now: float) -> None:
        """A dispatched request has used `usage` in all until now. A fact about a request that has ended is ignored."""
        entry = self._ledger.in_flight.get(request_id)
        if entry is None:
            return
        before = entry.usage
        self._rounds = None
        self._used(entry, usage, now)
        if usage[2] <= entry.expected_output and usage[0] == before[0] and usage[1] == before[1]:
            # Within its prediction a token moves service from outstanding to counter and leaves the rank as it is:
            # the accounts need only the latest usage, and only before they are read.
            self._unsettled[request_id] = entry
        else:
            self._accounting.settle(entry)
            self._arrangement.resize(entry)

    def finished(
        self, request_id: str, outcome: Outcome, now: float, timing: Timing | None = None, usage: Usage | None = None
    ) -> None:
        """A dispatched request ended. Its charge stays, except in two cases where it is free: its backend failed before
        the first token, or it used no token. `timing` is the latency of the answer, for requests with an envelope.
        `usage` is the request's total usage; None: as last reported by `tokens`.
        """
        entry = self._ledger.in_flight.get(request_id)
        if entry is None:
            return
        if usage is not None:
            self._used(entry, usage, now, is_last=True)
        if entry.request.envelope is not None:
            self._attainment.ended(
                entry.request, timing, outcome, tier_id=self._tenants.tier_id(entry.request.tenant_id)
            )
        prompt, _, output = entry.usage
        is_served = output > 0 or (prompt > 0 and outcome is not Outcome.BACKEND_FAILED)
        self._slot_fitting.observed(entry, outcome)
        for rule in self._admission_rules.told_settled:  # `settled`, inlined
            if rule.reserved is None or request_id in rule.reserved:
                rule.settled(request_id, is_served * (prompt + output), now)
        fair_queues = self._arrangement.fair_queues
        fair_queue = fair_queues.shared or fair_queues.at(entry.backend_id)
        sessions = self._sessions
        if sessions is not None and (entry.request.program_id is not None or sessions.tenants or sessions.others):
            sessions.ended(entry, now)
        self._accounting.ended(entry, fair_queue, is_served=is_served, now=now)
        if fair_queues.shared is None:
            fair_queues.ended(entry)
        if self._key_holds.keys:
            self._key_holds.left(entry.request)
        self._freed(entry, fair_queue, now, is_failed=outcome is Outcome.BACKEND_FAILED)

    def returned(
        self,
        request_id: str,
        now: float,
        hold_s: float = 0.0,
        backend_ids: frozenset[str] | None = None,
        cause: Cause = Cause.FAILED,
    ) -> None:
        """A dispatched request comes back to the head of its tenant's queue, with its charge and its old deadline: the
        backend rejected the request, or it was preempted (`cause`). The backend gets no request for `hold_s` seconds.
        With `backend_ids` the request may only go to these backends from now on, and its return does not count as a
        rejection by its backend.
        """
        entry = self._ledger.in_flight.get(request_id)
        if entry is None:
            return
        entry.request = _waiting(entry, entry.request.produced_tokens, cause)
        if backend_ids is not None:
            entry.request = replace(entry.request, backend_ids=backend_ids)
        self._wait_again(entry, now, cause)
        if cause is Cause.FAILED and backend_ids is None:
            self._fleet.refused(entry.backend_id, now, hold_s)
        self._waiting.reassign_stranded(now)

    def interrupted(
        self, request_id: str, usage: Usage, now: float, hold_s: float = 0.0, cause: Cause = Cause.FAILED
    ) -> None:
        """A dispatched request stopped after `usage`, because its backend failed or the request was preempted
        (`cause`). It waits again at the head of its tenant's queue, with its charge, so that any backend may continue
        it. Its queue timeout begins anew. From now on its usage is the output of all its backends, and its prompt once.
        The backend gets no request for `hold_s` seconds.
        """
        entry = self._ledger.in_flight.get(request_id)
        if entry is None:
            return
        self._used(entry, usage, now)
        entry.request = _waiting(entry, usage.output_tokens, cause)
        self._ledger.interruptions.by_cause[cause] += 1
        self._wait_again(entry, now, cause)
        if cause is Cause.FAILED:
            self._fleet.refused(entry.backend_id, now, hold_s)
        self._waiting.reassign_stranded(now)

    def cancel(self, request_id: str, now: float) -> None:
        """The client disconnected before the driver knew of a dispatch, so nothing was sent, and nothing is charged. A
        queued request leaves the queue. A request that was dispatched meanwhile ends. The charge of an interrupted
        request stays. Unknown ids are ignored.
        """
        if self._waiting.end_parked(request_id, now):
            return
        request = self._queues.remove(request_id)
        if request is not None:
            self._rounds = None
            self._waiting.left(request, now)
        elif (entry := self._ledger.in_flight.get(request_id)) is not None:
            usage = entry.usage if entry.request.produced_tokens else NO_USAGE
            self.finished(request_id, Outcome.CLIENT_DISCONNECTED, now, usage=usage)
        else:  # its rejection may still wait for the next poll
            self._rejected[:] = [action for action in self._rejected if action.request_id != request_id]

    def spent(self, tenant_id: str, usage: Usage, now: float, key_id: str = "") -> None:
        """A call that was never queued used `usage`, with the API key `key_id`. Unknown tenants are ignored."""
        tenant = self._tenants.admitted(tenant_id)
        if tenant is not None:
            self._rounds = None
            self._accounting.spent(tenant_id, usage)
            self._admission_rules.spent(tenant, key_id, usage.prompt_tokens + usage.output_tokens, now)

    def load_changed(self, loads: Sequence[BackendLoad], now: float) -> None:
        """Take the new loads of all live backends. Any other backend gets no new request; its running ones go on."""
        self._rounds = None
        self._fleet.live(loads, self._ledger.at, now)
        if self._sessions is not None:
            self._sessions.ledger.loads_changed(loads)
        self._draining.live(loads, now)
        self._outage.backends_changed(self._queues.waiting(), now, is_available=self._fleet.is_available())
        self._arrangement.fair_queues.backends_changed()
        self._waiting.unbind(now)
        if self._slot_fitting.reads_prefixes:
            self._prefixes.retain(self._fleet.backends.keys())
            for load in loads:
                self._prefixes.resized(load.backend_id, load.kv_tokens_max)
        self._waiting.reassign_stranded(now)

    def measured(self, load: BackendLoad, now: float) -> None:
        """Take the new load of one live backend. Costs time in proportion to the requests in flight there."""
        self._rounds = None
        is_other = self._fleet.measured(load, self._ledger.at(load.backend_id), now)
        if self._sessions is not None:
            self._sessions.ledger.measured(load)
        self._draining.measured(load, now)
        if self._slot_fitting.reads_prefixes:
            self._prefixes.resized(load.backend_id, load.kv_tokens_max)
        if is_other:
            self._outage.backends_changed(self._queues.waiting(), now, is_available=self._fleet.is_available())
            self._arrangement.fair_queues.backends_changed()
            self._waiting.unbind(now)
            self._waiting.reassign_stranded(now)
        else:
            self._arrangement.fair_queues.release_holds()
            self._tenants.move_stranded(now)

    def tenants_changed(
        self,
        *,
        changed: Iterable[Tenant] = (),
        removed: Iterable[str] = (),
        tiers: Iterable[Tier] = (),
        tiers_removed: Iterable[str] = (),
        groups: Iterable[Group] = (),
        groups_removed: Iterable[str] = (),
        now: float,
    ) -> None:
        """Add or change tenants, tiers and groups. The queued requests of removed tenants are rejected at the next
        poll; removed tiers and groups go with their last tenant. Counters stay when weights or limits change; a tenant
        that changes its tier or group keeps its distance to the level there.
        """
        self._rounds, removed, changed = None, list(removed), list(changed)
        before, states = {tenant.id: self._tenants.admitted(tenant.id) for tenant in changed}, self._tenants.states
        # Those of removed tenants, too: their requests may still run.
        settings = {each: states[each].tenant for each in before if each in states}
        leaving = [tenant for each in removed if (tenant := self._tenants.admitted(each)) is not None]
        for request in self._waiting.parked_of(removed):
            self._waiting.end_parked(request.id, now)
            self._rejected.append(self._admission.reject(request, Reason.TENANT_UNKNOWN, now))
        self._tenants.change(changed, tiers, groups, now)
        for request in self._tenants.remove(removed, tiers_removed, groups_removed, now):
            self._waiting.reject(request, Reason.TENANT_UNKNOWN, now)
        for tenant in changed:
            self._waiting.limits_changed(settings.get(tenant.id), self._tenants.admitted(tenant.id), now)
        if self._sessions is not None:
            self._sessions.removed(leaving)
            if tiers or groups or any(before[each.id] != each for each in changed if before[each.id] or each.group_id):
                self._sessions.ledger.held.rearrange()
        self._preemption.tiers_changed()
        if tiers or tiers_removed:
            self._shedding.tiers_changed()

    def policy_changed(
        self,
        *,
        fairness: PolicyChoice | None = None,
        prediction: PolicyChoice | None = None,
        sizing: PolicyChoice | None = None,
        placement: PolicyChoice | None = None,
        now: float,
    ) -> None:
        """Replace policies; None keeps one, but sizing follows prediction where one predictor did both. Counters stay
        (policy_switch.py); a new predictor starts without observations. Raises ValueError for an unknown policy or
        parameter, and then changes nothing.
        """
        slot_fitting, factory = self._slot_fitting, self._arrangement.factory
        make_order = choose_policy(FAIRNESS, fairness) if fairness else factory.make_order
        place = choose_policy(PLACEMENT, placement)() if placement else self._arrangement.placement
        predictor, sizer = predictors(slot_fitting, prediction, sizing)
        self._accounting.settle_all()
        slot_fitting.predict_by(predictor, sizer)
        factory.make_order, factory.output_tokens = make_order, sizer.predict
        before, running = self._arrangement.fair_queues, () if placement else self._arrangement.fair_queues.running()
        after = self._arrangement.arrange(place, running)
        for request in [each for each in self._queues.oldest_first() if not after.has_place(each)]:
            self._waiting.reject(request, Reason.NO_BACKEND, now)
        states = self._tenants.states
        rearrange(before, after, ledger=self._ledger, queues=self._queues, states=states, now=now)
        self._arrangement.fair_queues, self._rounds = after, None
        self._forecaster.output_tokens = sizer.predict
        self._shedding.ranks_changed()

    def restored(self, checkpoint: ServiceCheckpoint, now: float, returning_s: float = RETURNING_S) -> None:
        """Set all counters from a checkpoint, and drop those of this process. Call it when the backends are known, and
        while no request is here. Until `returning_s` seconds later, a joining tenant is lifted to the checkpoint's
        level only.
        """
        assert not len(self._queues) + len(self._ledger.in_flight), "restored before anything waits or runs"
        arrangement = self._arrangement
        arrangement.factory.restored = {}
        self._shedding.ranks_changed()
        fair_queues = arrangement.arrange(arrangement.placement)
        restore(fair_queues, arrangement.factory, checkpoint)
        arrangement.fair_queues, self._rounds = fair_queues, None
        self._returned_at = now + returning_s

    def adopted(
        self,
        request: Request,
        backend_id: str,
        usage: Usage,
        now: float,
        *,
        output_tokens: float = 0.0,
        dispatched_at: float | None = None,
    ) -> None:
        """A request runs at this backend that another scheduler dispatched there. It takes a slot, even beyond the
        limit, with room for `output_tokens` (0: as predicted here). `usage` counts as charged already. Requires that
        its tenant is known.
        """
        for known in (self._queues.deadlines, self._ledger.in_flight, self._waiting.parked):
            assert request.id not in known, "an id is in use once"
        self._rounds = None
        request = request if self._sessions is None else self._sessions.named(request)
        self._key_holds.runs(request)
        tier_id = self._tenants.tier_id(request.tenant_id)
        entry = self._slot_fitting.adopt(request, tier_id, backend_id, usage, output_tokens=output_tokens, now=now)
        entry.dispatched_at = now if dispatched_at is None else dispatched_at
        fair_queues = self._arrangement.fair_queues
        fair_queues.backends_changed()
        fair_queue = fair_queues.at(backend_id)
        fair_queue.opened(entry, self._ledger.adopted(entry))
        self._tenants.dispatched(request.tenant_id, fair_queue)
        if usage.output_tokens > request.produced_tokens:
            entry.first_token_at = now
            entry.life = LIFE[entry.life, Event.ANSWERED if request.is_resumable else Event.KEPT]
            self._fleet.took(entry)
        if self._sessions is not None:
            self._sessions.sent(entry)
        self._waiting.hold_excess(request, now)
        self._arrangement.resize(entry)

    # -- decisions -----------------------------------------------------------------------------------------

    def poll(self, now: float) -> list[Action]:
        """Decide what can be decided now, and return the actions in the order of the decisions. If `next_wakeup()` is
        not later than `now`, poll again: more can be decided.
        """
        if self._arrangement.reads_counters:
            self._accounting.settle_all()
        self._fleet.limits.add_up()
        if now != self._polled_at:
            self._polled_at, self._rounds = now, None
        if len(self._shedding.noted) >= NOTED_MAX and len(self._arrangement.fair_queues.all()) == 1:
            self._shedding.settle()  # with several queues a rank is a sum over them, computed when needed
        actions = [*self._rejected]
        self._rejected.clear()
        actions_max = len(actions) + self._decisions_max
        is_spent = False
        if self._queues.deadlines or self._key_holds.freed or (self._sessions is not None and self._sessions.is_on):
            is_spent = self._decide_on_waiting(now, actions, actions_max)
            if self._rejected:  # they were held, and may not wait any more
                actions += self._rejected
                self._rejected.clear()
        self._is_cut_short = is_spent or len(actions) >= actions_max or bool(self._key_holds.freed)
        if not self._is_cut_short:
            if self._preemption.is_on and self._queues.deadlines:
                actions += self._preemption.preempted(self._arrangement.fair_queues, now)
            self._rounds = ()
            if self._forecaster.is_asked:
                self._forecaster.polled()
        if self._draining.since:
            actions += self._draining.preempted(now)
        assert self._fleet.requests == len(self._ledger.in_flight), "every slot belongs to a request"
        return actions

    def next_wakeup(self) -> float | None:
        """The time of the next poll, if no fact arrives before; None: no such time is known. It is now, if the last
        poll was cut short. Otherwise it is the earliest time at which a request's wait ends, a held backend opens, a
        waiting request may preempt, held turns of sessions may run, or requests have to leave a draining backend.
        """
        drained_at = self._draining.next_at() if self._draining.since else None
        if not self._queues.deadlines:
            return drained_at
        if self._is_cut_short:
            return self._polled_at
        times = (
            drained_at,
            self._queues.deadlines.next(),
            self._outage.next_end(self._queues),
            self._fleet.next_opening(self._polled_at),
            self._preemption.wakeup_at if self._preemption.is_on else None,
            self._sessions.next_at() if self._sessions is not None else None,
        )
        return min((at for at in times if at is not None), default=None)

    # -- view ----------------------------------------------------------------------------------------------

    def snapshot(self, now: float, tenant_ids: Iterable[str] | None = None) -> Snapshot:
        """State for people and metrics; takes time in proportion to the tenants in it (None: all)."""
        self._accounting.settle_all()
        return take_snapshot(self.parts, now, tenant_ids)

    def rate_limits(self, tenant_id: str, now: float, key_id: str = "") -> RateLimits:
        """The limits per minute for a tenant's call with this key, and what is left; none for an unknown tenant."""
        state = self._tenants.states.get(tenant_id)
        return RateLimits() if state is None else self._admission_rules.limits(state.tenant, key_id, now)

    def counter(self, tenant_id: str) -> float:
        """Service received over weight, lifts included; 0 for an unknown tenant."""
        return self._tenants.counter(tenant_id)

    def waits_for(self, request_id: str, now: float) -> Wait | None:
        """Why the request is queued, as of the last poll; None if it is not queued."""
        if request_id not in self._queues:
            return None
        return waits_for(self._queues.get(request_id), self._queues, self._tenants.states, self._fleet, now)

    def wait_views(self, request_ids: Iterable[str], now: float) -> Mapping[str, WaitView]:
        """For each of these requests that is queued, as of the last poll: why it waits, which tenant is next, and when
        it will probably be sent. Takes longer per request than `waits_for`.
        """
        requests = [self._queues.get(each) for each in request_ids if each in self._queues]
        return wait_views(self.parts, requests, now)

    def prefilled(self, request_id: str, now: float) -> Usage | None:
        """The part of a dispatched request's prompt that its backend has probably computed; the whole prompt where too
        little is known of the backend's steps. None if the request is not in flight.
        """
        entry = self._ledger.in_flight.get(request_id)
        return None if entry is None else self._fleet.prefilled(entry, now)

    def checkpoint(self, tenant_ids: Collection[str] | None = None) -> ServiceCheckpoint:
        """The counters, which the pool's next scheduler takes by `restored`. Takes time in proportion to the tenants.
        With `tenant_ids` it has the counters of these tenants only, and of all tiers and groups.
        """
        self._accounting.settle_all()
        restored: ServiceCheckpoint = self._arrangement.factory.restored
        if restored and tenant_ids is not None:
            restored = of_tenants(restored, tenant_ids)
        return {**self._arrangement.fair_queues.checkpoint(tenant_ids), **restored}

    # -- decisions, in parts -------------------------------------------------------------------------------

    def _decide_on_waiting(self, now: float, actions: list[Action], actions_max: int) -> bool:
        """Reject and dispatch what waits; returns whether it stopped because backends were asked too often."""
        before = len(actions)
        self._waiting.reject_overdue(now, actions, actions_max)
        if len(actions) > before:
            self._rounds = None
        for _ in range(self._decisions_max):  # what was held until its key has room enters the order
            held = self._key_holds.release() if self._key_holds.freed else None
            if held is None:
                break
            self._queues.remove(held.id)
            self._rounds = None
            self._waiting.readmitted(held, now)
        if self._sessions is not None:
            for request_id in self._sessions.released(now):  # likewise until its session has
                held = self._queues.remove(request_id)
                assert held is not None, "what is held is queued"
                self._rounds = None
                self._waiting.readmitted(held, now)
            self._waiting.unbind(now, is_due=True)
        is_spent = False
        if self._queues.deadlines:
            if self._rounds is None:
                self._rounds = self._dispatching.rounds(now)
            for fair_queue, this_round in self._rounds:
                is_spent = is_spent or self._dispatching.from_queue(fair_queue, this_round, actions, actions_max)
        return is_spent

    # -- what waits and what runs --------------------------------------------------------------------------

    def _wait_again(self, entry: InFlight, now: float, cause: Cause) -> None:
        """A dispatched request waits again at the head of its tenant's queue, prepaid. It precedes any new choice,
        because it was chosen and charged before, unless it gave way to another.
        """
        self._accounting.settle(entry)
        if self._sessions is not None:
            self._sessions.returned(entry.request.id, now)
        self._ledger.returned(entry)
        self._queues.prepend(entry.request, self._admission.queue_timeout.ends_at(entry.request, now))
        self._outage.queued(entry.request, now)
        fair_queue = self._arrangement.fair_queues.enter_again(entry)
        if cause is not Cause.PREEMPTED:
            fair_queue.first[entry.request.id] = None
        fair_queue.queued(entry.request, now)
        self._freed(entry, fair_queue, now, is_failed=cause is Cause.FAILED)
        if self._key_holds.keys:
            self._waiting.hold_excess(entry.request, now)

    def _used(self, entry: InFlight, usage: Usage, now: float, *, is_last: bool = False) -> None:
        """Record the usage of the entry's request, which ends now if it `is_last`; the accounts do not have it yet."""
        if self._sessions is not None and self._sessions.forgiven:
            usage = self._sessions.charged(entry.request.id, usage)
        entry.usage, produced = usage, usage[2] - entry.request.produced_tokens
        entry.reservation.produced_tokens = produced
        backend = self._fleet.backends[entry.backend_id]
        backend.ends.moved[entry.reservation] = None
        if entry.first_token_at is None and produced:
            entry.first_token_at = now
            entry.life = LIFE[entry.life, Event.ANSWERED if entry.request.is_resumable else Event.KEPT]
            if is_last and not backend.follows_starts:
                backend.refusing_since = None  # for the rest, its release says it
            else:
                self._fleet.took(entry)
            if self._sessions is not None and entry.request.program_id is not None:
                turn = self._sessions.ledger.turns.get(entry.request.id)
                if turn is not None:
                    turn.first_token(now)
            if self._preemption.untouched:
                self._preemption.settled(entry.request.id)

    def _freed(self, entry: InFlight, fair_queue: FairQueue, now: float, *, is_failed: bool) -> None:
        """The entry, dispatched from this queue, is no longer in flight."""
        self._rounds = None
        self._fleet.release(entry, now, is_failed=is_failed)
        if self._preemption.untouched:
            self._preemption.settled(entry.request.id)
        fair_queue.use.count(entry, -1, -entry.reservation.sequences, -entry.reservation.tokens)
        self._tenants.freed(entry.request.tenant_id, fair_queue)


def _waiting(entry: InFlight, produced: int, cause: Cause) -> Request:
    """The request of an entry that waits again, with the output that it goes on from and its preemptions."""
    request = entry.request
    preemptions = request.preemptions + (cause is Cause.PREEMPTED)
    if produced > request.produced_tokens:
        return replace(request, produced_tokens=produced, ran_at=entry.backend_id, preemptions=preemptions)
    return request if preemptions == request.preemptions else replace(request, preemptions=preemptions)
