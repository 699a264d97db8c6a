"""Columns: the columns of each view, and the order and the filter of its rows.

A row is an object of the live document (gateway/live) or of `/admin/v1/requests`, with its `id`. A field that a gateway
does not send is an empty cell, so that a client of one version shows gateways of another.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Any

from gateway.top.cells import EMPTY, count, printable, seconds, share

LiveRow = Mapping[str, Any]
WINDOWS = ("10 s", "1 min", "15 min")  # of `share` and `due`, in the document's order


class TopView(StrEnum):
    """A view of `fairlead top`: the kind of things in its rows."""

    TENANTS = "tenants"
    TIERS = "tiers"
    BACKENDS = "backends"
    QUEUE = "queue"
    GROUPS = "groups"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a view in `fairlead top`. `width` is in characters. `value` is what rows are sorted by, with None
    last. `rank`: if the terminal is narrow, the columns of the highest rank are left out first.
    """

    title: str
    width: int
    value: Callable[[LiveRow], Any]
    text: Callable[[LiveRow], str]
    rank: int
    right: bool = True
    is_ascending: bool = False


def columns_of_view(view: TopView, window: int) -> Sequence[Column]:
    """The columns of a view. Shares are shown for the window with the index `window` in WINDOWS."""
    return _COLUMNS[view](window)


def is_of_group(document: Mapping[str, Any]) -> bool:
    """Whether the live document is one group's part of it, which has no processes, tiers, backends and requests."""
    return "group" in document


def views_of(document: Mapping[str, Any]) -> Sequence[TopView]:
    """The views for which the document has data."""
    return (TopView.TENANTS, TopView.GROUPS) if is_of_group(document) else tuple(TopView)


def ordered(rows: Iterable[LiveRow], column: Column, *, descending: bool) -> list[LiveRow]:
    """The rows ordered by the column, then by id, so that equal rows keep their place from second to second."""
    found: list[tuple[Any, str, LiveRow]] = []
    empty: list[tuple[Any, str, LiveRow]] = []
    for row in rows:
        value = column.value(row)
        (empty if value is None else found).append((value, str(row.get("id", "")), row))
    found.sort(key=lambda each: each[1])
    found.sort(key=lambda each: each[0], reverse=descending)
    return [row for _, _, row in found] + [row for _, _, row in sorted(empty, key=lambda each: each[1])]


def is_match(row: LiveRow, needle: str) -> bool:
    """Whether a text of the row contains the needle, which is in lower case."""
    return any(needle in value.lower() for value in row.values() if isinstance(value, str))


def rows_of(document: Mapping[str, Any], view: TopView, pool: str) -> list[LiveRow]:
    """The rows of a pool in the live document, for all views but the queue."""
    things = document.get("pools", {}).get(pool, {}).get(view.value, {})
    return [{"id": name, **thing} for name, thing in things.items()]


def _field(row: LiveRow, name: str) -> Any:
    """The value of a field; a name with a dot is a field inside another."""
    found: Any = row
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _name(title: str, name: str, width: int, rank: int) -> Column:
    def value(row: LiveRow) -> str | None:
        return None if (found := _field(row, name)) is None else str(found)

    return Column(title, width, value, lambda row: printable(value(row) or EMPTY), rank, right=False, is_ascending=True)


def _number(title: str, name: str, width: int, rank: int, shown: Callable[[float | None], str] = count) -> Column:
    return Column(title, width, lambda row: _field(row, name), lambda row: shown(_field(row, name)), rank)


def _at(row: LiveRow, name: str, index: int) -> float | None:
    values = row.get(name)
    return values[index] if isinstance(values, list) and index < len(values) else None


def _of_list(title: str, name: str, index: int, rank: int, shown: Callable[[float | None], str]) -> Column:
    """A column of one value in a list, such as the share of one window or one percentile."""
    value = partial(_at, name=name, index=index)
    return Column(title, 7, value, lambda row: shown(value(row)), rank)


def _shares(window: int) -> tuple[Column, Column]:
    return _of_list("SHARE", "share", window, 1, share), _of_list("DUE", "due", window, 2, share)


def _pair(title: str, first: str, second: str, width: int, rank: int) -> Column:
    """A column that shows `in use/limit`, ordered by the part in use."""

    def value(row: LiveRow) -> float | None:
        used: float | None = _field(row, first)
        limit: float | None = _field(row, second)
        return used / limit if used is not None and limit else used

    def text(row: LiveRow) -> str:
        return f"{count(_field(row, first))}/{count(_field(row, second))}"

    return Column(title, width, value, text, rank)


def _tenants(window: int) -> Sequence[Column]:
    return (
        _name("TENANT", "id", 20, 0),
        _name("TIER", "tier", 12, 9),
        _number("WEIGHT", "weight", 6, 8),
        _number("QUEUED", "queued", 6, 3),
        _number("RUN", "in_flight", 5, 4),
        _number("WAIT", "oldest_wait_s", 7, 5, seconds),
        *_shares(window),
        _number("TOKENS/S", "output_tokens_per_s", 8, 6),
        _of_list("TTFT50", "ttft_s", 0, 13, seconds),
        _of_list("TTFT99", "ttft_s", 1, 10, seconds),
        _of_list("TPOT50", "tpot_s", 0, 14, seconds),
        _of_list("TPOT99", "tpot_s", 1, 12, seconds),
        _number("SLO", "attainment_ratio", 6, 11, share),
        _number("CACHED", "cached_ratio", 6, 15, share),
        _number("HELD", "session_states.held", 5, 16),
        _number("REFUSED", "refused", 7, 7),
        _name("WAITS FOR", "waits", 16, 6),
    )


