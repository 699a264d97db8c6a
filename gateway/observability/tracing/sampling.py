"""Sampling: the decision, at a call's arrival, of whether the call is traced. It is also sent to the call's backend.

W3C Trace Context: a caller's `traceparent` is `00-<trace id>-<its span>-<flags>`, and bit 0 of the flags says that the
trace is recorded. Samplers are those of OTEL_TRACES_SAMPLER. Parent-based samplers follow the caller's decision.
Without such a decision, and for all other samplers, a ratio of the trace ids is sampled: the ids whose lower 64 bits
are below a bound, as in OpenTelemetry's own sampler, so that every hop with the same ratio samples the same traces. A
call that is not sampled costs one header look-up and, at the root of a trace, a random trace id and span id.
https://www.w3.org/TR/trace-context/
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple

from gateway.config.telemetry import SAMPLERS

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
SAMPLED: Final = 0x01
TRACESTATE_CHARS_MAX: Final = 512

_TRACEPARENT = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_LOW_64: Final = (1 << 64) - 1


class Parent(NamedTuple):
    """The span of the gateway's caller, from the `traceparent` header. It is the parent of the call's own span."""

    trace_id: int
    span_id: int
    is_sampled: bool


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision whether a call is traced. `is_sampled`: its spans are recorded. If not, `traceparent` is the header
    for the backend; None: the client's own header is passed on.
    """

    is_sampled: bool
    trace_id: int = 0
    parent: Parent | None = None
    traceparent: str | None = None


_AS_THE_CALLER: Final = Decision(is_sampled=False)


class Sampling:
    """The sampler of one gateway's traces: it decides for each call whether the call is traced."""

    def __init__(self, sampler: str, sample_ratio: float, rng: Random) -> None:
        """`sampler` is a name of SAMPLERS; `sample_ratio` is from 0 to 1."""
        self._follows_parent, ratio = SAMPLERS[sampler]
        self._below = round((sample_ratio if ratio is None else ratio) * (1 << 64))
        self._bits = rng.getrandbits

    def decide(self, headers: Mapping[str, str]) -> Decision:
        given = headers.get(TRACEPARENT)
        parent = read_traceparent(given) if given is not None else None
        if parent is None:
            return self._of_root()
        if parent.is_sampled if self._follows_parent else self._takes(parent.trace_id):
            return Decision(is_sampled=True, trace_id=parent.trace_id, parent=parent)
        if not parent.is_sampled:
            return _AS_THE_CALLER
        not_taken = write_traceparent(parent.trace_id, parent.span_id, is_sampled=False)
        return Decision(is_sampled=False, traceparent=not_taken)

    def span_id(self) -> int:
        return self._bits(64) or 1

    def _of_root(self) -> Decision:
        trace_id = self._bits(128) or 1
        if self._takes(trace_id):
            return Decision(is_sampled=True, trace_id=trace_id)
        # Without a traceparent the backend would begin a trace of its own.
        return Decision(False, traceparent=write_traceparent(trace_id, self.span_id(), is_sampled=False))

    def _takes(self, trace_id: int) -> bool:
        return trace_id & _LOW_64 < self._below


def read_traceparent(value: str) -> Parent | None:
    """Parse a `traceparent`; None where it is malformed, which counts as absent."""
    match = _TRACEPARENT.fullmatch(value)
    if match is None or (match[1] == "00" and match[5]):
        return None
    return Parent(int(match[2], 16), int(match[3], 16), bool(int(match[4], 16) & SAMPLED))


def write_traceparent(trace_id: int, span_id: int, *, is_sampled: bool) -> str:
    return f"00-{trace_id:032x}-{span_id:016x}-0{int(is_sampled)}"
