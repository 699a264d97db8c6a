"""Utilities: calls that a backend answers without generating: tokenizing, counting, fetching a stored response.

These calls are quick and take no slot of the engine, so they are not queued. Each goes to an available backend of the
pool, IN_FLIGHT_MAX at a time for each tenant. It counts against the tenant's limit of requests per minute, and is
charged one prompt token.
"""

import itertools
from collections import Counter
from typing import Final

from backends.meters import ANSWERS, AnswerKind
from backends.meters.events import StreamCall
from backends.upstream import ConnectFailed, HttpExchange, UpstreamAway, UpstreamClosed
from gateway.api import errors
from gateway.api.endpoints import RESPONSE, RESPONSE_CANCEL, Endpoint
from gateway.api.errors import ProblemError, problem_error
from gateway.api.fields import changes
from gateway.api.headers import upstream_headers
from gateway.forwarding.answers.asked_names import renamed, renaming
from gateway.forwarding.answers.relay import StreamReports, read_whole, relay_body, relay_stream
from gateway.forwarding.attempt import AttemptContext, is_event_stream
from gateway.http.request import HttpRequest
from gateway.http.response import EventStream, Response
from gateway.intake.request_parsing import NO_BODY, ParsedRequest, RequestParser
from gateway.intake.stored_responses import StoredResponses
from gateway.observability.telemetry import CallTrace
from gateway.scheduling.pools import Pools
from policies.types import Reason, Tenant, Usage

UNIT: Final = Usage(1, 0, 0)  # a prompt token
IN_FLIGHT_MAX: Final = 16  # of one tenant
ANSWER_BYTES_MAX: Final = 64 << 20
TRIES_MAX: Final = 3  # backends that a call is tried at, until one can be reached


