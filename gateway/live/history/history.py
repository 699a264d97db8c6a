"""HistoryReader: the merged records of all processes of an order.

Each process answers from its own rings. Amounts of the same time add up; of other values the greatest counts, because
only the leader knows shares. So after a change of the leader, the records of all running processes are still there. The
records of a process that has ended are lost.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from gateway.live.history.columns import RingColumn, Values, merged
from gateway.live.history.recorder import KINDS, MINUTE_S, SLICE_ROWS, STEP_S, Happened, HistoryRecorder
from gateway.live.history.schema import History, HistoryEvent, HistoryMinute, HistoryPool, MinuteRow, Series
from gateway.others import Others
from gateway.tasks import in_turns

SERVICE: Final = "history"
STEPS_OF: Final = {"15m": (STEP_S, 90), "1h": (STEP_S, 360), "6h": (MINUTE_S, 360), "24h": (MINUTE_S, 1440)}
"""Of each range: the step, and how many."""
SAME_S: Final = 15.0  # a change of the leader is seen within a look by each process: it is told once
MEASURED: Final = ("ttft_s", "step_s")  # 0: there was none


class _HistoryQuery(msgspec.Struct, array_like=True):
    """Slots from `first` to `last` of a ring; `kind` None: of all kinds and names, in one slot."""

    kind: str | None
    name: str
    step_s: int
    first: int
    last: int


class _RecordedRow(msgspec.Struct, array_like=True):
    pool: str
    kind: str
    name: str
    columns: list[bytes]


class _RecordedPart(msgspec.Struct, array_like=True):
    """`recorded`: by pool, 1 of each slot that was recorded."""

    recorded: dict[str, bytes]
    rows: list[_RecordedRow]
    events: list[Happened]


_pack: Final = msgspec.msgpack.Encoder().encode
_QUERY: Final = msgspec.msgpack.Decoder(_HistoryQuery)
_ANSWER: Final = msgspec.msgpack.Decoder(_RecordedPart)


class HistoryReader:
    """A reader of the gateway's history: the past values of pools, tiers, groups, tenants and backends, and events. It
    asks all processes for their records, and merges them.
    """

    def __init__(self, recorder: HistoryRecorder, others: Others) -> None:
        self.recorder = recorder
        self._others = others
        others.services[SERVICE] = self._tell

    async def range(self, kind: str, name: str, span: str, now: float) -> History:
        """The history of one pool, tier, group, tenant or backend over a span until `now` (seconds since 1970)."""
        step_s, count = STEPS_OF[span]
        last = int(now / step_s) - 1
        first = last - count + 1
        answers, missing = await self._ask(_HistoryQuery(kind, name, step_s, first, last))
        columns = KINDS[kind]
        recorded: dict[str, bytearray] = {}
        values: dict[str, list[Values]] = {}
        for answer in answers:
            for row in answer.rows:
                _note(recorded, row.pool, answer.recorded[row.pool])
                found = [column.values(codes) for column, codes in zip(columns, row.columns, strict=True)]
                known = values.get(row.pool)
                values[row.pool] = found if known is None else merged(columns, known, found)
        begin = first * step_s
        return History(
            of=f"{kind}:{name}",
            from_s=begin,
            step_s=step_s,
            pools={pool: HistoryPool(values=_shown(columns, each, recorded[pool])) for pool, each in values.items()},
            events=_events(answers, begin, now),
            missing=missing,
            currency=None,
        )

    async def minute(self, at: float) -> HistoryMinute:
        """The values of everything in the minute that contains the time `at`, in seconds since 1970."""
        minute = int(at / MINUTE_S)
        answers, missing = await self._ask(_HistoryQuery(None, "", MINUTE_S, minute, minute))
        found: dict[tuple[str, str, str], list[Values]] = {}
        async for some in in_turns((row for answer in answers for row in answer.rows), SLICE_ROWS):
            for row in some:
                columns, of = KINDS[row.kind], (row.pool, row.kind, row.name)
                values = [column.values(codes) for column, codes in zip(columns, row.columns, strict=True)]
                found[of] = merged(columns, found[of], values) if of in found else values
        rows: list[MinuteRow] = []
        async for part in in_turns(sorted(found.items()), SLICE_ROWS):
            rows += (
                MinuteRow(pool=of[0], kind=of[1], name=of[2], values=_row(KINDS[of[1]], each)) for of, each in part
            )
        begin = minute * MINUTE_S
        return HistoryMinute(
            at=begin,
            is_recorded=any(any(flags) for answer in answers for flags in answer.recorded.values()),
            rows=rows,
            events=_events(answers, begin, begin + MINUTE_S),
            missing=missing,
            currency=None,
        )

    async def _ask(self, query: _HistoryQuery) -> tuple[list[_RecordedPart], list[str]]:
        """The answer of this process, and those of the others."""
        answers, missing = await self._others.ask_all(self._others.names(), SERVICE, _pack(query))
        return [await self._own(query), *map(_ANSWER.decode, answers)], missing

    async def _tell(self, body: bytes) -> bytes:
        return _pack(await self._own(_QUERY.decode(body)))

    async def _own(self, query: _HistoryQuery) -> _RecordedPart:
        answer = _RecordedPart({}, [], list(self.recorder.events))
        for (pool, kind), rings in list(self.recorder.rings.items()):
            ring = rings.by_step[query.step_s]
            answer.recorded[pool] = ring.is_recorded(query.first, query.last)
            if query.kind is None:
                async for some in in_turns(ring.rows(query.first, query.last), SLICE_ROWS):
                    answer.rows += (_RecordedRow(pool, kind, *row) for row in some)
            elif kind == query.kind and (codes := ring.read(query.name, query.first, query.last)) is not None:
                answer.rows.append(_RecordedRow(pool, kind, query.name, codes))
        return answer


def _note(recorded: dict[str, bytearray], pool: str, flags: bytes) -> None:
    known = recorded.setdefault(pool, bytearray(len(flags)))
    for at, flag in enumerate(flags):
        known[at] |= flag


def _shown(columns: tuple[RingColumn, ...], values: list[Values], recorded: bytes | bytearray) -> dict[str, Series]:
    """Counts as whole numbers, others with three digits."""
    shown: dict[str, Series] = {}
    for column, each in zip(columns, values, strict=True):
        is_none = column.name in MEASURED
        shown[column.name] = [
            None if not flag or (is_none and not value) else _digits(column, value)
            for value, flag in zip(each, recorded, strict=True)
        ]
    return shown


def _row(columns: tuple[RingColumn, ...], values: list[Values]) -> dict[str, float | None]:
    return {name: each[0] for name, each in _shown(columns, values, b"\1").items()}


def _digits(column: RingColumn, value: float) -> float:
    return round(value) if column.least >= 1.0 else float(f"{value:.3g}")


def _events(answers: Iterable[_RecordedPart], begin: float, end: float) -> list[HistoryEvent]:
    """What the processes saw between these times; what several saw stands once."""
    shown: list[HistoryEvent] = []
    for at, kind, name, what in sorted(event for answer in answers for event in answer.events):
        is_known = any(
            (each.kind, each.name, each.what) == (kind, name, what) and at - each.at < SAME_S for each in shown[-20:]
        )
        if begin <= at < end and not is_known:
            shown.append(HistoryEvent(at=at, kind=kind, name=name, what=what))
    return shown
