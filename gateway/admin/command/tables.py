"""Tables of admin API responses for a terminal: a list has one row per item, a single resource one row per field.

A column that is empty in every row is left out. Values from the API are never interpreted as markup or sent to the
terminal as control characters: a label may hold anything.
"""

import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

TIMES = frozenset({"arrived_at", "at", "created_at", "ended_at", "expires_at", "renewed_at", "since"})
FIRST = ("id", "origin")
EMPTY = "-"
DIGITS = 6


def print_list(items: Iterable[Mapping[str, Any]]) -> None:
    """Print one row per item, with the fields as columns."""
    rows = list(items)
    if not rows:
        Console(file=sys.stderr).print("There are none.")
        return
    names = [
        name
        for name in dict.fromkeys((*FIRST, *(name for row in rows for name in row)))
        if any(_is_set(row, name) for row in rows)
    ]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, overflow="fold", justify="right" if _is_number(rows[0].get(name), name) else "left")
    for row in rows:
        table.add_row(*(Text(text_of(name, row.get(name))) for name in names))
    Console().print(table)


def print_one(thing: Mapping[str, Any]) -> None:
    """Print one row per field; lists of objects in it become tables of their own below."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    lists = {name: value for name, value in thing.items() if value and _is_list_of_objects(value)}
    for name, value in thing.items():
        if name not in lists:
            table.add_row(name, Text(text_of(name, value)))
    Console().print(table)
    for name, value in lists.items():
        Console().print(Text(f"\n{name}", style="bold"))
        print_list(value)


def text_of(name: str, value: object) -> str:
    """A value as text for people."""
    if value is None or value in ("", [], {}):
        return EMPTY
    if name in TIMES and isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.{DIGITS}g}"
    if isinstance(value, Mapping):
        return " ".join(f"{inner}={text_of(inner, each)}" for inner, each in value.items() if each is not None) or EMPTY
    if isinstance(value, list):
        return ",".join(text_of("", each) for each in value)
    return "".join(each if each.isprintable() else "?" for each in str(value))


def _is_set(row: Mapping[str, Any], name: str) -> bool:
    return text_of(name, row.get(name)) != EMPTY


def _is_number(value: object, name: str) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and name not in TIMES


def _is_list_of_objects(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)
