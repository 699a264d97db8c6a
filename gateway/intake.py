"""From an HTTP request to a call that may be queued, or to the answer why not.

Everything that can be wrong with a call is found here, before it is queued, forwarded or charged. What the
backend alone can know (a context that is too long by its tokenizer) it says itself, and that costs nothing.
"""

import asyncio
import itertools
import secrets
from collections.abc import Container
from dataclasses import dataclass

from aiohttp import web

from backends.catalog import ModelCard
from gateway.api import errors
from gateway.api.calls import CallLimits, ParsedCall, parse_call, prompt_text
from gateway.api.endpoints import Endpoint
from gateway.api.errors import BadRequest, Problem
from gateway.api.headers import request_id
from gateway.api.prompts import PREFIX_BLOCK_BYTES
from gateway.auth import Authenticator, Unauthorized
from gateway.dispatcher import Dispatcher
from gateway.pools import Pools
from gateway.prompt_tokens import ExactPromptTokens, LearntPromptTokens
from gateway.server import read_body
from gateway.telemetry import CallTrace
from gateway.tenants import TenantDirectory
from policies.types import Reason, Request, Tenant

# What a call without any limit is taken to ask for where its model's length is not known either.
CONTEXT_TOKENS_UNKNOWN = 8192


class Refused(Exception):  # noqa: N818 - an answer, not an error
    """The gateway answers the call itself."""

    def __init__(self, problem: Problem, reason: str) -> None:
        super().__init__(reason)
        self.problem = problem
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Call:
    """A call that may be queued: what was read of it, whose it is, and who serves it."""

    parsed: ParsedCall
    request: Request
    tenant: Tenant
    dispatcher: Dispatcher


class Intake:
    """Whose call is it, is it one, and which pool serves it?"""

    def __init__(
        self,
        *,
        auth: Authenticator,
        tenants: TenantDirectory,
        pools: Pools,
        limits: CallLimits,
        body_timeout_s: float,
        prompt_tokens: LearntPromptTokens,
        exact_prompt_tokens: ExactPromptTokens | None,
    ) -> None:
        self._auth = auth
        self._tenants = tenants
        self._pools = pools
        self._limits = limits
        self._body_timeout_s = body_timeout_s
        self._prompt_tokens = prompt_tokens
        self._exact_prompt_tokens = exact_prompt_tokens
        self.draining = False  # nothing new is taken: the gateway is about to end
        process = secrets.token_hex(4)  # ids of two gateways, or of one before and after a restart, are different
        self._ids = (f"fl-{process}-{number:x}" for number in itertools.count(1))

    def name(self, request: web.BaseRequest, in_flight: Container[str]) -> str:
        """The id of this request: the client's own where it is usable and not in flight."""
        return request_id(request.headers, in_flight, self._ids.__next__)

    def identify(self, request: web.BaseRequest) -> str:
        """The tenant's id. Raises Refused."""
        try:
            return self._auth.identify(request.headers).tenant_id
        except Unauthorized:
            raise _failed(errors.INVALID_API_KEY) from None

    async def take(self, request: web.BaseRequest, endpoint: Endpoint, trace: CallTrace) -> Call:
        """Everything up to the queue, noted in the trace as it becomes known. Raises Refused."""
        if self.draining:
            raise _refused(Reason.DRAINING)
        trace.tenant_id = self.identify(request)
        body = await self._body(request)
        try:
            parsed = parse_call(endpoint, body, self._limits)
        except BadRequest as error:
            raise Refused(error.problem, "bad_request") from None
        trace.model, trace.stream = parsed.model, parsed.stream
        dispatcher, card = self._route(parsed)
        trace.model = card.id
        prompt_tokens = await self._count(trace.tenant_id, card.id, endpoint, parsed, body)
        tenant = self._tenants.find(trace.tenant_id)
        if tenant is None:
            raise _refused(self._tenants.refusal)
        queued = Request(
            id=trace.request_id,
            tenant_id=tenant.id,
            model=card.id,
            arrived_at=dispatcher.now(),
            prompt_tokens=prompt_tokens,
            output_tokens_max=_output_tokens_max(parsed, card, prompt_tokens),
            choices=parsed.choices,
            body_bytes=len(body),
            endpoint=endpoint.path,
            uses_tools=parsed.uses_tools,
            prefix=parsed.prefix,
            prefix_block_tokens=prompt_tokens * PREFIX_BLOCK_BYTES / parsed.prompt_bytes if parsed.prefix else 0.0,
        )
        return Call(parsed, queued, tenant, dispatcher)

    def learn(self, call: Call, prompt_tokens: int) -> None:
        """A backend has counted the prompt."""
        if call.parsed.prompt_token_ids is None:
            request = call.request
            self._prompt_tokens.observed(
                request.tenant_id, request.model, prompt_bytes=call.parsed.prompt_bytes, prompt_tokens=prompt_tokens
            )

    async def _body(self, request: web.BaseRequest) -> bytes:
        try:
            if request.content.is_eof():  # it came with the head, as most do: a timer would cost more than the read
                return await read_body(request)
            async with asyncio.timeout(self._body_timeout_s):
                return await read_body(request)
        except web.HTTPRequestEntityTooLarge:
            raise _failed(errors.BODY_TOO_LARGE) from None
        except web.RequestPayloadError:
            raise _failed(errors.MALFORMED_HTTP) from None
        except TimeoutError:
            raise _failed(errors.BODY_TIMEOUT) from None

    def _route(self, parsed: ParsedCall) -> tuple[Dispatcher, ModelCard]:
        route = self._pools.find(parsed.model)
        if route is None:
            if self._pools.may_come():
                raise _refused(Reason.NO_BACKEND)
            raise _failed(errors.about(errors.MODEL_NOT_FOUND, "model"))
        return route

    async def _count(self, tenant_id: str, model: str, endpoint: Endpoint, parsed: ParsedCall, body: bytes) -> int:
        if parsed.prompt_token_ids is not None:
            return parsed.prompt_token_ids
        if self._exact_prompt_tokens is not None:
            counted = await self._exact_prompt_tokens.count(prompt_text(endpoint, body))
            if counted is not None:
                return counted
        return self._prompt_tokens.estimate(tenant_id, model, parsed.prompt_bytes)


def _output_tokens_max(parsed: ParsedCall, card: ModelCard, prompt_tokens: int) -> int:
    """Tokens that all choices may produce: what the call allows, as far as the context has room for it."""
    context = card.max_model_len or CONTEXT_TOKENS_UNKNOWN
    room = max(context - prompt_tokens // parsed.prompts, 1) * parsed.choices
    if parsed.output_tokens_max is None:
        return room
    return parsed.output_tokens_max if card.max_model_len is None else min(parsed.output_tokens_max, room)


def _failed(problem: Problem) -> Refused:
    return Refused(problem, problem.code or problem.type)


def _refused(reason: Reason, retry_after_s: float = 1.0) -> Refused:
    return Refused(errors.refused(reason, retry_after_s), reason)
