"""Response: a complete response, sent in one write; EventStream: a response whose head was sent and whose body follows.

The handlers and the relay know all header fields. This module adds the fields for the connection (RFC 9112, 9.3), the
length and the date (RFC 9110, 6.6.1).
"""

import time
from collections.abc import Callable, Mapping
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, Protocol

from gateway.api.bodies import compact
from gateway.api.errors import WholeAnswer

PIECE_BYTES: Final = 256 * 1024
SERVER: Final[Mapping[str, str]] = {"Server": "fairlead"}
LAST_CHUNK: Final = b"0\r\n\r\n"
WITHOUT_BODY: Final = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})  # RFC 9110, 6.4.1

_STATUS_LINES: Final = {
    is_new: {status.value: f"HTTP/1.{is_new:d} {status.value} {status.phrase}\r\n" for status in HTTPStatus}
    for is_new in (False, True)
}


class Waiting(Protocol):
    """The interface of UnreadAnswer (forwarding/answers/unread_bytes.py): it accounts for the memory of a long response
    body that waits for its client.
    """

    def sending(self, cut: Callable[[str], None]) -> None:
        """Sending begins; `cut` aborts the client's connection for the given reason."""
        ...

    def moved(self) -> None:
        """The client has read a piece of the body."""
        ...

    def release(self) -> None:
        """The body no longer waits: it was sent or dropped. Idempotent."""
        ...


class Response:
    """A response that is sent whole. `fields` has its headers by name in lower case, except those for the connection,
    the length and the date. `waiting` accounts for the memory of a long body until the client has read it (None:
    nothing does): the connection tells it of each piece that the client has read, and when the body was sent or
    dropped.
    """

    __slots__ = ("body", "fields", "status", "waiting")

    def __init__(
        self,
        status: int,
        fields: dict[str, str] | None = None,
        body: bytes | bytearray = b"",
        waiting: Waiting | None = None,
    ) -> None:
        self.status = status
        self.fields: dict[str, str] = {} if fields is None else fields
        self.body = body
        self.waiting = waiting

    def head(self, *, is_new: bool, keeps: bool) -> bytes:
        """The head, which declares the length of the body."""
        fields = self.fields
        if self.status not in WITHOUT_BODY:
            if self.body and "content-type" not in fields:
                fields["content-type"] = "application/octet-stream"  # RFC 9110, 8.3
            fields["content-length"] = str(len(self.body))
        return head(self.status, fields, is_new=is_new, keeps=keeps)


class EventStream:
    """A response that is sent as a stream: its head was sent, and its body follows piece by piece. For an HTTP/1.0
    client, which does not know chunks, the end of the connection ends the body.
    """

    __slots__ = ("_is_chunked", "_write", "status")

    def __init__(self, write: Callable[[bytes], None], status: int, *, is_chunked: bool) -> None:
        self._write = write
        self._is_chunked = is_chunked
        self.status = status

    def write(self, data: bytes) -> None:
        """Send a part of the body. Raises ConnectionError where the client has disconnected."""
        self._write(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)

    def end(self) -> None:
        """Send the end of the body. Raises ConnectionError where the client has disconnected."""
        if self._is_chunked:
            self._write(LAST_CHUNK)


def head(status: int, fields: Mapping[str, str], *, is_new: bool, keeps: bool) -> bytes:
    """The bytes of a head. `is_new`: the request's version is HTTP/1.1, not 1.0; `keeps`: the connection stays open.

    Raises ValueError where a field contains a line break, so that no backend and no client can add a header.
    """
    lines, number = "", len(fields)
    for name, value in fields.items():
        lines += f"{name}: {value}\r\n"
    if lines.count("\n") != number or lines.count("\r") != number or "\0" in lines:
        raise ValueError("a header field with a line break")
    connection = "" if keeps is is_new else "connection: keep-alive\r\n" if keeps else "connection: close\r\n"
    status_line = _STATUS_LINES[is_new].get(status) or f"HTTP/1.{is_new:d} {status} \r\n"
    return f"{status_line}{lines}date: {_date.now()}\r\n{connection}\r\n".encode("utf-8", "surrogateescape")


class _Date:
    """The date as HTTP writes it (RFC 9110, 5.6.7), made once a second."""

    def __init__(self) -> None:
        self._at, self._text = 0, ""

    def now(self) -> str:
        at = int(time.time())
        if at != self._at:
            self._at, self._text = at, formatdate(at, usegmt=True)
        return self._text


_date: Final = _Date()


def to_response(answer: WholeAnswer, **headers: str) -> Response:
    """A JSON response that the gateway made. `headers` override those of `answer`."""
    fields = {"content-type": "application/json", **SERVER, **answer.headers, **headers}
    return Response(answer.status, fields, compact(answer.body))
