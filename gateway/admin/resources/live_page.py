"""Live document routes: the whole document or one group's part, once as JSON or as a stream of server-sent events."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from aiohttp import hdrs, web

from gateway.admin.problems import AdminProblem
from gateway.admin.resources.group_scope import GroupScope
from gateway.admin.routes import HEADERS, AdminAnswer, AdminRequest, Role, Route
from gateway.config.value_types import NAME_PATTERN
from gateway.live.group_part import GroupPart
from gateway.live.live import Live
from gateway.live.schema import LiveGroupDocument, LivePageDocument
from gateway.live.stream.events import to_json
from gateway.live.stream.feed import TooManyViewers
from gateway.registry.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePageRoutes:
    """The admin routes of the data of the live page (pools, tenants and backends now), for all or for one group."""

    live: Live
    registry: Registry

    def routes(self) -> Iterator[Route]:
        yield Route(
            method="GET", path="/live", role=Role.VIEWER,
            summary="What the live page shows: shares, waits, backends and tenants now; as a stream once a second.",
            run=self.document, stream=self.stream, answer=LivePageDocument, stored=True,
        )  # fmt: skip
        yield Route(
            method="GET", path="/groups/{id}/live", role=Role.VIEWER,
            summary="What the live page shows of one group and its tenants; as a stream once a second.",
            run=self.group_document, stream=self.group_stream, answer=LiveGroupDocument, stored=True, for_groups=True,
            path_schemas={"id": {"type": "string", "pattern": NAME_PATTERN}},
        )  # fmt: skip

    async def document(self, _asked: AdminRequest) -> AdminAnswer:
        return AdminAnswer(encoded=to_json(await self.live.document()))

    async def group_document(self, asked: AdminRequest) -> AdminAnswer:
        part = self._part(asked)
        return AdminAnswer(encoded=to_json(part.of(await self.live.document())))

    async def stream(
        self, request: web.BaseRequest, _asked: AdminRequest, is_allowed: Callable[[], bool]
    ) -> web.StreamResponse:
        return await self._stream(request, is_allowed)

    async def group_stream(
        self, request: web.BaseRequest, asked: AdminRequest, is_allowed: Callable[[], bool]
    ) -> web.StreamResponse:
        part = self._part(asked)
        return await self._stream(request, lambda: is_allowed() and self._is_there(asked), part)

    def _part(self, asked: AdminRequest) -> GroupPart:
        """The part of the group that the path names. Raises AdminProblem (404)."""
        if not self._is_there(asked):
            raise AdminProblem(404, "there is no such group")
        return GroupPart(asked.id)

    def _is_there(self, asked: AdminRequest) -> bool:
        """Whether the group exists for the caller."""
        entry = self.registry.get("groups", asked.id)
        return entry is not None and GroupScope(self.registry).sees_group(asked.caller, entry)

    async def _stream(
        self, request: web.BaseRequest, is_allowed: Callable[[], bool], part: GroupPart | None = None
    ) -> web.StreamResponse:
        try:
            return await self.live.feed.stream(request, HEADERS, is_allowed, part)
        except TooManyViewers:
            raise AdminProblem(429, "too many viewers are connected", headers={hdrs.RETRY_AFTER: "10"}) from None
