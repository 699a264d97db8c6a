"""CallSpans: the events of a sampled call, from which its spans are made at its end (tracing.py).

    POST /v1/chat/completions      SERVER    from the call's arrival to its end
      queue                        INTERNAL  one for each wait for a backend
      chat llama-3-8b              CLIENT    one for each dispatch to a backend, which gets its traceparent

Only times, numbers and names are stored, so no part of a prompt, an answer or a key can enter a span. The spans are
made off the path of the tokens.
"""

import time
from dataclasses import dataclass, field
from typing import Final

from gateway.observability.tracing.sampling import Decision, Sampling, write_traceparent
from policies.types import Wait

LIFT: Final = "fairlead.lift"
FIRST_TOKEN: Final = "fairlead.first_token"  # noqa: S105 - of an answer
REQUEUE: Final = "fairlead.requeue"
SHED: Final = "fairlead.shed"

SENDS_MAX: Final = 16  # dispatches, and waits, of one call that get a span: retries may go on for minutes


@dataclass(slots=True)
class Queued:
    """One wait of a traced call in the queue. Times are of time.perf_counter, in seconds. `reason` is why it waited;
    None: it was dispatched at once.
    """

    span_id: int
    started_s: float
    ended_s: float | None = None
    reason: Wait | None = None
    lift_service: float | None = None


@dataclass(slots=True)
class Sent:
    """One dispatch of a traced call to a backend. Times are of time.perf_counter, in seconds. `came_back` is the reason
    why the call returned to the queue; None: it did not return.
    """

    span_id: int
    backend_id: str
    provider: str
    started_s: float
    ended_s: float | None = None
    came_back: str | None = None


@dataclass(slots=True)
class CallSpans:
    """The facts about one traced call, from which its spans are made: its waits in the queue, and its dispatches. As
    the call's QueueWatch (observer), it is told by the Dispatcher why the call waited.
    """

    decision: Decision
    method: str
    tracestate: str | None
    sampling: Sampling
    span_id: int
    queue: list[Queued] = field(default_factory=list)
    sends: list[Sent] = field(default_factory=list)

    def queued(self) -> None:
        """The call is about to enter or re-enter the queue."""
        if len(self.queue) < SENDS_MAX:
            self.queue.append(Queued(self.sampling.span_id(), time.perf_counter()))

    def lifted(self, service: float) -> None:
        self.queue[-1].lift_service = service

    def waits(self, reason: Wait) -> None:
        self.queue[-1].reason = reason

    def sent(self, backend_id: str, provider: str) -> None:
        """The call is dispatched to this backend."""
        now = time.perf_counter()
        if self.queue and self.queue[-1].ended_s is None:
            self.queue[-1].ended_s = now
        if len(self.sends) < SENDS_MAX:
            self.sends.append(Sent(self.sampling.span_id(), backend_id, provider, now))

    def came_back(self, reason: str) -> None:
        """The backend did not take the call, or the call was preempted; it returns to the queue."""
        last = self.sends[-1]
        if last.ended_s is None:
            last.ended_s, last.came_back = time.perf_counter(), reason
        self.queued()

    @property
    def traceparent(self) -> str:
        """The header for the backend: the span of the latest dispatch is the parent of the backend's span."""
        span_id = self.sends[-1].span_id if self.sends else self.span_id
        return write_traceparent(self.decision.trace_id, span_id, is_sampled=True)
