"""Logs: the gateway's own log on standard error, with a time, a level and a message, as text or as JSON.

Requests are in the access log (access_log.py). Control characters in a message are escaped, so a name from outside can
neither begin a line of its own nor colour a terminal (CWE-117).

The event loop writes the lines. So while nobody reads standard error and its pipe is full, lines are lost: to wait
would stop all streams.
"""

import json
import logging
import re
import select
import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import Literal, TextIO

OURS = ("gateway", "backends", "policies")
READER_MS_MAX = 100  # for a reader that is only late, before the first line that is lost
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


class _Handler(logging.StreamHandler[TextIO]):
    """A handler that never waits long for its stream: it counts lines that do not fit, and says so later. Mutable."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._lost, self._is_file = 0, False
        self._poll = select.poll()
        with suppress(OSError):  # a stream in memory
            self._poll.register(stream, select.POLLOUT)
            self._is_file = True

    def emit(self, record: logging.LogRecord) -> None:
        if self._is_file and not self._poll.poll(0 if self._lost else READER_MS_MAX):
            self._lost += 1
            return
        if self._lost:
            lost, self._lost = self._lost, 0
            text = "%d lines of this log are lost: nobody read it"
            super().emit(logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, (lost,), None))
        super().emit(record)


class TextFormatter(logging.Formatter):
    """A log format as text: `2026-11-22T14:00:00.000Z WARNING backends.pool: ...`; further lines are indented."""

    def format(self, record: logging.LogRecord) -> str:
        lines = record.getMessage().splitlines() or [""]
        if record.exc_info:
            lines += self.formatException(record.exc_info).splitlines()
        lines = [_CONTROL.sub(_escape, line) for line in lines]
        return f"{_time(record)} {record.levelname} {record.name}: " + "\n    ".join(lines)


class JsonFormatter(logging.Formatter):
    """A log format of one JSON object per line: time, level, logger, message, and exception where there is one."""

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


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _escape(match: re.Match[str]) -> str:
    return f"\\x{ord(match[0]):02x}"
