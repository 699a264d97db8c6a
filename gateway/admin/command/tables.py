"""Tables of admin API responses for a terminal: a list has one row per item, a single resource one row per field.

A list has five columns, which fit 80 characters; a wide list has all columns. A column that is empty in every row is
left out. Values from the API never act as markup or as control characters: a label may hold anything.
"""

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

TIMES = frozenset({"arrived_at", "at", "created_at", "ended_at", "expires_at", "renewed_at", "since", "until_at"})
FIRST = ("id", "origin")
EMPTY = "-"
COLUMN_MIN = 12  # what a column keeps where others are long: five of these fit 80
GAP = 2  # between columns
DIGITS = 6
PARTS = ("period", "group", "tenant", "key", "model")
PARTS_SHOWN_MAX = 2  # of what a sum is of, beside its three numbers
COUNTS = ("requests", "tokens")
WIDE_COUNTS = ("requests", "prompt_tokens", "cached_tokens", "output_tokens", "unpriced_tokens")
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "aliases": ("id", "origin", "models", "split", "sticky"),
    "audit": ("at", "actor", "action", "kind", "name"),
    "backend states": ("pool", "backend", "available", "in_flight_requests", "requests_limit"),
    "backends": ("id", "state", "draining", "in_flight_requests", "url"),
    "budgets": ("tenant", "period", "unit", "used", "limit"),
    "groups": ("id", "origin", "tier", "weight", "in_flight_max"),
    "keys": ("id", "tenant", "role", "label", "last_used_on"),
    "pool states": ("pool", "queued_requests", "in_flight_requests", "tenants"),
    "pools": ("id", "fairness", "prediction", "placement"),
    "prices": ("id", "origin", "currency", "periods"),
    "requests": ("id", "tenant", "state", "age_s", "waits"),
    "sessions": ("id", "tenant", "state", "context_tokens", "until_at"),
    "resources": ("kind", "id", "origin", "fields"),
    "tenant states": ("tenant", "pool", "queued_requests", "in_flight_requests", "service_per_s"),
    "tenants": ("id", "origin", "tier", "group", "weight"),
    "tier states": ("pool", "tier", "queued_requests", "in_flight_requests", "slack_s_min"),
    "tiers": ("id", "origin", "weight", "reserve_ratio", "envelope"),
    "usage": ("day", "tenant", "model", "requests", "cost"),
}
"""What a list of a kind shows first. Kinds that are not here have all of their columns."""
RUNS = ("happened", "replayed", "instead")  # of a what-if
RUN_FIGURES = ("requests", "served", "throughput_tokens_per_s", "ttft_p50_s", "ttft_p99_s")
TENANT_FIGURES = ("share", "ttft_p50_s", "ttft_p99_s", "served")  # the first two where it is not wide
OF_PARTS = frozenset({"tenants", "sessions", "refused"})  # a run's figures that are no single number
AMOUNTS = frozenset({"cost"})  # text, aligned as numbers are


def print_list(items: Iterable[Mapping[str, Any]], kind: str = "", *, is_wide: bool = False) -> None:
    """Print one row per item, with the fields of the kind as columns; with `is_wide` all fields."""
    rows = list(items)
    if kind == "requests" and not is_wide:  # the sentence says what the other fields are
        rows = [{**row, "waits": row["waits"] and row["waits"]["text"]} for row in rows]
    if not rows:
        Console(file=sys.stderr).print("There are none.")
        return
    chosen = None if is_wide else COLUMNS.get(kind)
    names = [
        name
        for name in chosen or dict.fromkeys((*FIRST, *(name for row in rows for name in row)))
        if any(_is_set(row, name) for row in rows)
    ]
    print_rows(names, [[text_of(name, row.get(name)) for name in names] for row in rows], _right(names, rows), chosen)


