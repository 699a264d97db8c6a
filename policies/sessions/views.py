"""Views of sessions, for people and metrics; no decision reads them."""

from collections.abc import Mapping
from itertools import chain, islice
from math import inf
from typing import Final

from policies.sessions.ledger import SessionLedger
from policies.sessions.session import AgentSession, Turn
from policies.sessions.working_set import WorkingSet
from policies.types import SessionState, SessionsView, SessionView, WorkingSetView

SHOWN_MAX: Final = 16  # sessions of a tenant: a look at a thousand tenants stays within some milliseconds a slice


def sessions_view(ledger: SessionLedger, now: float) -> SessionsView:
    """Totals over all sessions of a pool. Takes time in proportion to the tenants, running calls and held turns."""
    known = sum(len(each.sessions) for each in ledger.table.tenants.values())
    running = {each.session for each in ledger.turns.values()}
    held = {each.session for each in ledger.held.turns.values()} - running
    idle = sum(len(each.idle) for each in ledger.working_sets.values()) - sum(each.is_admitted for each in held)
    waiting = sum(_needs(each) for each in ledger.held.turns.values())
    return SessionsView(
        is_holding=ledger.engagement.is_on,
        backends={each.id: _working_set(each, now) for each in ledger.working_sets.values()},
        states={
            SessionState.RUNNING: len(running),
            SessionState.IDLE: idle,
            SessionState.HELD: len(held),
            SessionState.PAUSED: max(0, known - len(running) - idle - len(held)),
        },
        demand_tokens=round(sum(each.tokens for each in ledger.working_sets.values())) + waiting,
        pauses=ledger.pauses_total,
        yields=ledger.yields_total,
        expected_tokens=ledger.expected_tokens_total,
        recomputed_tokens=ledger.recomputed_tokens_total,
        wait_counts=tuple(ledger.wait_counts),
        wait_s=ledger.wait_s_total,
    )


def sessions_of(ledger: SessionLedger, tenant_id: str, wait_s_max: float) -> tuple[SessionView, ...]:
    """The sessions of a tenant: first the held ones, in their order, then those used last, the most recent first."""
    held = (each.session for each in ledger.held.of_tenant(tenant_id))
    latest = reversed(ledger.table.sessions(tenant_id).values())
    chosen = islice(dict.fromkeys(chain(islice(held, SHOWN_MAX), islice(latest, SHOWN_MAX))), SHOWN_MAX)
    return tuple(_view(each, wait_s_max) for each in chosen)


def states_of(ledger: SessionLedger, tenant_id: str) -> Mapping[SessionState, int]:
    """The number of a tenant's sessions in each state; states without a session are left out."""
    running = idle = held = 0
    sessions = ledger.table.sessions(tenant_id)
    for each in sessions.values():  # as its `state`, at a third of the cost
        if each.running:
            running += 1
        elif each.held:
            held += 1
        elif each.is_admitted:
            idle += 1
    counts = {
        SessionState.RUNNING: running,
        SessionState.IDLE: idle,
        SessionState.HELD: held,
        SessionState.PAUSED: len(sessions) - running - idle - held,
    }
    return {state: count for state, count in counts.items() if count}


def _working_set(backend: WorkingSet, now: float) -> WorkingSetView:
    is_known = backend.pool_tokens < inf
    busy_ratio, recomputed_ratio = backend.use.ratios(now)
    return WorkingSetView(
        tokens=round(backend.tokens),
        tokens_max=int(backend.eta * backend.pool_tokens) if is_known else None,
        pool_tokens=int(backend.pool_tokens) if is_known else None,
        eta=backend.eta,
        busy_ratio=busy_ratio,
        recomputed_ratio=recomputed_ratio,
    )


def _needs(turn: Turn) -> int:
    """Tokens that a held turn waits for room for, without what it will grow by."""
    return max(turn.session.context, turn.request.prompt_tokens)


def _view(session: AgentSession, wait_s_max: float) -> SessionView:
    state, since, until, needs = session.state, session.idle_since, None, None
    if session.running:
        since = min(each.arrived_at for each in session.running.values())
    elif session.held:
        turn = next(iter(session.held.values()))
        since, needs = turn.arrived_at, _needs(turn)
        until = since + wait_s_max
    return SessionView(
        id=session.id,
        state=state,
        context_tokens=session.context,
        turns=session.turns,
        pauses=session.pauses,
        backend_id=session.backend_id,
        parent_id=session.parent_id,
        since_at=since,
        until_at=until,
        needs_tokens=needs,
    )
