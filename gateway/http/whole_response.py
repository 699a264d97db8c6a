"""A response whose body is here when its head is written: both go out in one write, and nothing is worked out twice.

aiohttp's own response looks through its headers and its request for what they might need; what the gateway relays has
that already. The rules that are left are of the connection (RFC 9112, 9.3) and the date (RFC 9110, 6.6.1).
"""

from typing import TYPE_CHECKING, cast

from aiohttp import HttpVersion11, hdrs, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.helpers import rfc822_formatted_time

if TYPE_CHECKING:
    from multidict import CIMultiDict


class WholeResponse(web.StreamResponse):
    """The answer to a POST, of a status that has a body. `fields` are all its headers, in lower case, but those of the
    connection, the length and the date.
    """

    def __init__(self, status: int, body: bytes, fields: dict[str, str]) -> None:
        super().__init__(status=status)
        self.body = body
        self.fields = fields
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
        await writer.write_eof(self.body)
        return writer

    async def write_eof(self, data: bytes = b"") -> None:
        """All is written."""
