"""HTTP by hand, for what a well-behaved client hides: exact bytes, and connections cut at any moment."""

import json
import socket
import struct
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection, HTTPResponse
from types import MappingProxyType
from typing import Any, Self
from urllib.parse import urlsplit

TIMEOUT_S = 60.0
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


class Call:
    """One request on a connection of its own, sent when it is made. Leaving the block cuts the connection."""

    def __init__(
        self,
        url: str,
        path: str,
        body: bytes | Mapping[str, Any] | None = None,
        *,
        content_length: int | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`content_length`: what is said of the body, where that is not its length."""
        self._connection = HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_S)
        self._response: HTTPResponse | None = None
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = dict(headers) if body is None else {"content-type": "application/json", **headers}
        if content_length is not None:
            sent["content-length"] = str(content_length)
        self._connection.request("GET" if body is None else "POST", path, data, sent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._response is not None:
            self._response.close()
        self._connection.close()

    def reset(self) -> None:
        """Cut the connection with a RST, as a client that crashes or a firewall does."""
        assert self._connection.sock is not None
        self._connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    @property
    def response(self) -> HTTPResponse:
        """Wait for the head of the answer. TimeoutError when there is none in time."""
        if self._response is None:
            self._response = self._connection.getresponse()
        return self._response

    def events(self) -> Iterator[str]:
        """Yield the payloads of the event stream as they come, `[DONE]` among them."""
        for line in self.response:
            if line.startswith(b"data:"):
                yield line[5:].strip().decode()


def fetch(url: str, path: str, body: bytes | Mapping[str, Any] | None = None) -> tuple[int, bytes]:
    """Return status and body of one call."""
    with Call(url, path, body) as call:
        return call.response.status, call.response.read()
