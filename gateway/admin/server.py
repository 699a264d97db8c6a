"""HTTP server of the admin port: parse and validate a request by its route, run it, respond with JSON or a problem.

A handler gets only values that the route's models have validated, and no response repeats an invalid value. A change
that has begun is finished even if its client disconnects, so that the stored and the running state stay equal.
"""

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import orjson
from aiohttp import hdrs, web
from pydantic import BaseModel, ValidationError
from yarl import URL

from gateway.admin.access.change_rate import ChangeRate
from gateway.admin.access.sign_in import SignIn
from gateway.admin.idempotency import HEADER, KEY_PATTERN, Repeats
from gateway.admin.page_files import StaticFiles
from gateway.admin.problems import PROBLEM_TYPE, AdminProblem, FieldError, field_problem, invalid_problem, read_checked
from gateway.admin.routes import (
    HEADERS,
    MERGE_PATCH,
    ROOT,
    AdminAnswer,
    AdminRequest,
    Caller,
    Query,
    Role,
    Route,
    RouteTable,
    refusal,
)
from gateway.ports.error_connection import ErrorServer, is_failure
from gateway.store.base import StoreFull, StoreUnavailable, VersionConflict

BODY_TIMEOUT_S = 10.0
LINGERING_S = 10.0  # how long the rest of a rejected body is read, so that its client can read the response
KEEPALIVE_S = 30.0
WRITE_S_MAX = 60.0  # in which a client takes one piece of a file
QUERY_FIELDS_MAX = 16
JSON = "application/json"
EVENTS = "text/event-stream"
ACCEPTED = 202  # RFC 9110, 15.3.3: Location is where to ask how far it is
METRICS = "/metrics"
NOT_SIGNED_IN = Caller("", Role.VIEWER)

if TYPE_CHECKING:  # loaded only where it is configured
    from gateway.admin.access.oidc import Oidc

_KEY = re.compile(KEY_PATTERN)

log = logging.getLogger(__name__)

# The answer of the process that leads to this path and query; None where this one leads, or is alone. Raises
# StoreUnavailable.
AskLeader = Callable[[str], Awaitable[bytes | None]]


