"""LineLog: writes JSON lines to a file, off the path of requests (batches.py).

The file is opened for every batch, so it may be rotated at any time.
"""

import logging
import os
import sys
from pathlib import Path

import orjson

from gateway.observability.batches import Batches, Record

RECORDS_MAX = 100_000
FLUSH_INTERVAL_S = 0.25
STDOUT = "-"

log = logging.getLogger(__name__)


class LineLog(Batches[Record]):
    """A log of records (dicts or dataclasses), a line each, added on the event loop and written in a thread."""

    def __init__(
        self,
        path: str,
        *,
        records_max: int = RECORDS_MAX,
        interval_s: float = FLUSH_INTERVAL_S,
        writes_lines: bool = False,
    ) -> None:
        """`path` is a file to append to, or "-" for standard output. Raises OSError where it cannot be opened.
        `writes_lines`: other processes write there, too, so each line is one write, which a pipe keeps whole.
        """
        self._writes_lines = writes_lines
        self._path = path
        os.close(self._open())
        super().__init__(f"log to {path}", records_max=records_max, interval_s=interval_s)

    def handle(self, batch: list[Record]) -> bool:
        lines = [orjson.dumps(record, default=str, option=orjson.OPT_APPEND_NEWLINE) for record in batch]
        try:
            descriptor = self._open()
            try:
                for data in lines if self._writes_lines else [b"".join(lines)]:
                    _write_all(descriptor, data)
            finally:
                os.close(descriptor)
        except OSError:  # a full disk or a closed pipe must not end the gateway; the count says that lines are missing
            return False
        return True

    def close(self) -> int:
        lost = super().close()
        if lost:
            log.warning("up to %d lines are lost: the log to %s is not read", lost, self._path)
        return lost

    def _open(self) -> int:
        if self._path == STDOUT:
            sys.stdout.flush()
            return os.dup(sys.stdout.fileno())
        return os.open(Path(self._path), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
