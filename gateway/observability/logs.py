"""Logs: the gateway's own log on standard error, with a time, a level and a message, as text or as JSON.

Requests are in the access log (access_log.py). Control characters in a message are escaped, so a name from outside can
neither begin a line of its own nor colour a terminal (CWE-117).
"""

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Literal, TextIO

OURS = ("gateway", "backends", "policies")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def configure_logging(level: str, form: Literal["text", "json"], stream: TextIO | None = None) -> None:
    """Write the log of this process to `stream` (None: standard error). Other packages log warnings only, because
    aiohttp's info level is a line for every request.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.captureWarnings(capture=True)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for name in OURS:
        logging.getLogger(name).setLevel(level.upper())


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
