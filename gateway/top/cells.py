"""Cells: the text of one cell: numbers with their units, and names that a terminal cannot mistake for commands.

A tenant's name, a model and a request id are a client's choice. None of their control characters, escape sequences,
bidirectional overrides or invisible characters reaches the terminal.
"""

from typing import Any
from unicodedata import category, east_asian_width

EMPTY = "-"
NAME_CHARS_MAX = 256  # of a name; more would not be read on a screen
MINUTE_S, HOUR_S = 60.0, 3600.0


def printable(text: str) -> str:
    """The text with `?` in place of characters that move a cursor or cannot be seen."""
    return "".join(each if each.isprintable() else "?" for each in text[:NAME_CHARS_MAX])


def columns_of(text: str) -> int:
    """The number of terminal columns that a printable text takes."""
    if text.isascii():
        return len(text)
    return sum(_columns_of(each) for each in text)


def _columns_of(character: str) -> int:
    if category(character) in ("Mn", "Me"):  # marks stand on the character before them
        return 0
    return 2 if east_asian_width(character) in "WF" else 1


def fitted(text: str, width: int, *, right: bool = False) -> str:
    """The text in exactly `width` columns: a longer text is cut with `~`, a shorter text is filled with spaces."""
    columns = columns_of(text)
    if columns > width:
        text, columns = _cut(text, width)
    filling = " " * (width - columns)
    return filling + text if right else text + filling


def _cut(text: str, width: int) -> tuple[str, int]:
    kept, columns = "", 0
    for each in text:
        wide = _columns_of(each)
        if columns + wide > width - 1:
            break
        kept, columns = kept + each, columns + wide
    return (kept + "~", columns + 1) if width > 0 else ("", 0)


def count(value: float | None) -> str:
    """A count as text: 950, 12.3k, 4.5M."""
    if value is None:
        return EMPTY
    for least, size, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= least:
            return f"{value / size:.1f}{unit}"
    return f"{value:.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.1f}"


def seconds(value: float | None) -> str:
    """A duration as text: 85ms, 3.2s, 4m05s, 2h10m."""
    if value is None:
        return EMPTY
    if abs(value) < 1:
        return f"{value * 1e3:.0f}ms"
    if abs(value) < MINUTE_S:
        return f"{value:.1f}s"
    if abs(value) < HOUR_S:
        return f"{int(value // 60)}m{int(value % 60):02}s"
    return f"{int(value // 3600)}h{int(value % 3600 // 60):02}m"


def share(value: float | None) -> str:
    """A ratio as text, in percent."""
    return EMPTY if value is None else f"{100 * value:.1f}%"


def text_of_field(name: str, value: Any) -> str:
    """A field of the API as text, by its type and the unit in its name."""
    if value is None or value in ("", [], {}):
        return EMPTY
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if name.endswith("_s") and not name.endswith("per_s"):
            return seconds(value)
        return share(value) if name in ("share", "due", "by_weight") or name.endswith("ratio") else count(value)
    if isinstance(value, list):
        return "  ".join(text_of_field(name, each) for each in value)
    return printable(str(value))
