"""Formats of traces, each with a function from the fields of one line to a call.

A format is recognised by the names in a trace's first line: the header of a CSV file, the keys of a JSON line. Fields
that a format does not know are no error; such a field may name the tenant (gateway/simulate/trace/tenancy.py). Every
error is a ValueError that names the field; the reader adds file and line.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from typing import Any

Fields = Mapping[str, Any]

TOKENS_MAX = 10_000_000  # of one call; more is a mistake in the trace
PREFIX_BLOCKS_MAX = 65_536
NAME_CHARS_MAX = 128
MOONCAKE_BLOCK_TOKENS = 512
PREFIX_HASH_END = 1 << 64


@dataclass(frozen=True, slots=True)
class TraceCall:
    """One call of a trace, from one line. `at_s` is its arrival, in seconds on the trace's own clock. A call without
    output (refused, failed, left before its first token) has `output_tokens` 0 and cannot be simulated, because the
    length of its answer is unknown. `waited_for` is the `number` of an earlier call: this call came because that one
    had ended, `think_s` seconds after its end. Its `at_s` is then not its own arrival, but that of the first call of
    the chain (or of the `loop`). Calls with the same `loop` are of clients that are interchangeable: in a simulation,
    the one that ends first counts as the one with the smallest number (gateway/steering/what_if/closed_loops.py).

    Fields of a session's calls: `gap_s` is the time from the end of the session's previous call, or of the last call of
    the session `after`, to this call (session_turns.py). The prompt of turn number `turn` (from 1; 0: not given) begins
    with the prompts and answers before it. `shared_tokens` is the length of the beginning that all sessions of the
    tenant share.
    """

    at_s: float
    prompt_tokens: int
    output_tokens: int
    output_tokens_max: int | None = None
    tenant: str | None = None
    model: str | None = None
    endpoint: str = ""
    program_id: str | None = None
    uses_tools: bool = False
    prefix: tuple[int, ...] = ()
    prefix_block_tokens: float = 0.0
    patience_s: float | None = None
    number: int | None = None
    loop: int | None = None
    waited_for: int | None = None
    think_s: float = 0.0
    came_before: bool = False
    turn: int = 0
    gap_s: float | None = None
    after: str | None = None
    shared_tokens: int = 0
    parent_id: str | None = None
    ends_session: bool = False


@dataclass(frozen=True, slots=True)
class Format:
    """A format of trace files: how a line becomes a TraceCall, and the rule that names tenants if the operator gives
    none.
    """

    name: str
    needs: frozenset[str]
    parse: Callable[[Fields], TraceCall]
    tenants: str
    ordered: bool = True
    """Whether lines are in order of arrival. A gateway writes its own lines when calls end."""
    block_tokens: int | None = None
    """The block size of its prefixes, where all have blocks of one size."""


def own_call(fields: Fields) -> TraceCall:
    """Parse a JSON line of the gateway's own format (gateway/observability/trace_log.py)."""
    prefix = _prefix(fields, "prefix")
    output_tokens = _count(fields, "output_tokens", default=0)
    gap_s = None if fields.get("gap_s") is None else _number(fields, "gap_s", at_least=0.0)
    program_id, turn = name_in(fields, "program"), _count(fields, "turn", default=0)
    if program_id is None and (turn or gap_s is not None):
        raise ValueError("program is missing: turn and gap_s are of a session")
    return TraceCall(
        at_s=_number(fields, "arrival_s") if gap_s is None or "arrival_s" in fields else 0.0,
        prompt_tokens=_count(fields, "prompt_tokens", at_least=1),
        output_tokens=output_tokens,
        output_tokens_max=_count(fields, "output_tokens_max", default=0) or None,
        tenant=name_in(fields, "tenant"),
        model=name_in(fields, "model"),
        endpoint=name_in(fields, "endpoint") or "",
        program_id=program_id,
        uses_tools=_flag(fields, "tools"),
        prefix=prefix,
        prefix_block_tokens=_number(fields, "prefix_block_tokens", above=0.0) if prefix else 0.0,
        patience_s=None if fields.get("patience_s") is None else _number(fields, "patience_s", above=0.0),
        number=None if fields.get("number") is None else _count(fields, "number"),
        loop=None if fields.get("loop") is None else _count(fields, "loop"),
        waited_for=None if fields.get("waited_for") is None else _count(fields, "waited_for"),
        think_s=0.0 if fields.get("think_s") is None else _number(fields, "think_s"),
        came_before=_flag(fields, "came_before"),
        turn=turn,
        gap_s=gap_s,
        after=name_in(fields, "after"),
        shared_tokens=_count(fields, "shared_tokens", default=0),
        parent_id=name_in(fields, "parent"),
        ends_session=_flag(fields, "final"),
    )


def csv_call(fields: Fields) -> TraceCall:
    return TraceCall(
        at_s=_number(fields, "arrival_s"),
        prompt_tokens=_count(fields, "prompt_tokens", at_least=1),
        output_tokens=_count(fields, "output_tokens"),
        tenant=name_in(fields, "client") or name_in(fields, "tenant"),
    )


