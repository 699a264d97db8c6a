"""Sight: whether the leader's own polls reach any backend. A leader that reaches none is blind: another member that
gets answers should lead (rule 27).
"""

from collections.abc import Iterable

from gateway.cluster.promise import SILENCE_S_MAX
from gateway.cluster.wire import AnyMessage, Finish, Used
from policies.types import BackendLoad, Outcome


class Sight:
    """The results of the leader's own polls: which backends it reaches. They show whether the leader reaches no backend
    while another member (process) does. Mutable.
    """

    def __init__(self) -> None:
        self._reached: dict[str, dict[str, bool]] = {}  # by pool and backend
        self._blind_since: float | None = None

    def polled(self, pool: str, loads: Iterable[BackendLoad], now: float, *, all_of_it: bool = False) -> None:
        """Record measurements of these backends of the pool; with `all_of_it`, they are all its backends."""
        if all_of_it:
            self._reached[pool] = {}
        self._reached.setdefault(pool, {}).update((load.backend_id, load.available) for load in loads)
        if any(is_reached for backends in self._reached.values() for is_reached in backends.values()):
            self._blind_since = None
        elif self._blind_since is None:
            self._blind_since = now

    def is_less_than(self, entry: AnyMessage, now: float) -> bool:
        """Whether this message shows that a backend serves its member, while this process has reached none for long."""
        if self._blind_since is None or now - self._blind_since <= SILENCE_S_MAX:
            return False
        return isinstance(entry, Used) or (isinstance(entry, Finish) and entry.outcome is Outcome.COMPLETED)
