"""Views of sessions, for people and metrics; no decision reads them."""

from itertools import islice
from math import inf
from typing import Final

from policies.sessions.ledger import SessionLedger
from policies.sessions.session import AgentSession
from policies.types import SessionState, SessionsView, SessionView, WorkingSetView

SHOWN_MAX: Final = 16  # sessions of a tenant: a look at a thousand tenants stays within some milliseconds a slice


def sessions_view(ledger: SessionLedger) -> SessionsView:
    """All sessions of a pool, in numbers. Takes time in proportion to tenants and to what runs and is held."""
    known = sum(len(each.sessions) for each in ledger.table.tenants.values())
    running = {each.session for each in ledger.turns.values()}
    held = {each.session for each in ledger.held.turns.values()} - running
    idle = sum(len(each.idle) for each in ledger.working_sets.values()) - sum(each.is_admitted for each in held)
    waiting = sum(max(each.session.context, each.request.prompt_tokens) for each in ledger.held.turns.values())
    return SessionsView(
        is_holding=ledger.engagement.is_on,
        backends={
            each.id: WorkingSetView(
                round(each.tokens),
                None if each.pool_tokens == inf else int(each.eta * each.pool_tokens),
                None if each.pool_tokens == inf else int(each.pool_tokens),
            )
            for each in ledger.working_sets.values()
        },
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


def sessions_of(ledger: SessionLedger, tenant_id: str, wait_s_max: float, now: float) -> tuple[SessionView, ...]:
    """The sessions of a tenant that were used last, the last one first."""
    latest = islice(reversed(ledger.table.sessions(tenant_id).values()), SHOWN_MAX)
    return tuple(_view(each, wait_s_max, now) for each in latest)


def _view(session: AgentSession, wait_s_max: float, now: float) -> SessionView:
    state, since, until_s = session.state, session.idle_since, None
    if session.running:
        since = min(each.arrived_at for each in session.running.values())
    elif session.held:
        since = next(iter(session.held.values())).arrived_at
        until_s = max(0.0, since + wait_s_max - now)
    return SessionView(
        id=session.id,
        state=state,
        context_tokens=session.context,
        turns=session.turns,
        pauses=session.pauses,
        backend_id=session.backend_id,
        parent_id=session.parent_id,
        since_s=max(0.0, now - since),
        until_s=until_s,
    )
