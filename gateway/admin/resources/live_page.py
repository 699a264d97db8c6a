"""The live document: once as JSON, or as a stream of server-sent events."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import orjson
from aiohttp import hdrs, web

from gateway.admin.live_page_models import LivePageDocument
from gateway.admin.problems import AdminProblem
from gateway.admin.routes import AdminAnswer, AdminRequest, Role, Route
from gateway.live.feed import TooManyViewers
from gateway.live.live import Live

HEADERS = {hdrs.CACHE_CONTROL: "no-store", "x-content-type-options": "nosniff", hdrs.SERVER: "fairlead"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePageRoutes:
    """Routes of the live document."""

    live: Live

    def routes(self) -> Iterator[Route]:
        yield Route(
            method="GET", path="/live", role=Role.VIEWER,
            summary="What the live page shows: shares, waits, backends and tenants now; as a stream once a second.",
            run=self.document, stream=self.stream, answer=LivePageDocument, stored=True,
        )  # fmt: skip

    async def document(self, _asked: AdminRequest) -> AdminAnswer:
        return AdminAnswer(encoded=orjson.dumps(await self.live.document()))

    async def stream(self, request: web.BaseRequest, is_allowed: Callable[[], bool]) -> web.StreamResponse:
        try:
            return await self.live.feed.stream(request, HEADERS, is_allowed)
        except TooManyViewers:
            raise AdminProblem(429, "too many viewers are connected", headers={hdrs.RETRY_AFTER: "10"}) from None
