"""Generation: a call that generates tokens, from its lease to its end: queue, send, retry, relay, settle.

Retry: when a backend fails before anything of an answer was sent to the client (no connection, "the engine is busy"),
the call returns to the head of its tenant's queue and waits for the next backend. After that, a stream that can be
continued (gateway/continuation) does the same, and goes on where it was; for others there is no retry. How often, and
beside which others, says what it has lost so far (loss_evidence.py). A call ends in exactly one outcome.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from backends.health import Evidence
from backends.live_backend import LiveBackend
from backends.model_identity import ModelIdentity
from backends.pool import BackendPool
from backends.upstream import UpstreamError
from gateway.api.endpoints import Endpoint
from gateway.continuation.loss_evidence import LossEvidence, Suspect
from gateway.continuation.stream import ResumableStream
from gateway.forwarding.active_calls import ActiveCalls
from gateway.forwarding.answers.relay import RelayResult
from gateway.forwarding.attempt import (
    UNREACHABLE_HOLD_S,
    Attempt,
    AttemptContext,
    BackendRejected,
    OptionsRejected,
    StreamGivenUp,
    StreamInterrupted,
)
from gateway.forwarding.backend_client import BackendClient
from gateway.forwarding.retry_budget import CallRetries, RetryBudget
from gateway.forwarding.shadows import Shadows
from gateway.http.event_stream import STREAMED, Heartbeat, beating
from gateway.http.request import HttpRequest
from gateway.http.response import EventStream, Response
from gateway.intake.admission import Call
from gateway.observability.telemetry import CallTrace
from gateway.scheduling.dispatcher import Lease, Preempted, Rejected
from policies.types import PASSED_ON, Cause, Outcome, Reason, Tier

UNKNOWN: Final = "unknown"  # of a backend that has not told all of its model's identity

log = logging.getLogger(__name__)


class Generation:
    """Answers calls that generate tokens, with a retry at another backend."""

    def __init__(
        self,
        *,
        context: AttemptContext,
        backends: BackendPool,
        backend_clients: Mapping[str, BackendClient],
        tiers: Mapping[str, Tier],
        shadows: Shadows,
        resends_max: int,
        heartbeat_s: float | None = None,
        on_answer: Callable[[str, Call, str, int], None],
    ) -> None:
        """`resends_max`: how often a call is sent again whose backend broke the connection before the answer; it may be
        the call that breaks backends. `on_answer` is called for an answer that can be fetched later, with its id, its
        call, the id of its backend, and its prompt and output tokens so far. `heartbeat_s`: seconds that a waiting
        stream stays silent before its head, and between comments; None: the head comes with the first event.
        """
        self._context = context
        self.active = ActiveCalls()
        self._backends = backends
        self._backend_clients = backend_clients
        self._tiers = tiers
        self._shadows = shadows
        self._on_answer = on_answer
        self._heartbeat_s = heartbeat_s
        self._resends_max = resends_max
        self._wait_s_max = context.continuation.wait_s_max
        self._evidence = LossEvidence()
        self._apart: set[asyncio.Future[None]] = set()  # of calls that wait until others have left their backend
        self._budget = RetryBudget()
        self.stopping = False  # the gateway itself cuts its exchanges, so failures are no evidence about backends

    async def answer(self, request: HttpRequest, endpoint: Endpoint, trace: CallTrace) -> Response | EventStream:
        """Parse, admit and run a call. Raises ProblemError, Rejected, UpstreamError."""
        return await self.run(request, await self._context.request_admission.take(request, endpoint, trace), trace)

    async def run(self, request: HttpRequest, call: Call, trace: CallTrace) -> Response | EventStream:
        """Queue an admitted call, send it and return its response. A call of an alias goes on to its next model where
        its pool cannot serve it. Raises ProblemError, Rejected, UpstreamError.
        """
        while True:
            try:
                return await self._run(request, call, trace)
            except Rejected as rejected:
                following = None if request.open_stream is not None else await self._passed_on(call, trace, rejected)
                if following is None:
                    raise
                call = following

    async def _passed_on(self, call: Call, trace: CallTrace, rejected: Rejected) -> Call | None:
        """The call at the next model of its alias; None where it ends with this rejection."""
        if call.pass_on is None or rejected.reason not in PASSED_ON:
            return None
        following = await call.pass_on()
        if following is not None:
            trace.passed_on += ((call.request.model, rejected.reason),)
        return following

    async def _run(self, request: HttpRequest, call: Call, trace: CallTrace) -> Response | EventStream:
        trace.request, trace.queued_s = call.request, trace.queued_s or time.perf_counter()
        trace.usage_max = call.usage_max
        if trace.spans is not None:
            trace.spans.queued()
        may_wait = call.parsed.stream and call.parsed.answer in STREAMED and request.heartbeat is None
        if self._heartbeat_s is not None and may_wait:
            headers = partial(self._context.answer_headers.of, trace)
            request.heartbeat = Heartbeat(request, call.parsed.answer, headers, every_s=self._heartbeat_s)
        lease = call.dispatcher.lease(call.request, call.tenant, trace.spans)
        self.active.begun(call.dispatcher, lease, trace)
        try:
            async with lease:
                if call.copied is not None:
                    self._shadows.sent(call, request.headers)
                result = await self.send(request, call, lease, trace)
                lease.outcome = result.outcome
        except asyncio.CancelledError:
            lease.raise_if_cancelled()
            raise
        finally:
            self.active.ended(call.request.id)
            if lease.backend_id:  # otherwise it ended in the queue
                trace.over(lease.outcome)
        return result.response

    async def send(self, request: HttpRequest, call: Call, lease: Lease, trace: CallTrace) -> RelayResult:
        """Send the call to the backend of its lease, and, where it returns from there, to the next one.

        Raises Rejected, UpstreamError.
        """
        stream = ResumableStream(call.exclusion)
        sending = _Sending(call, lease, trace, stream, self._backends[lease.backend_id])
        lease.may_move = partial(self._may_move, sending)
        try:
            with self._budget.call() as retries:
                while True:
                    if stream.is_begun:
                        await self._settle_model(request, sending)
                    tokens_before = stream.usage.output_tokens
                    self._dispatched(sending)
                    try:
                        return await lease.unless_preempted(self._sent(request, sending, retries))
                    except (Preempted, StreamInterrupted, BackendRejected, UpstreamError) as left:
                        if (returned := self._returned(left, sending)) is None:
                            raise
                    await self._wait_again(request, sending, returned, tokens_before)
                    if returned.is_failure and not stream.is_begun:
                        await self._enter_budget(retries)
        finally:
            self._context.continuation.held.release(call.tenant.id, stream)
            self._evidence.ended(sending.suspect)

    def _dispatched(self, sending: "_Sending") -> None:
        """The lease has a backend, which the call is about to be sent to."""
        lease, trace = sending.lease, sending.trace
        sending.backend, sending.sent_at = self._backends[lease.backend_id], sending.call.dispatcher.now()
        if not sending.stream.is_begun:
            sending.began = sending.backend.identified(sending.call.request.model)
        trace.backend_id, trace.dispatched_s = lease.backend_id, time.perf_counter()
        sending.backend.step_counts.sent(sending.sent_at)
        if trace.spans is not None:
            trace.spans.sent(lease.backend_id, sending.backend.known_kind.name)

    async def _sent(self, request: HttpRequest, sending: "_Sending", retries: CallRetries) -> RelayResult:
        """Send the call when no other is on trial at its backend that may have ended the same engines."""
        call, lease, suspect = sending.call, sending.lease, sending.suspect
        if suspect.is_last_chance:
            async with beating(request, self._heartbeat_s):
                await self._wait_apart(sending)
        self._evidence.sent(suspect, lease.backend_id, call.dispatcher.now())
        try:
            try:
                result, evidence = await self._attempt(sending, retries.answered).run(request)
            except OptionsRejected:
                sending.backend.rejects_options()
                result, evidence = await self._attempt(sending, retries.answered).run(request)
            self.answered(call, lease, sending.trace)
            if result.outcome is not Outcome.CLIENT_DISCONNECTED:
                self._report(sending, evidence)
            return result
        finally:
            self._evidence.left(suspect)
            for waiting in self._apart:
                if not waiting.done():
                    waiting.set_result(None)

    def _returned(self, left: Exception, sending: "_Sending") -> "_Returned | None":
        """Why and how the call, which has left its backend by this exception, waits again; None: it ends so. Raises
        UpstreamError where it was lost too often.
        """
        match left:
            case Preempted():
                return _Returned(left.cause, "preempted")
            case StreamInterrupted():
                return self._interrupted(left, sending)
            case BackendRejected():
                return self._not_taken(left, sending)
        if not isinstance(left, StreamGivenUp):
            self._report(sending, Evidence.BROKEN)
        return None

    async def _settle_model(self, request: HttpRequest, sending: "_Sending") -> None:
        """Return when the backend of the lease serves the model that has begun to answer. Once offered to one that does
        not, the call waits for those alone that do. Raises Rejected; UpstreamError where there are none.
        """
        call, lease = sending.call, sending.lease
        while (difference := sending.difference(self._backends[lease.backend_id])) is not None:
            log.warning("backend %s cannot go on with %s: %s differs", lease.backend_id, call.request.id, difference)
            alike, sending.differed = self._alike(sending), difference
            returned = _Returned(Cause.FAILED, "another model", backend_ids=alike & (call.request.backend_ids or alike))
            await self._wait_again(request, sending, returned, sending.stream.usage.output_tokens)

    async def _wait_again(
        self, request: HttpRequest, sending: "_Sending", returned: "_Returned", tokens_before: int
    ) -> None:
        """Wait for the next backend: with what the last one has added to these tokens, if any. Raises Rejected."""
        lease, trace, stream = sending.lease, sending.trace, sending.stream
        if trace.spans is not None:
            trace.spans.came_back(returned.reason)
        if stream.is_begun:
            trace.interrupted(returned.cause)
        usage = stream.usage if stream.usage.output_tokens > tokens_before else None
        try:
            async with beating(request, self._heartbeat_s):
                await lease.returned(returned.cause, returned.hold_s, returned.backend_ids, usage)
        except Rejected as rejection:
            if stream.is_begun:  # its client keeps a part of the answer, which no backend completed
                trace.over(_outcome_of(rejection))
            if sending.differed and rejection.reason is Reason.NO_BACKEND:
                trace.not_continued = sending.differed
                raise StreamGivenUp(f"no backend serves the model of this stream: {sending.differed} differs") from None
            raise

    def _alike(self, sending: "_Sending") -> frozenset[str]:
        """The backends that serve the model of a stream that has begun."""
        backends = self._backends
        return frozenset(each for each in backends.backend_ids() if sending.difference(backends[each]) is None)

    def _may_move(self, sending: "_Sending") -> bool:
        """Whether a stream that has begun could go on now where it is or elsewhere: otherwise a drain would end it."""
        return any(self._backends.load(each).available for each in self._alike(sending))

    async def _wait_apart(self, sending: "_Sending") -> None:
        now, backend_id = sending.call.dispatcher.now, sending.lease.backend_id
        waits_until = now() + self._wait_s_max
        while (until := self._evidence.apart_until(sending.suspect, backend_id)) is not None:
            wait_s = min(until, waits_until) - now()
            if wait_s <= 0:
                return
            waiting = asyncio.get_running_loop().create_future()
            self._apart.add(waiting)
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await waiting
            finally:
                self._apart.discard(waiting)

    def _not_taken(self, rejection: BackendRejected, sending: "_Sending") -> "_Returned":
        self._report(sending, rejection.evidence)
        hold_s = rejection.hold_s
        if sending.stream.is_begun and (rejection.is_answer or self._was_lost_here(sending)):
            now = sending.call.dispatcher.now()
            sending.refused_since = sending.refused_since or now
            left_s = sending.refused_since + self._wait_s_max - now
            if left_s <= 0:
                raise UpstreamError("every backend answers with an error instead of continuing the stream") from None
            hold_s = min(hold_s, left_s)  # its last chance may be there
        elif rejection.evidence is Evidence.BROKEN and not self._was_dead(sending) and self._is_given_up(sending):
            raise UpstreamError("the backend broke the connection before it answered") from None
        # A busy backend does not fail: its calls wait as all others do.
        return _Returned(Cause.FAILED, rejection.evidence, hold_s, rejection.evidence != Evidence.BUSY)

    def _interrupted(self, interruption: StreamInterrupted, sending: "_Sending") -> "_Returned":
        """A backend has failed after tokens. No retry budget, also where the next one fails: the Scheduler alone says
        what the others can take, and a stream that waited too long for the budget would break.
        """
        self._report(sending, Evidence.BROKEN)
        sending.refused_since = None
        if self._is_given_up(sending):
            raise UpstreamError(str(interruption)) from None
        return _Returned(Cause.FAILED, "interrupted", UNREACHABLE_HOLD_S)

    def _is_given_up(self, sending: "_Sending") -> bool:
        """Whether the call, whose backend has failed, is sent to no other one."""
        now, backend = sending.call.dispatcher.now(), sending.backend
        resends_max = None if sending.stream.is_begun else self._resends_max
        is_given_up = self._evidence.lost(sending.suspect, now, resends_max=resends_max)
        backend.lost_at = sending.lost_at[backend.spec.id] = now
        return is_given_up

    def _was_dead(self, sending: "_Sending") -> bool:
        """Whether the backend had been lost when the call was sent, and has not been heard of since: what accepts
        connections for it, and closes them, has lost nothing.
        """
        backend = sending.backend
        return sending.sent_at >= backend.lost_at > backend.health.heard_at and bool(self._resends_max)

    def _was_lost_here(self, sending: "_Sending") -> bool:
        """Whether the call has lost this backend before, which has been available ever since: what closes connections
        while polls are answered has no engine to lose.
        """
        lost_at = sending.lost_at.get(sending.lease.backend_id)
        return lost_at is not None and lost_at > sending.backend.health.back_at

    async def _enter_budget(self, retries: CallRetries) -> None:
        try:
            await retries.begin()
        except TimeoutError:
            raise UpstreamError("backends fail, and other calls are being sent again already") from None

    def answered(self, call: Call, lease: Lease, trace: CallTrace) -> None:
        """Report the answer's id, if it has one, and its tokens so far to `on_answer`."""
        if trace.answer_id is not None:
            usage = trace.usage
            tokens = call.request.prompt_tokens if usage is None else usage.prompt_tokens + usage.output_tokens
            self._on_answer(trace.answer_id, call, lease.backend_id, tokens)

    def _attempt(self, sending: "_Sending", on_begun: Callable[[], None]) -> Attempt:
        call, lease, trace = sending.call, sending.lease, sending.trace
        backend_id = lease.backend_id

        def named(answer_id: str) -> None:
            trace.answer_id = answer_id
            self.answered(call, lease, trace)

        return Attempt(
            self._context,
            call,
            lease,
            trace,
            sending.stream,
            backend=sending.backend,
            backend_client=self._backend_clients[backend_id],
            tier=self._tiers.get(call.tenant.tier_id) or Tier(call.tenant.tier_id),
            on_id=named,
            on_begun=on_begun,
            count_now=partial(self._backends.count_now, backend_id),
        )

    def _report(self, sending: "_Sending", evidence: Evidence) -> None:
        if not self.stopping:
            now = sending.call.dispatcher.now()
            self._backends.report(sending.lease.backend_id, evidence, sent_at=sending.sent_at, now=now)


