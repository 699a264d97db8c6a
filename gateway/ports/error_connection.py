"""Error connection: an aiohttp connection on which the port answers errors in its own format.

This is needed because aiohttp's own pages for bad HTTP and failed handlers repeat the client's input.
"""

from typing import Protocol, runtime_checkable

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler


@runtime_checkable
class AnswersErrors(Protocol):
    """The interface of a server that makes its own error responses, to requests that cannot be parsed and to failures
    of handlers.
    """

    def answer_error(self, request: web.BaseRequest, status: int, error: BaseException | None) -> web.Response:
        """The response to an error; `status` is aiohttp's, at least 500 where a handler failed."""
        ...


class ErrorConnection(RequestHandler):
    """A client's aiohttp connection to a server that makes its own error responses (AnswersErrors). Failures are logged
    under the server's name.
    """

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
        assert isinstance(server, AnswersErrors), "a server that makes such connections answers errors"
        response = server.answer_error(request, status, exc)
        response.force_close()
        return response


def is_failure(status: int, error: BaseException | None) -> bool:
    """Whether the gateway failed; bad HTTP is the client's error."""
    return status >= 500 and not isinstance(error, HttpProcessingError)
