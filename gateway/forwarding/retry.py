"""Generation: a call that generates tokens, from its lease to its end: queue, send, retry, relay, settle.

Retry: when a backend does not take a call before the first byte of an answer (no connection, "the engine is busy"), the
call returns to the head of its tenant's queue and waits for the next backend. From the first byte on there is no retry,
and the call ends in exactly one outcome.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial

from aiohttp import web

from backends.health import Evidence
from backends.pool import BackendPool
from backends.upstream import UpstreamError
from gateway.api.endpoints import Endpoint
from gateway.forwarding.active_calls import ActiveCalls
from gateway.forwarding.attempt import Attempt, AttemptContext, BackendRejected, OptionsRejected
from gateway.forwarding.backend_client import BackendClient
from gateway.forwarding.relay import RelayResult
from gateway.forwarding.retry_budget import CallRetries, RetryBudget
from gateway.http.event_stream import HEARTBEAT, STREAMED, Heartbeat
from gateway.intake.admission import Call
from gateway.observability.telemetry import CallTrace
from gateway.scheduling.dispatcher import Lease, Preempted
from policies.types import Outcome, Tier


class Generation:
    """Answers calls that generate tokens, with a retry at another backend."""

    def __init__(
        self,
        *,
        context: AttemptContext,
        backends: BackendPool,
        backend_clients: Mapping[str, BackendClient],
        tiers: Mapping[str, Tier],
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
        self._on_answer = on_answer
        self._heartbeat_s = heartbeat_s
        self._resends_max = resends_max
        self._budget = RetryBudget()
        self.stopping = False  # the gateway itself cuts its exchanges, so failures are no evidence about backends

    async def answer(self, request: web.BaseRequest, endpoint: Endpoint, trace: CallTrace) -> web.StreamResponse:
        """Parse, admit and run a call. Raises ProblemError, Rejected, UpstreamError."""
        return await self.run(request, await self._context.request_admission.take(request, endpoint, trace), trace)

    async def run(self, request: web.BaseRequest, call: Call, trace: CallTrace) -> web.StreamResponse:
        """Queue an admitted call, send it and return its response. Raises Rejected, UpstreamError."""
        trace.request, trace.queued_s = call.request, time.perf_counter()
        if trace.spans is not None:
            trace.spans.queued()
        if self._heartbeat_s is not None and call.parsed.stream and call.parsed.answer in STREAMED:
            headers = partial(self._context.answer_headers.of, trace)
            request[HEARTBEAT] = Heartbeat(request, call.parsed.answer, headers, every_s=self._heartbeat_s)
        lease = call.dispatcher.lease(call.request, call.tenant, trace.spans)
        self.active.begun(call.dispatcher, lease, trace)
        try:
            async with lease:
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

    async def send(self, request: web.BaseRequest, call: Call, lease: Lease, trace: CallTrace) -> RelayResult:
        """Send the call to the backend of its lease; retry at the next one while the call is preempted, or not taken.

        Raises Rejected, UpstreamError.
        """
        with self._budget.call() as retries:
            return await self._send_until_taken(request, call, lease, trace, retries)

    async def _send_until_taken(
        self, request: web.BaseRequest, call: Call, lease: Lease, trace: CallTrace, retries: CallRetries
    ) -> RelayResult:
        resends = 0
        while True:
            sent_at = call.dispatcher.now()
            trace.backend_id, trace.dispatched_s = lease.backend_id, time.perf_counter()
            backend = self._backends[lease.backend_id]
            backend.step_counts.sent(sent_at)
            if trace.spans is not None:
                trace.spans.sent(lease.backend_id, backend.known_kind.name)
            sending = self._send(request, call, lease, trace, sent_at=sent_at, on_begun=retries.answered)
            try:
                return await lease.unless_preempted(sending)
            except Preempted:
                reason, hold_s, is_failure = "preempted", 0.0, False
            except BackendRejected as rejection:
                self._report(lease.backend_id, rejection.evidence, call, sent_at)
                resends += rejection.evidence is Evidence.BROKEN
                if resends > self._resends_max:
                    raise UpstreamError("the backend broke the connection before it answered") from None
                # A busy backend does not fail: its calls wait as all others do.
                reason, hold_s, is_failure = rejection.evidence, rejection.hold_s, rejection.evidence != Evidence.BUSY
            except UpstreamError:
                self._report(lease.backend_id, Evidence.BROKEN, call, sent_at)
                raise
            if trace.spans is not None:
                trace.spans.came_back(reason)
            await lease.returned(hold_s)
            if is_failure:
                await self._enter_budget(retries)

    async def _enter_budget(self, retries: CallRetries) -> None:
        try:
            await retries.begin()
        except TimeoutError:
            raise UpstreamError("backends fail, and other calls are being sent again already") from None

    async def _send(
        self,
        request: web.BaseRequest,
        call: Call,
        lease: Lease,
        trace: CallTrace,
        *,
        sent_at: float,
        on_begun: Callable[[], None],
    ) -> RelayResult:
        try:
            result, evidence = await self._attempt(call, lease, trace, on_begun).run(request)
        except OptionsRejected:
            self._backends[lease.backend_id].rejects_options()
            result, evidence = await self._attempt(call, lease, trace, on_begun).run(request)
        self.answered(call, lease, trace)
        if result.outcome is not Outcome.CLIENT_DISCONNECTED:
            self._report(lease.backend_id, evidence, call, sent_at)
        return result

    def answered(self, call: Call, lease: Lease, trace: CallTrace) -> None:
        """Report the answer's id, if it has one, and its tokens so far to `on_answer`."""
        if trace.answer_id is not None:
            usage = trace.usage
            tokens = call.request.prompt_tokens if usage is None else usage.prompt_tokens + usage.output_tokens
            self._on_answer(trace.answer_id, call, lease.backend_id, tokens)

    def _attempt(self, call: Call, lease: Lease, trace: CallTrace, on_begun: Callable[[], None]) -> Attempt:
        backend_id = lease.backend_id

        def named(answer_id: str) -> None:
            trace.answer_id = answer_id
            self.answered(call, lease, trace)

        return Attempt(
            self._context,
            call,
            lease,
            trace,
            backend=self._backends[backend_id],
            backend_client=self._backend_clients[backend_id],
            tier=self._tiers.get(call.tenant.tier_id) or Tier(call.tenant.tier_id),
            on_id=named,
            on_begun=on_begun,
            count_now=partial(self._backends.count_now, backend_id),
        )

    def _report(self, backend_id: str, evidence: Evidence, call: Call, sent_at: float) -> None:
        if not self.stopping:
            self._backends.report(backend_id, evidence, sent_at=sent_at, now=call.dispatcher.now())
