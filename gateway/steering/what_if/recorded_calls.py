"""RecordedCalls: the calls of the last hour, in memory, as `fairlead simulate` replays them, without texts and secrets.

A call is stored as in the trace log (gateway/observability/trace_log.py), with the id of its key. The prompt's prefix
is the tuple of hashes of its request; the number of hashes is limited, because a long prompt has hundreds.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from math import ceil
from typing import Final, NamedTuple

import orjson

from gateway.forwarding.active_calls import ActiveCalls
from gateway.observability.telemetry import CallTrace
from gateway.observability.trace_log import TraceRecord, trace_record

RECORDED_S: Final = 3600.0
CALLS_MAX: Final = 50_000  # about 25 MB
HASHES_MAX: Final = 500_000  # of prefixes, about 20 MB


class RecordedCall(NamedTuple):
    """One recorded call, its time to first token (None: it had none, or was not streamed), and its duration, in
    seconds. If it `is_running`, the duration is until now, and its output is unknown. `came_before`: it arrived before
    the period that is asked for. `alias` is the alias that the client used, if any; `backend` is the last backend that
    it was sent to.
    """

    record: TraceRecord
    key_id: str
    ttft_s: float | None
    took_s: float
    is_running: bool = False
    came_before: bool = False
    alias: str | None = None
    backend: str | None = None

    @property
    def ended_at(self) -> float:
        return self.record.arrival_s + self.took_s


IN_ORDER: Final = 1e-6  # of the seconds between arrivals: so few that they came at once, and more than a clock's grain
# The fields in a line after those of the record.
BESIDE: Final = ("key", "ttft_s", "took_s", "is_running", "came_before", "alias", "backend")


class RecordedCalls:
    """The calls of the last hour that this process accepted, for WhatIfs. Mutable; it gets each ended call."""

    def __init__(self) -> None:
        self._calls: deque[RecordedCall] = deque()
        self.active = ActiveCalls()
        """Those that have not ended."""
        self._hashes = 0

    def ended(self, trace: CallTrace) -> None:
        """Record a call that has ended, as the trace log does."""
        call = _recorded(trace, is_running=False)
        if call is None:
            return
        self._calls.append(call)
        self._hashes += len(call.record.prefix)
        oldest_at = trace.arrived_at - RECORDED_S
        while len(self._calls) > CALLS_MAX or self._hashes > HASHES_MAX or self._calls[0].record.arrival_s < oldest_at:
            self._hashes -= len(self._calls.popleft().record.prefix)

    async def lines(self, body: bytes) -> bytes:
        """The calls of the last seconds as JSON lines, made in a thread; `body` is the number of seconds as text.
        Earlier calls that had not ended by then, and running calls, are included, because other calls waited with them.
        """
        since_s = time.time() - float(body)
        calls = [each for each in self._calls if each.ended_at >= since_s]
        running = [_recorded(each.trace, is_running=True) for each in self.active.all()]
        calls += [each for each in running if each is not None]
        return await asyncio.to_thread(_lines, calls, since_s)


def _recorded(trace: CallTrace, *, is_running: bool) -> RecordedCall | None:
    request = trace.request
    if request is None:
        return None
    ttft_s = trace.first_token_s - trace.started_s if trace.stream and trace.first_token_s is not None else None
    outcome = trace.outcome or trace.reason
    record = trace_record(request, trace.usage, endpoint=trace.endpoint, arrived_at=trace.arrived_at, outcome=outcome)
    took_s = time.perf_counter() - trace.started_s
    return RecordedCall(record, request.key_id, ttft_s, took_s, is_running, alias=trace.alias, backend=trace.backend_id)


def _lines(calls: Iterable[RecordedCall], since_s: float) -> bytes:
    return b"".join(_line(each if each.record.arrival_s >= since_s else _from(each, since_s)) for each in calls)


def _line(call: RecordedCall) -> bytes:
    record, *beside = call
    return orjson.dumps(record)[:-1] + b"," + orjson.dumps(dict(zip(BESIDE, beside, strict=True)))[1:] + b"\n"


def _from(call: RecordedCall, since_s: float) -> RecordedCall:
    """A call that came earlier, as if it had come then: it writes what it wrote since, and its first token is not
    measured. A simulation begins with these, in their order.
    """
    early_s = since_s - call.record.arrival_s
    left_s = call.took_s - early_s
    writing_s = call.took_s - min(call.ttft_s or 0.0, call.took_s)
    written = ceil(call.record.output_tokens * min(1.0, left_s / writing_s)) if writing_s else 0
    record = replace(call.record, arrival_s=since_s - early_s * IN_ORDER, output_tokens=written)
    return call._replace(record=record, ttft_s=None, took_s=left_s, came_before=True)
