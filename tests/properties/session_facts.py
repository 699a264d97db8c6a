"""Everything may happen, to a Scheduler that knows of sessions.

`WatchedSessions`: nothing is held, because the ledger of sessions does not see that it pays, and turns go where calls
do. `NoSessions`: the ledger holds what it can, but no request is of a session. In both a Scheduler without a ledger
decides the same, to the digit.
`HeldSessions`: the ledger always holds.
"""

from any_facts import AnyFacts
from arrival_facts import ArrivalFacts

from policies.pool.session_gate import SessionRules
from policies.scheduler import Scheduler
from tests.held_sessions import AlwaysEngaged

RULES = SessionRules(wait_s_max=5.0, sessions_max=3)


class Holding(Scheduler):
    """A Scheduler that always holds sessions."""

    def __init__(self, **options):
        super().__init__(**options)
        if self._sessions is not None:
            self._sessions.ledger.engagement = AlwaysEngaged()


class Homeless(Scheduler):
    """A Scheduler that sends turns where it sends calls."""

    def __init__(self, **options):
        super().__init__(**options)
        self._slot_fitting.home_of = None


class WatchedSessions(AnyFacts):
    """The Scheduler of the replay knows of sessions."""

    scheduler_class = Homeless

    def begin(self, **options):
        super().begin(**options)
        self.sessions = RULES


class NoSessions(WatchedSessions):
    scheduler_class = Holding

    def submit(self, tenant_id, *, program_id=None, **more):
        super().submit(tenant_id, **more)


class HeldSessions(AnyFacts):
    scheduler_class = Holding
    sessions = RULES

    def judges(self):
        return super().judges()[:1]  # what is held leaves room unused

    def submit(self, tenant_id, *, program_id=None, **more):
        """Three of four requests are turns of one of five sessions."""
        program_id = program_id or (None if self.made % 4 == 3 else f"s{self.made % 5}")
        parent_id = "s0" if program_id == "s1" else None
        super().submit(tenant_id, program_id=program_id, parent_id=parent_id, ends_session=self.made % 11 == 0, **more)


class SessionArrivals(ArrivalFacts):
    """A turn that arrives alone is decided at once as one that is submitted, and the ledger knows the same of it."""

    sessions = RULES


class HeldArrivals(SessionArrivals):
    scheduler_class = Holding

    def judges(self):
        return super().judges()[:1]
