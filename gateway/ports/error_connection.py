"""Error connection: an aiohttp connection on which the port answers errors in its own format.

This is needed because aiohttp's own pages for bad HTTP and failed handlers repeat the client's input.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

HEADER_BYTES_MAX = 16 << 10

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class ErrorServer(web.Server):
    """A server of aiohttp that makes its own error responses, to requests that cannot be parsed and to failures of
    handlers. It logs failures, and no requests.
    """

    def __init__(self, handler: Handler, log: logging.Logger, **options: Any) -> None:
        """`options` are those of aiohttp's connections."""
        options |= {"max_line_size": HEADER_BYTES_MAX, "max_field_size": HEADER_BYTES_MAX}
        super().__init__(handler, access_log=None, logger=log, **options)

    def __call__(self) -> RequestHandler:
        return ErrorConnection(self, loop=self._loop, **self._kwargs)

    def answer_error(self, request: web.BaseRequest, status: int, error: BaseException | None) -> web.Response:
        """The response to an error; `status` is aiohttp's, at least 500 where a handler failed."""
        return web.Response(status=status)


class ErrorConnection(RequestHandler):
    """A client's aiohttp connection to an ErrorServer. Failures are logged under the server's name."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if is_failure(status, exc):
            self.logger.error("a handler failed", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("the response has begun: it cannot become an error")
        server = self._manager
        assert isinstance(server, ErrorServer), "no other server makes such connections"
        response = server.answer_error(request, status, exc)
        response.force_close()
        return response


def is_failure(status: int, error: BaseException | None) -> bool:
    """Whether the gateway failed; bad HTTP is the client's error."""
    return status >= 500 and not isinstance(error, HttpProcessingError)
