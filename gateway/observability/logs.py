"""Logs: the gateway's own log on standard error, with a time, a level and a message, as text or as JSON.

Requests are in the access log (access_log.py). Control characters in a message are escaped, so a name from outside can
neither begin a line of its own nor colour a terminal (CWE-117).

The event loop writes the lines. So while standard error is not read and its pipe is full, lines are lost: to wait
would stop all streams. No thread writes them: workers are forked, and the last line before an end must come out.
"""

import json
import logging
import os
import re
import select
import stat
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Literal, TextIO

OURS = ("gateway", "backends", "policies")
READER_MS_MAX = 100  # for a reader that is only late, before the first line that is lost
READS_AGAIN_S = 10.0  # without a full pipe, before it is waited for again: a slow reader costs the loop one part in 100
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def configure_logging(level: str, form: Literal["text", "json"], stream: TextIO | None = None) -> None:
    """Write the log of this process to `stream` (None: standard error). Other packages log warnings only, because
    aiohttp's info level is a line for every request.
    """
    handler = _Handler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.captureWarnings(capture=True)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for name in OURS:
        logging.getLogger(name).setLevel(level.upper())


def lines_lost() -> int:
    """The number of lines of this process's log that were lost, since its start."""
    return sum(each.lost for each in logging.getLogger().handlers if isinstance(each, _Handler))


class _Handler(logging.StreamHandler[TextIO]):
    """A handler that never waits long for its stream: it counts lines that do not fit, and says so later. Mutable."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.lost = 0
        self._told = 0  # of the lost
        self._rest = b""  # of the last line, which did not fit as a whole
        self._full_at = -READS_AGAIN_S
        self._poll = select.poll()
        self._descriptor: int | None = None
        with suppress(OSError):  # a stream in memory
            self._descriptor = _opened_anew(stream.fileno())
            self._poll.register(self._descriptor, select.POLLOUT)

    def emit(self, record: logging.LogRecord) -> None:
        if self._descriptor is None:
            super().emit(record)
            return
        try:
            line = self._line(record)
        except Exception:  # noqa: BLE001 - as every handler of logging does with a message that has no such arguments
            self.handleError(record)
            return
        self._rest = self._unwritten(self._rest)
        if self.lost > self._told:
            text, lost = "%d lines of this log are lost: they were not read", self.lost - self._told
            note = self._line(logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, (lost,), None))
            if not self._write(note):
                self.lost += 1
                return
            self._told += lost
        self.lost += not self._write(line)

    def _line(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode(self.stream.encoding, "backslashreplace")

    def _write(self, line: bytes) -> bool:
        """Write a line. Returns whether it is written, or begun: then its rest comes before the next one."""
        rest = line if self._rest else self._unwritten(line)
        if len(rest) == len(line):
            return False
        self._rest = rest
        return True

    def _unwritten(self, data: bytes) -> bytes:
        """Write in pieces, each of which fits a pipe that has room at all. Returns what did not fit."""
        while data and self._has_room():
            try:
                data = data[os.write(self._descriptor or 0, data[: select.PIPE_BUF]) :]
            except OSError:  # another process has taken the room; or the reader is gone
                break
        return data

    def _has_room(self) -> bool:
        if self._poll.poll(0):
            return True
        now, full_at = time.monotonic(), self._full_at
        self._full_at = now
        return now - full_at > READS_AGAIN_S and bool(self._poll.poll(READER_MS_MAX))


class TextFormatter(logging.Formatter):
    """A log format as text: `2026-11-22T14:00:00.000Z WARNING backends.pool: ...`; further lines are indented."""

    def format(self, record: logging.LogRecord) -> str:
        lines = record.getMessage().splitlines() or [""]
        if record.exc_info:
            lines += self.formatException(record.exc_info).splitlines()
        lines = [_CONTROL.sub(_escape, line) for line in lines]
        return f"{_time(record)} {record.levelname} {record.name}: " + "\n    ".join(lines)


class JsonFormatter(logging.Formatter):
    """A log format of one JSON object per line: time, level, logger, message, and exception if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def _opened_anew(descriptor: int) -> int:
    """What this descriptor has open, opened anew if that can be: then no write to it waits, and the other processes
    that hold the descriptor notice nothing.
    """
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        with suppress(OSError):  # a socket, a pipe of another user, another system
            return os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    return descriptor


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _escape(match: re.Match[str]) -> str:
    return f"\\x{ord(match[0]):02x}"
