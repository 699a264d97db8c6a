"""What a sampled call notes of its way, until its spans are made of it.

    POST /v1/chat/completions      SERVER    from the call's arrival to its end
      queue                        INTERNAL  once for every time that it waits for a backend
      chat llama-3-8b              CLIENT    once for every backend that it is sent to; its traceparent goes there

Only times, numbers and names are noted, so nothing of a prompt, an answer or a key can come into a span. The
spans themselves are made when the call has ended, off the path of the tokens (tracing.py).
"""

import time
from dataclasses import dataclass, field
from typing import Final

from gateway.observability.sampling import Decision, Sampling, write_traceparent
from policies.types import Wait

LIFT: Final = "fairlead.lift"
FIRST_TOKEN: Final = "fairlead.first_token"  # noqa: S105 - of an answer
REQUEUE: Final = "fairlead.requeue"
SHED: Final = "fairlead.shed"

SENDS_MAX: Final = 16  # spans of one call: a backend that refuses for minutes makes no more


@dataclass(slots=True)
class Queued:
    """One time in the queue; times of time.perf_counter, in seconds. `reason` None: it was sent at once."""

    span_id: int
    started_s: float
    ended_s: float | None = None
    reason: Wait | None = None
    lift_service: float | None = None


@dataclass(slots=True)
class Sent:
    """One time with a backend. `came_back` says why it was not kept there."""

    span_id: int
    backend_id: str
    provider: str
    started_s: float
    ended_s: float | None = None
    came_back: str | None = None


@dataclass(slots=True)
class CallSpans:
    """The spans of one call, as they come to be. Stands as a Watch in the queue."""

    decision: Decision
    method: str
    tracestate: str | None
    sampling: Sampling
    span_id: int
    queue: list[Queued] = field(default_factory=list)
    sends: list[Sent] = field(default_factory=list)

    def queued(self) -> None:
        """The call is about to enter the queue, or to enter it again."""
        if len(self.queue) < SENDS_MAX:
            self.queue.append(Queued(self.sampling.span_id(), time.perf_counter()))

    def lifted(self, service: float) -> None:
        self.queue[-1].lift_service = service

    def waits(self, reason: Wait) -> None:
        self.queue[-1].reason = reason

    def sent(self, backend_id: str, provider: str) -> None:
        """The call is sent to this backend."""
        now = time.perf_counter()
        if self.queue and self.queue[-1].ended_s is None:
            self.queue[-1].ended_s = now
        if len(self.sends) < SENDS_MAX:
            self.sends.append(Sent(self.sampling.span_id(), backend_id, provider, now))

    def came_back(self, reason: str) -> None:
        """The backend did not take the call, or gave it back; it waits again."""
        last = self.sends[-1]
        if last.ended_s is None:
            last.ended_s, last.came_back = time.perf_counter(), reason
        self.queued()

    @property
    def traceparent(self) -> str:
        """What the backend is told: its span's parent is the latest one that was sent."""
        span_id = self.sends[-1].span_id if self.sends else self.span_id
        return write_traceparent(self.decision.trace_id, span_id, is_sampled=True)
