"""No backend is there: how long is one waited for?

An engine that died is mostly back within seconds, and what is refused meanwhile comes again, or is lost. So for as long
as no backend of the pool is available, what waits and what arrives is kept, within the bounds of the queue; but nobody
waits as long for a backend as for his turn. The time is counted from when the last backend went, or from when a request
came, whichever is later, and is over when one is back.
"""

from collections import deque
from collections.abc import Iterable

from policies.queues import PoolQueues
from policies.types import Request

BACKEND_WAIT_S_MAX = 15.0  # an inference server that is started again with its weights at hand is back by then


class Outage:
    """Whose time to wait for a backend is over? There is none at first."""

    def __init__(self, wait_s_max: float) -> None:
        """0: no backend is waited for."""
        self._wait_s_max = wait_s_max
        self._ends: deque[tuple[float, Request]] | None = deque()  # soonest first; None: a backend is there

    @property
    def is_waited_out(self) -> bool:
        """Whether there is no backend, and what needs one waits for it."""
        return self._ends is not None and self._wait_s_max > 0.0

    def began(self, waiting: Iterable[Request], now: float) -> None:
        """No backend is there, and these wait. It may have begun before."""
        if self._ends is None:
            ends_at = now + self._wait_s_max
            self._ends = deque((ends_at, request) for request in waiting)

    def over(self) -> None:
        """A backend is there."""
        self._ends = None

    def queued(self, request: Request, now: float) -> None:
        """The request waits from now on."""
        if self._ends is not None:
            self._ends.append((now + self._wait_s_max, request))

    def next_end(self, queues: PoolQueues) -> float | None:
        """When the first of those that wait has waited long enough for a backend."""
        self._drop_void(queues)
        return self._ends[0][0] if self._ends else None

    def ended(self, queues: PoolQueues, now: float) -> Request | None:
        """One that has waited long enough for a backend."""
        self._drop_void(queues)
        return self._ends.popleft()[1] if self._ends and self._ends[0][0] <= now else None

    def _drop_void(self, queues: PoolQueues) -> None:
        while self._ends and not queues.holds(self._ends[0][1]):
            self._ends.popleft()
