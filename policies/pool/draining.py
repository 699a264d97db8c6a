"""Draining: the requests at a backend that is to be removed, and when they move to another one.

A backend drains when an operator orders it or when it is not among the live backends any more. It gets no new requests,
and its running requests have `drain_s` seconds to end. Then every resumable request there is preempted and continued
elsewhere, before any new request. A request stays while there is no other backend for it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from policies.accounts.ledger import InFlight, Ledger
from policies.call_life import LIFE, Event, Life
from policies.fleet.fleet import Fleet
from policies.types import BackendLoad, Cause, Preempt


@dataclass(slots=True)
class Draining:
    """The draining backends of one pool, which get no new request: since when each drains, and which requests have to
    leave it after `drain_s` seconds. `drain_s` None: requests stay until they end. Mutable.
    """

    drain_s: float | None
    ledger: Ledger
    fleet: Fleet
    since: dict[str, float] = field(default_factory=dict)
    """The time at which each draining backend began to drain. To read."""

    def live(self, loads: Iterable[BackendLoad], now: float) -> None:
        """Apply the set of live backends. Called after the fleet has applied it."""
        known = self.fleet.backends
        gone = dict.fromkeys(known)
        for load in loads:
            self.measured(load, now)
            gone.pop(load.backend_id, None)
        if self.drain_s is not None:
            for backend_id in gone:
                self.since.setdefault(backend_id, now)
        for backend_id in [each for each in self.since if each not in known]:
            del self.since[backend_id]

    def measured(self, load: BackendLoad, now: float) -> None:
        """Apply the measurement of one live backend."""
        if load.drains and self.drain_s is not None:
            self.since.setdefault(load.backend_id, now)
        else:
            self.since.pop(load.backend_id, None)

    def preempted(self, now: float) -> Iterator[Preempt]:
        """The requests that have to leave their backend now."""
        for backend_id, since in self.since.items():
            if now >= self._until(since):
                for entry in self._movable(backend_id):
                    entry.life = LIFE[entry.life, Event.MOVED]
                    yield Preempt(entry.request.id, Cause.DRAINED)

    def next_at(self) -> float | None:
        """The time at which requests next have to leave a backend; None if no such time is known."""
        times = (self._until(since) for each, since in self.since.items() if any(self._movable(each)))
        return min(times, default=None)

    def _until(self, since: float) -> float:
        assert self.drain_s is not None, "otherwise none drains"
        return since + self.drain_s

    def _movable(self, backend_id: str) -> Iterator[InFlight]:
        for entry in self.ledger.at(backend_id):
            may_be = entry.request.is_resumable and not (entry.is_leaving or entry.life is Life.FIXED)
            if may_be and self.fleet.is_available(entry.request.backend_ids):
                yield entry