@dataclass(slots=True)
class _Sending:
    """One call, and what is known of it while it is sent. Mutable. `backend` is where it was sent last, at `sent_at`.
    `refused_since`: since when the backends that it was offered to have answered with errors. `lost_at`: when it last
    lost each backend. `began` tells the model that has begun to answer, `differed` in what a backend differed that it
    was offered to.
    """

    call: Call
    lease: Lease
    trace: CallTrace
    stream: ResumableStream
    backend: LiveBackend
    sent_at: float = 0.0
    suspect: Suspect = field(default_factory=Suspect)
    refused_since: float | None = None
    lost_at: dict[str, float] = field(default_factory=dict)
    began: Callable[[], ModelIdentity | None] = lambda: None
    differed: str = ""

    def difference(self, backend: LiveBackend) -> str | None:
        """In what the model at this backend differs from the one that began the stream; None: it is the same."""
        own, its = self.began(), backend.identified(self.call.request.model)()
        return UNKNOWN if own is None or its is None else own.difference(its)


class _Returned(NamedTuple):
    """Why a call came back, in the Scheduler's words and in those of the trace, for how long its backend gets no other,
    whether it counts as a retry, and the only backends that it may go to, where that is known.
    """

    cause: Cause
    reason: str
    hold_s: float = 0.0
    is_failure: bool = False
    backend_ids: frozenset[str] | None = None


def _outcome_of(rejection: Rejected) -> Outcome:
    """How a stream ended that waited to be continued."""
    return Outcome.CLIENT_DISCONNECTED if rejection.reason is Reason.CANCELLED else Outcome.BACKEND_FAILED
