"""Request routes: the requests that wait, run and have ended, why each waits, and the cancellation of a request."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field

from gateway.admin.models.resources import Fields, ModelName, Page, ResourceList, first_of
from gateway.admin.problems import AdminProblem
from gateway.admin.routes import AdminAnswer, AdminRequest, Role, Route
from gateway.config.value_types import REQUEST_CURSOR_PATTERN, TenantName
from gateway.registry.audit_log import REQUESTS
from gateway.registry.registry import Registry
from gateway.steering.requests import AllRequests, Cancelling, FoundRequests, Place, RequestQuery, RequestRow, State
from policies.types import Wait, WaitView

LIVING_FIRST: Final[tuple[State | None, ...]] = (None, "ended")
SENTENCES: Final = {
    Wait.NO_BACKEND: "No backend that can serve it is available.",
    Wait.BACKENDS_HELD: "The backends that can serve it have just rejected a request, and get none for a moment.",
    Wait.KEY_LIMIT: "Its API key is at its limit of requests in flight.",
    Wait.SESSION: "The contexts of other sessions fill the KV pools. By then its session gets room.",
    Wait.TENANT_LIMIT: "Its tenant is at its limit of requests in flight.",
    Wait.OWN_QUEUE: "An older request of its tenant goes first.",
    Wait.NO_ROOM: "It is its turn, but no backend has room for it yet.",
}
BEHIND: Final = "{count} older requests of its tenant go first."
OF_OTHERS: Final = "No backend has room, and it is the turn of {ahead}."


class PhasesResource(Fields):
    """The times that a request has spent in its phases so far, in seconds: in the queue, from its dispatch to its first
    token, and since then. An answer that is not streamed has its first token at its end. Null: the request has not
    reached this phase.
    """

    queue_s: float | None
    prefill_s: float | None
    decode_s: float | None


class WaitResource(Fields):
    """The reason why a request is queued, as a `reason` and as a sentence (`text`).

    `ahead`: the tenant whose request is the next one in the queue; null: it is the tenant of this request, or this
    request waits for another reason than the order of the queue. `ahead_requests`: how many requests of the same tenant
    are queued before this one. `start_s`: in how many seconds it will be sent, as predicted from these requests and the
    recent pace of its tenant's queue; null: there is no forecast.
    """

    reason: Wait
    text: str
    ahead: str | None
    ahead_requests: int
    start_s: float | None


class RequestResource(Fields):
    """One request; `id` is its x-request-id.

    The prompt tokens are estimated until the backend reports them. This report can also change `output_tokens_max`, if
    the model's context limits it. Only a queued request has `waits`; only an ended one has `outcome`, `status` and
    `ended_at`. `outcome` is how it ended, or why it was rejected; `cost` is by the price list of its model, as exact
    decimal text. `key` is the id of its API key; empty: it came without a key that the gateway stores. `trace_id` is
    the id of its trace, which its backend got; null: the client's own trace id was passed on. `slack_s`: seconds until
    its next token is due; null: it has no SLO envelope. `process`: the process that holds the client's connection.
    `arrived_at`, `ended_at`: seconds since 1970.
    """

    id: str
    pool: str | None
    tenant: str
    model: str | None
    endpoint: str
    state: Literal["queued", "running", "ended"]
    backend: str | None
    arrived_at: float
    age_s: float
    phases: PhasesResource
    prompt_tokens: int
    output_tokens: int
    output_tokens_max: int | None
    cost: str | None
    currency: str | None
    key: str
    trace_id: str | None
    waits: WaitResource | None
    slack_s: float | None
    outcome: str | None
    status: int | None
    ended_at: float | None
    process: str


class RequestPage(Page):
    """A query of one page of requests. `state` absent: the queued and the running requests. `outcome` selects among
    requests that ended.
    """

    state: Literal["queued", "running", "ended"] | None = None
    tenant: TenantName | None = None
    key: ModelName | None = None
    pool: ModelName | None = None
    model: ModelName | None = None
    backend: ModelName | None = None
    outcome: ModelName | None = None
    cursor: Annotated[str, Field(pattern=REQUEST_CURSOR_PATTERN)] | None = None


class RequestList(ResourceList):
    """A list of requests. `missing`: processes that did not answer, whose requests are not in the list."""

    items: list[RequestResource]
    missing: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRoutes:
    """The admin routes that list, show and cancel single requests."""

    registry: Registry
    requests: AllRequests

    def routes(self) -> Iterator[Route]:
        yield Route(
            method="GET", path=f"/{REQUESTS}", role=Role.VIEWER,
            summary="The requests that are queued and run, the longest first; or those that ended, the newest first.",
            run=self.listed, query=RequestPage, answer=RequestList,
        )  # fmt: skip
        yield Route(
            method="GET", path=f"/{REQUESTS}/{{id}}", role=Role.VIEWER,
            summary="One request, by its x-request-id. The last 10,000 that ended are kept.",
            run=self.read, answer=RequestResource,
        )  # fmt: skip
        yield Route(
            method="DELETE", path=f"/{REQUESTS}/{{id}}", role=Role.OPERATOR,
            summary="Cancel a request: it leaves its queue, or its backend's connection is closed. Its client gets an "
            "error.",
            run=self.cancel, status=204, conflicts="It has ended.",
        )  # fmt: skip

    async def listed(self, asked: AdminRequest) -> AdminAnswer:
        query: RequestPage = asked.query
        found = await self.requests.find(
            RequestQuery(
                after=None if query.cursor is None else _place(query.cursor),
                limit=query.limit + 1,
                **query.model_dump(exclude={"cursor", "limit"}),
            )
        )
        shown, cursor = first_of(found.rows, query.limit, lambda row: _cursor(row.place))
        items = [_shown(row, found.waits.get(row.scheduler_id)) for row in shown]
        return AdminAnswer(RequestList.model_construct(items=items, next_cursor=cursor, missing=found.missing))

    async def read(self, asked: AdminRequest) -> AdminAnswer:
        found = await self._find(asked.id)
        row = found.rows[0]
        return AdminAnswer(_shown(row, found.waits.get(row.scheduler_id)))

    async def cancel(self, asked: AdminRequest) -> AdminAnswer:
        """Cancel a request. The audit log records it first: if that fails, the request is not cancelled."""
        found = await self._find(asked.id)
        if found.rows[0].state == "ended":
            raise AdminProblem(409, "this request has ended")
        await self.registry.audit_log.note(REQUESTS, asked.id, actor=asked.caller.name)
        if await self.requests.cancel(asked.id) is not Cancelling.DONE:
            raise AdminProblem(409, "this request has ended")
        return AdminAnswer()

    async def _find(self, request_id: str) -> FoundRequests:
        """The request of this id: a living one, or else the one that ended last."""
        for state in LIVING_FIRST:
            found = await self.requests.find(RequestQuery(state=state, id=request_id, limit=1))
            if found.rows:
                return found
        if found.missing:
            raise AdminProblem(503, f"it is not found, but {len(found.missing)} processes do not answer")
        raise AdminProblem(404, "there is no such request, or it ended long ago")


def _place(cursor: str) -> Place:
    time_s, _, request_id = cursor.partition(" ")
    return float(time_s), request_id


def _cursor(place: Place) -> str:
    return f"{place[0]:.9f} {place[1]}"


def _shown(row: RequestRow, waits: WaitView | None) -> RequestResource:
    return RequestResource.made_of(
        row, phases=PhasesResource.made_of(row), waits=None if waits is None else _reason(waits)
    )


def _reason(waits: WaitView) -> WaitResource:
    text = SENTENCES[waits.reason]
    if waits.reason is Wait.NO_ROOM and waits.ahead is not None:
        text = OF_OTHERS.format(ahead=waits.ahead)
    elif waits.reason is Wait.OWN_QUEUE and waits.ahead_requests > 1:  # whose turn it is would change every moment
        text = BEHIND.format(count=waits.ahead_requests)
    return WaitResource.made_of(waits, text=text)
