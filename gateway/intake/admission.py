"""RequestAdmission: turns a parsed HTTP request into a call that may be queued, or raises a problem as the answer.

Every fault of a call that the gateway can detect is found here, before the call is queued, forwarded or charged. Only
the backend can detect other faults (a context that is too long by its tokenizer); its error response costs nothing.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from backends.catalog import CONTEXT_TOKENS_MAX, ModelCard
from backends.meters import AnswerKind
from gateway.api import errors
from gateway.api.bodies import Body
from gateway.api.calls import CallLimits, ParsedCall, parse_call, prompt_text
from gateway.api.endpoints import RESPONSES, Endpoint
from gateway.api.errors import BadRequest, ProblemError, problem_error
from gateway.api.fields import CACHE_SALT, CacheSalts
from gateway.api.prompts import PREFIX_BLOCK_BYTES
from gateway.api.token_counts import ExactPromptTokens, LearntPromptTokens
from gateway.api.values import flag
from gateway.budgets.budgets import BudgetClaim, Overrun
from gateway.budgets.claims import BudgetClaims
from gateway.continuation.exclusions import Exclusion, exclusion
from gateway.http.request import HttpRequest
from gateway.http.request_ids import RequestIds
from gateway.intake.envelopes import Envelopes
from gateway.intake.long_bodies import LONG_BYTES
from gateway.intake.request_parsing import ParsedRequest, RequestParser
from gateway.intake.sessions import Sessions
from gateway.intake.stored_responses import StoredResponse, StoredResponses
from gateway.observability.telemetry import CallTrace
from gateway.scheduling.dispatcher import Dispatcher
from gateway.scheduling.pools import Pools
from gateway.scheduling.shadow_tenant import SHADOW_TENANT, idle_backends
from policies.types import Reason, Request, Tenant, Usage

# The context that is assumed where the backend does not report `max_model_len`.
CONTEXT_TOKENS_UNKNOWN = 8192


@dataclass(slots=True)
class Call:
    """A call that was parsed and checked and may be queued: its body, its tenant, and the Dispatcher of its pool.

    `owner` is the caller, by key or trusted proxy, even if the called model is the tenant (`auth.tenant_from: model`).
    `context_tokens` counts prompt tokens that are not in the body: those of the stored response that the call
    continues. `exclusion` is the reason why its stream cannot be continued at another backend; None: it can.
    `usage_max` is the highest usage that a backend can report for it.

    `alias` is the name that the client used, if it is not the model's own name. `pass_on` admits the call at the
    alias's next model that has a live backend. It returns None if there is none, and raises ProblemError. `copied`
    makes a copy of the call for another model (`RequestAdmission.copy`); None: the call must not be copied.
    """

    parsed: ParsedCall
    request: Request
    tenant: Tenant
    dispatcher: Dispatcher
    owner: str
    background: bool = False
    context_tokens: int = 0
    exclusion: Exclusion | None = Exclusion.API
    alias: str | None = None
    pass_on: "Callable[[], Awaitable[Call | None]] | None" = None
    copied: "Callable[[str, str], Call | None] | None" = None
    usage_max: Usage | None = None


@dataclass(slots=True)
class _Sized:
    """A call that was checked, with its size. `previous` is the stored response that it continues, and `own_tokens` are
    those of its prompt without that. `background`: the response is made in the background.
    """

    parsed: ParsedCall
    background: bool
    previous: StoredResponse | None
    own_tokens: int
    prompt_tokens: int
    output_tokens_max: int


class RequestAdmission:
    """The admission of parsed calls: it checks a call, determines its prompt tokens and its limit of output tokens, and
    reserves its part of budgets.
    """

    def __init__(
        self,
        *,
        request_parser: RequestParser,
        names: RequestIds,
        pools: Pools,
        responses: StoredResponses,
        limits: CallLimits,
        envelopes: Envelopes,
        cache_salts: CacheSalts,
        sessions: Sessions,
        prompt_tokens: LearntPromptTokens,
        exact_prompt_tokens: ExactPromptTokens | None,
        claims: BudgetClaims | None = None,
        continues: bool = False,
    ) -> None:
        """`continues`: whether streams may be continued at another backend."""
        self._request_parser = request_parser
        self._names = names
        self._pools = pools
        self._responses = responses
        self._limits = limits
        self._envelopes = envelopes
        self._cache_salts = cache_salts
        self._sessions = sessions
        self._prompt_tokens = prompt_tokens
        self._exact_prompt_tokens = exact_prompt_tokens
        self._claims = claims
        self._continues = continues

    async def take(self, request: HttpRequest, endpoint: Endpoint, trace: CallTrace) -> Call:
        """Parse, check and size a call, and reserve its part of the budgets. Raises ProblemError. Facts are written to
        the trace as they become known.
        """
        arrival = await self._request_parser.receive(request, endpoint, trace)
        return await self._admit(arrival, request, endpoint, trace)

    async def _pass_on(
        self, arrival: ParsedRequest, request: HttpRequest, endpoint: Endpoint, trace: CallTrace
    ) -> Call | None:
        following = await self._request_parser.pass_on(arrival, trace)
        if following is None:
            return None
        if self._claims is not None:
            self._claims.budgets.ended(trace)  # what it has reserved goes by its model
        return await self._admit(following, request, endpoint, trace)

    async def _admit(self, arrival: ParsedRequest, request: HttpRequest, endpoint: Endpoint, trace: CallTrace) -> Call:
        tenant, card = arrival.tenant, arrival.card
        sized = await self._size(arrival, request, endpoint, trace)
        parsed = sized.parsed
        if self._claims is not None:
            claim = BudgetClaim(tenant.id, trace.key_id, card.id, sized.prompt_tokens, sized.output_tokens_max)
            await self._spend(self._claims, trace, claim)
        excluded: Exclusion | None = Exclusion.API
        if not self._continues:
            excluded = Exclusion.DISABLED
        elif parsed.stream:
            excluded = exclusion(endpoint, arrival.body.values, choices=parsed.choices)
        return Call(
            parsed,
            self._request(arrival, sized, request, endpoint, trace, is_resumable=excluded is None),
            tenant,
            arrival.dispatcher,
            arrival.owner,
            sized.background,
            0 if sized.previous is None else sized.previous.context_tokens,
            excluded,
            arrival.alias,
            partial(self._pass_on, arrival, request, endpoint, trace) if arrival.others else None,
            partial(self.copy, arrival, endpoint) if arrival.alias and _may_be_copied(arrival, endpoint) else None,
            self._usage_max(parsed, card.id, arrival),
        )

    async def _size(self, arrival: ParsedRequest, request: HttpRequest, endpoint: Endpoint, trace: CallTrace) -> _Sized:
        """Check and size a call. Raises ProblemError."""
        values, is_long = arrival.body.values, arrival.body_bytes >= LONG_BYTES
        salt = self._salt(arrival) if self._cache_salts.any else None
        if is_long:
            read = self._request_parser.long_bodies.run
            parsed = await read(parse_call, endpoint, arrival.body, self._limits, salt=salt)
        else:
            parsed = parse_call(endpoint, arrival.body, self._limits, salt=salt)
        background = endpoint is RESPONSES and _in_background(values)
        trace.stream = parsed.stream
        if "request_id" in values and trace.request is None:  # else it has been queued with its name
            trace.request_id = self._names.renamed(trace.request_id, values["request_id"], request.headers)
        previous = await self._previous(arrival) if endpoint is RESPONSES else None
        own_tokens = parsed.prompt_token_ids
        if own_tokens is None and self._exact_prompt_tokens is not None:
            own_tokens = await self._exactly(self._exact_prompt_tokens, endpoint, arrival.body, is_long=is_long)
        if own_tokens is None:
            own_tokens = self._prompt_tokens.estimate(arrival.tenant.id, arrival.card.id, parsed.prompt_bytes)
        prompt_tokens = own_tokens if previous is None else own_tokens + previous.context_tokens
        output_tokens_max = _output_tokens_max(parsed, arrival.card, prompt_tokens)
        return _Sized(parsed, background, previous, own_tokens, prompt_tokens, output_tokens_max)

    def _request(
        self,
        arrival: ParsedRequest,
        sized: _Sized,
        request: HttpRequest,
        endpoint: Endpoint,
        trace: CallTrace,
        *,
        is_resumable: bool,
    ) -> Request:
        """The call as its pool's Scheduler knows it."""
        tenant, card, parsed, previous = arrival.tenant, arrival.card, sized.parsed, sized.previous
        session = self._sessions.of(tenant.id, request.headers, arrival.body.values)
        # The gateway does not know the text of a stored context, so such a call has no known prefix.
        prefix = parsed.prefix if previous is None else ()
        has_envelope = self._envelopes.any and not sized.background  # no client waits for a background response
        return Request(
            id=trace.request_id,
            tenant_id=tenant.id,
            model=card.id,
            # A call that goes on to the next model of its alias arrived when it did.
            arrived_at=arrival.dispatcher.now() if trace.request is None else trace.request.arrived_at,
            prompt_tokens=sized.prompt_tokens,
            output_tokens_max=sized.output_tokens_max,
            choices=parsed.choices,
            body_bytes=arrival.body_bytes,
            prefix=prefix,
            prefix_block_tokens=sized.own_tokens * PREFIX_BLOCK_BYTES / parsed.prompt_bytes if prefix else 0.0,
            envelope=self._envelopes.of(tenant, request.headers) if has_envelope else None,
            backend_ids=self._pools.routes.holders(card.id) if previous is None else frozenset((previous.backend_id,)),
            program_id=None if session is None else session.id,
            parent_id=None if session is None else session.parent_id,
            ends_session=session is not None and session.is_final,
            endpoint=endpoint.path,
            uses_tools=parsed.uses_tools,
            is_resumable=is_resumable,
            may_pass_on=bool(arrival.others) and self._request_parser.may_pass_on(arrival),
            key_id=trace.key_id,
        )

    def copy(self, arrival: ParsedRequest, endpoint: Endpoint, model: str, request_id: str) -> Call | None:
        """A copy of an admitted call for this model, which belongs to the tenant of shadow calls; None where no backend
        of its pool is idle. It reserves no part of any budget.
        """
        route = self._pools.routes.find(model)
        if route is None:
            return None
        dispatcher, card = route
        holders = self._pools.routes.holders(model)
        backend_ids = idle_backends(dispatcher) if holders is None else idle_backends(dispatcher) & holders
        if not backend_ids:
            return None
        body = arrival.body.with_model(model)
        salt = self._salt(arrival) if self._cache_salts.any else None
        parsed = parse_call(endpoint, body, self._limits, salt=salt)
        estimate = self._prompt_tokens.estimate(SHADOW_TENANT.id, model, parsed.prompt_bytes)
        prompt_tokens = estimate if parsed.prompt_token_ids is None else parsed.prompt_token_ids
        queued = Request(
            id=request_id,
            tenant_id=SHADOW_TENANT.id,
            model=model,
            arrived_at=dispatcher.now(),
            prompt_tokens=prompt_tokens,
            output_tokens_max=_output_tokens_max(parsed, card, prompt_tokens),
            choices=parsed.choices,
            body_bytes=arrival.body_bytes,
            backend_ids=backend_ids,
            endpoint=endpoint.path,
        )
        most = self._usage_max(parsed, model, arrival)
        return Call(parsed, queued, SHADOW_TENANT, dispatcher, SHADOW_TENANT.id, usage_max=most)

    def _usage_max(self, parsed: ParsedCall, model: str, arrival: ParsedRequest) -> Usage:
        """The most that a backend can use for the call, of which it may report less.

        That is a context for each sequence, and no more output than the call asks for. Some calls take a context for
        each of their parts: of a text that is embedded, where a token has at least one byte; of a sound, where it has
        many more; of a response, for each tool that the backend itself runs.
        """
        context = self._pools.routes.context_tokens_max(model)
        if parsed.answer is AnswerKind.TRANSCRIPTION:
            context = max(context, arrival.body_bytes)
        elif parsed.answer is AnswerKind.RESPONSES and _runs_tools(arrival.body.values):
            return Usage(CONTEXT_TOKENS_MAX, CONTEXT_TOKENS_MAX, CONTEXT_TOKENS_MAX)
        prompt_tokens = max(context * parsed.prompts, parsed.prompt_bytes)
        asked, room = parsed.output_tokens_max, context * parsed.choices
        return Usage(prompt_tokens, prompt_tokens, room if asked is None else min(asked, room))

    async def _spend(self, claims: BudgetClaims, trace: CallTrace, claim: BudgetClaim) -> None:
        """Reserve the most that the call may use from the budgets of its tenant and its key. Raises ProblemError where
        one is spent.
        """
        claimed = await claims.claim(claim)
        if isinstance(claimed, Overrun):
            raise problem_error(Reason.BUDGET_SPENT, claimed.wait_s, claimed.period)
        trace.reserved = claimed

    def learn(self, call: Call, prompt_tokens: int) -> None:
        """Update the estimator of prompt tokens with a backend's count of this call's prompt."""
        if call.parsed.prompt_token_ids is None and not call.context_tokens:
            request = call.request
            self._prompt_tokens.observed(
                request.tenant_id, request.model, prompt_bytes=call.parsed.prompt_bytes, prompt_tokens=prompt_tokens
            )

    def _salt(self, arrival: ParsedRequest) -> str | None:
        tenant = arrival.tenant
        own = arrival.body.values.get(CACHE_SALT)
        return self._cache_salts.salt(tenant_id=tenant.id, tier_id=tenant.tier_id, own=own)

    async def _previous(self, arrival: ParsedRequest) -> StoredResponse | None:
        """The stored response that the call continues; None where it continues none. Raises ProblemError."""
        previous = arrival.body.values.get("previous_response_id")
        if previous is None:
            return None
        kept = None
        if type(previous) is str:
            await self._responses.fetch(previous)
            kept = self._responses.find(previous, arrival.owner)
        route = self._pools.routes.find(kept.model) if kept is not None else None
        if kept is None or route is None or route[0] is not arrival.dispatcher:  # unknown here, or of another pool
            raise ProblemError(errors.problem_about(errors.RESPONSE_NOT_FOUND, "previous_response_id"))
        return kept

    async def _exactly(self, tokens: ExactPromptTokens, endpoint: Endpoint, body: Body, *, is_long: bool) -> int | None:
        """The tokens of the prompt; None where it is too long to count."""
        if is_long:
            text = await self._request_parser.long_bodies.run(prompt_text, endpoint, body)
        else:
            text = prompt_text(endpoint, body)
        return await tokens.count(text)


