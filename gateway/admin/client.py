"""Client of the admin API: one request, one response, with the standard library alone."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

ROOT = "/admin/v1"
TIMEOUT_S = 30.0
ANSWER_BYTES_MAX = 64 << 20
NO_HEADERS: Mapping[str, str | None] = {}


class UnreachableError(Exception):
    """No admin port answers at this URL."""


@dataclass(frozen=True, slots=True)
class AdminReply:
    """A response. `body` is the parsed JSON, {} where there is none."""

    status: int
    body: Any
    etag: str | None


class AdminClient:
    """Sends requests to the admin port at this URL, with this key. It follows no redirects."""

    def __init__(self, url: str, key: str) -> None:
        self._url = urlsplit(url)
        self._key = key

    def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None, *, headers: Mapping[str, str | None] = NO_HEADERS
    ) -> AdminReply:
        """`path` is below the API's root; a header that is None is not sent. Raises UnreachableError."""
        sent = {name: value for name, value in headers.items() if value is not None}
        sent["Authorization"] = f"Bearer {self._key}"
        if body is not None:
            sent["Content-Type"] = "application/merge-patch+json" if method == "PATCH" else "application/json"
        try:
            connection = self._connection()
            try:
                data = None if body is None else json.dumps(body).encode()
                connection.request(method, self._url.path.rstrip("/") + ROOT + path, data, sent)
                response = connection.getresponse()
                text = response.read(ANSWER_BYTES_MAX)
            finally:
                connection.close()
            return AdminReply(response.status, json.loads(text) if text else {}, response.headers.get("ETag"))
        except (OSError, HTTPException, ValueError) as error:
            raise UnreachableError(f"{self._url.geturl()} does not answer as an admin port: {error}") from error

    def _connection(self) -> HTTPConnection:
        if self._url.scheme not in ("http", "https") or not self._url.hostname:
            raise ValueError("the URL must be like http://host:port")
        kind = HTTPSConnection if self._url.scheme == "https" else HTTPConnection
        return kind(self._url.hostname, self._url.port, timeout=TIMEOUT_S)