class AdminServer(ErrorServer):
    """The HTTP server of the admin port. It serves the admin routes and, for signed-in callers, the metrics. It serves
    the `files` of the page (the web interface) to every caller, because they hold no secret.
    """

    def __init__(
        self,
        table: RouteTable,
        sign_in: SignIn,
        ask_leader: AskLeader,
        render_metrics: Callable[[], Awaitable[web.Response]],
        files: StaticFiles,
        *,
        oidc: "Oidc | None" = None,
    ) -> None:
        super().__init__(self._handle, log, keepalive_timeout=KEEPALIVE_S, lingering_time=LINGERING_S)
        self._table = table
        self._sign_in = sign_in
        self._render_metrics = render_metrics
        self._ask_leader = ask_leader
        self._files = files
        self._oidc = oidc
        self._repeats = Repeats(time.monotonic)
        self._change_rate = ChangeRate()

    def answer_error(self, request: web.BaseRequest, status: int, error: BaseException | None) -> web.Response:
        """The problem for a request that could not be parsed, or for a failure of a handler."""
        is_ours = is_failure(status, error)
        return to_problem(AdminProblem(500, "the gateway failed") if is_ours else AdminProblem(400, "this is not HTTP"))

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            found = self._files.find(request)
            if found is None and self._oidc is not None:
                found = await self._oidc.answer(request)
            response = await self._answer(request) if found is None else found
        except AdminProblem as problem:
            response = to_problem(problem)
        response.headers.setdefault(hdrs.SERVER, HEADERS[hdrs.SERVER])  # a page has its own headers
        if not request.content.is_eof():  # rejected before its body was read
            response.force_close()
        return response

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        found = self._table.find(request.rel_url.raw_path)
        open_to_all = None if found is None else found[0].get(request.method)
        if found is not None and open_to_all is not None and open_to_all.role is None:
            asked = await _asked(request, open_to_all, found[1], NOT_SIGNED_IN)
            return to_response(open_to_all, await run(open_to_all, asked))
        caller = self._sign_in.caller(request.headers, request.remote)
        if request.path == METRICS and request.method == hdrs.METH_GET:
            return await self._metrics(caller)
        if found is None:
            raise AdminProblem(404, "there is no such path")
        methods, path = found
        route = methods.get(request.method)
        if route is None:
            raise AdminProblem(405, "there is no such method here", headers={hdrs.ALLOW: ", ".join(sorted(methods))})
        if (refused := refusal(caller, route.role, for_groups=route.for_groups)) is not None:
            raise AdminProblem(403, refused)
        self._change_rate.count(route, caller, time.monotonic())
        asked = await _asked(request, route, path, caller)
        self._change_rate.count(route, caller, time.monotonic(), route.changes_of(asked.body) - 1)
        if route.stream is not None and EVENTS in request.headers.get(hdrs.ACCEPT, ""):
            return await route.stream(request, asked, lambda: self._is_allowed(request, route, caller))
        if route.live:
            told = await self._ask(_target(request, caller))
            if told is not None:
                return web.Response(body=told, headers={**HEADERS, hdrs.CONTENT_TYPE: JSON})
        key = request.headers.get(HEADER) if route.method == hdrs.METH_POST else None
        if key is None:
            reply = await run(route, asked)
            return (
                to_response(route, reply) if reply.pieces is None else await _write_file(request, reply, reply.pieces)
            )
        return to_response(route, await self._run_once(request, key, route, asked))

    async def _metrics(self, caller: Caller) -> web.Response:
        if (refused := refusal(caller, Role.VIEWER)) is not None:
            raise AdminProblem(403, refused)
        return await self._render_metrics()

    async def _run_once(self, request: web.BaseRequest, key: str, route: Route, asked: AdminRequest) -> AdminAnswer:
        if not _KEY.fullmatch(key):
            raise field_problem(f"header.{HEADER}", "must be 1 to 255 visible characters of ASCII")
        once = (request.rel_url.raw_path, asked.body.model_dump_json(exclude_unset=True).encode())
        return await self._repeats.once(asked.caller, key, once, lambda: run(route, asked))

    def _is_allowed(self, request: web.BaseRequest, route: Route, before: Caller) -> bool:
        """Whether the caller may still use the route, within the same group as before."""
        try:
            caller = self._sign_in.caller(request.headers, request.remote)
        except AdminProblem:
            return False
        return route.is_for(caller) and caller.group == before.group

    async def _ask(self, target: str) -> bytes | None:
        try:
            return await self._ask_leader(target)
        except StoreUnavailable:
            raise AdminProblem(503, "the process that leads does not answer", headers={hdrs.RETRY_AFTER: "1"}) from None

    async def answer_peer(self, target: str) -> bytes:
        """The leader's answer to another process for this path and query: a live view as JSON. The asking process has
        authenticated its caller, and checked the query. Raises StoreUnavailable where the view cannot be made.
        """
        url = URL(target, encoded=True)
        found = self._table.find(url.raw_path)
        route = None if found is None else found[0].get(hdrs.METH_GET)
        if found is None or route is None or not route.live:
            raise StoreUnavailable("there is no such view")
        try:
            query = _query(url.raw_query_string, route.query)
            reply = await run(route, AdminRequest(Caller("a peer", Role.VIEWER), found[1], query, None, None, None))
        except AdminProblem as problem:
            raise StoreUnavailable(str(problem)) from problem
        return reply.json() or b""


async def run(route: Route, asked: AdminRequest) -> AdminAnswer:
    """Run the route's handler. Raises AdminProblem, also for errors of the store."""
    doing = asyncio.ensure_future(route.run(asked))
    try:
        return await asyncio.shield(doing)
    except VersionConflict:
        # With a condition the client's version is old (412); without one, another change was committed first (409).
        raise AdminProblem(
            412 if asked.if_match or asked.if_none_match else 409, "it was changed by another request meanwhile"
        ) from None
    except StoreUnavailable:
        raise AdminProblem(503, "the state cannot be written or read now", headers={hdrs.RETRY_AFTER: "1"}) from None
    except StoreFull as error:
        raise AdminProblem(409, f"there is no room: {error}") from None


def _of_group(query: Any, group: str) -> Any:
    """The query of a live view, limited to this group for its administrator. Raises AdminProblem."""
    if query.group not in (None, group):
        raise AdminProblem(404, "there is no such group")
    return query.model_copy(update={"group": group})


def _target(request: web.BaseRequest, caller: Caller) -> str:
    """The path and query of a live view, for the process that leads; for a group's administrator it names the group."""
    url = request.rel_url
    return url.raw_path_qs if caller.group is None else url.update_query(group=caller.group).raw_path_qs


