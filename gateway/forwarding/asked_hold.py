"""The time for which a backend asks for no more requests: its Retry-After header (RFC 9110, 10.2.3)."""

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite

# Of what a backend may ask for. Beyond it, clients would wait longer for the header than for another try.
HOLD_S_MAX = 60.0


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds that the response asks to wait, between 0 and HOLD_S_MAX; None without a readable header.

    A date counts from the Date of the response, by the backend's own clock. A date without a Date header is not
    readable: the clocks of two machines differ by more than most waits.
    """
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdecimal():
        wait_s = float(value)
    else:
        until, now = _date(value), _date(headers.get("date", ""))
        if until is None or now is None:
            return None
        wait_s = (until - now).total_seconds()
    return min(max(wait_s, 0.0), HOLD_S_MAX) if isfinite(wait_s) else HOLD_S_MAX


def _date(value: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, IndexError, TypeError, OverflowError):
        return None
    return date if date.tzinfo is not None else date.replace(tzinfo=UTC)
