"""Outage: how long requests wait while no backend of the pool is available.

A crashed engine is usually back within seconds, and rejected clients retry or give up. So while no backend is
available, waiting and arriving requests are kept, within the bounds of the queue, but for less time than the queue
timeout. The time counts from when the last backend went or the request arrived, whichever is later, and ends when a
backend is back. A request that may go to another pool does not wait.
"""

from collections import deque
from collections.abc import Iterable

from policies.queues import PoolQueues
from policies.types import Request

BACKEND_WAIT_S_MAX = 15.0  # time for an inference server to restart with its weights cached


class Outage:
    """The limit on how long requests wait while the pool has no available backend (an outage). A request may wait
    `wait_s_max` seconds, counted from its arrival or from the loss of the last backend, whichever is later. One that
    may go to another pool does not wait. `backends_changed` begins and ends an outage; a new object is in one, because
    no backend is known yet. Mutable.
    """

    def __init__(self, wait_s_max: float) -> None:
        """`wait_s_max` is in seconds; 0: requests do not wait for a backend."""
        self._wait_s_max = wait_s_max
        self.is_on = True
        """Whether no backend is available. To read."""
        self._ends: deque[tuple[float, Request]] | None = deque()  # soonest first; None: a backend is available

    @property
    def is_waited_out(self) -> bool:
        """Whether no backend is available and requests wait for one."""
        return self._ends is not None and self._wait_s_max > 0.0

    def backends_changed(self, waiting: Iterable[Request], now: float, *, is_available: bool) -> None:
        """Backends have come or gone while these requests wait; `is_available`: at least one backend is available."""
        self.is_on = not is_available
        if is_available:
            self._ends = None
        elif self._ends is None:
            ends_at, requests = now + self._wait_s_max, list(waiting)
            self._ends = deque((now, request) for request in requests if request.passes_on)
            self._ends.extend((ends_at, request) for request in requests if not request.passes_on)

    def queued(self, request: Request, now: float) -> None:
        """The request waits from now on."""
        if self._ends is not None:
            self._ends.append((now + self._wait_s_max, request))

    def next_end(self, queues: PoolQueues) -> float | None:
        """The time at which the first waiting request has waited long enough for a backend; None: no request waits for
        one.
        """
        self._drop_void(queues)
        return self._ends[0][0] if self._ends else None

    def ended(self, queues: PoolQueues, now: float) -> Request | None:
        """A request that has waited long enough for a backend, or None. Each request is returned once."""
        self._drop_void(queues)
        return self._ends.popleft()[1] if self._ends and self._ends[0][0] <= now else None

    def _drop_void(self, queues: PoolQueues) -> None:
        while self._ends and not queues.holds(self._ends[0][1]):
            self._ends.popleft()
