"""WholeResponse: a response whose body is known when its head is written. Both are sent in one write.

aiohttp's own response derives headers from its request and its fields; a relayed answer has them already. What is left
to add are the rules of the connection (RFC 9112, 9.3) and the date (RFC 9110, 6.6.1).

A long body is sent in pieces, each after the client has read the one before. So nothing of it is copied, and a client
that stops reading is detected (slow_client.py).
"""

import asyncio
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
    """The account of a body that waits for its client (forwarding/answers/unread_bytes.py)."""

    def sending(self, cut: Callable[[str], None]) -> None:
        """Sending begins; `cut` aborts the client's connection for the given reason."""
        ...

    def moved(self) -> None:
        """The client has read a piece."""
        ...

    def release(self) -> None:
        """The body no longer waits: it was sent or dropped. Idempotent."""
        ...


class WholeResponse(web.StreamResponse):
    """The answer to a POST, with a status that has a body. `fields` are all its headers, in lower case, except those
    for the connection, the length and the date. `waiting` is notified as a long body is sent.
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
        """Send the head and the whole body."""
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
        await writer.write_headers(status_line, cast("CIMultiDict[str]", fields))  # the writer reads only its items
        if len(self.body) <= PIECE_BYTES:
            await writer.write_eof(bytes(self.body))
        else:
            await self._send_in_pieces(request, writer)
        self.body, self.fields = b"", {}  # aiohttp's connection keeps its last response until the next call
        return writer

    async def write_eof(self, data: bytes = b"") -> None:
        """Do nothing: `prepare` has written all."""

    async def _send_in_pieces(self, request: web.BaseRequest, writer: AbstractStreamWriter) -> None:
        connection, waiting = request.protocol, self._waiting
        if waiting is not None and isinstance(connection, StallingConnection):
            waiting.sending(connection.cut)
        whole = memoryview(self.body)
        try:
            for start in range(0, len(whole), PIECE_BYTES):
                await writer.write(whole[start : start + PIECE_BYTES])
                # A client that reads as fast as this writes lets no write wait, and then nothing else has a turn.
                await asyncio.sleep(0)
                if waiting is not None:
                    waiting.moved()
            await writer.write_eof()
        finally:
            self.body = b""  # freed before its account is released, which lets other answers arrive
            whole.release()
            if waiting is not None:
                waiting.release()
            if isinstance(connection, StallingConnection) and connection.cut_reason is not None:
                log.warning(
                    "an answer was cut (%s): request %s", connection.cut_reason, self.fields.get("x-request-id")
                )
