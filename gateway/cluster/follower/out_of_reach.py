"""OutOfReach: the backends that a member's process cannot reach, which it reports to its leader (rules 8, 27)."""

from collections.abc import Iterable
from math import inf
from typing import Final

from gateway.cluster.follower.leader_link import LeaderLink
from gateway.cluster.wire import Failed, Reach

ASK_AGAIN_S: Final = 1.0  # after a failed call, a backend counts as unreachable for so long


class OutOfReach:
    """The backends that this process failed to reach, each with the time until which it counts as unreachable.
    Mutable.
    """

    def __init__(self, link: LeaderLink) -> None:
        self._link = link
        self._until: dict[str, float] = {}

    def __contains__(self, backend_id: str) -> bool:
        return backend_id in self._until

    def failed(self, backend_id: str, now: float) -> None:
        """A call to this backend failed before an answer (rule 27): for a while it counts as unreachable here."""
        self._until[backend_id] = now + ASK_AGAIN_S
        self._link.say("", Failed(backend_id))

    def are(self, backend_ids: Iterable[str]) -> None:
        """Set the backends that this process cannot reach, as its shell knows (rule 8)."""
        self._until = dict.fromkeys(backend_ids, inf)
        self.tell()

    def tell(self) -> None:
        """Report the unreachable backends to the leader."""
        self._link.say("", Reach(tuple(self._until)))

    def expire(self, now: float) -> None:
        """Count backends as reachable again if their failure is old enough."""
        for backend_id in [each for each, until in self._until.items() if until <= now]:
            del self._until[backend_id]
            self.tell()

    def due(self) -> float:
        """When `expire` is due; inf: no time is known."""
        return min(self._until.values(), default=inf)