def azure_call(fields: Fields) -> TraceCall:
    return TraceCall(
        at_s=_timestamp_s(fields),
        prompt_tokens=_count(fields, "ContextTokens", at_least=1),
        output_tokens=_count(fields, "GeneratedTokens"),
    )


def mooncake_call(fields: Fields) -> TraceCall:
    prompt_tokens = _count(fields, "input_length", at_least=1)
    blocks = _prefix(fields, "hash_ids")
    full_blocks = prompt_tokens // MOONCAKE_BLOCK_TOKENS  # the last id may stand for a part of a block
    return TraceCall(
        at_s=_number(fields, "timestamp") / 1000,
        prompt_tokens=prompt_tokens,
        output_tokens=_count(fields, "output_length"),
        prefix=blocks[:full_blocks],
        prefix_block_tokens=MOONCAKE_BLOCK_TOKENS,
    )


CSV_FORMATS = (
    Format("csv", frozenset({"arrival_s", "prompt_tokens", "output_tokens"}), csv_call, tenants="column"),
    Format("azure", frozenset({"TIMESTAMP", "ContextTokens", "GeneratedTokens"}), azure_call, tenants="random:10"),
)
JSON_FORMATS = (
    Format("jsonl", frozenset({"arrival_s", "prompt_tokens"}), own_call, tenants="column", ordered=False),
    # All prompts of the published trace begin with the same block: the second one tells conversations apart.
    Format(
        "mooncake",
        frozenset({"timestamp", "input_length", "output_length"}),
        mooncake_call,
        tenants="block:2:20",
        block_tokens=MOONCAKE_BLOCK_TOKENS,
    ),
)


def recognise_format(names: frozenset[str], formats: tuple[Format, ...]) -> Format:
    """The format whose fields are all present. Raises ValueError, listing the fields that each format needs."""
    for known in formats:
        if known.needs <= names:
            return known
    needs = "; ".join(f"{known.name}: {', '.join(sorted(known.needs))}" for known in formats)
    raise ValueError(f"no known format has these fields (needed are, for {needs})")


def name_in(fields: Fields, field: str) -> str | None:
    """The name in this field; None where the field is missing."""
    return None if fields.get(field) in (None, "") else name(fields, field)


def name(fields: Fields, field: str) -> str:
    """The name in this field, of at most 128 printable characters; numbers are names, too."""
    value = fields.get(field)
    if value is None or value == "":
        raise ValueError(f"{field} is missing")
    text = str(value) if type(value) is int else value
    if type(text) is not str or not text.isprintable() or len(text) > NAME_CHARS_MAX:
        raise ValueError(f"{field} must be a name of 1 to {NAME_CHARS_MAX} printable characters")
    return text


def _count(fields: Fields, field: str, *, at_least: int = 0, default: int | None = None) -> int:
    value = fields.get(field)
    if value is None:
        if default is None:
            raise ValueError(f"{field} is missing")
        return default
    if type(value) is str and value.isascii() and value.isdecimal():
        value = int(value[: len(str(TOKENS_MAX)) + 1])
    if type(value) is not int or not at_least <= value <= TOKENS_MAX:
        raise ValueError(f"{field} must be a whole number from {at_least} to {TOKENS_MAX}")
    return value


def _number(fields: Fields, field: str, *, above: float | None = None, at_least: float | None = None) -> float:
    value = fields.get(field)
    if value is None:
        raise ValueError(f"{field} is missing")
    try:
        number = float(value) if type(value) in (str, int, float) else float("nan")
    except (ValueError, OverflowError):
        number = float("nan")
    if not isfinite(number) or (above is not None and number <= above):
        raise ValueError(f"{field} must be a number" if above is None else f"{field} must be a number above {above:g}")
    if at_least is not None and number < at_least:
        raise ValueError(f"{field} must be a number of at least {at_least:g}")
    return number


def _timestamp_s(fields: Fields) -> float:
    """The Unix seconds of a time as Azure writes it, in UTC where it names no zone."""
    value = fields.get("TIMESTAMP")
    if value is None:
        raise ValueError("TIMESTAMP is missing")
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise ValueError("TIMESTAMP must be a time like 2023-11-16 18:15:46.680590") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _prefix(fields: Fields, field: str) -> tuple[int, ...]:
    value = fields.get(field)
    if value is None:
        return ()
    if type(value) is not list or len(value) > PREFIX_BLOCKS_MAX:
        raise ValueError(f"{field} must be a list of at most {PREFIX_BLOCKS_MAX} whole numbers")
    if any(type(each) is not int or not 0 <= each < PREFIX_HASH_END for each in value):
        raise ValueError(f"{field} must hold whole numbers from 0 to 2^64 - 1")
    return tuple(value)


def _flag(fields: Fields, field: str) -> bool:
    value = fields.get(field, False)
    if type(value) is not bool:
        raise ValueError(f"{field} must be true or false")
    return value