async def _asked(request: web.BaseRequest, route: Route, path: Mapping[str, str], caller: Caller) -> AdminRequest:
    query = _query(request.rel_url.raw_query_string, route.query)
    if route.live and caller.group is not None:
        query = _of_group(query, caller.group)
    body = None
    if route.body is not None or route.merges is not None:
        content_type = JSON if route.body is not None else MERGE_PATCH
        body = _body(await _read(request, content_type, route.body_bytes_max), route.body)
    if_match, if_none_match = (
        request.headers.get(name) if route.versioned else None for name in (hdrs.IF_MATCH, hdrs.IF_NONE_MATCH)
    )
    return AdminRequest(caller, path, query, body, if_match, if_none_match, request.remote)


def _query(given: str, model: type[Query] | None) -> Query:
    try:
        pairs = parse_qsl(given, keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX, errors="strict")
    except ValueError:
        raise AdminProblem(400, "the query cannot be read") from None
    twice = {name for name, _ in pairs if sum(name == other for other, _ in pairs) > 1}
    if twice:
        names = [FieldError(field=f"query.{name}", reason="is there twice") for name in sorted(twice)]
        raise AdminProblem(422, "a parameter is there twice", names)
    try:
        return (model or Query).model_validate(dict(pairs))
    except ValidationError as error:
        raise invalid_problem(error, dict(pairs), model or Query, "query") from None


async def _read(request: web.BaseRequest, content_type: str, bytes_max: int) -> bytes:
    given = request.headers.get(hdrs.CONTENT_TYPE, "").partition(";")[0].strip().lower()
    if given not in (content_type, JSON):
        raise AdminProblem(415, f"send {content_type}", headers={"accept-patch": MERGE_PATCH})
    if (request.content_length or 0) > bytes_max:
        raise AdminProblem(413, f"a body has at most {bytes_max} bytes")
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while chunk := await request.content.readany():
                data += chunk
                if len(data) > bytes_max:
                    raise AdminProblem(413, f"a body has at most {bytes_max} bytes")
    except TimeoutError:
        raise AdminProblem(408, "the body did not arrive in time") from None
    except web.RequestPayloadError:
        raise AdminProblem(400, "this is not HTTP") from None
    return bytes(data)


def _body(data: bytes, model: type[BaseModel] | None) -> Any:
    """The body as an instance of the model; without a model, the merge patch as an object."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise AdminProblem(400, "the body is not JSON") from None
    if not isinstance(value, dict):
        raise AdminProblem(422, "the body must be an object", [FieldError(field="body", reason="must be an object")])
    if model is None:
        return value
    return read_checked(model, value)


def to_response(route: Route, reply: AdminAnswer) -> web.Response:
    """The HTTP response of an answer: 201 with a Location, 204 without a body, else the route's status."""
    headers = dict(HEADERS)
    if reply.etag is not None:
        headers[hdrs.ETAG] = f'"{reply.etag}"'
    if reply.location is not None:
        headers[hdrs.LOCATION] = ROOT + reply.location
    body = reply.json()
    if body is None:
        return web.Response(status=204, headers=headers)
    headers[hdrs.CONTENT_TYPE] = JSON
    is_made = reply.location is not None and route.status != ACCEPTED
    return web.Response(status=201 if is_made else route.status, body=body, headers=headers)


async def _write_file(request: web.BaseRequest, reply: AdminAnswer, pieces: AsyncIterator[bytes]) -> web.StreamResponse:
    """Write a file piece by piece. A failure ends the connection, so that its client does not take a part for the
    whole.
    """
    disposition = f'attachment; filename="{reply.file_name}"'
    headers = {**HEADERS, hdrs.CONTENT_TYPE: reply.media_type, hdrs.CONTENT_DISPOSITION: disposition}
    response = web.StreamResponse(headers=headers)
    try:
        await response.prepare(request)
        async for piece in pieces:
            async with asyncio.timeout(WRITE_S_MAX):
                await response.write(piece)
        await response.write_eof()
    except ConnectionResetError:
        pass  # its client has left
    except (StoreUnavailable, StoreFull, TimeoutError) as error:
        log.warning("%s is not complete: %s", reply.file_name, error or "its client does not read")
        if request.transport is not None:
            request.transport.abort()
    return response


def to_problem(problem: AdminProblem) -> web.Response:
    """The HTTP response of a problem (RFC 9457)."""
    headers = {**HEADERS, hdrs.CONTENT_TYPE: PROBLEM_TYPE, **problem.headers}
    return web.Response(status=problem.status, body=problem.body(), headers=headers)
