"""Batches: what the event loop hands to a thread, off the path of calls: lines of logs, and spans.

The event loop only appends to a bounded queue; a thread handles what is queued a few times a second. It polls, because
waking a thread for each record would cost more than the record. When the thread is too slow, the queue fills, and
records are dropped and counted instead of delaying calls.
"""

import logging
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from typing import Generic, TypeVar

CLOSE_S_MAX = 2.0  # a collector or a pipe that is not read must not keep the process

Record = TypeVar("Record")

log = logging.getLogger(__name__)


class Batches(ABC, Generic[Record]):
    """A queue of records that are written on the event loop and handled in a thread, in batches. Mutable; `close`
    handles the rest, within CLOSE_S_MAX.
    """

    def __init__(self, name: str, *, records_max: int, interval_s: float, batch_max: int = sys.maxsize) -> None:
        """Begin; `name` is the thread's."""
        self._records: deque[Record] = deque()
        self._records_max = records_max
        self._interval_s = interval_s
        self._batch_max = batch_max
        self._closing = threading.Event()
        self._not_taken = 0  # dropped because the queue was full; written by the loop
        self._not_handled = 0  # written by the thread
        self._in_hand = 0  # of the batch that the thread handles
        self._has_failed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @abstractmethod
    def handle(self, batch: list[Record]) -> bool:
        """Handle these, in the thread; returns whether that went well: else they are lost."""

    @property
    def lost(self) -> int:
        """The number of records that were dropped, or could not be handled."""
        return self._not_taken + self._not_handled

    def write(self, record: Record) -> None:
        if len(self._records) >= self._records_max:
            self._not_taken += 1
        else:
            self._records.append(record)

    def close(self) -> int:
        """Handle the rest; what takes longer than CLOSE_S_MAX is lost. Returns how many records that are."""
        self._closing.set()
        self._thread.join(CLOSE_S_MAX)
        return self._in_hand + len(self._records) if self._thread.is_alive() else 0

    def _run(self) -> None:
        while not self._closing.wait(self._interval_s):
            self._handle_all()
        self._handle_all()

    def _handle_all(self) -> None:
        while self._records:
            # Only this thread removes records, so as many as were counted are still there.
            batch = [self._records.popleft() for _ in range(min(len(self._records), self._batch_max))]
            self._in_hand = len(batch)
            if not self._is_handled(batch):
                self._not_handled += len(batch)

    def _is_handled(self, batch: list[Record]) -> bool:
        try:
            return self.handle(batch)
        except Exception:  # else the thread ends, and all that comes later is lost
            if not self._has_failed:
                log.exception("%s: %d records are lost", self._thread.name, len(batch))
            self._has_failed = True
            return False
