"""Generation: a call that generates tokens, from its lease to its end: queue, send, retry, relay, settle.

Retry: when a backend fails before anything of an answer was sent to the client (no connection, "the engine is busy"),
the call returns to the head of its tenant's queue and waits for the next backend. After that, a stream that can be
continued (gateway/continuation) does the same, and goes on where it stopped; other calls are not retried. The engines
that a call has lost so far limit how often it is retried, and beside which other calls (loss_evidence.py). A call ends
in exactly one outcome.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from backends.health import Evidence
from backends.upstream import UpstreamError
from gateway.api.endpoints import Endpoint
from gateway.continuation.loss_evidence import LossEvidence
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
from gateway.forwarding.retry_budget import RetryBudget
from gateway.forwarding.sending import Sending
from gateway.forwarding.shadows import Shadows
from gateway.http.event_stream import STREAMED, Heartbeat, beating
from gateway.http.request import HttpRequest
from gateway.http.response import EventStream, Response
from gateway.intake.admission import Call
from gateway.observability.metrics.instruments import NOT_CONTINUED
from gateway.observability.telemetry import CallTrace
from gateway.scheduling.dispatcher import Lease, Preempted, Rejected
from policies.types import PASSED_ON, Cause, Outcome, Reason, Tier

log = logging.getLogger(__name__)


class Generation:
    """The handler of calls that generate tokens: it queues a call, sends it to a backend and relays the answer. If a
    backend fails, it retries the call, or continues the stream, at another backend.
    """

    def __init__(
        self,
        *,
        context: AttemptContext,
        tiers: Mapping[str, Tier],
        shadows: Shadows,
        resends_max: int,
        heartbeat_s: float | None = None,
        on_answer: Callable[[str, Call, str, int], None],
    ) -> None:
        """`resends_max`: how often a call is sent again after a backend broke the connection before its answer, since
        the call itself may break backends. `on_answer` is called for an answer that can be fetched later, with its id,
        its call, the id of its backend, and its prompt and output tokens so far. `heartbeat_s`: seconds that a waiting
        stream stays silent before its head, and between comments; None: the head comes with the first event.
        """
        self._context = context
        self.active = ActiveCalls()
        self._backends = context.clients.backends
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

    async def answer(
        self, request: HttpRequest, endpoint: Endpoint, trace: CallTrace, call: Call | None = None
    ) -> Response | EventStream:
        """Parse and admit a call, unless it has been admitted as `call`, queue it, send it and return its response. A
        call of an alias goes on to its next model where its pool cannot serve it. Raises ProblemError, Rejected,
        UpstreamError.
        """
        if call is None:
            call = await self._context.request_admission.take(request, endpoint, trace)
        while True:
            lease, rejected = self._lease(request, call, trace), None
            try:
                async with lease:
                    if call.copied is not None:
                        self._shadows.sent(call, request.headers)
                    result = await self.send(request, call, lease, trace)
                    lease.outcome = result.outcome
            except asyncio.CancelledError:
                lease.raise_if_cancelled()
                raise
            except Rejected as error:
                rejected = error
            finally:
                self.active.ended(lease.request.id)
                if lease.backend_id:  # otherwise it ended in the queue
                    trace.over(lease.outcome)
            if rejected is None:
                return result.response
            following = None if request.open_stream is not None else await self._passed_on(call, trace, rejected)
            if following is None:
                raise rejected
            call = following

    def _lease(self, request: HttpRequest, call: Call, trace: CallTrace) -> Lease:
        """The lease of a call that is about to wait."""
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
        return lease

    async def _passed_on(self, call: Call, trace: CallTrace, rejected: Rejected) -> Call | None:
        """The call at the next model of its alias; None where it ends with this rejection."""
        if call.pass_on is None or rejected.reason not in PASSED_ON:
            return None
        following = await call.pass_on()
        if following is not None:
            trace.passed_on += ((call.request.model, rejected.reason),)
        return following

    async def send(self, request: HttpRequest, call: Call, lease: Lease, trace: CallTrace) -> RelayResult:
        """Send the call to the backend of its lease and, if the backend does not take it or fails, to the next backend.

        Raises Rejected, UpstreamError.
        """
        tier = self._tiers.get(call.tenant.tier_id) or Tier(call.tenant.tier_id)
        sending = Sending(request, call, lease, trace, tier=tier)
        stream, self._budget.running, is_again = sending.stream, self._budget.running + 1, False
        if stream.exclusion is None:
            lease.may_move = partial(self._may_move, sending)
        try:
            while True:
                if stream.is_begun:
                    await self._settle_model(sending)
                tokens_before = stream.usage.output_tokens
                self._dispatched(sending)
                try:
                    return await lease.unless_preempted(self._sent(sending, is_again=is_again))
                except (Preempted, StreamInterrupted, BackendRejected, UpstreamError) as left:
                    if (returned := self._returned(left, sending)) is None:
                        raise
                self.taken(sending)  # now it waits for a slot, which others may hold that wait for the budget
                await self._wait_again(sending, returned, tokens_before)
                is_again = returned.is_failure and not stream.is_begun
        finally:
            self._budget.running -= 1
            self.taken(sending)
            if stream.bytes_max:
                self._context.continuation.held.release(call.tenant.id, stream)
            if sending.losses or sending.loss is not None:
                self._evidence.ended(sending)

    def _dispatched(self, sending: Sending) -> None:
        """The lease has a backend, which the call is about to be sent to."""
        lease, trace = sending.lease, sending.trace
        sending.backend, sending.dispatched_at = self._backends[lease.backend_id], sending.call.dispatcher.now()
        if sending.stream.exclusion is None and not sending.stream.is_begun:
            sending.began = sending.backend.identified(sending.call.request.model)
        trace.backend_id, trace.dispatched_s = lease.backend_id, time.perf_counter()
        trace.expected_tokens = lease.expected_tokens
        if trace.spans is not None:
            trace.spans.sent(lease.backend_id, sending.backend.known_kind.name)

    async def _sent(self, sending: Sending, *, is_again: bool) -> RelayResult:
        """Send the call when no other is on trial at its backend that may have ended the same engines; `is_again`: and
        when the budget has room for a retry.
        """
        lease, now, counts = sending.lease, sending.call.dispatcher.now, sending.backend.step_counts
        if sending.losses and sending.is_last_chance:
            async with beating(sending.request, self._heartbeat_s):
                await self._wait_apart(sending)
            self._evidence.sent(sending, lease.backend_id, now())  # others wait from now on
        try:
            if is_again:
                await self._enter_budget(sending)
            self._evidence.sent(sending, lease.backend_id, now())
            counts.sent(lease.request.id, now())
            try:
                result, evidence = await Attempt(self._context, self, sending).run()
            except OptionsRejected:
                sending.backend.rejects_options()
                result, evidence = await Attempt(self._context, self, sending).run()
            if sending.trace.answer_id is not None:
                self.answered(sending.call, lease, sending.trace)
            if result.outcome is not Outcome.CLIENT_DISCONNECTED:
                self._report(sending, evidence)
            return result
        finally:
            counts.ended(lease.request.id)
            self._evidence.left(sending)
            for waiting in self._apart:
                if not waiting.done():
                    waiting.set_result(None)

    def _returned(self, left: Exception, sending: Sending) -> "_Returned | None":
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

    async def _settle_model(self, sending: Sending) -> None:
        """Return when the backend of the lease serves the model that has begun to answer. Once offered to one that does
        not, the call waits for those alone that do. Raises Rejected; UpstreamError where there are none.
        """
        call, lease = sending.call, sending.lease
        while (difference := sending.difference(self._backends[lease.backend_id])) is not None:
            log.warning("backend %s cannot go on with %s: %s differs", lease.backend_id, call.request.id, difference)
            alike, sending.differed = self._alike(sending), difference
            returned = _Returned(Cause.FAILED, "another model", backend_ids=alike & (call.request.backend_ids or alike))
            await self._wait_again(sending, returned, sending.stream.usage.output_tokens)

    async def _wait_again(self, sending: Sending, returned: "_Returned", tokens_before: int) -> None:
        """Wait for the next backend: with what the last one has added to these tokens, if any. Raises Rejected."""
        lease, trace, stream = sending.lease, sending.trace, sending.stream
        if trace.spans is not None:
            trace.spans.came_back(returned.reason)
        if stream.is_begun:
            trace.interrupted(returned.cause)
        usage = stream.usage if stream.usage.output_tokens > tokens_before else None
        try:
            async with beating(sending.request, self._heartbeat_s):
                await lease.returned(returned.cause, returned.hold_s, returned.backend_ids, usage)
        except Rejected as rejection:
            if stream.is_begun:  # its client keeps a part of the answer, which no backend completed
                trace.over(_outcome_of(rejection))
            if sending.differed and rejection.reason is Reason.NO_BACKEND:
                trace.counted += ((NOT_CONTINUED, (sending.differed,)),)
                raise StreamGivenUp(f"no backend serves the model of this stream: {sending.differed} differs") from None
            raise

    def _alike(self, sending: Sending) -> frozenset[str]:
        """The backends that serve the model of a stream that has begun."""
        backends = self._backends
        return frozenset(each for each in backends.backend_ids() if sending.difference(backends[each]) is None)

    def _may_move(self, sending: Sending) -> bool:
        """Whether a stream that has begun could go on now where it is or elsewhere: otherwise a drain would end it."""
        return any(self._backends.load(each).available for each in self._alike(sending))

    async def _wait_apart(self, sending: Sending) -> None:
        now, backend_id = sending.call.dispatcher.now, sending.lease.backend_id
        # From its last loss on: it may have waited for its slot, which others wait for now.
        waits_until = max((sending.lost_at or {}).values(), default=now()) + self._wait_s_max
        while (until := self._evidence.apart_until(sending, backend_id)) is not None:
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

    def _not_taken(self, rejection: BackendRejected, sending: Sending) -> "_Returned":
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

    def _interrupted(self, interruption: StreamInterrupted, sending: Sending) -> "_Returned":
        """A backend has failed after tokens. No retry budget, also where the next one fails: the Scheduler alone says
        what the others can take, and a stream that waited too long for the budget would break.
        """
        self._report(sending, Evidence.BROKEN)
        sending.refused_since = None
        if self._is_given_up(sending):
            raise UpstreamError(str(interruption)) from None
        return _Returned(Cause.FAILED, "interrupted", UNREACHABLE_HOLD_S)

    def _is_given_up(self, sending: Sending) -> bool:
        """Whether the call, whose backend has failed, is sent to no other one."""
        now, backend = sending.call.dispatcher.now(), sending.backend
        resends_max = None if sending.stream.is_begun else self._resends_max
        is_given_up = self._evidence.lost(sending, now, resends_max=resends_max)
        backend.lost_at = now
        sending.lost_at = (sending.lost_at or {}) | {backend.spec.id: now}
        return is_given_up

    def _was_dead(self, sending: Sending) -> bool:
        """Whether the backend had been lost when the call was sent, and has not been heard of since: what accepts
        connections for it, and closes them, has lost nothing.
        """
        backend = sending.backend
        return sending.dispatched_at >= backend.lost_at > backend.health.heard_at and bool(self._resends_max)

    def _was_lost_here(self, sending: Sending) -> bool:
        """Whether the call has lost this backend before, which has been available ever since: what closes connections
        while polls are answered has no engine to lose.
        """
        lost_at = None if sending.lost_at is None else sending.lost_at.get(sending.lease.backend_id)
        return lost_at is not None and lost_at > sending.backend.health.back_at

    async def _enter_budget(self, sending: Sending) -> None:
        try:
            await self._budget.enter()
        except TimeoutError:
            raise StreamGivenUp("backends fail, and other calls are being sent again already") from None
        sending.is_retrying = True

    def taken(self, sending: Sending) -> None:
        """A retry has a connection, or has failed or ended: it no longer counts as a retry. Idempotent."""
        if sending.is_retrying:
            sending.is_retrying = False
            self._budget.leave()

    def named(self, sending: Sending, answer_id: str) -> None:
        """Record the id of the answer, by which the answer can be fetched."""
        sending.trace.answer_id = answer_id
        self.answered(sending.call, sending.lease, sending.trace)

    async def count_now(self, sending: Sending) -> None:
        """The call has left the backend: wait until the backend has reported the steps that it has counted."""
        sending.backend.step_counts.ended(sending.lease.request.id)
        await self._backends.count_now(sending.lease.backend_id)

    def answered(self, call: Call, lease: Lease, trace: CallTrace) -> None:
        """Report the answer's id, if it has one, and its tokens so far to `on_answer`."""
        if trace.answer_id is not None:
            usage = trace.usage
            tokens = call.request.prompt_tokens if usage is None else usage.prompt_tokens + usage.output_tokens
            self._on_answer(trace.answer_id, call, lease.backend_id, tokens)

    def _report(self, sending: Sending, evidence: Evidence) -> None:
        if not self.stopping:
            now = sending.call.dispatcher.now()
            self._backends.report(sending.lease.backend_id, evidence, sent_at=sending.dispatched_at, now=now)


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
