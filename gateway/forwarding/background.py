"""Background: responses with `background: true`, which a client starts with one call and fetches with a later one.

The backend works on such a response whether its client fetches it or not. So the gateway polls the backend, and holds
and charges the lease until the response ends. While it runs, its tokens are estimated by the clock; at the end the
backend's report replaces the estimate. A cancelled response without a report keeps the estimate.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import Any, Final

from backends.meters import ANSWERS, AnswerKind
from backends.upstream import UpstreamError
from gateway.api.bodies import JSON_TYPE
from gateway.api.endpoints import ID, RESPONSE, RESPONSE_CANCEL, Endpoint
from gateway.forwarding.answers.long_answers import read_answer
from gateway.forwarding.backend_client import BackendClient
from gateway.forwarding.retry import Generation
from gateway.http.request import HttpRequest
from gateway.http.request_ids import RequestIds
from gateway.http.response import EventStream, Response
from gateway.intake.admission import Call, RequestAdmission
from gateway.observability.telemetry import CallTrace
from gateway.scheduling.dispatcher import Lease
from gateway.tasks import cancel
from policies.types import Outcome, Reason

POLL_S: Final = 1.0
FAILURES_MAX: Final = 5  # consecutive failed polls: then the response counts as failed by its backend
RUNNING_S_MAX: Final = 3600.0
CANCEL_S_MAX: Final = 0.5  # for all of them, when the gateway ends
ANSWER_BYTES_MAX: Final = 64 << 20
log = logging.getLogger(__name__)

_RUNNING: Final = frozenset({"queued", "in_progress"})


class Background:
    """The handler of /v1/responses. It runs background calls (`background: true`), which clients start with one call
    and fetch with a later one, and passes all others to `Generation`.
    """

    def __init__(
        self,
        request_admission: RequestAdmission,
        generation: Generation,
        backend_clients: Mapping[str, BackendClient],
        names: RequestIds,
        ended: Callable[[CallTrace], None],
    ) -> None:
        """`ended` is called with the trace of each background response when it has ended."""
        self._request_admission = request_admission
        self._generation = generation
        self._backend_clients = backend_clients
        self._names = names
        self._ended = ended
        self._active = generation.active
        self._poll_s = POLL_S
        self._tasks: set[asyncio.Task[Any]] = set()

    async def answer(self, request: HttpRequest, endpoint: Endpoint, trace: CallTrace) -> Response | EventStream:
        """Answer a call of /v1/responses. Raises ProblemError, Rejected, UpstreamError."""
        call = await self._request_admission.take(request, endpoint, trace)
        if not call.background:
            return await self._generation.answer(request, endpoint, trace, call)
        # The client may reuse its request id as soon as it has its answer.
        call.request = replace(call.request, id=self._names.take({}))
        async with AsyncExitStack() as held:
            held.callback(self._names.free, call.request.id)
            trace.queued_s = time.perf_counter()
            if trace.spans is not None:
                trace.spans.queued()
            lease = call.dispatcher.lease(call.request, call.tenant, trace.spans)
            self._active.begun(call.dispatcher, lease, trace)
            held.callback(self._active.ended, call.request.id)
            try:
                await held.enter_async_context(lease)
            except asyncio.CancelledError:
                lease.raise_if_cancelled()
                raise
            begun = asyncio.create_task(self._begun(held.pop_all(), request, call, lease, trace))
        self._keep(begun)
        # When a client disconnects now, the backend may be at work already.
        try:
            return await asyncio.shield(begun)
        except asyncio.CancelledError:
            begun.add_done_callback(lambda _: self._ended_alone(trace))
            raise

    async def stop(self) -> None:
        """Cancel all background responses at their backends: without this gateway no client could fetch them, and no
        tenant would be charged.
        """
        await cancel(*self._tasks)

    async def _begun(
        self, held: AsyncExitStack, request: HttpRequest, call: Call, lease: Lease, trace: CallTrace
    ) -> Response | EventStream:
        lease.holder = asyncio.current_task()
        async with held:
            try:
                result = await self._generation.send(request, call, lease, trace)
            except asyncio.CancelledError:
                lease.raise_if_cancelled()
                raise
            lease.outcome = result.outcome
            response_id = await _running_id(result.response)
            if response_id is None:  # it is already complete
                trace.over(result.outcome)
            else:
                running = _Running(response_id, call, lease, trace)
                self._keep(asyncio.create_task(self._to_its_end(held.pop_all(), running)))
        return result.response

    async def _to_its_end(self, held: AsyncExitStack, response: "_Running") -> None:
        response.lease.holder = asyncio.current_task()
        self._active.begun(response.call.dispatcher, response.lease, response.trace)
        async with held:
            try:
                await self._followed(response)
            except asyncio.CancelledError:
                if response.lease.is_cancelled:
                    response.trace.reason = Reason.CANCELLED
                await self._abandoned(response)
                raise
            finally:
                response.trace.over(response.lease.outcome)
                self._generation.answered(response.call, response.lease, response.trace)
                self._ended(response.trace)

    async def _abandoned(self, response: "_Running") -> None:
        """Cancel the response at its backend, within CANCEL_S_MAX, and charge what has been made."""
        body = None
        with suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_S_MAX):
                body = await self._asked(response, RESPONSE_CANCEL)
        response.update(body, backend_client=self._backend_clients[response.lease.backend_id])

    def _ended_alone(self, trace: CallTrace) -> None:
        """Log what was made after the client disconnected: the line of its call is in the log already."""
        if trace.usage is not None:
            self._ended(replace(trace, reason="background", spans=None))

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            log.debug("a response in the background ended with %r", error)

    async def _followed(self, response: "_Running") -> None:
        failures, ends_at = 0, time.perf_counter() + RUNNING_S_MAX
        while failures < FAILURES_MAX:
            await asyncio.sleep(self._poll_s)
            late = time.perf_counter() >= ends_at
            body = await self._asked(response, RESPONSE_CANCEL if late else RESPONSE)
            failures = failures + 1 if body is None else 0
            if response.update(body, backend_client=self._backend_clients[response.lease.backend_id]):
                return
        response.lease.outcome = Outcome.BACKEND_FAILED

    async def _asked(self, response: "_Running", endpoint: Endpoint) -> dict[str, Any] | None:
        """The state of the response at its backend; None where the backend does not answer with 200 and JSON."""
        backend_client = self._backend_clients[response.lease.backend_id]
        headers = {**backend_client.credentials, "content-type": JSON_TYPE, "accept-encoding": "identity"}
        try:
            async with await backend_client.upstream.open(
                endpoint.methods[0], endpoint.target(response.id), headers
            ) as exchange:
                body = await read_answer(await exchange.read(ANSWER_BYTES_MAX), ("status", "usage"))
        except UpstreamError:
            return None
        return body if exchange.status == 200 and body else None


class _Running:
    """A background response that its backend is making. Mutable."""

    def __init__(self, response_id: str, call: Call, lease: Lease, trace: CallTrace) -> None:
        self.id = response_id
        self.call = call
        self.lease = lease
        # The call that started the response has its own log line; this trace is for the line of the response.
        self.trace = replace(trace, reason="background", status=200, outcome=Outcome.COMPLETED, spans=None)
        trace.reserved, trace.usage = (0, 0), None  # both belong to the response's trace now
        self._started_s = time.perf_counter()

    def update(self, body: dict[str, Any] | None, *, backend_client: BackendClient) -> bool:
        """Account for a poll's answer; return whether the response has ended."""
        status = None if body is None else body.get("status")
        usage = None if body is None else ANSWERS[AnswerKind.RESPONSES].usage(body)
        if usage is None:
            prompt = self.lease.prefilled()
            produced = backend_client.pace.tokens_after(time.perf_counter() - self._started_s)
            is_decoded = prompt.prompt_tokens >= self.call.request.prompt_tokens
            most = is_decoded * self.call.request.output_tokens_max
            usage = prompt._replace(output_tokens=int(min(produced, most)))
            self.trace.estimated = True
        elif status not in _RUNNING:
            self.trace.estimated = False
        usage = self.trace.believed(usage)
        self.trace.passed(usage)
        self.lease.tokens(usage)
        return body is not None and status not in _RUNNING


async def _running_id(response: Response | EventStream) -> str | None:
    """The id of a response that is queued or in progress; None for any other answer."""
    if response.status != 200 or not isinstance(response, Response):
        return None
    body = await read_answer(response.body, ("status", "id"))
    if body.get("status") not in _RUNNING:
        return None
    response_id = body.get("id")
    return response_id if type(response_id) is str and ID.fullmatch(response_id) else None
