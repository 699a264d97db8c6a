"""Trial routes: one prompt to one model as a tenant. The tenant's limits hold, and the tenant is charged. The audit log
names the caller, the tenant and the model; the prompt and the answer are not stored.
"""

from collections.abc import Callable, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Annotated

import msgspec
from aiohttp import hdrs, web
from pydantic import BeforeValidator, Field

from gateway.admin.models.resources import Fields, ModelName
from gateway.admin.problems import AdminProblem, field_problem
from gateway.admin.resources.group_scope import GroupScope
from gateway.admin.routes import HEADERS, AdminAnswer, AdminRequest, Role, Route
from gateway.config.value_types import TenantName, whole
from gateway.http.event_stream import COMMENT
from gateway.registry.audit_log import TRIALS
from gateway.registry.registry import Registry
from gateway.steering.trials import TrialCall, TrialResult, Trials

PROMPT_CHARS_MAX = 10_000  # of four bytes each at most, it fits into a body
OUTPUT_TOKENS_MAX = 4_096  # some minutes of reading


class TrialAsked(Fields):
    """A request for a trial call, which sends `prompt` to this model or alias as this tenant. `max_tokens` limits the
    answer.
    """

    tenant: TenantName
    model: ModelName
    prompt: Annotated[str, Field(min_length=1, max_length=PROMPT_CHARS_MAX)]
    max_tokens: Annotated[int, Field(ge=1, le=OUTPUT_TOKENS_MAX), BeforeValidator(whole)] = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRoutes:
    """The admin route of trials: calls from the admin API as a chosen tenant, each with one prompt to one model."""

    registry: Registry
    trials: Trials

    def routes(self) -> Iterator[Route]:
        yield Route(
            method="POST", path=f"/{TRIALS}", role=Role.OPERATOR,
            summary="Send one prompt to one model as a tenant, whose limits hold and which pays. No text is kept.",
            run=self.run, stream=self.stream, body=TrialAsked, answer=TrialResult, for_groups=True,
            conflicts="Models are the tenants here, and the tenant is not the model.",
        )  # fmt: skip

    async def run(self, asked: AdminRequest) -> AdminAnswer:
        trial = await self._begin(asked)
        async for piece in self.trials.run(trial):
            if isinstance(piece, TrialResult):
                return AdminAnswer(encoded=msgspec.json.encode(piece))
        raise AssertionError("a trial has a result")

    async def stream(
        self, request: web.BaseRequest, asked: AdminRequest, is_allowed: Callable[[], bool]
    ) -> web.StreamResponse:
        """Send the text as events `text` (JSON strings), then one event `result`. A disconnect ends the call."""
        trial = await self._begin(asked)
        response = web.StreamResponse(headers={**HEADERS, hdrs.CONTENT_TYPE: "text/event-stream; charset=utf-8"})
        with suppress(ConnectionError):
            await response.prepare(request)
            async with aclosing(self.trials.run(trial)) as pieces:
                async for piece in pieces:
                    if not is_allowed():
                        break
                    await response.write(_event(piece) if piece else COMMENT)
        return response

    async def _begin(self, asked: AdminRequest) -> TrialCall:
        body: TrialAsked = asked.body
        if not GroupScope(self.registry).sees_tenant_named(asked.caller, body.tenant):
            raise field_problem("body.tenant", "is no tenant")
        trial = TrialCall(tenant=body.tenant, model=body.model, prompt=body.prompt, output_tokens_max=body.max_tokens)
        if not self.trials.is_of_tenant(trial):
            raise AdminProblem(409, "models are the tenants here: choose the model as the tenant")
        await self.registry.audit_log.note(TRIALS, f"{body.tenant} at {body.model}", actor=asked.caller.name)
        return trial


def _event(piece: str | TrialResult) -> bytes:
    name = b"result" if isinstance(piece, TrialResult) else b"text"
    return b"event: %b\ndata: %b\n\n" % (name, msgspec.json.encode(piece))
