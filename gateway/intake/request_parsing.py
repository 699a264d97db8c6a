"""RequestParser: turns an HTTP request into its caller, body, pool and tenant, or raises a problem as the answer.

Every call that reaches a backend, queued or not, is checked in this order: the caller is known (401), the body is
complete (408, 413) and valid for its path (400), the model exists (404), the tenant exists (403).
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from backends.catalog import ModelCard
from gateway.api import errors
from gateway.api.bodies import Body, JsonBody, check_content_type, read_body
from gateway.api.calls import model_of
from gateway.api.endpoints import Endpoint
from gateway.api.errors import ProblemError, problem_error
from gateway.http.request import HttpRequest
from gateway.identity.auth import Authenticator, Identity, TrustedProxies, Unauthorized
from gateway.identity.tenants import TenantDirectory
from gateway.identity.throttle import FailureThrottle
from gateway.intake.long_bodies import LONG_BYTES, LongBodies
from gateway.intake.memory import ExpectedBody, MemoryGuard
from gateway.intake.sessions import beginning_name, session_name
from gateway.intake.stored_responses import StoredResponses
from gateway.observability.telemetry import CallTrace
from gateway.scheduling.alias_table import AliasTable
from gateway.scheduling.dispatcher import Dispatcher
from gateway.scheduling.pools import Pools
from policies.types import Reason, Tenant

IDENTITY: Final = "identity"
NO_BODY: Final = JsonBody(b"", {})


@dataclass(slots=True)
class ParsedRequest:
    """A call whose body has arrived, with the tenant and the pool that were found for it. `card` describes its model.
    `owner` is the caller, even if the called model is the `tenant` (`auth.tenant_from: model`). `alias` is the alias
    that the client used, if any; `others` are the alias's models to try after this one.
    """

    owner: str
    body: Body
    body_bytes: int
    tenant: Tenant
    dispatcher: Dispatcher
    card: ModelCard
    alias: str | None = None
    others: tuple[str, ...] = ()


class _Received(NamedTuple):
    """A call that has been received and is not yet routed."""

    identity: Identity
    headers: Mapping[str, str]
    body: Body
    body_bytes: int


class RequestParser:
    """The parser of calls: it identifies callers, reads bodies, and finds the tenant and the pool. Mutable; used on one
    loop.
    """

    def __init__(
        self,
        *,
        auth: Authenticator,
        proxies: TrustedProxies,
        tenants: TenantDirectory,
        tenant_is_model: bool,
        pools: Pools,
        aliases: AliasTable,
        responses: StoredResponses,
        body_timeout_s: float,
        long_bodies: LongBodies,
        memory: MemoryGuard,
    ) -> None:
        """`tenant_is_model`: the tenant of a call is its model or adapter, not its caller. `body_timeout_s` is the
        number of seconds that a body may take to arrive.
        """
        self._auth = auth
        self._proxies = proxies if proxies.any else None
        self._tenants = tenants
        self._tenant_is_model = tenant_is_model
        self._pools = pools
        self._aliases = aliases
        self._responses = responses
        self._body_timeout_s = body_timeout_s
        self.long_bodies = long_bodies
        self._memory = memory
        self._failures = FailureThrottle()
        self.draining = False  # new calls are rejected: the gateway shuts down

    def identify(self, request: HttpRequest, trace: CallTrace) -> Identity:
        """The caller, which is also written to the trace. Raises ProblemError."""
        try:
            named = (
                self._proxies.named(request.headers, request.connection.remote) if self._proxies is not None else None
            )
            identity = named or self._auth.identify(request.headers)
        except Unauthorized:
            wait_s = self._failures.failed(trace.client, asyncio.get_running_loop().time())
            if wait_s is not None:
                raise ProblemError(errors.too_many_failures(wait_s)) from None
            raise ProblemError(errors.INVALID_API_KEY) from None
        trace.tenant_id, trace.key_id = identity.tenant_id, identity.key_id
        return identity

    async def receive(self, request: HttpRequest, endpoint: Endpoint, trace: CallTrace) -> ParsedRequest:
        """Identify the caller of a call, read its body and find its pool. Raises ProblemError, also while the gateway
        drains. Facts are written to the trace as they become known.
        """
        if self.draining:
            raise problem_error(Reason.DRAINING)
        identity = self.identify(request, trace)
        self._memory.check(0)
        # vLLM rejects compressed bodies, too. Only decompression, up to a thousandfold, would show the true size.
        if "content-encoding" in request.headers and request.headers["content-encoding"].lower() != IDENTITY:
            raise ProblemError(errors.BODY_COMPRESSED)
        data = request.body_at_hand()
        if data is not None and 0 < len(data) < LONG_BYTES:
            content_type = request.headers.get("content-type", "")
            body, body_bytes = read_body(content_type, data, multipart=endpoint.multipart), len(data)
        else:
            body, body_bytes = await self._body(request, endpoint, data)
        model = trace.model = model_of(body.values)
        if model is not None and model in self._aliases.all:
            return await self._of_alias(_Received(identity, request.headers, body, body_bytes), model, trace)
        route = self._pools.routes.any() if model is None and endpoint.may_be_empty else self._pools.routes.find(model)
        return self.routed(identity, body, body_bytes, route, trace)

    def routed(
        self,
        identity: Identity,
        body: Body,
        body_bytes: int,
        route: tuple[Dispatcher, ModelCard] | None,
        trace: CallTrace,
        *,
        alias: str | None = None,
    ) -> ParsedRequest:
        """The call for a pool that `Pools` has found; its client knows the model as `alias`. Raises ProblemError where
        there is no pool for the model, the caller may not use the model, or the tenant does not exist.
        """
        if route is None:
            if alias is not None or self._pools.routes.may_come():
                raise problem_error(Reason.NO_BACKEND)
            raise ProblemError(errors.problem_about(errors.MODEL_NOT_FOUND, "model"))
        dispatcher, card = route
        asked = card.id if alias is None else alias
        if not identity.may_use(asked):
            raise ProblemError(errors.problem_about(errors.MODEL_NOT_ALLOWED, "model"))
        tenant = self._tenants.find(asked if self._tenant_is_model else identity.tenant_id)
        if tenant is None:
            raise problem_error(self._tenants.reject_reason)
        trace.tenant_id, trace.tier_id = tenant.id, tenant.tier_id
        _note_route(trace, dispatcher, card, tenant, alias)
        return ParsedRequest(identity.tenant_id, body, body_bytes, tenant, dispatcher, card, alias)

    async def _of_alias(self, arrival: _Received, alias: str, trace: CallTrace) -> ParsedRequest:
        """The call at the first model of its alias that has a live backend; without any, at the first known model.
        Raises ProblemError.
        """
        routes, models = self._pools.routes, await self._models_of(arrival, alias)
        place = next((place for place, model in enumerate(models) if routes.is_live(model)), None)
        if place is None:
            place = next((place for place, model in enumerate(models) if routes.find(model) is not None), 0)
        route = routes.find(models[place])
        found = self.routed(arrival.identity, arrival.body, arrival.body_bytes, route, trace, alias=alias)
        return await self._at(found, models[place + 1 :])

    async def _models_of(self, arrival: _Received, alias: str) -> tuple[str, ...]:
        """The models of an alias in the order of trial for this call. A call that continues a stored response stays at
        the model that has it.
        """
        values, caller = arrival.body.values, arrival.identity.tenant_id
        previous = values.get("previous_response_id")
        if type(previous) is str:
            await self._responses.fetch(previous)
            kept = self._responses.find(previous, caller)
            if kept is not None and (kept.alias == alias or kept.model in self._aliases.targets(alias)):
                return (kept.model,)
        tenant = alias if self._tenant_is_model else caller
        named = session_name(arrival.headers, values)
        session = None if named is None else named.name
        found = self._aliases.find(alias)
        if session is None and found is not None and found.split and found.sticky == "session":
            is_long = arrival.body_bytes >= LONG_BYTES
            session = await self.long_bodies.run(beginning_name, values) if is_long else beginning_name(values)
        return self._aliases.order(alias, tenant=tenant, session=session)

    async def pass_on(self, arrival: ParsedRequest, trace: CallTrace) -> ParsedRequest | None:
        """The call at the next model of its alias that has a live backend; None where there is none."""
        for place, model in enumerate(arrival.others):
            route = self._pools.routes.find(model)
            if route is not None and self._pools.routes.is_live(model):
                dispatcher, card = route
                _note_route(trace, dispatcher, card, arrival.tenant, arrival.alias)
                following = replace(arrival, dispatcher=dispatcher, card=card)
                return await self._at(following, arrival.others[place + 1 :])
        return None

    def may_pass_on(self, arrival: ParsedRequest) -> bool:
        """Whether another model of the call's alias has a live backend."""
        return any(map(self._pools.routes.is_live, arrival.others))

    async def _at(self, arrival: ParsedRequest, others: tuple[str, ...]) -> ParsedRequest:
        """The call with the name of its present model in its body."""
        with_model, model = arrival.body.with_model, arrival.card.id
        is_long = arrival.body_bytes >= LONG_BYTES
        body = await self.long_bodies.run(with_model, model) if is_long else with_model(model)
        return replace(arrival, body=body, others=others)

    async def _body(self, request: HttpRequest, endpoint: Endpoint, data: bytes | None) -> tuple[Body, int]:
        """A body that is long, empty or (None) still arriving, and its number of bytes. Raises
        ProblemError.
        """
        with self._memory.body() as expected:
            received = await self._received(request, expected) if data is None else data
            if not received and endpoint.may_be_empty:
                return NO_BODY, 0
            content_type = request.headers.get("content-type", "")
            if len(received) < LONG_BYTES:
                return read_body(content_type, bytes(received), multipart=endpoint.multipart), len(received)
            return await self._read_long(content_type, received, multipart=endpoint.multipart), len(received)

    async def _read_long(self, content_type: str, data: bytes | bytearray, *, multipart: bool) -> Body:
        if multipart:
            return await self.long_bodies.run(read_body, content_type, bytes(data), multipart=True)
        check_content_type(content_type)
        return await self.long_bodies.read_json(data)

    async def _received(self, request: HttpRequest, expected: ExpectedBody) -> bytearray:
        try:
            async with asyncio.timeout(self._body_timeout_s):
                return await request.read_body(expected.expect)
        except TimeoutError:
            raise ProblemError(errors.BODY_TIMEOUT) from None


def _note_route(trace: CallTrace, dispatcher: Dispatcher, card: ModelCard, tenant: Tenant, alias: str | None) -> None:
    trace.model, trace.alias = card.id, alias
    if tenant.may_meet_rate_limit(trace.key_id):
        trace.rate_limits = partial(dispatcher.rate_limits, tenant, trace.key_id)