def _groups(window: int) -> Sequence[Column]:
    return (
        _name("GROUP", "id", 20, 0),
        _name("TIER", "tier", 12, 6),
        _number("WEIGHT", "weight", 6, 5),
        _number("QUEUED", "queued", 6, 3),
        _number("RUN", "in_flight", 5, 4),
        *_shares(window),
    )


def _tiers(window: int) -> Sequence[Column]:
    return (
        _name("TIER", "id", 20, 0),
        _number("WEIGHT", "weight", 6, 5),
        _number("QUEUED", "queued", 6, 3),
        _number("RUN", "in_flight", 5, 4),
        *_shares(window),
        _number("GAP", "gap", 8, 6),
        _number("BOUND", "bound", 8, 6),
        _number("JAIN", "jain", 6, 7, lambda value: EMPTY if value is None else f"{value:.3f}"),
    )


def _state(row: LiveRow) -> str:
    if not row.get("available"):
        return "away"
    return "draining" if row.get("draining") else "ready"


def _time_of_day(unix_s: float | None) -> str:
    """The time in UTC, as in the first line; the page says it in the browser's zone."""
    return EMPTY if unix_s is None else datetime.fromtimestamp(unix_s, UTC).strftime("%H:%M:%S")


def _backends(_window: int) -> Sequence[Column]:
    return (
        _name("BACKEND", "id", 20, 0),
        Column("STATE", 8, _state, _state, 1, right=False, is_ascending=True),
        _number("SINCE", "unavailable_since", 8, 2, _time_of_day),
        _name("BOUND BY", "bound_by", 9, 2),
        _pair("REQUESTS", "in_flight", "requests_limit", 11, 3),
        _name("SIZE", "size", 7, 6),
        _pair("KV TOKENS", "tokens", "tokens_limit", 14, 4),
        _number("QUEUED", "queued_there", 6, 7),
        _number("EXT REQ", "external_requests", 7, 8),
        _number("EXT TOK", "external_tokens", 8, 9),
        _number("STEP", "step_s", 7, 5, seconds),
        _number("MEASURED", "step_measured_s", 8, 6, seconds),
        _pair("SESSIONS", "working_set.tokens", "working_set.tokens_max", 14, 10),
        _number("BUSY", "working_set.busy_ratio", 6, 11, share),
        _number("AGAIN", "working_set.recomputed_ratio", 6, 12, share),
        _name("TROUBLE", "trouble", 16, 3),
    )


def _queue(_window: int) -> Sequence[Column]:
    return (
        _name("REQUEST", "id", 20, 0),
        _name("TENANT", "tenant", 16, 1),
        _name("STATE", "state", 7, 3),
        _number("AGE", "age_s", 7, 2, seconds),
        _number("QUEUE", "phases.queue_s", 7, 7, seconds),
        _number("PREFILL", "phases.prefill_s", 7, 8, seconds),
        _number("DECODE", "phases.decode_s", 7, 9, seconds),
        _number("PROMPT", "prompt_tokens", 7, 6),
        _pair("OUTPUT", "output_tokens", "output_tokens_max", 11, 6),
        _number("SLACK", "slack_s", 7, 10, seconds),
        _number("STARTS", "waits.start_s", 7, 5, seconds),
        _name("BACKEND", "backend", 12, 5),
        _name("WHY IT WAITS", "waits.text", 44, 4),
    )


SESSIONS: Sequence[Column] = (
    _name("SESSION", "id", 20, 0),
    _name("STATE", "state", 8, 1),
    _number("FOR", "for_s", 7, 4, seconds),
    _number("AT MOST", "left_s", 7, 2, seconds),
    _number("NEEDS", "needs_tokens", 7, 3),
    _number("CONTEXT", "context_tokens", 8, 5),
    _number("TURNS", "turns", 6, 6),
    _number("PAUSES", "pauses", 6, 8),
    _name("BACKEND", "backend", 12, 7),
)
"""Of a tenant's sessions. AT MOST: for how long one that is held waits yet."""

_COLUMNS: Mapping[TopView, Callable[[int], Sequence[Column]]] = {
    TopView.TENANTS: _tenants,
    TopView.GROUPS: _groups,
    TopView.TIERS: _tiers,
    TopView.BACKENDS: _backends,
    TopView.QUEUE: _queue,
}
SORTED_FIRST: Mapping[TopView, str] = {
    TopView.TENANTS: "SHARE",
    TopView.GROUPS: "SHARE",
    TopView.TIERS: "SHARE",
    TopView.BACKENDS: "REQUESTS",
    TopView.QUEUE: "AGE",
}
