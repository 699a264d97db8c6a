"""Ledger of sessions: which turns may run now, so that the contexts of admitted sessions stay in the KV pools.

    facts      arrived, sent, returned, ended, left, adopted, loads_changed, measured, restored
    decisions  arrived -> may the turn enter the order now; released(now) -> the held turns that may
    time       next_at() -> when to ask `released` although no fact arrived
    view       views.py; table, turns, working_sets, checkpoint

A turn of an admitted session is a request like any other, for the backend that has its context. A turn of a session
that is not admitted is held until there is room for its context and what it will grow by. Held turns are asked in the
fair order of the pool. To make room, idle sessions are paused, never one that runs (pauses.py). The first turn that
finds no room keeps a backend for itself until it does, so that smaller ones do not pass it for ever. A session that has
had its quantum yields while others wait. All of this happens only where it pays (engage.py); otherwise every turn
passes, and the ledger only watches.

A call without a session costs nothing here, until there are sessions: then it counts in the working set of its backend
while it runs.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from math import inf
from typing import Final, NamedTuple

from policies.fairness.tree import FairTree
from policies.sessions.checkpoint import SessionId, SessionRecord, SessionsCheckpoint, session_of
from policies.sessions.engage import Engagement
from policies.sessions.held import HeldTurns
from policies.sessions.pauses import longest_away, outlook, to_yield, worth_pausing
from policies.sessions.session import GROWTH_TURNS, AgentSession, Turn
from policies.sessions.table import SessionTable
from policies.sessions.working_set import WorkingSet
from policies.types import SESSION_WAIT_BOUNDS_S, BackendLoad, Request, Tenant, Usage

SESSIONS_MAX: Final = 512  # of a tenant
QUANTUM_PREFILLS: Final = 5.0  # computing its context again costs a session that yields at most a fifth of what it had
WAIT_S_MAX: Final = 150.0  # half of the queue timeout
FORCED_RATIO: Final = 0.9
"""Of it: then a turn gets room whatever that costs others. Simulated: it has it, once turns that run have ended, within
0.07 more."""
HORIZON_S: Final = 3600.0  # a session that stays away for longer has ended
ENDED_RETURNS_MAX: Final = 0.5  # one that returns within the horizon with less probability has likely ended
JUDGED_EVERY_S: Final = 0.1
LOOK_AGAIN_S_MIN: Final = 0.02
LOOK_AGAIN_S_MAX: Final = 1.0
LOOK_AGAIN_RATIO: Final = 0.25  # of what the first held turn has waited
RELEASED_MAX: Final = 32  # turns that enter in one look, once nothing is held any more
ASKED_MAX: Final = 512  # of turns and backends in one look, each pair of which costs some microseconds


class TurnEntry(NamedTuple):
    """The decision that a turn (a call) of a session may enter the queues' order. The turn has room at `backend_id`,
    and goes there as long as that backend is available; None: the placement chooses the backend.
    """

    request_id: str
    backend_id: str | None


class SessionLedger:
    """The sessions of one pool: it decides which sessions may keep their contexts at a backend, and which turns may run
    now. If several processes share one Scheduler, only the leader, which runs it, has a ledger. Mutable.
    """

    def __init__(
        self,
        make_order: Callable[[], FairTree],
        tenant: Callable[[str], Tenant],
        *,
        sessions_max: int = SESSIONS_MAX,
        wait_s_max: float = WAIT_S_MAX,
        eta: float | None = None,
        quantum: float = QUANTUM_PREFILLS,
    ) -> None:
        """`make_order` makes an order for held turns alone (held.py). SessionRules describes the other parameters."""
        self.held = HeldTurns(make_order, tenant)
        self.engagement = Engagement()
        self.working_sets: dict[str, WorkingSet] = {}
        self.pauses_total = self.yields_total = 0
        self.expected_tokens_total = self.recomputed_tokens_total = 0
        self.wait_counts, self.wait_s_total = [0] * (len(SESSION_WAIT_BOUNDS_S) + 1), 0.0
        self.table = SessionTable(sessions_max)
        self._eta, self._quantum = eta, quantum
        self._forced_after_s = FORCED_RATIO * wait_s_max
        self.available: set[str] = set()
        """Ids of the backends that serve. To read."""
        self.turns: dict[str, Turn] = {}
        """The turns that were let in and have not ended, by the ids of their requests. To read."""
        self.others: dict[str, tuple[WorkingSet, int]] = {}
        """The calls without a session that run, and their tokens, by id. To read."""
        self._is_changed = False
        self._looked_at = self._judged_at = -inf

    # -- facts -----------------------------------------------------------------------------------------------

    def loads_changed(self, loads: Iterable[BackendLoad]) -> None:
        """The loads of all live backends, newly measured."""
        gone = set(self.working_sets)
        for load in loads:
            gone.discard(load.backend_id)
            self.measured(load)
        for backend_id in gone:
            self._remove(self.working_sets.pop(backend_id))
            self.available.discard(backend_id)

    def measured(self, load: BackendLoad) -> None:
        """The load of one live backend, newly measured."""
        backend = self._set(load.backend_id)
        backend.pool_tokens = inf if load.kv_tokens_max is None else float(load.kv_tokens_max)
        step_time = load.step_time
        backend.use.token_s = None if step_time is None or not step_time.is_sure else step_time.model.token_s
        (self.available.add if load.available else self.available.discard)(load.backend_id)
        self._is_changed = True

    def arrived(self, request: Request, now: float) -> TurnEntry | None:
        """A call of a session arrived. Returns the backend it may enter the order for, if any; None: it is held."""
        turn = self._turn(request, now)
        session = turn.session
        if not self.is_engaged(now) or request.produced_tokens:
            self._let_in(turn, None)
            return TurnEntry(request.id, None)
        if session.is_admitted and not self._yields(turn, now) and self.working_sets[session.backend_id].fits(turn):
            self._let_in(turn, session.backend_id)
            return TurnEntry(request.id, session.backend_id)
        if session.is_admitted and not session.running:
            self._pause(session, now, goes_first=False)
            turn.resumes = True
        self.held.add(turn)
        self._is_changed = True
        return None

    def sent(self, request: Request, backend_id: str, now: float) -> None:
        """A call was sent to this backend."""
        turn = self.turns.get(request.id)
        if turn is not None:
            self._sent(turn, backend_id, now)
        elif self.table.tenants:
            backend, tokens = self._set(backend_id), request.prompt_tokens + request.output_tokens_max
            backend.use.advance(now)
            backend.use.running += 1
            self.others[request.id] = backend, tokens
            backend.tokens += tokens

    def returned(self, request_id: str, now: float) -> None:
        """A call that was sent waits in the order again: its backend rejected it or failed, or it was preempted."""
        if (other := self.others.pop(request_id, None)) is not None:
            other[0].use.left(now)
            other[0].tokens -= other[1]
            self._is_changed = True
        elif (turn := self.turns.get(request_id)) is not None and turn.is_sent:
            turn.is_sent = False
            if (backend := self.working_sets.get(turn.backend_id)) is not None:
                backend.use.left(now)
                self._is_changed = True

    def ended(self, request_id: str, usage: Usage, now: float) -> None:
        """A call that was sent has ended with this usage."""
        turn = self.turns.pop(request_id, None)
        if turn is None:
            if (other := self.others.pop(request_id, None)) is not None:
                other[0].use.ended(usage, now)
                other[0].tokens -= other[1]
                self._is_changed = True
            return
        session, backend = turn.session, self.working_sets.get(turn.backend_id)
        del session.running[request_id]
        if backend is not None and turn.is_sent:
            use = backend.use
            use.ended(usage, now)
            self._is_changed = True
            session.used_s += use.engine_s - turn.sent_engine_s
            if usage.output_tokens:
                self._note_answer(turn, usage, backend, now)
            if turn.backend_id == session.backend_id:  # not of a call at another one, whose tokens are counted there
                session.left_at = use.computed
        self._rest(session, now)
        if self.table.changed is not None:
            self.table.note(session)
        if turn.request.ends_session and not session.running and not session.held:
            if session.is_admitted:
                self.working_sets[session.backend_id].freed(now)
            self._forget(session)

    def left(self, request_id: str, now: float) -> None:
        """A call left the queue unsent, whether it was held or not."""
        if (held := self.held.turns.get(request_id)) is not None:
            self.held.remove(held)
        elif (turn := self.turns.pop(request_id, None)) is not None:
            del turn.session.running[request_id]
            self._rest(turn.session, now)
        self._is_changed = True

    def adopted(self, request: Request, backend_id: str, now: float) -> Turn:
        """A call was sent without `arrived`: no turns are held, or another ledger admitted it. Returns its turn."""
        turn = self._turn(request, now)
        self._let_in(turn, None)
        self._sent(turn, backend_id, now)
        return turn

    def tenant_removed(self, tenant_id: str) -> None:
        """The tenant is gone, and nothing of it waits. What runs still ends."""
        of_tenant = self.table.tenants.get(tenant_id)
        if of_tenant is not None:
            for session in [each for each in of_tenant.sessions.values() if not each.running]:
                self._forget(session)
            if not of_tenant.sessions:
                del self.table.tenants[tenant_id]

    def restored(self, checkpoint: SessionsCheckpoint, now: float) -> None:
        """Begin with the sessions of another ledger, before any turn arrives. Sessions whose backends are not live lose
        their contexts with the next `loads_changed`.
        """
        assert not len(self.turns) + len(self.held), "restored before any turn"
        if self._eta is None:
            for backend_id, eta in checkpoint.eta.items():
                self._set(backend_id).eta = eta
        known = {key: told for key, told in checkpoint.sessions.items() if told is not None}
        for (tenant_id, session_id), told in sorted(known.items(), key=_idle_since):
            of_tenant = self.table.of(tenant_id)
            session = session_of(tenant_id, session_id, told, now + told.idle_since - checkpoint.at)
            of_tenant.sessions[session_id] = session
            if told.is_admitted:
                self._set(session.backend_id).admit(session)
                session.used_s = told.used_s
        if checkpoint.is_engaged:
            self.engagement.begin(now)

    # -- decisions -------------------------------------------------------------------------------------------

    def released(self, now: float) -> Iterator[TurnEntry]:
        """Yield the held turns that may enter the order now."""
        if (not self.held and not self.engagement.is_on) or ((at := self.next_at()) is not None and now < at):
            return
        self._looked_at, self._is_changed = now, False
        if not self.is_engaged(now):
            for each in list(islice(self.held.turns.values(), RELEASED_MAX)):
                yield self._release(each, None, now)
            self._is_changed = bool(self.held)
            return
        for backend in self.working_sets.values():
            self._shrink(backend, now)
        self.held.age(now - self._forced_after_s)
        self.held.tried.clear()
        kept: set[str] = set()  # backends that turns without room keep
        for _ in range(max(1, ASKED_MAX // max(1, len(self.available)))):
            turn = self.held.next() if len(kept) < len(self.available) else None
            if turn is None:
                return
            backend_id = self._find_room(turn, kept, now)
            if backend_id is not None:
                yield self._release(turn, backend_id, now)
                continue
            self.held.tried.add(turn.request.id)
            wanted = [each for each in self._wanted(turn, now) if each.id not in kept]
            if wanted:
                kept.add(max(wanted, key=lambda each: (each.room, each.id)).id)
        self._is_changed = not self.held.tried  # there is more to decide at once, if all had room so far

    def _release(self, turn: Turn, backend_id: str | None, now: float) -> TurnEntry:
        self.held.remove(turn)
        waited_s = now - turn.arrived_at
        self.wait_counts[bisect_left(SESSION_WAIT_BOUNDS_S, waited_s)] += 1
        self.wait_s_total += waited_s
        self._let_in(turn, backend_id)
        return TurnEntry(turn.request.id, backend_id)

    def next_at(self) -> float | None:
        """The time at which to call `released` although no fact arrives; None: not before a fact arrives."""
        first = self.held.waited_longest()
        if first is None:
            return None
        if self._is_changed:
            return self._looked_at
        waited_s = self._looked_at - first.arrived_at
        at, longest_at = self._looked_at + LOOK_AGAIN_RATIO * waited_s, first.arrived_at + self._forced_after_s
        at = min(self._looked_at + LOOK_AGAIN_S_MAX, max(self._looked_at + LOOK_AGAIN_S_MIN, at))
        return min(at, longest_at) if longest_at > self._looked_at else at

    # -- view ------------------------------------------------------------------------------------------------

    def checkpoint(self, now: float, changes_max: int) -> SessionsCheckpoint:
        """The state for `restored` of the next ledger, with at most `changes_max` sessions that have changed since the
        last call. At the first call all sessions count as changed.
        """
        eta = {each.id: each.eta for each in self.working_sets.values()}
        return SessionsCheckpoint(self.table.changes(now, changes_max), eta, self.engagement.is_on, now)

    # -- room ------------------------------------------------------------------------------------------------

    def is_engaged(self, now: float) -> bool:
        """Whether sessions are held now."""
        if now - self._judged_at < JUDGED_EVERY_S:
            return self.engagement.is_on
        self._judged_at = now
        sets = self.working_sets.values()
        for backend in sets:
            backend.use.advance(now)
            backend.is_settled = backend.is_settled and self.engagement.is_on
            while (session := backend.lost(now, HORIZON_S)) is not None:
                backend.release(session)
                self.table.note(session)
        is_needed = bool(self.held) or any(each.room < 0.0 for each in sets)
        self.engagement.update(sets, is_needed=is_needed, now=now)
        return self.engagement.is_on

    def _yields(self, turn: Turn, now: float) -> bool:
        """Whether an admitted session may not go on: it has had its quantum and others wait, or its backend is gone."""
        session, ids = turn.session, turn.request.backend_ids
        if session.running:
            return False
        if session.backend_id not in self.available or (ids is not None and session.backend_id not in ids):
            return True
        backend = self.working_sets[session.backend_id]
        if not self.held or session.used_s < self._quantum * session.context * backend.use.prefill_s_per_token:
            return False
        self.yields_total += 1
        backend.freed(now)
        return True

    def _shrink(self, backend: WorkingSet, now: float) -> None:
        """Pause idle sessions while those that have grown do not fit any more."""
        while backend.excess > 0.0 and backend.idle:
            session = longest_away(backend, now, self.table.gaps, HORIZON_S)
            if session.is_settled:
                backend.overfull()
            self._pause(session, now)
        backend.is_settled = backend.is_settled or backend.excess <= 0.0

    def _wanted(self, turn: Turn, now: float) -> list[WorkingSet]:
        """The backends that a held turn may go to: the one with its context, while that is likely there."""
        session, ids = turn.session, turn.request.backend_ids
        wanted = [self.working_sets[each] for each in sorted(self.available) if ids is None or each in ids]
        own = next((each for each in wanted if each.id == session.backend_id), None)
        if own is not None and session.context and own.likely_holds(session):
            return [own] if now - turn.arrived_at < self._forced_after_s else wanted
        return wanted

    def _find_room(self, turn: Turn, kept: Collection[str], now: float) -> str | None:
        """The backend that has room for a held turn, once idle sessions there are paused for it; None: none has."""
        session = turn.session
        is_forced = now - turn.arrived_at >= self._forced_after_s
        if session.is_admitted:  # another turn of it was let in meanwhile
            return session.backend_id if is_forced or self.working_sets[session.backend_id].fits(turn) else None
        tokens = max(session.context, turn.request.prompt_tokens) + self.table.of(session.tenant_id).growth
        near = self.table.parent_at(session)
        wanted = sorted(self._wanted(turn, now), key=lambda each: (each.id != near, -each.room, each.id))
        for backend in wanted:
            if backend.id not in kept and backend.needed(session, tokens) <= backend.room:
                return backend.id
        for backend in wanted:
            if backend.id not in kept and self._make_room(backend, turn, tokens, now, is_forced=is_forced):
                return backend.id
        return None

    def _make_room(self, backend: WorkingSet, turn: Turn, tokens: float, now: float, *, is_forced: bool) -> bool:
        """Pause idle sessions for a turn. Returns whether it has room then."""
        needed = backend.needed(turn.session, tokens)
        if is_forced:
            # Of a prefix that it shares with those that yield, more has to fit when they have.
            while chosen := to_yield(backend, backend.needed(turn.session, tokens)):
                for session in chosen:
                    self._pause(session, now, goes_first=False)
        else:
            horizon_s = backend.grows_in_s(now, turn.arrived_at)
            chosen = worth_pausing(
                backend, needed, now, horizon_s=horizon_s, waiting=len(self.held), gaps_of=self.table.gaps
            )
            for session in chosen or ():
                self._pause(session, now)
        return chosen is not None and backend.needed(turn.session, tokens) <= backend.room

    def _pause(self, session: AgentSession, now: float, *, goes_first: bool = True) -> None:
        assert not session.running, "no session that runs is paused"
        backend, gaps = self.working_sets[session.backend_id], self.table.gaps(session.tenant_id)
        if outlook(session, backend, gaps, now, horizon_s=HORIZON_S).returns < ENDED_RETURNS_MAX:
            backend.freed(now)
        backend.release(session)
        session.goes_first, session.is_paused = goes_first, True
        session.pauses += 1
        self.pauses_total += 1
        self.table.note(session)

    # -- sessions and turns ------------------------------------------------------------------------------------

    def _set(self, backend_id: str) -> WorkingSet:
        backend = self.working_sets.get(backend_id)
        if backend is None:
            backend = self.working_sets[backend_id] = WorkingSet(backend_id, self._eta)
        return backend

    def _turn(self, request: Request, now: float) -> Turn:
        assert request.program_id is not None, "it has a session"
        of_tenant = self.table.tenants.get(request.tenant_id) or self.table.of(request.tenant_id)
        session = of_tenant.sessions.get(request.program_id)
        if session is not None:
            of_tenant.sessions.move_to_end(request.program_id)
            if session.turns and not session.running and not session.held:
                gap_s = now - session.idle_since if now > session.idle_since else 0.0
                session.gap_bucket = of_tenant.gaps.ended(session.gap_bucket, gap_s)
                if (backend := self.working_sets.get(session.backend_id)) is not None:
                    backend.use.returned(gap_s)
        else:
            while (surplus := of_tenant.surplus()) is not None:
                self._forget(surplus)
            session = self.table.add(request)
        continues = session.goes_on(request)
        growth, output = of_tenant.growth, request.output_tokens_max
        tokens = request.prompt_tokens + (int(growth) if growth < output else output)
        if continues:
            tokens = tokens - session.context if tokens > session.context else 0
        return Turn(request, session, now, continues, session.is_paused, tokens)

    def _let_in(self, turn: Turn, backend_id: str | None) -> None:
        """The turn enters the order, for this backend; None: the placement chooses, because nothing is held."""
        session, request = turn.session, turn.request
        turn.backend_id = backend_id or ""
        self.turns[request.id] = session.running[request.id] = turn
        session.goes_first = session.is_paused = False
        if backend_id is None:
            session.is_settled = turn.resumes = False  # what is missed now, holding has not caused
        if session.is_admitted:
            self.working_sets[session.backend_id].began(session, turn)
        elif backend_id is not None:
            self.working_sets[backend_id].admit(session)
        if self.table.changed is not None:
            self.table.note(session)

    def _sent(self, turn: Turn, backend_id: str, now: float) -> None:
        """A turn that was let in was sent to this backend."""
        session, backend = turn.session, self.working_sets.get(backend_id) or self._set(backend_id)
        use = backend.use
        use.advance(now)
        use.running += 1
        is_there = session.backend_id == backend_id
        turn.known = session.context if turn.continues and session.turns and is_there else 0
        turn.is_sent, turn.sent_at, turn.sent_engine_s, turn.backend_id = True, now, use.engine_s, backend_id
        if not is_there and session.is_admitted and len(session.running) == 1:
            self.working_sets[session.backend_id].release(session)
        if not session.is_admitted:
            backend.admit(session)

    def _note_answer(self, turn: Turn, usage: Usage, backend: WorkingSet, now: float) -> None:
        """Learn from an answer: how much of the context was found, and what turns are like."""
        session, use = turn.session, backend.use
        prompt, cached, _ = usage
        if use.tells_cached:
            if turn.prefill_s is not None:
                use.prefilled(prompt - cached, turn.prefill_s)
            if expected := min(prompt, turn.known):
                self.expected_tokens_total += expected
                if expected > cached:
                    self.recomputed_tokens_total += expected - cached
                    if not turn.resumes:
                        use.recomputed_s += (expected - cached) * use.prefill_s_per_token
                if session.is_settled and not turn.resumes:
                    backend.found(expected, cached, is_full=bool(self.held))
        session.is_settled = self.engagement.is_on and backend.is_settled
        of_tenant = self.table.tenants[session.tenant_id]
        of_tenant.growth += (session.answered(turn, usage) - of_tenant.growth) / GROWTH_TURNS
        use.turned(now - turn.sent_at, session.context)

    def _rest(self, session: AgentSession, now: float) -> None:
        """A turn of the session runs no more."""
        if not session.running:
            self.table.tenants[session.tenant_id].gaps.began()
            session.idle_since, session.gap_bucket = now, 0
        if session.is_admitted:
            self.working_sets[session.backend_id].resize(session)

    def _forget(self, session: AgentSession) -> None:
        if session.is_admitted:
            self.working_sets[session.backend_id].release(session)
        self.table.remove(session)

    def _remove(self, backend: WorkingSet) -> None:
        """A backend is gone, and all contexts that were there."""
        for of_tenant in self.table.tenants.values():
            for session in of_tenant.sessions.values():
                if session.backend_id == backend.id:
                    if session.is_admitted:
                        backend.release(session)
                    session.backend_id = ""
                    self.table.note(session)
        for turn in self.turns.values():
            if turn.backend_id == backend.id:
                turn.is_sent = False
        for request_id in [each for each, (at, _) in self.others.items() if at is backend]:
            del self.others[request_id]


def _idle_since(told: tuple[SessionId, SessionRecord]) -> float:
    return told[1].idle_since
