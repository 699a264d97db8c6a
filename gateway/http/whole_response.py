"""A response whose body is here when its head is written: both go out in one write, and nothing is worked out twice.

aiohttp's own response looks through its headers and its request for what they might need; what the gateway relays has
that already. The rules that are left are of the connection (RFC 9112, 9.3) and the date (RFC 9110, 6.6.1).

A long body goes out piece by piece, the next one when the client has taken the last, so that nothing of it is copied
and a client that stops is known as one (stall.py).
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, cast

from aiohttp import HttpVersion11, hdrs, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.helpers import rfc822_formatted_time

from gateway.http.slow_client import StallingConnection

if TYPE_CHECKING:
    from multidict import CIMultiDict

PIECE_BYTES: Final = 256 * 1024

log = logging.getLogger(__name__)


class Waiting(Protocol):
    """An account of a body that waits to be taken."""

    def sending(self, cut: Callable[[str], None]) -> None:
        """It is being sent; `cut` gives its client up."""
        ...

    def moved(self) -> None:
        """Its client has taken some of it."""
        ...

    def release(self) -> None:
        """It waits no longer. Idempotent."""
        ...


class WholeResponse(web.StreamResponse):
    """The answer to a POST, of a status that has a body. `fields` are all its headers, in lower case, but those of the
    connection, the length and the date. `waiting` is told what becomes of a long body.
    """

    def __init__(
        self, status: int, body: bytes | bytearray, fields: dict[str, str], waiting: Waiting | None = None
    ) -> None:
        super().__init__(status=status)
        self.body = body
        self.fields = fields
        self._waiting = waiting
        self._is_sent = False

    @property
    def prepared(self) -> bool:
        return self._is_sent

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter:
        """Send all of it."""
        self._is_sent = True
        if self._keep_alive is None:
            self._keep_alive = request.keep_alive
        fields, is_new = self.fields, request.version >= HttpVersion11
        fields.setdefault("content-type", "application/octet-stream")  # RFC 9110, 8.3
        fields[hdrs.CONTENT_LENGTH] = str(len(self.body))
        fields[hdrs.DATE] = rfc822_formatted_time()
        if self._keep_alive is not is_new:  # what the version does not imply
            fields[hdrs.CONNECTION] = "keep-alive" if self._keep_alive else "close"
        writer = request.writer
        status_line = f"HTTP/1.{1 if is_new else 0} {self.status} {self.reason}"
        await writer.write_headers(status_line, cast("CIMultiDict[str]", fields))  # of which it reads the items alone
        if len(self.body) <= PIECE_BYTES:
            await writer.write_eof(bytes(self.body))
        else:
            await self._send_in_pieces(request, writer)
        self.body = b""  # aiohttp's connection keeps its last response until the next call
        return writer

    async def write_eof(self, data: bytes = b"") -> None:
        """All is written."""

    async def _send_in_pieces(self, request: web.BaseRequest, writer: AbstractStreamWriter) -> None:
        connection, waiting = request.protocol, self._waiting
        if waiting is not None and isinstance(connection, StallingConnection):
            waiting.sending(connection.cut)
        whole = memoryview(self.body)
        try:
            for start in range(0, len(whole), PIECE_BYTES):
                await writer.write(whole[start : start + PIECE_BYTES])
                if waiting is not None:
                    waiting.moved()
            await writer.write_eof()
        finally:
            self.body = b""  # before its account is closed, and others may arrive in its place
            whole.release()
            if waiting is not None:
                waiting.release()
            if isinstance(connection, StallingConnection) and connection.cut_reason is not None:
                log.warning(
                    "an answer was cut (%s): request %s", connection.cut_reason, self.fields.get("x-request-id")
                )
