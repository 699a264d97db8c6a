"""Telling: what a member that has joined still has to tell its leader, in slices (rule 18).

What has ended and was spent comes first, by its number, as the leader takes each number in once. Then comes what runs,
because a leader decides nothing before it knows all of that; at last what waits, the oldest first. A leader asks for
each slice, so the telling of many requests holds up neither side, nor what else they say to each other.

Of a request that was not told yet nothing else is said: what is told says how it stands by then.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from gateway.cluster.follower.member_requests import OwnRequest
from gateway.cluster.wire import Ended, Spend

SLICE_MAX: Final = 100
"""Things told in one slice: what 16 members tell at once takes a leader two turns."""
SLICE_BLOCKS_MAX: Final = 10_000
"""Hashes of prompt blocks in one slice; a long prompt has thousands of them, of up to 9 bytes each."""


class Telling:
    """What a member has still to send of the full report that it makes after it has joined a leader. The report is
    taken in slices. Mutable.
    """

    def __init__(self, log: Iterable[tuple[str, Ended | Spend]], requests: Iterable[OwnRequest]) -> None:
        self._log = deque(log)
        self._running = deque[OwnRequest]()
        self._waiting = deque[OwnRequest]()
        for own in requests:
            (self._waiting if own.dispatch is None else self._running).append(own)

    @property
    def has_told_log(self) -> bool:
        """Whether what ends or is spent now is to be said now; else it is told after what ended before."""
        return not self._log

    @property
    def has_told_running(self) -> bool:
        return not self._log and not self._running

    @property
    def is_over(self) -> bool:
        return not self._log and not self._running and not self._waiting

    def logged(self, pool: str, entry: Ended | Spend) -> None:
        """Tell this after what ended, or was spent, earlier."""
        self._log.append((pool, entry))

    def arrived(self, own: OwnRequest) -> None:
        """Tell this request after the older ones."""
        self._waiting.append(own)

    def slice(self) -> Iterator[tuple[str, Ended | Spend] | OwnRequest]:
        """Yield what is told next: entries of the log with their pools, and requests, some of which may have ended."""
        blocks = 0
        for _ in range(SLICE_MAX):
            if self._log:
                pool, entry = self._log.popleft()
                blocks += len(entry.request.prefix) if isinstance(entry, Ended) else 0
                yield pool, entry
            elif self._running or self._waiting:
                own = (self._running or self._waiting).popleft()
                blocks += len(own.request.prefix)
                yield own
            if blocks > SLICE_BLOCKS_MAX:
                return
