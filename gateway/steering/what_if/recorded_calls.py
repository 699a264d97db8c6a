"""RecordedCalls: the calls of the last hour, in memory, as `fairlead simulate` plays them. There is no text and no
secret of a key.

A call is stored as in the trace log (gateway/observability/trace_log.py), with the id of its key. The prompt's prefix
is a tuple of hashes that its request has in any case; their number is limited, because a long prompt has hundreds.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

import orjson

from gateway.observability.telemetry import CallTrace
from gateway.observability.trace_log import TraceRecord, trace_record

RECORDED_S: Final = 3600.0
CALLS_MAX: Final = 50_000  # about 25 MB
HASHES_MAX: Final = 500_000  # of prefixes, about 20 MB


class RecordedCall(NamedTuple):
    """One recorded call, its time to first token (None: it had none, or was not streamed), and its duration, in
    seconds.
    """

    record: TraceRecord
    key_id: str
    ttft_s: float | None
    took_s: float

    @property
    def ended_at(self) -> float:
        return self.record.arrival_s + self.took_s


class RecordedCalls:
    """The recorded calls that this process accepted. Mutable; a CallObserver."""

    def __init__(self, *, calls_max: int = CALLS_MAX, hashes_max: int = HASHES_MAX) -> None:
        self._calls: deque[RecordedCall] = deque()
        self._hashes = 0
        self._calls_max = calls_max
        self._hashes_max = hashes_max

    def ended(self, trace: CallTrace) -> None:
        """Record a call that has ended, as the trace log does."""
        request = trace.request
        if request is None:
            return
        ttft_s = trace.first_token_s - trace.started_s if trace.stream and trace.first_token_s is not None else None
        outcome = trace.outcome or trace.reason
        record = trace_record(
            request, trace.usage, endpoint=trace.endpoint, arrived_at=trace.arrived_at, outcome=outcome
        )
        took_s = time.perf_counter() - trace.started_s
        self._calls.append(RecordedCall(record, request.key_id, ttft_s, took_s))
        self._hashes += len(record.prefix)
        oldest_at = trace.arrived_at - RECORDED_S
        while (
            len(self._calls) > self._calls_max
            or self._hashes > self._hashes_max
            or self._calls[0].record.arrival_s < oldest_at
        ):
            self._hashes -= len(self._calls.popleft().record.prefix)

    async def lines(self, body: bytes) -> bytes:
        """The JSON lines of the calls of the last seconds, whose number is the text of `body`; written in a thread. A
        call that came before and ended since is among them: others waited with it.
        """
        since_s = time.time() - float(body)
        calls = [each for each in self._calls if each.ended_at >= since_s]
        return await asyncio.to_thread(_lines, calls)


def _lines(calls: Iterable[RecordedCall]) -> bytes:
    return b"".join(
        orjson.dumps(record)[:-1] + b"," + orjson.dumps({"key": key_id, "ttft_s": ttft_s, "took_s": took_s})[1:] + b"\n"
        for record, key_id, ttft_s, took_s in calls
    )
