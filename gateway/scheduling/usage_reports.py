"""Usage reports: the usage of running requests that was not yet reported to the Scheduler.

A token on which a decision depends is recorded with `record`; the newest usage of each request is kept until the next
decision. Tokens that no decision depends on are not recorded one by one: the lease knows the usage so far, and is asked
when the accounts are read (`report_passed`, `report_all`).
"""

from collections.abc import Callable, Mapping

from policies.scheduler_protocol import SchedulerProtocol
from policies.types import Usage

Passed = Callable[[], Usage | None]
NONE_RUNNING: Mapping[str, Passed] = {}


class UsageReports:
    """The usage of one pool's running requests that is still to be reported to the pool's Scheduler. Mutable."""

    def __init__(self, scheduler: SchedulerProtocol) -> None:
        self._tokens = scheduler.tokens
        self._recorded: dict[str, Usage] = {}  # by request: passed since the scheduler was last told
        self._backend_of: dict[str, str] = {}  # by request
        self._running: dict[str, dict[str, Passed]] = {}  # by backend and request

    def dispatched(self, request_id: str, backend_id: str, passed: Passed) -> None:
        """A request runs at this backend from now on; `passed` returns its usage so far, None while it has none."""
        self._backend_of[request_id] = backend_id
        self._running.setdefault(backend_id, {})[request_id] = passed

    def is_running(self, request_id: str) -> bool:
        """Whether this request is at a backend."""
        return request_id in self._backend_of

    def ended(self, request_id: str) -> Usage | None:
        """A request has left its backend. Returns its recorded usage, if that was not reported."""
        backend_id = self._backend_of.pop(request_id)
        running = self._running[backend_id]
        del running[request_id]
        if not running:
            del self._running[backend_id]
        return self._recorded.pop(request_id, None)

    def record(self, request_id: str, usage: Usage) -> None:
        """Keep the usage of a running request until the next report."""
        self._recorded[request_id] = usage

    def report(self, now: float) -> None:
        """Report the recorded usage."""
        if self._recorded:
            recorded, self._recorded = self._recorded, {}
            for request_id, usage in recorded.items():
                self._tokens(request_id, usage, now)

    def report_passed(self, backend_id: str, now: float) -> None:
        """Report the usage so far of all requests at this backend."""
        for request_id, passed in self._running.get(backend_id, NONE_RUNNING).items():
            usage = passed()
            if usage is not None:
                self._tokens(request_id, usage, now)

    def report_all(self, now: float) -> None:
        """Report the usage so far of all requests at all backends."""
        self.report(now)
        for backend_id in self._running:
            self.report_passed(backend_id, now)
