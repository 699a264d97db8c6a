"""Checkpoint of sessions: the state that the next ledger of a pool continues from, in values that JSON has.

Each session has its own record, so that only changed sessions are written. Times are on the ledger's clock. Turns are
in no record: the processes that hold running turns report them, and waiting turns are submitted again. The statistics
of tenants' turns are learnt again.
"""

from collections.abc import Mapping
from typing import NamedTuple

from policies.sessions.session import AgentSession

SessionId = tuple[str, str]
"""The ids of a tenant and of its session."""


class SessionRecord(NamedTuple):
    """The state of one agent's session (AgentSession) in a checkpoint. `context` is in tokens, `idle_since` in seconds
    on the clock of the checkpoint.
    """

    context: int
    backend_id: str
    is_admitted: bool
    idle_since: float
    turns: int
    tail: tuple[int, int] = (0, 0)
    shared: tuple[tuple[int, int], ...] = ()
    parent_id: str | None = None
    used_s: float = 0.0
    pauses: int = 0


class SessionsCheckpoint(NamedTuple):
    """A checkpoint of a pool's sessions: one record per tenant and session id. A record of None removes a session that
    an earlier checkpoint had. `eta` is, by backend, the learnt part of the KV pool that sessions may fill; `is_engaged`
    tells whether turns were held. The checkpoint was taken at `at`, in seconds on the clock of its records.
    """

    sessions: Mapping[SessionId, SessionRecord | None] = {}
    eta: Mapping[str, float] = {}
    is_engaged: bool = False
    at: float = 0.0


def record(session: AgentSession, now: float) -> SessionRecord:
    """The record of a session. A running session is recorded as if it had just become idle."""
    return SessionRecord(
        context=session.context,
        backend_id=session.backend_id,
        is_admitted=session.is_admitted,
        idle_since=now if session.running else session.idle_since,
        turns=session.turns,
        tail=session.tail,
        shared=session.shared,
        parent_id=session.parent_id,
        used_s=session.used_s,
        pauses=session.pauses,
    )


def session_of(tenant_id: str, session_id: str, told: SessionRecord, idle_since: float) -> AgentSession:
    """The session of a record, not admitted yet. Without a context it cannot have been paused: its first turn waits."""
    is_paused = not told.is_admitted and told.context > 0
    return AgentSession(
        tenant_id,
        session_id,
        parent_id=told.parent_id,
        context=told.context,
        tail=told.tail,
        shared=told.shared,
        turns=told.turns,
        backend_id=told.backend_id,
        idle_since=idle_since,
        is_paused=is_paused,
        goes_first=is_paused,
        pauses=told.pauses,
    )
