"""Attempt: one call at one backend: it sends the call, relays the answer, and charges it.

An error before anything was sent to the client may mean that the backend has not taken the call: it is busy, it fails,
or it does not know `stream_options`. Such a call can be retried, so the client gets no head of a stream before the
backend's first event is whole. From then on there is no retry, but a stream whose token ids are known can be continued
(gateway/continuation): the next attempt asks for the missing part, and writes it into the open response.
"""

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Never, Protocol

from backends.health import Evidence
from backends.meters import ANSWERS, AnswerKind
from backends.meters.events import FirstEvent, StreamCall, StreamMeter, json_object, payload
from backends.meters.token_ids import ResumableMeter, TokenIdMeter, interruption
from backends.upstream import (
    ConnectFailed,
    HttpExchange,
    UpstreamAway,
    UpstreamClosed,
    UpstreamError,
    UpstreamProtocolError,
)
from gateway.api.endpoints import CHAT, COMPLETIONS
from gateway.api.errors import Api, error_object, problem_of
from gateway.api.headers import upstream_headers
from gateway.api.token_counts import OutputTokens
from gateway.continuation.prepare import NOT_NOW, Continuing, QuestionFailed, ask_json, prepare
from gateway.continuation.stream import ContinuationSettings
from gateway.forwarding.answers.asked_names import renamed, renaming
from gateway.forwarding.answers.relay import (
    CallCancelled,
    RelayResult,
    Resumes,
    StreamReports,
    read_whole,
    relay_body,
    relay_stream,
)
from gateway.forwarding.answers.settlement import Settlement
from gateway.forwarding.answers.stream_usage import asks_for_more, body_for, usage_of_client
from gateway.forwarding.answers.unread_bytes import UnreadBytes
from gateway.forwarding.asked_hold import retry_after_s
from gateway.forwarding.backend_client import BackendClient, BackendClients
from gateway.forwarding.engine_arguments import engine_arguments, with_arguments
from gateway.forwarding.sending import Sending
from gateway.http.answer_headers import AnswerHeaders
from gateway.intake.admission import RequestAdmission
from gateway.intake.long_bodies import LONG_BYTES
from gateway.scheduling.dispatcher import nothing
from policies.slo.engine_priority import engine_priority
from policies.slo.timeliness import Timeliness
from policies.types import Outcome, Reason

BUSY_HOLD_S = 0.25  # a busy backend gets no call for about the time of a few of its steps
UNREACHABLE_HOLD_S = 0.5  # until the health poll that the failure triggers has its result
ANSWER_BYTES_MAX = 256 << 20
APIS = {AnswerKind.MESSAGES: Api.ANTHROPIC, AnswerKind.COHERE: Api.COHERE}  # whose streams have errors of their own
OPTIONS_MARK = b"stream_options"  # in the error of a server that does not support it


class BackendRejected(Exception):  # noqa: N818 - a state, not an error
    """An error: the backend did not take the call, and the client has been sent nothing of an answer. The call can be
    retried elsewhere; this backend is left alone for `hold_s` seconds. `is_answer`: the backend rejected the call by a
    response, so no work on the call was lost.
    """

    def __init__(self, evidence: Evidence, hold_s: float, *, is_answer: bool = False) -> None:
        super().__init__(evidence)
        self.evidence = evidence
        self.hold_s = hold_s
        self.is_answer = is_answer


class StreamInterrupted(Exception):  # noqa: N818 - a state, not an error
    """An error: the backend failed after it had sent a part of the stream. The stream to the client is still open, so
    another backend can continue it.
    """


class StreamGivenUp(UpstreamError):  # noqa: N818 - a state, not an error
    """An error: the stream cannot be continued at this backend, or the call not be sent again, and has to end. The
    backend is not at fault, so its health is not affected.
    """


class OptionsRejected(Exception):  # noqa: N818 - a state, not an error
    """An error: the backend rejected the field `stream_options`, which the gateway had added to the call. The call can
    be retried without it.
    """


