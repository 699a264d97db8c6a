"""Checkpoint of sessions: what the next ledger of a pool starts from, in values that JSON has.

Times are ages at the checkpoint, because the next ledger may have another clock. Turns are not in it: those that run
are told by the processes that hold them, and those that wait are submitted again.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from policies.sessions.session import AgentSession


class SessionRecord(NamedTuple):
    """One session: what it is, where, since when it is idle, and what it has had."""

    context: int
    backend_id: str
    is_admitted: bool
    idle_s: float
    turns: int
    tail: tuple[int, int] = (0, 0)
    shared: tuple[tuple[int, int], ...] = ()
    parent_id: str | None = None
    used_s: float = 0.0
    pauses: int = 0


class TenantRecord(NamedTuple):
    """The sessions of one tenant by id, used longest ago first, and what its turns are like (Gaps.counts)."""

    sessions: Mapping[str, SessionRecord]
    gaps: tuple[tuple[float, float], ...]
    growth: float


class SessionsCheckpoint(NamedTuple):
    """Tenants by id, what was learnt of each backend's pool (eta), and whether sessions were held."""

    tenants: Mapping[str, TenantRecord]
    eta: Mapping[str, float]
    is_engaged: bool


NO_SESSIONS: Final = SessionsCheckpoint({}, {}, is_engaged=False)


def record(session: AgentSession, now: float) -> SessionRecord:
    """The record of a session. One that runs is as one that has just become idle."""
    return SessionRecord(
        context=session.context,
        backend_id=session.backend_id,
        is_admitted=session.is_admitted,
        idle_s=0.0 if session.running else max(0.0, now - session.idle_since),
        turns=session.turns,
        tail=session.tail,
        shared=session.shared,
        parent_id=session.parent_id,
        used_s=session.used_s,
        pauses=session.pauses,
    )


def session_of(tenant_id: str, session_id: str, told: SessionRecord, now: float) -> AgentSession:
    """The session of a record, not admitted yet."""
    return AgentSession(
        tenant_id,
        session_id,
        parent_id=told.parent_id,
        context=told.context,
        tail=told.tail,
        shared=told.shared,
        turns=told.turns,
        backend_id=told.backend_id,
        idle_since=now - told.idle_s,
        goes_first=not told.is_admitted,
        pauses=told.pauses,
    )
