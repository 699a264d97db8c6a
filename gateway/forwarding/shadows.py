"""Shadows: copies of an alias's calls, sent to another model to try that model. Their answers are dropped.

A copy must not cost any tenant anything. It belongs to a special tenant and a special tier, which has the lowest
priority and is shed first. It is sent only to a backend that is at most half full while no request waits in the pool,
and ends as soon as a request waits there. It is never retried, is no evidence about a backend, and no limit, budget,
price or usage counts it. Its metrics and its line in the access log say that it is a copy.

Only a process that sees the whole pool makes copies: of several processes that share one order, the leader.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import Final

from backends.meters import ANSWERS
from backends.meters.events import EventTooLongError, StreamCall
from backends.upstream import HttpExchange, UpstreamError
from gateway.api.headers import Headers, upstream_headers
from gateway.config.aliases import ShadowSection
from gateway.forwarding.answers.long_answers import read_answer
from gateway.forwarding.answers.stream_usage import body_for
from gateway.forwarding.attempt import is_event_stream
from gateway.forwarding.backend_client import BackendClients
from gateway.http.request_ids import RequestIds
from gateway.intake.admission import Call
from gateway.observability.telemetry import CallTrace
from gateway.scheduling.alias_table import AliasTable
from gateway.scheduling.dispatcher import Lease, Preempted, Rejected
from gateway.scheduling.shadow_tenant import SHADOW_TENANT, SHADOW_TIER
from gateway.tasks import Tasks, cancel
from policies.slo.engine_priority import PRIORITY_MAX
from policies.types import Outcome, Usage

DISPATCH_S_MAX: Final = 0.25  # a copy that is not sent by then is dropped: it does not wait
LOOK_S: Final = 0.05  # between looks at whether something waits, for which a copy makes room
ANSWER_BYTES_MAX: Final = 64 << 20


class Shadows:
    """The maker and sender of shadow calls: copies of calls to an alias, which try another model. Their answers are
    dropped. Mutable; used on one loop.
    """

    def __init__(
        self,
        aliases: AliasTable,
        *,
        clients: BackendClients,
        names: RequestIds,
        ended: Callable[[CallTrace], None],
    ) -> None:
        """`ended` is called with the trace of each copy that was sent."""
        self._aliases = aliases
        self._clients = clients
        self._names = names
        self._ended = ended
        self._due: defaultdict[str, float] = defaultdict(float)  # by alias: parts of a copy
        self._in_flight: Counter[str] = Counter()  # by alias
        self._tasks = Tasks()

    def sent(self, call: Call, headers: Headers) -> None:
        """A call has been dispatched: copy it, if its alias has shadow calls and a backend has room."""
        alias = self._aliases.find(call.alias)
        if call.alias is None or alias is None or alias.shadow is None or call.copied is None:
            return
        if not self._is_chosen(call.alias, alias.shadow):
            return
        name = self._names.take({})
        copy = call.copied(alias.shadow.model, name)
        if copy is None:
            self._names.free(name)
            return
        self._in_flight[call.alias] += 1
        self._tasks.start(self._run(copy, call.alias, headers))

    async def stop(self) -> None:
        """End all copies."""
        await self._tasks.cancel()

    def _is_chosen(self, alias: str, shadow: ShadowSection) -> bool:
        """Whether it is this call's turn, by `ratio`, and fewer than `in_flight_max` copies run."""
        if self._in_flight[alias] >= shadow.in_flight_max:
            return False
        self._due[alias] += shadow.ratio
        if self._due[alias] < 1:
            return False
        self._due[alias] -= 1
        return True

    async def _run(self, call: Call, alias: str, headers: Headers) -> None:
        request = call.request
        trace = CallTrace(request.endpoint, request_id=request.id, tenant_id=SHADOW_TENANT.id, model=request.model)
        trace.alias, trace.is_shadow, trace.stream = alias, True, call.parsed.stream
        trace.tier_id, trace.request, trace.outcome = SHADOW_TIER.id, request, Outcome.BACKEND_FAILED
        trace.usage_max = call.usage_max
        try:
            with suppress(Rejected, Preempted, TimeoutError):
                await self._send(call, trace, headers)
        finally:
            self._names.free(request.id)
            self._in_flight[alias] -= 1
            if trace.dispatched_s is not None:
                self._ended(trace)

    async def _send(self, call: Call, trace: CallTrace, headers: Headers) -> None:
        lease = call.dispatcher.lease(call.request, SHADOW_TENANT)
        async with AsyncExitStack() as held:
            async with asyncio.timeout(DISPATCH_S_MAX):
                await held.enter_async_context(lease)
            trace.backend_id, trace.dispatched_s = lease.backend_id, time.perf_counter()
            lease.outcome = trace.outcome = Outcome.CLIENT_DISCONNECTED  # unless it comes to its end
            answering = asyncio.ensure_future(lease.unless_preempted(self._answer(call, lease, trace, headers)))
            try:
                while not (await asyncio.wait([answering], timeout=LOOK_S))[0]:
                    if call.dispatcher.snapshot(()).queued_requests:
                        trace.reason = "made room"
                        return
                await answering
                lease.outcome = trace.outcome = Outcome.COMPLETED if trace.status == 200 else Outcome.BACKEND_FAILED
            except (UpstreamError, EventTooLongError) as error:
                lease.outcome = trace.outcome = Outcome.BACKEND_FAILED
                trace.reason = str(error)
            finally:
                await cancel(answering)

    async def _answer(self, call: Call, lease: Lease, trace: CallTrace, headers: Headers) -> None:
        """Send the copy to the backend of its lease, and count what comes back."""
        kind = self._clients.backends[lease.backend_id].known_kind
        client = self._clients.by_id[lease.backend_id]
        fields = upstream_headers(
            headers,
            request_id=trace.request_id,
            content_type=call.parsed.body.content_type,
            credentials=client.credentials,
            priority=PRIORITY_MAX,  # vLLM's polarity: the last
        )
        body = body_for(call.parsed, kind)
        async with await client.upstream.open("POST", trace.endpoint, fields, body) as exchange:
            trace.status = exchange.status
            if is_event_stream(exchange):
                await self._stream(call, lease, trace, exchange)
                return
            answer = await read_answer(await exchange.read(ANSWER_BYTES_MAX), ("usage", "meta"))
            usage = ANSWERS[call.parsed.answer].usage(answer) if exchange.status == 200 else None
            self._used(lease, trace, usage or Usage(0, 0, 0))

    async def _stream(self, call: Call, lease: Lease, trace: CallTrace, exchange: HttpExchange) -> None:
        meter = ANSWERS[call.parsed.answer].meter(
            StreamCall(keeps_usage=True, choices=call.parsed.choices, prompts=call.parsed.prompts)
        )

        def feed(data: bytes) -> None:
            meter.feed(data)
            if meter.usage is not None:
                self._used(lease, trace, meter.usage)

        await exchange.begun()
        await exchange.stream(feed)
        meter.finish()
        trace.estimated = meter.tokens_estimated
        if not meter.done:
            raise UpstreamError("the stream ended without saying so")

    def _used(self, lease: Lease, trace: CallTrace, usage: Usage) -> None:
        usage = trace.believed(usage)
        trace.passed(usage)
        lease.tokens(usage)
