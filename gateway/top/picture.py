"""Picture: the lines of one screen of `fairlead top`, from the known state and the operator's choices. It reads no
terminal and no clock.

Only the rows on the screen become text, however many tenants there are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Any

from gateway.top.cells import EMPTY, count, fitted, printable, seconds, text_of_field
from gateway.top.columns import (
    SESSIONS,
    WINDOWS,
    Column,
    LiveRow,
    TopView,
    columns_of_view,
    is_match,
    ordered,
    rows_of,
    views_of,
)
from gateway.top.controls import HELP, Controls

HEAD_LINES = 4  # gateway, pool, views, titles
WIDTH_MIN, HEIGHT_MIN = 20, HEAD_LINES + 2  # a row and the keys
FLEXIBLE_WIDTH_MAX = 80  # of the last and the first column, where the terminal is wide
KEYS_LINE = "q quit  1-5 view  s sort  r reverse  / filter  Enter fields  p pause  w window  o pool  ? keys"
LABEL_WIDTH = 28


class Look(Enum):
    """A style of text on the terminal."""

    PLAIN = auto()
    BOLD = auto()
    CHOSEN = auto()
    WARNING = auto()
    BAD = auto()


Line = Sequence[tuple[str, Look]]
"""Pieces of one line, from left to right."""


@dataclass(frozen=True, slots=True)
class Known:
    """What `fairlead top` knows about the gateway: the live document (the data of the live page), the requests for the
    present view, and the connection. `requests` None: not known yet; `requests_error` is the reason why they cannot be
    read. `notice` is a sentence about the connection; `is_lost`: the connection is broken now.
    """

    document: Mapping[str, Any]
    requests: Sequence[LiveRow] | None = None
    requests_error: str = ""
    notice: str = ""
    is_lost: bool = False


def picture(known: Known, controls: Controls, *, width: int, height: int) -> list[Line]:
    """At most `height` lines of at most `width` columns. Moves the choices in `controls` to existing rows."""
    if width < WIDTH_MIN or height < HEIGHT_MIN:
        return [[(fitted("too small", width), Look.WARNING)]] if height > 0 else []
    if controls.is_help:
        body: list[Line] = [[(fitted(f"{keys:<30}{text}", width), Look.PLAIN)] for keys, text in HELP]
    elif controls.rows.opened is not None:
        body = _fields(known, controls, width, height)
    else:
        body = _table(known, controls, width, height)
    pool = controls.pool_of(known.document)
    lines = [
        _gateway(known, controls, width),
        _pool(known.document, pool, width),
        _views(known, controls, width),
        *body,
    ]
    lines = lines[: height - 1]
    lines += [[]] * (height - 1 - len(lines))
    return [*lines, _bottom(controls, width)]


def listing(document: Mapping[str, Any], *, width: int) -> str:
    """All tenants of all pools as text, for `--once`."""
    blocks = []
    for index, pool in enumerate(sorted(document.get("pools", {}))):
        controls = Controls(pool_index=index)
        tenants = rows_of(document, TopView.TENANTS, pool)
        columns = _shown_columns(columns_of_view(TopView.TENANTS, 0), width)
        column, descending = controls.ordering()
        body = [
            _titles(columns, None, width),
            *([(_row(row, columns), Look.PLAIN)] for row in ordered(tenants, column, descending=descending)),
        ]
        blocks.append([_gateway(Known(document), controls, width), _pool(document, pool, width), *body])
    return "\n\n".join("\n".join(_text(line) for line in block) for block in blocks)


def _text(line: Line) -> str:
    return "".join(piece for piece, _ in line).rstrip()


def _gateway(known: Known, controls: Controls, width: int) -> Line:
    gateway = known.document.get("gateway", {})
    at = datetime.fromtimestamp(known.document.get("at", 0), UTC).strftime("%H:%M:%S UTC")
    names = "  ".join(printable(str(gateway[name])) for name in ("version", "name", "role") if gateway.get(name))
    text, look = f"fairlead {names}  {at}", Look.BOLD
    if known.notice:
        text, look = f"{printable(known.notice)}  {text}", Look.BAD if known.is_lost else Look.WARNING
    if controls.is_paused:
        text, look = f"PAUSED  {text}", Look.BAD if known.is_lost else Look.WARNING
    return [(fitted(text, width), look)]


def _pool(document: Mapping[str, Any], name: str, width: int) -> Line:
    pools = document.get("pools", {})
    pool = pools.get(name, {})
    refused = "  ".join(f"{reason} {count(number)}" for reason, number in sorted(pool.get("refused", {}).items()))
    parts = [
        f"pool {name or '-'}" + (f" ({sorted(pools).index(name) + 1} of {len(pools)})" if len(pools) > 1 else ""),
        f"queued {count(pool.get('queued'))}",
        f"running {count(pool.get('in_flight'))}",
        f"oldest wait {seconds(pool.get('oldest_wait_s'))}",
        *([f"{count(pool['tokens_per_s'])} tokens/s"] if "tokens_per_s" in pool else []),
        *([f"refused in 60 s: {refused or 'none'}"] if "refused" in pool else []),
        *(["sessions are held"] if (pool.get("sessions") or {}).get("holding") else []),
        f"policy {pool.get('policy', '-')}",
    ]
    return [(fitted(printable("  ".join(parts)), width), Look.WARNING if refused else Look.PLAIN)]


def _views(known: Known, controls: Controls, width: int) -> Line:
    pool = known.document.get("pools", {}).get(controls.pool_of(known.document), {})
    pieces: list[tuple[str, Look]] = []
    offered = views_of(known.document)
    for number, view in enumerate(TopView, 1):
        if view not in offered:
            continue
        things = pool.get("queued") if view is TopView.QUEUE else len(pool.get(view.value, {}))
        look = Look.CHOSEN if view is controls.view else Look.PLAIN
        pieces += [(f"{number} {view} {count(things)}", look), ("  ", Look.PLAIN)]
    chosen = controls.orderings[controls.view]
    said = [f"{'down' if chosen.descending else 'up'} by {chosen.title}", f"shares of {WINDOWS[controls.window]}"]
    if controls.needle or controls.is_typing:
        said.insert(0, f"filter: {printable(controls.needle)}{'_' if controls.is_typing else ''}")
    return _clipped([*pieces, ("  ".join(said), Look.PLAIN)], width)


def _clipped(pieces: Line, width: int) -> Line:
    kept = []
    for text, look in pieces:
        kept.append((fitted(text, width) if len(text) > width else text, look))
        width -= len(kept[-1][0])
        if width <= 0:
            break
    return kept


def _bottom(controls: Controls, width: int) -> Line:
    if controls.is_typing:
        return [(fitted("Enter keeps the filter, Esc removes it", width), Look.BOLD)]
    return [(fitted("any key leads back" if controls.is_help else KEYS_LINE, width), Look.PLAIN)]


def _table(known: Known, controls: Controls, width: int, height: int) -> list[Line]:
    """The titles, and the rows that fit below them."""
    columns = _shown_columns(columns_of_view(controls.view, controls.window), width)
    controls.shown_titles = [column.title for column, _ in columns]
    rows = _rows(known, controls)
    if not rows:
        controls.rows.settle([], 1)
        return [_titles(columns, controls, width), [(fitted(_nothing(known, controls), width), Look.PLAIN)]]
    column, descending = controls.ordering()
    visible = controls.rows.settle(ordered(rows, column, descending=descending), height - HEAD_LINES - 1)
    lines: list[Line] = [_titles(columns, controls, width)]
    for row in visible:
        look = Look.CHOSEN if row.get("id") == controls.rows.selected else _look(controls.view, row)
        lines.append([(fitted(_row(row, columns), width), look)])
    return lines


def _rows(known: Known, controls: Controls) -> list[LiveRow]:
    pool = controls.pool_of(known.document)
    if controls.view is TopView.QUEUE:
        rows = [row for row in known.requests or () if row.get("pool", pool) == pool]
    else:
        rows = rows_of(known.document, controls.view, pool)
    needle = controls.needle.lower()
    return [row for row in rows if is_match(row, needle)] if needle else rows


def _nothing(known: Known, controls: Controls) -> str:
    if controls.view not in views_of(known.document):
        return "this is not for the administrator of a group"
    if controls.view is TopView.QUEUE and known.requests_error:
        return printable(known.requests_error)
    if controls.view is TopView.QUEUE and known.requests is None:
        return "asking the gateway for its requests ..."
    if controls.needle:
        return f"nothing contains '{printable(controls.needle)}'"
    return {
        TopView.TENANTS: "no tenant was served or waits in the last 15 min",
        TopView.QUEUE: "no request waits or runs",
    }.get(controls.view, "there are none")


def _shown_columns(columns: Sequence[Column], width: int) -> list[tuple[Column, int]]:
    """The columns that fit, with their widths; the last and the first take the remaining width."""
    shown = list(columns)
    while len(shown) > 1 and sum(column.width + 1 for column in shown) - 1 > width:
        worst = max(shown, key=lambda column: column.rank)
        shown.remove(worst)
    widths = {column.title: min(column.width, width) for column in shown}
    spare = width - sum(widths.values()) - len(shown) + 1
    for column in (shown[-1], shown[0]):
        if not column.right and spare > 0:
            more = min(spare, FLEXIBLE_WIDTH_MAX - column.width)
            widths[column.title] += more
            spare -= more
    return [(column, widths[column.title]) for column in shown]


def _titles(columns: Sequence[tuple[Column, int]], controls: Controls | None, width: int) -> Line:
    chosen = None if controls is None else controls.orderings[controls.view].title
    pieces: list[tuple[str, Look]] = []
    for column, wide in columns:
        look = Look.CHOSEN if column.title == chosen else Look.BOLD
        pieces += [(fitted(column.title, wide, right=column.right), look), (" ", Look.BOLD)]
    return _clipped(pieces, width)


def _row(row: LiveRow, columns: Sequence[tuple[Column, int]]) -> str:
    return " ".join(fitted(column.text(row), wide, right=column.right) for column, wide in columns)


def _look(view: TopView, row: LiveRow) -> Look:
    if view is TopView.BACKENDS:
        return Look.BAD if not row.get("available") else Look.WARNING if row.get("draining") else Look.PLAIN
    if view is TopView.TIERS:
        gap, bound = row.get("gap"), row.get("bound")
        return Look.BAD if gap is not None and bound is not None and gap > bound else Look.PLAIN
    return Look.WARNING if row.get("refused") else Look.PLAIN


def _fields(known: Known, controls: Controls, width: int, height: int) -> list[Line]:
    """All fields of one row, and the requests of a tenant."""
    name = controls.rows.opened or ""
    pool = controls.pool_of(known.document)
    rows = known.requests or () if controls.view is TopView.QUEUE else rows_of(known.document, controls.view, pool)
    row = next((each for each in rows if each.get("id") == name), None)
    title = f"{controls.view.value.removesuffix('s')} {printable(name)}"
    if row is None:
        return [[(fitted(f"{title}: nothing is queued, running or known of it now", width), Look.WARNING)]]
    lines: list[Line] = [
        [(fitted(f"{label:<{LABEL_WIDTH}} {text}", width), Look.PLAIN)]
        for label, text in _flat(row, "")
        if label != "id" and text != EMPTY  # a tenant's requests stand below, and have little room
    ]
    if controls.view is TopView.TENANTS:
        if sessions := row.get("sessions"):
            columns = _shown_columns(SESSIONS, width)
            lines += [[], _titles(columns, None, width)]
            timed = (_timed(each, known.document) for each in sessions)
            lines += [[(fitted(_row(each, columns), width), Look.PLAIN)] for each in timed]
        columns = _shown_columns(columns_of_view(TopView.QUEUE, controls.window), width)
        requests = [each for each in known.requests or () if each.get("tenant") == name]
        lines += [[], _titles(columns, None, width)]
        lines += [[(fitted(_row(each, columns), width), Look.PLAIN)] for each in requests]
    room = height - HEAD_LINES - 1
    controls.rows.page = max(1, room)
    controls.rows.first = max(0, min(controls.rows.first, len(lines) - room))
    return [[(fitted(title, width), Look.BOLD)], *lines[controls.rows.first : controls.rows.first + room]]


def _timed(session: LiveRow, document: Mapping[str, Any]) -> LiveRow:
    """A session with how long it has been as it is (`for_s`), and is held yet at the most (`left_s`)."""
    at, since_at, until_at = (
        of.get(name) for of, name in ((document, "at"), (session, "since_at"), (session, "until_at"))
    )
    return {
        **session,
        "for_s": None if at is None or since_at is None else max(0.0, at - since_at),
        "left_s": None if at is None or until_at is None else max(0.0, until_at - at),
    }


def _flat(row: Mapping[str, Any], above: str) -> list[tuple[str, str]]:
    """The fields with their values as text; a field inside another has a dotted name."""
    found = []
    for name, value in row.items():
        label = printable(f"{above}{name}")
        if name == "sessions":
            continue  # these have a table
        if isinstance(value, Mapping) and value:
            found += _flat(value, f"{label}.")
        elif name in ("share", "due", "by_weight") and isinstance(value, list):
            texts = (f"{window}: {text_of_field(name, each)}" for window, each in zip(WINDOWS, value, strict=False))
            found.append((label, "   ".join(texts)))
        else:
            found.append((label, text_of_field(name, value)))
    return found
