"""LineLog: writes JSON lines to a file, off the path of requests.

The event loop only appends a record to a bounded queue; a thread encodes and writes the queued records a few times
a second. It polls, because waking a thread for each request would cost more than the line. When the disk is too slow,
the queue fills, and records are dropped and counted instead of delaying requests. The file is opened for every batch,
so it may be rotated at any time.
"""

import os
import sys
import threading
from collections import deque
from pathlib import Path
from typing import Generic, TypeVar

import orjson

RECORDS_MAX = 100_000
FLUSH_INTERVAL_S = 0.25
STDOUT = "-"

Record = TypeVar("Record")


class LineLog(Generic[Record]):
    """A log of records (dicts or dataclasses), taken on the event loop and written in a thread. Mutable. `close` writes
    the rest.
    """

    def __init__(
        self,
        path: str,
        *,
        records_max: int = RECORDS_MAX,
        interval_s: float = FLUSH_INTERVAL_S,
        writes_lines: bool = False,
    ) -> None:
        """`path` is a file to append to, or "-" for standard output. Raises OSError where it cannot be opened.
        `writes_lines`: other processes write there, too, so each line is a write of its own, which a pipe keeps whole.
        """
        self._writes_lines = writes_lines
        self._path = path
        self._records: deque[Record] = deque()
        self._records_max = records_max
        self._interval_s = interval_s
        self._closing = threading.Event()
        self.dropped = 0
        os.close(self._open())
        self._thread = threading.Thread(target=self._run, name=f"log to {path}", daemon=True)
        self._thread.start()

    def write(self, record: Record) -> None:
        if len(self._records) >= self._records_max:
            self.dropped += 1
        else:
            self._records.append(record)

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(self._interval_s):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        # Only this thread removes records, so as many as were counted are still there.
        batch = [self._records.popleft() for _ in range(len(self._records))]
        if not batch:
            return
        lines = [orjson.dumps(record, default=str, option=orjson.OPT_APPEND_NEWLINE) for record in batch]
        try:
            descriptor = self._open()
            try:
                for data in lines if self._writes_lines else [b"".join(lines)]:
                    _write_all(descriptor, data)
            finally:
                os.close(descriptor)
        except OSError:
            # A full disk or a closed pipe must not end the gateway; the count says that lines are missing.
            self.dropped += len(batch)

    def _open(self) -> int:
        if self._path == STDOUT:
            sys.stdout.flush()
            return os.dup(sys.stdout.fileno())
        return os.open(Path(self._path), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