class Utilities:
    """The handler of quick calls that are not queued, such as tokenizing."""

    def __init__(
        self,
        context: AttemptContext,
        request_parser: RequestParser,
        pools: Pools,
        responses: StoredResponses,
        xargs_allowed: frozenset[str] | None,
    ) -> None:
        self._request_parser = request_parser
        self._pools = pools
        self._backend_clients = context.clients.by_id
        self._responses = responses
        self._headers, self._unread = context.answer_headers, context.unread
        self._xargs_allowed = xargs_allowed
        self._turn = itertools.count()
        self._in_flight: Counter[str] = Counter()  # by tenant

    async def answer(self, request: HttpRequest, endpoint: Endpoint, trace: CallTrace) -> Response | EventStream:
        """Answer a call by one exchange with a backend. Raises ProblemError, UpstreamError."""
        if endpoint in (RESPONSE, RESPONSE_CANCEL):
            arrival, backend_ids = await self._of_kept(request, trace)
        else:
            arrival = await self._request_parser.receive(request, endpoint, trace)
            backend_ids = self._well(arrival)
        tenant = arrival.tenant
        self._admit(arrival, trace.key_id)
        self._in_flight[tenant.id] += 1
        try:
            target = _target(request, endpoint)
            async with await self._send(request, target, arrival, backend_ids, trace) as exchange:
                return await self._relay(request, exchange, arrival, trace)
        finally:
            self._left(tenant)

    async def _of_kept(self, request: HttpRequest, trace: CallTrace) -> tuple[ParsedRequest, list[str]]:
        """The backend that has a stored response, for its owner alone. Raises ProblemError. It works during a drain,
        too: the drain waits for background responses so that clients can fetch them.
        """
        identity, response_id = self._request_parser.identify(request, trace), request.path_id
        await self._responses.fetch(response_id)
        kept = self._responses.find(response_id, identity.tenant_id)
        if kept is None or kept.backend_id not in self._backend_clients:  # its backend was removed
            raise ProblemError(errors.problem_about(errors.RESPONSE_NOT_FOUND, "response_id"))
        route = self._pools.routes.find(kept.model)
        arrival = self._request_parser.routed(identity, NO_BODY, 0, route, trace, alias=kept.alias)
        return arrival, [kept.backend_id]

    def _well(self, arrival: ParsedRequest) -> list[str]:
        """The available backends that have the model, round-robin, TRIES_MAX at most. Raises ProblemError."""
        holders = self._pools.routes.holders(arrival.card.id)
        backend_ids = [
            each for each in self._pools.routes.available(arrival.card.id) if holders is None or each in holders
        ]
        if not backend_ids:
            raise problem_error(Reason.NO_BACKEND)
        first = next(self._turn) % len(backend_ids)
        return (backend_ids[first:] + backend_ids[:first])[:TRIES_MAX]

    def _admit(self, arrival: ParsedRequest, key_id: str) -> None:
        """Charge the call. Raises ProblemError beyond the limits per minute that it meets, or IN_FLIGHT_MAX."""
        tenant = arrival.tenant
        if tenant.may_meet_rate_limit(key_id):
            limits = arrival.dispatcher.rate_limits(tenant, key_id)
            used_up = {kind: limit.reset_s for kind, limit in limits.by_kind().items() if not limit.remaining}
            if used_up:
                kind = max(used_up, key=lambda kind: used_up[kind])
                raise problem_error(Reason.RATE_LIMITED, used_up[kind], kind)
        if self._in_flight[tenant.id] >= IN_FLIGHT_MAX:
            raise problem_error(Reason.TOO_MANY_AT_ONCE)
        arrival.dispatcher.spent(tenant, UNIT, key_id)

    async def _send(
        self,
        request: HttpRequest,
        target: str,
        arrival: ParsedRequest,
        backend_ids: list[str],
        trace: CallTrace,
    ) -> HttpExchange:
        """The answer of the first backend that takes the call. A backend that closes the connection before it has sent
        a byte has not taken it, nor has one that hangs.
        """
        changed = changes(arrival.body.values, salted=False, xargs_allowed=self._xargs_allowed)
        body = arrival.body.upstream(changed, None)
        for last, backend_id in enumerate(backend_ids, 1 - len(backend_ids)):
            backend_client = self._backend_clients.get(backend_id)
            if backend_client is None:  # removed while another backend was tried
                continue
            trace.backend_id = backend_id
            headers = upstream_headers(
                request.headers,
                request_id=trace.request_id,
                content_type=body.content_type,
                credentials=backend_client.credentials,
            )
            trace.propagate(headers)
            try:
                return await backend_client.upstream.open(
                    request.method, target, headers, body.asking(usage=False, continuous=False)
                )
            except (ConnectFailed, UpstreamAway, UpstreamClosed) as error:
                if not last or (isinstance(error, UpstreamClosed) and error.bytes_received):
                    raise
        raise problem_error(Reason.NO_BACKEND)

    async def _relay(
        self, request: HttpRequest, exchange: HttpExchange, arrival: ParsedRequest, trace: CallTrace
    ) -> Response | EventStream:
        headers = self._headers.of(trace)
        if not is_event_stream(exchange):
            body, unread = await read_whole(exchange, ANSWER_BYTES_MAX, self._unread, arrival.tenant.id)
            exchange.release()
            if arrival.alias is not None:
                body = await renamed(exchange, body, arrival.alias)
            return relay_body(exchange, body, unread, headers=headers)
        # A stored response, streamed again: it was charged when it was made.
        trace.stream = True
        meter = ANSWERS[AnswerKind.RESPONSES].meter(StreamCall())
        if arrival.alias is not None:
            meter = renaming(meter, arrival.alias, AnswerKind.RESPONSES)
        reports = StreamReports(lambda _usage: float("inf"))
        result = await relay_stream(request, exchange, meter, reports, headers=headers)
        trace.outcome, trace.reason = result.outcome, result.failure
        return result.response

    def _left(self, tenant: Tenant) -> None:
        self._in_flight[tenant.id] -= 1
        if not self._in_flight[tenant.id]:
            del self._in_flight[tenant.id]


def _target(request: HttpRequest, endpoint: Endpoint) -> str:
    """The target at the backend. The query is kept only for endpoints that need no body."""
    target = endpoint.target(request.path_id)
    query = request.query if endpoint.may_be_empty else ""
    return f"{target}?{query}" if query else target
