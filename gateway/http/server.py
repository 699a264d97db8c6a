"""GatewayServer: the connections of the data port, and the table of its paths.

Paths are an allowlist: a path that is not in the table is 404, whatever the backend serves there. A connection without
a complete head for KEEPALIVE_S is closed, whether it is idle or its client sends the head slowly. While file
descriptors are short, connections that idle after an answer are closed sooner: HTTP clients expect it, and may send a
request that crosses the close again (RFC 9112, 9.3.1). So are those on which nothing comes at all.
"""

import asyncio
import heapq
from collections import Counter
from collections.abc import Mapping
from http import HTTPMethod
from typing import Final

from gateway.api import errors
from gateway.api.endpoints import Endpoint, PathTable, api_of
from gateway.api.errors import Problem
from gateway.api.headers import Headers
from gateway.http.answer_headers import REQUEST_ID_HEADER
from gateway.http.connection import ClientConnection, Handler
from gateway.http.cors import Cors
from gateway.http.request import HttpRequest
from gateway.http.request_ids import RequestIds
from gateway.http.response import SERVER, Response, to_response

KEEPALIVE_S = 30.0
KEEPALIVE_CHECKS: Final = 60  # in that time: one is closed half a second late at most, and 10,000 are read in 1 ms

_NO_HEADERS: Final = Headers()


class GatewayServer:
    """The HTTP server of the data port: it has the connections, and the handler of each path. Made and used on one
    loop; as an asyncio protocol factory, calling it makes a ClientConnection.
    """

    def __init__(
        self,
        handlers: Mapping[Endpoint, Handler],
        *,
        names: RequestIds,
        cors: Cors,
        body_bytes_max: int,
    ) -> None:
        self.body_bytes_max = body_bytes_max
        self.cuts: Counter[str] = Counter()  # connections cut because the client read nothing, by reason
        self.closing = False  # answers say `Connection: close` while the gateway shuts down
        self.connections: set[ClientConnection] = set()
        self._loop = asyncio.get_running_loop()
        self._handlers = handlers
        self._paths = PathTable(handlers)
        self._names = names
        self._cors = cors
        self._sweep: asyncio.TimerHandle | None = None

    def __call__(self) -> ClientConnection:
        return ClientConnection(self, self._loop)

    def is_answering(self) -> bool:
        """Whether any request is being received or answered, or a client has not read all of its answer."""
        return any(each.task is not None or each.transport.get_write_buffer_size() for each in self.connections)

    def pre_shutdown(self) -> None:
        """Close each connection after its response, and connections without a request at once."""
        self.closing = True
        for connection in list(self.connections):
            connection.close_soon()

    def close_idle(self, count: int, idle_s: float, unused_s: float) -> None:
        """Close at most `count` of the connections that have been idle for `idle_s` seconds after an answer, or unused
        for `unused_s` seconds, the longest idle first. The first request of a client may be on its way, and the client
        could not tell whether it may send that again.
        """
        now = self._loop.time()
        idle = [
            (each.idle_since, id(each), each)
            for each in self.connections
            if each.has_idled_since(now - idle_s, now - unused_s)
        ]
        for *_, connection in heapq.nsmallest(count, idle):
            if not connection.has_unread_bytes():
                connection.transport.close()

    async def shutdown(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` seconds for the handlers, then cancel them; close all connections."""
        if self._sweep is not None:
            self._sweep.cancel()
        for is_patient in (True, False):
            tasks = [each.task for each in self.connections if each.task is not None]
            if not tasks:
                break
            if not is_patient:
                for task in tasks:
                    task.cancel()
            await asyncio.wait(tasks, timeout=timeout_s)
        for connection in list(self.connections):
            connection.transport.close()

    # For connections.

    def route(self, request: HttpRequest) -> Handler | None:
        endpoint = self._paths.exact.get(request.target)  # nearly all, without URL parsing
        if endpoint is None:
            endpoint, request.path_id = self._paths.find(request.path)
        return self._handlers[endpoint] if endpoint is not None and request.method in endpoint.methods else None

    def turned_away(self, request: HttpRequest) -> Response:
        """The response to a request without a handler: a CORS preflight, a redirect, 404 or 405."""
        if request.method == HTTPMethod.OPTIONS and (preflight := self._cors.preflight(request.headers)) is not None:
            return preflight
        endpoint, _ = self._paths.find(request.path)
        if endpoint is None:
            return self._without_slash(request) or to_response(errors.NOT_FOUND)
        return to_response(errors.method_not_allowed(", ".join(endpoint.methods)))

    def complete(self, request: HttpRequest, response: Response) -> None:
        """Add the headers that every response has: server, request id, and CORS for an allowed origin."""
        fields = response.fields
        if REQUEST_ID_HEADER in fields:  # made by AnswerHeaders, or relayed
            return
        fields.update(SERVER)
        fields[REQUEST_ID_HEADER] = request.request_id or self._names.name(request.headers)
        if "origin" in request.headers:
            response.fields = {**self._cors.headers(request.headers), **fields}

    def refuse(self, problem: Problem, target: str) -> Response:
        response = to_response(errors.write_answer(problem, api_of(target)))
        response.fields[REQUEST_ID_HEADER] = self._names.name(_NO_HEADERS)
        return response

    def failed(self, request: HttpRequest) -> Response:
        return to_response(errors.write_answer(errors.INTERNAL, api_of(request.path)))

    def made(self, connection: ClientConnection) -> None:
        self.connections.add(connection)
        if self._sweep is None:
            self._sweep = self._loop.call_later(KEEPALIVE_S / KEEPALIVE_CHECKS, self._close_idle)

    def lost(self, connection: ClientConnection) -> None:
        self.connections.discard(connection)

    # Internal.

    def _close_idle(self) -> None:
        """Look at all connections: to keep them in order, at each request, would cost more."""
        idle_before = self._loop.time() - KEEPALIVE_S
        for connection in list(self.connections):
            if connection.idle_since is not None and connection.idle_since <= idle_before:
                connection.transport.close()
        self._sweep = None
        if self.connections:
            self._sweep = self._loop.call_later(KEEPALIVE_S / KEEPALIVE_CHECKS, self._close_idle)

    def _without_slash(self, request: HttpRequest) -> Response | None:
        """A redirect from a path with trailing slashes to its endpoint, as vLLM's framework sends; None without an
        endpoint. The location has no host: the gateway knows the client's Host header, not the host of a proxy in front
        of it.
        """
        endpoint, path_id = self._paths.find(request.path.rstrip("/"))
        if endpoint is None:
            return None
        location = endpoint.target(path_id) + (f"?{request.query}" if request.query else "")
        return Response(307, {"location": location, **SERVER})
