"""Telling: the part of a member's full report to a new leader that is still to be sent, in slices (rule 18).

Ended and spent calls come first, by number, because the leader accepts each number once. Running requests follow,
because a leader decides nothing before it knows all of them; then waiting requests, the oldest first. The leader asks
for each slice, so a long report delays neither side, nor their other messages.

Until a request has been reported, no other fact about it is sent: the report gives its state at that time.
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
    """The part of a member's full report of its requests that is still to be sent. After a member (a process of the
    cluster) has joined a leader, it reports its ended, running and waiting requests in slices of at most SLICE_MAX
    requests. Mutable.
    """

    def __init__(self, log: Iterable[tuple[str, Ended | Spend]], requests: Iterable[OwnRequest]) -> None:
        self._log = deque(log)
        self._running = deque[OwnRequest]()
        self._waiting = deque[OwnRequest]()
        for own in requests:
            (self._waiting if own.dispatch is None else self._running).append(own)

    @property
    def has_told_log(self) -> bool:
        """Whether the log was sent, so that a new entry is sent at once; otherwise it is sent after earlier entries."""
        return not self._log

    @property
    def has_told_running(self) -> bool:
        return not self._log and not self._running

    @property
    def is_over(self) -> bool:
        return not self._log and not self._running and not self._waiting

    def logged(self, pool: str, entry: Ended | Spend) -> None:
        """Report this entry after the earlier entries of the log."""
        self._log.append((pool, entry))

    def arrived(self, own: OwnRequest) -> None:
        """Report this request after the older requests."""
        self._waiting.append(own)

    def slice(self) -> Iterator[tuple[str, Ended | Spend] | OwnRequest]:
        """Yield the next entries of the log with their pools, and the next requests, some of which may have ended."""
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
