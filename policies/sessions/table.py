"""Table of sessions: a bounded number of sessions for each tenant, and the changes that no checkpoint has yet."""

from itertools import islice

from policies.sessions.checkpoint import SessionId, SessionRecord, record
from policies.sessions.gaps import Gaps
from policies.sessions.session import AgentSession, TenantSessions, tail_of
from policies.sessions.working_set import beginnings
from policies.types import Request


class SessionTable:
    """The sessions of one pool, by tenant id and session id. Mutable."""

    def __init__(self, sessions_max: int) -> None:
        """Of each tenant, at most `sessions_max` sessions are known, plus those that run or wait."""
        self._sessions_max = sessions_max
        self.tenants: dict[str, TenantSessions] = {}
        self.changed: dict[SessionId, None] | None = None
        """What has changed since `changes` was asked last; None: it never was, and `note` does nothing. To read."""

    def of(self, tenant_id: str) -> TenantSessions:
        """The sessions of a tenant; the caller may add to them."""
        of_tenant = self.tenants.get(tenant_id)
        if of_tenant is None:
            of_tenant = self.tenants[tenant_id] = TenantSessions(self._sessions_max)
        return of_tenant

    def sessions(self, tenant_id: str) -> dict[str, AgentSession]:
        """The known sessions of a tenant by id, least recently used first."""
        of_tenant = self.tenants.get(tenant_id)
        return {} if of_tenant is None else of_tenant.sessions

    def parent_at(self, session: AgentSession) -> str:
        """Where the parent of a session is admitted; empty: nowhere."""
        parent = self.sessions(session.tenant_id).get(session.parent_id or "")
        return parent.backend_id if parent is not None and parent.is_admitted else ""

    def gaps(self, tenant_id: str) -> Gaps:
        return self.tenants[tenant_id].gaps

    def add(self, request: Request) -> AgentSession:
        """Add and return the session of this request, which is the session's first request here."""
        assert request.program_id is not None, "it has a session"
        session = AgentSession(request.tenant_id, request.program_id, request.parent_id)
        session.shared = beginnings(request.prefix, request.prefix_block_tokens)
        session.tail = tail_of(request)  # by which the next leader knows its first turn, if that is held here
        self.tenants[request.tenant_id].sessions[session.id] = session
        self.note(session)
        return session

    def remove(self, session: AgentSession) -> None:
        """Forget a session."""
        del self.tenants[session.tenant_id].sessions[session.id]
        self.note(session)

    def note(self, session: AgentSession) -> None:
        """Record that the session has changed, so that the next checkpoint has to include it."""
        if self.changed is not None:
            self.changed[session.tenant_id, session.id] = None

    def changes(self, now: float, most: int) -> dict[SessionId, SessionRecord | None]:
        """At most `most` of the sessions that have changed since this method last returned them; None: the session is
        forgotten. At the first call all known sessions count as changed.
        """
        if self.changed is None:
            self.changed = {(tenant_id, id_): None for tenant_id, of in self.tenants.items() for id_ in of.sessions}
        told: dict[SessionId, SessionRecord | None] = {}
        for tenant_id, id_ in list(islice(self.changed, most)):
            del self.changed[tenant_id, id_]
            session = self.sessions(tenant_id).get(id_)
            told[tenant_id, id_] = None if session is None else record(session, now)
        return told