@dataclass(frozen=True, slots=True)
class AttemptContext:
    """The parts of a gateway that every attempt (sending a call to one backend) uses."""

    request_admission: RequestAdmission
    clients: BackendClients
    answer_headers: AnswerHeaders
    output_tokens: OutputTokens
    unread: UnreadBytes
    continuation: ContinuationSettings


class AttemptOwner(Protocol):
    """The interface of the object that starts an attempt (one try of a call at one backend), which is told of the
    attempt's events while it runs. One event is that a backend has accepted the connection of a retry.
    """

    def taken(self, sending: Sending) -> None:
        """A backend has accepted the connection of a retry, which has been written to it."""
        ...

    def named(self, sending: Sending, answer_id: str) -> None:
        """The id of the answer, as soon as it arrives, for APIs that can fetch an answer by its id."""
        ...

    async def count_now(self, sending: Sending) -> None:
        """The call has left the backend: wait until the backend has reported the steps that it has counted."""
        ...


class Attempt:
    """One attempt at a call: it sends the call to the backend of its Lease, and relays the answer. Used once."""

    __slots__ = (
        "_asks_ids", "_backend", "_backend_client", "_call", "_context", "_has_counted_disconnect", "_kind", "_lease",
        "_meter", "_named", "_owner", "_sending", "_settlement", "_stream", "_timeliness", "_trace",
    )  # fmt: skip

    def __init__(self, context: AttemptContext, owner: AttemptOwner, sending: Sending) -> None:
        call = sending.call
        self._context = context
        self._owner = owner
        self._sending = sending
        self._backend_client: BackendClient = context.clients.by_id[sending.lease.backend_id]
        self._call = call
        self._lease = lease = sending.lease
        self._trace = sending.trace
        self._stream = sending.stream
        self._backend = sending.backend
        self._kind = sending.backend.known_kind
        self._asks_ids = sending.stream.exclusion is None and self._kind.has_token_ids
        self._has_counted_disconnect = False
        self._meter: StreamMeter | None = None  # of a stream that has begun
        self._timeliness = lease.timeliness = None if call.request.envelope is None else Timeliness(call.request)
        self._named = partial(owner.named, sending)  # no method of its own, which would be a reference cycle
        self._settlement = Settlement(
            sending,
            request_admission=context.request_admission,
            output_tokens=context.output_tokens,
            pace=self._backend_client.pace,
            on_id=self._named,
        )

    async def run(self) -> tuple[RelayResult, Evidence]:
        """Return the result for the handler, and the evidence that the attempt gives about the backend.

        Raises BackendRejected, OptionsRejected, StreamGivenUp, StreamInterrupted, UpstreamError.
        """
        exchange: HttpExchange | None = None
        try:
            continuing = await self._continuing() if self._stream.is_begun else None
            exchange = await self._sent(continuing)
            if is_event_stream(exchange):
                result = await self._relay_stream(exchange, continuing)
            elif continuing is not None:
                await self._raise_not_continued(exchange)
            else:
                result = await self._relay_body(exchange)
        except (ConnectFailed, UpstreamAway, UpstreamClosed) as error:  # all of them before the client is sent anything
            evidence = Evidence.UNREACHABLE if isinstance(error, ConnectFailed) else Evidence.BROKEN
            raise BackendRejected(evidence, UNREACHABLE_HOLD_S) from None
        except asyncio.CancelledError:
            # Mostly the client's disconnect. A preempted request and an error response are not charged.
            if not self._lease.is_leaving and (exchange is None or exchange.status < 400):
                if exchange is not None:
                    exchange.release()
                await self._client_disconnected()
            raise
        finally:
            if exchange is not None:
                exchange.release()
            if self._timeliness is not None:
                self._lease.timing = self._trace.timed(self._timeliness.timing())
        if result.interrupted:
            self._backend_client.memo.ids_at.clear()  # it may come back as another server
            raise StreamInterrupted(result.failure)
        failed = result.outcome is Outcome.BACKEND_FAILED and not result.rejected
        broken = failed or exchange.status >= 500
        return result, Evidence.BROKEN if broken else Evidence.SERVED

    def _sent(self, continuing: Continuing | None) -> Coroutine[Any, Any, HttpExchange]:
        """Send the request. The returned coroutine waits for the head of the answer."""
        headers = self._headers()
        self._trace.propagate(headers)
        if continuing is None:
            target, has_ids = self._trace.endpoint, self._trace.endpoint in self._backend_client.memo.ids_at
            body = body_for(self._call.parsed, self._kind, token_ids=self._asks_ids, has_ids=has_ids)
        else:
            target, body = COMPLETIONS.path, continuing.body
        if (plugin_name := self._backend.plugin_name) is not None:
            body = self._with_arguments(body, plugin_name)
        on_sent = partial(self._owner.taken, self._sending) if self._sending.is_retrying else None
        return self._backend_client.upstream.open("POST", target, headers, body, on_sent=on_sent)

    def _headers(self) -> dict[str, str]:
        return upstream_headers(
            self._sending.request.headers,
            request_id=self._trace.request_id,
            content_type=self._call.parsed.body.content_type,
            credentials=self._backend_client.credentials,
            priority=self._priority() if self._backend.reads_priority else 0,
        )

    async def _continuing(self) -> Continuing:
        """What this backend is asked for, to go on with the stream."""
        if not self._kind.has_token_ids:
            raise StreamGivenUp("the stream cannot be continued at a backend of this kind")
        self._raise_if_forgotten()
        model = self._call.request.model
        context = next((card.max_model_len for card in self._backend.cards if card.id == model), None)
        ask = partial(ask_json, self._backend_client.upstream, self._headers())
        try:
            continuing = await prepare(
                ask,
                self._call.parsed.body.asking(usage=False, continuous=False),
                self._stream,
                is_chat=self._trace.endpoint == CHAT.path,
                context_tokens_max=context,
            )
        except QuestionFailed as failed:
            evidence = Evidence.BROKEN if failed.is_fault else Evidence.BUSY
            raise BackendRejected(evidence, UNREACHABLE_HOLD_S, is_answer=True) from None
        except UpstreamProtocolError as error:
            raise StreamGivenUp(str(error)) from None
        self._raise_if_forgotten()  # while this backend was asked
        return continuing

    def _raise_if_forgotten(self) -> None:
        if self._stream.exclusion is not None:
            raise StreamGivenUp("the stream's token ids were forgotten to save memory")

    def _with_arguments(self, body: bytes | bytearray, plugin_name: str) -> bytes | bytearray:
        parsed, call = self._call.parsed, self._call
        arguments = engine_arguments(
            call.request,
            call.tenant,
            self._sending.tier,
            gateway=plugin_name,
            number=self._lease.number,
            now=call.dispatcher.now(),
        )
        return with_arguments(body, parsed.body.content_type, arguments)

    def _priority(self) -> int:
        """The priority by which the backend orders its own queue."""
        return engine_priority(
            tier_priority=self._sending.tier.priority,
            envelope=self._call.request.envelope,
            arrived_at=self._trace.arrived_at,
        )

    async def _relay_body(self, exchange: HttpExchange) -> RelayResult:
        body, unread = await read_whole(exchange, ANSWER_BYTES_MAX, self._context.unread, self._call.tenant.id)
        self._lease.answering()
        if exchange.status >= 400:
            self._raise_if_not_taken(exchange, body)
        elif self._kind.stopped is not None and len(body) <= LONG_BYTES and self._kind.stopped in body:
            raise BackendRejected(Evidence.BROKEN, UNREACHABLE_HOLD_S)
        exchange.release()
        await self._settlement.whole(exchange.status, body)
        if self._timeliness is not None and (usage := self._trace.usage) is not None:
            self._timeliness.whole(usage.output_tokens, self._call.dispatcher.now())
        if self._call.alias is not None:
            body = await renamed(exchange, body, self._call.alias)
        headers = self._context.answer_headers.of(self._trace)
        return RelayResult(relay_body(exchange, body, unread, headers=headers), Outcome.COMPLETED)

    async def _raise_not_continued(self, exchange: HttpExchange) -> Never:
        """Another backend may continue the stream, unless this one says that it is the request which is wrong."""
        body = await exchange.read(ANSWER_BYTES_MAX)
        self._raise_if_not_taken(exchange, body)
        if exchange.status >= 500:
            raise BackendRejected(Evidence.BROKEN, UNREACHABLE_HOLD_S, is_answer=True)
        if exchange.status in NOT_NOW:
            raise BackendRejected(Evidence.BUSY, UNREACHABLE_HOLD_S, is_answer=True)
        raise StreamGivenUp(f"a backend refused to continue the stream: status {exchange.status}")

    async def _relay_stream(self, exchange: HttpExchange, continuing: Continuing | None) -> RelayResult:
        first = FirstEvent()
        await exchange.begun(first.has_begun)  # a backend sends its head long before its first token
        if continuing is None:
            self._begin_stream(first.event)
        settlement, uncounted, stream = self._settlement, list[str](), self._stream
        self._lease.is_resumable = self._trace.is_resumable = stream.exclusion is None
        self._lease.answering()
        self._trace.continued()
        meter, resumes = self._make_meter(uncounted, continuing)
        self._meter = meter
        settlement.streams(meter)
        if resumes is not None:
            exchange.limit_silence(self._context.continuation.silence_s)
        self._lease.passed = settlement.passed
        self._lease.cut = partial(_cancel, exchange, self._call.parsed.answer)
        try:
            result = await relay_stream(
                self._sending.request,
                exchange,
                meter if self._call.alias is None else renaming(meter, self._call.alias, self._call.parsed.answer),
                StreamReports(settlement.tokens, settlement.unread, self._timeliness),
                headers=self._context.answer_headers.of(self._trace),
                resumes=resumes,
            )
        finally:  # also after a disconnect, and a preemption
            if resumes is not None:
                stream.passed(resumes.meter)
            stream.left()
            # All usage has been reported by now, and the closure and its lease would be a reference cycle.
            self._lease.passed = nothing
            self._trace.estimated = self._trace.estimated or meter.tokens_estimated
        uncounted_text = "".join(uncounted) if meter.tokens_estimated else None
        return await self._settle_stream(result, meter, uncounted_text, is_whole=continuing is None)

    def _begin_stream(self, first_event: bytes) -> None:
        """A backend has begun to answer that is the first to do so."""
        stream = self._stream
        self._raise_if_stopped(first_event)
        stream.began(first_event if self._asks_ids else b"", self._call.request.output_tokens_max)
        self._remember_ids()
        if stream.exclusion is None:
            self._context.continuation.held.hold(self._call.tenant.id, stream, stream.bytes_max)

    async def _settle_stream(
        self, result: RelayResult, meter: StreamMeter, uncounted: str | None, *, is_whole: bool
    ) -> RelayResult:
        """Settle the account of a stream that has ended here. `is_whole`: it is not the continuation of another."""
        self._trace.reason = result.failure
        if result.failure == Reason.CANCELLED:
            result.outcome = Outcome.CLIENT_DISCONNECTED
        if result.outcome is Outcome.CLIENT_DISCONNECTED:
            await self._client_disconnected()
        if result.outcome is Outcome.CLIENT_DISCONNECTED or result.interrupted:
            return result
        usage = meter.usage
        await self._settlement.streamed(usage, uncounted)
        if result.outcome is Outcome.COMPLETED and not result.slowed and is_whole:
            self._settlement.paced(usage)
        return result

    def _raise_if_stopped(self, first: bytes) -> None:
        """Raise where a vLLM has stopped before the first token of a stream: its client has been sent nothing."""
        if self._kind.has_token_ids and interruption(json_object(payload(first))) is not None:
            raise BackendRejected(Evidence.BROKEN, UNREACHABLE_HOLD_S)

    async def _client_disconnected(self) -> None:
        """After a disconnect: charge what the backend has done by now. Where it counts its steps, the count is fetched
        first, while the lease still holds the slot.
        """
        disconnected_s, meter, stream = time.perf_counter(), self._meter, self._call.parsed.stream
        self._lease.answering()  # too late to preempt the request
        try:
            if not self._has_counted_disconnect and (not stream or (meter is not None and meter.tokens_estimated)):
                self._has_counted_disconnect = True
                await self._owner.count_now(self._sending)
        finally:
            if stream:
                self._settlement.disconnected_stream(meter, time.perf_counter() - disconnected_s)
            else:
                self._settlement.disconnected(time.perf_counter() - disconnected_s)

    def _make_meter(self, uncounted: list[str], continuing: Continuing | None) -> tuple[StreamMeter, Resumes | None]:
        """The meter, and, where the stream may be continued, how."""
        stream, call = self._stream, self._stream_call(uncounted)
        meter: ResumableMeter
        if continuing is not None:
            meter = continuing.meter(call, stream)
        elif self._asks_ids:
            meter = TokenIdMeter(
                call,
                stream.ids,
                keeps_ids=self._call.parsed.wants_token_ids,
                is_resumable=stream.exclusion is None,
            )
        else:
            return ANSWERS[self._call.parsed.answer].meter(call), None
        if stream.exclusion is not None:
            return meter, None

        def may_continue() -> bool:
            stream.passed(meter)
            return stream.may_continue()

        def given_up() -> None:
            meter.forget()
            self._lease.is_resumable = False

        stream.on_given_up = given_up

        return meter, Resumes(meter, may_continue)

    def _remember_ids(self) -> None:
        """What the beginning of a stream says of the next ones of this backend."""
        ids_at = self._backend_client.memo.ids_at
        if self._stream.exclusion is None:
            ids_at.add(self._trace.endpoint)
        elif self._asks_ids:
            ids_at.discard(self._trace.endpoint)

    def _stream_call(self, uncounted: list[str]) -> StreamCall:
        parsed, request = self._call.parsed, self._call.request
        keeps = usage_of_client(parsed, self._kind)
        return StreamCall(
            keeps_usage=keeps.at_end,
            keeps_chunk_usage=keeps.in_chunks,
            choices=parsed.choices,
            prompts=parsed.prompts,
            nulls_usage=self._kind.nulls_usage,
            tokens_per_byte=self._context.output_tokens.tokens_per_byte(request.tenant_id, request.model),
            memo=self._backend_client.memo,
            on_text=uncounted.append if self._context.output_tokens.is_exact else None,
            on_id=self._named,
        )

    def _raise_if_not_taken(self, exchange: HttpExchange, body: bytes | bytearray) -> None:
        """Raise where an error response means that this backend does not take the call now, or with these options."""
        kind, status = self._kind, exchange.status
        if status in (429, 503) and (hold_s := retry_after_s(exchange.headers)) is not None:
            raise BackendRejected(Evidence.BUSY, max(hold_s, BUSY_HOLD_S), is_answer=True)
        if kind.busy is not None and status == kind.busy[0] and kind.busy[1] in body:
            raise BackendRejected(Evidence.BUSY, BUSY_HOLD_S, is_answer=True)
        if status == 503:
            raise BackendRejected(Evidence.BROKEN, BUSY_HOLD_S, is_answer=True)
        if status == 500 and any(mark in body for mark in kind.engine_died):
            is_gone = self._stream.is_begun  # a stream that lost it here would have begun
            raise BackendRejected(Evidence.BROKEN, UNREACHABLE_HOLD_S, is_answer=is_gone)
        rejected = status in (400, 422) and kind.may_refuse_options and OPTIONS_MARK in body
        if rejected and asks_for_more(self._call.parsed, kind):
            raise OptionsRejected


def _cancel(exchange: HttpExchange, answer: AnswerKind) -> None:
    """End a stream for an operator who cancels it, in the format of its API."""
    api = APIS.get(answer, Api.OPENAI)
    problem = problem_of(Reason.CANCELLED, 0.0)
    exchange.fail(CallCancelled(problem.message, error_object(problem, api)))


def is_event_stream(exchange: HttpExchange) -> bool:
    return "text/event-stream" in exchange.headers.get("content-type", "")