def print_rows(names: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str], fits: object) -> None:
    """Print a table with one line per row. With `fits`, values that are too long for the terminal end in dots."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    widths = [max(cell_len(cell) for cell in column) for column in zip(names, *rows, strict=True)]
    for name, width in zip(names, widths, strict=True):
        justify: Literal["left", "right"] = "right" if name in right else "left"
        table.add_column(name, no_wrap=True, justify=justify, min_width=min(width, COLUMN_MIN) if fits else None)
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console()
    if not fits:
        console.width = max(console.width, sum(widths) + GAP * len(widths))
    console.print(table)


def print_sums(total: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], *, is_wide: bool) -> None:
    """Print sums of usage (their group, requests, tokens and cost) and the total below them."""
    parts = [name for name in PARTS if any(row[name] is not None for row in rows)]
    if not is_wide and len(parts) > PARTS_SHOWN_MAX:  # a tenant stands for its group
        parts.remove("group")
    counts = WIDE_COUNTS if is_wide else COUNTS
    last = {**total, **dict.fromkeys(parts, ""), **dict.fromkeys(parts[:1], "total")}
    lines = [*(rows if parts else ()), last]
    decimals = max(len(_decimals(row)) for row in lines)
    cells = [
        [
            *(_printable(row[name]) or ("" if row is last else EMPTY) for name in parts),
            *(f"{_tokens(row) if name == 'tokens' else row[name]:,}" for name in counts),
            EMPTY
            if row["cost"] is None
            else f"{row['cost']}{'0' * (decimals - len(_decimals(row)))} {row['currency']}",
        ]
        for row in lines
    ]
    print_rows([*parts, *counts, "cost"], cells, {*counts, "cost"}, not is_wide)
    if total["unpriced_tokens"]:
        Console(file=sys.stderr, highlight=False).print(
            f"{total['unpriced_tokens']:,} tokens have no price, and are in no cost."
        )


def print_runs(what_if: Mapping[str, Any], *, is_wide: bool) -> None:
    """Print the figures of a what-if's runs side by side, then those of each tenant: its share of the service and its
    waits, simulated with the asked settings and with the present ones; with `is_wide`, also as measured.
    """
    runs = {run: what_if[run] for run in RUNS if what_if[run] is not None}
    names = [name for name in what_if[RUNS[-1]] if name not in OF_PARTS] if is_wide else RUN_FIGURES
    cells = [[name, *(text_of(name, run[name]) for run in runs.values())] for name in names]
    print_rows(["figure", *runs], cells, runs.keys(), None)
    Console().print()
    compared = {name: run for name, run in runs.items() if is_wide or name != RUNS[0]}
    columns = [(figure, run) for figure in TENANT_FIGURES[: None if is_wide else 2] for run in compared]
    first = next(iter(compared))
    header = [f"{figure}: {run}" if run == first else run for figure, run in columns]
    served = {name: sum(each["service"] for each in run["tenants"].values()) for name, run in compared.items()}
    rows = [
        [_printable(tenant), *(_figure(compared[run]["tenants"].get(tenant), of, served[run]) for of, run in columns)]
        for tenant in dict.fromkeys(each for run in compared.values() for each in run["tenants"])
    ]
    print_rows(["tenant", *header], rows, header, None if is_wide else header)


def _figure(tenant: Mapping[str, Any] | None, name: str, served: float) -> str:
    """A tenant's figure in a run; its share is of what is `served` to all."""
    if tenant is None:
        return EMPTY
    if name == "share":
        return f"{tenant['service'] / served:.1%}" if served else EMPTY
    return text_of(name, tenant[name])


def _tokens(row: Mapping[str, Any]) -> int:
    return int(row["prompt_tokens"] + row["output_tokens"])


def _decimals(row: Mapping[str, Any]) -> str:
    return (row["cost"] or "").partition(".")[2]


def print_one(thing: Mapping[str, Any]) -> None:
    """Print one row per field; each list of objects becomes a table of its own below."""
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


def print_state(state: Mapping[str, Any], *, is_wide: bool) -> None:
    """Print the pools, then the tiers and the backends of each. One cell for all tiers would be thousands of columns
    wide.
    """
    pools = state["pools"]
    if not state["store_available"]:
        Console(file=sys.stderr).print("The store is not available.")
    print_list([_without(pool, ("tiers", "backends")) for pool in pools], "pool states", is_wide=is_wide)
    for part, plural in (("tier", "tiers"), ("backend", "backends")):
        rows = [{"pool": pool["pool"], part: name, **each} for pool in pools for name, each in pool[plural].items()]
        if rows:
            Console().print()
            print_list(rows, f"{part} states", is_wide=is_wide)


def _without(thing: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in thing.items() if name not in names}


def text_of(name: str, value: object) -> str:
    """A value as text for display."""
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
    return _printable(value)


def _printable(value: object) -> str:
    return "".join(each if each.isprintable() else "?" for each in str(value))


def _is_set(row: Mapping[str, Any], name: str) -> bool:
    return text_of(name, row.get(name)) != EMPTY


def _right(names: Iterable[str], rows: Sequence[Mapping[str, Any]]) -> set[str]:
    """The columns of numbers."""
    return {name for name in names if name in AMOUNTS or _is_number(rows[0].get(name), name)}


def _is_number(value: object, name: str) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and name not in TIMES


def _is_list_of_objects(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)