def _may_be_copied(arrival: ParsedRequest, endpoint: Endpoint) -> bool:
    """Whether a shadow may get a copy of the call. Not where backends may store responses, nor for a long body, which
    would have to be held twice.
    """
    return endpoint is not RESPONSES and arrival.body_bytes < LONG_BYTES


def _runs_tools(values: Mapping[str, Any]) -> bool:
    """Whether the backend runs tools of its own for the response, and generates again with their results."""
    tools = values.get("tools")
    return type(tools) is list and any(type(tool) is dict and tool.get("type") != "function" for tool in tools)


def _in_background(values: Mapping[str, Any]) -> bool:
    """Whether the response is made in the background. Raises BadRequest."""
    background = flag(values, "background")
    if background and flag(values, "stream"):
        # After a disconnect from such a stream the backend works on, and the gateway could not tell for how long.
        raise BadRequest("'background' cannot be streamed here: ask for the response by its id.", param="background")
    return background


def _output_tokens_max(parsed: ParsedCall, card: ModelCard, prompt_tokens: int) -> int:
    """The most output tokens of all choices together: the call's own limit, or the room in the context."""
    context = card.max_model_len or CONTEXT_TOKENS_UNKNOWN
    room = max(context - prompt_tokens // parsed.prompts, 1) * parsed.choices
    if parsed.output_tokens_max is None:
        return room
    return parsed.output_tokens_max if card.max_model_len is None else min(parsed.output_tokens_max, room)
