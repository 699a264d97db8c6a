"""Client of the admin API, with the standard library alone: one request and its response, or a stream of events."""

import json
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, BinaryIO
from urllib.parse import quote, urlsplit

ROOT = "/admin/v1"
TIMEOUT_S = 30.0
ANSWER_BYTES_MAX = 64 << 20
PIECE_BYTES = 64 << 10
NO_HEADERS: Mapping[str, str | None] = {}


class UnreachableError(Exception):
    """An error: no admin port answers at this URL, or the URL or its key cannot be found."""


def reason_of_os(error: Exception) -> str:
    """The reason of an error in words, without its number."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


@dataclass(frozen=True, slots=True)
class AdminReply:
    """A response of the admin API. `body` is the parsed JSON, {} where there is none."""

    status: int
    body: Any
    etag: str | None


class AdminClient:
    """An HTTP client of the admin API at one URL, with a key if one is given. It follows no redirects."""

    def __init__(self, url: str, key: str | None) -> None:
        self._url = urlsplit(url)
        self._credentials = {} if key is None else {"Authorization": f"Bearer {key}"}

    def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None, *, headers: Mapping[str, str | None] = NO_HEADERS
    ) -> AdminReply:
        """Send a request and return the response; a header that is None is not sent. Raises UnreachableError. `path` is
        below the API's root.
        """
        sent = {name: value for name, value in headers.items() if value is not None}
        if body is not None:
            sent["Content-Type"] = "application/merge-patch+json" if method == "PATCH" else "application/json"
        with self._response(method, path, sent, None if body is None else json.dumps(body).encode()) as response:
            text = response.read(ANSWER_BYTES_MAX)
            return AdminReply(response.status, json.loads(text) if text else {}, response.headers.get("ETag"))

    def live_path(self) -> str:
        """The path of the live document that the key's role may see: the whole document, or its group's part. Raises
        UnreachableError, also where the key is refused.
        """
        me = self.ask("GET", "/me", None)
        if me.status != HTTPStatus.OK:
            raise UnreachableError(f"{self._url.geturl()} answers {me.status}: {me.body.get('detail', '')}")
        group = me.body.get("group")
        return "/live" if group is None else f"/groups/{quote(group, safe='')}/live"

    def events(self, path: str, *, silence_s_max: float) -> Generator[tuple[str, Any]]:
        """Yield the names and JSON data of server-sent events, until the gateway ends the stream. Raises
        UnreachableError, also for a status other than 200 and where no event comes for `silence_s_max` seconds.
        """
        with self._response("GET", path, {"Accept": "text/event-stream"}, timeout_s=silence_s_max) as response:
            if response.status != HTTPStatus.OK:
                why = _detail(response.read(ANSWER_BYTES_MAX))
                raise UnreachableError(f"{self._url.geturl()} answers {response.status}: {why}")
            yield from _events(iter(lambda: response.readline(ANSWER_BYTES_MAX), b""))

    def download(self, path: str, to: BinaryIO) -> None:
        """Write a file of the gateway to `to`. Raises UnreachableError, also for a refused request or a cut file."""
        with self._response("GET", path, {}, failure="the file is not complete") as response:
            if response.status != HTTPStatus.OK:
                raise UnreachableError(_detail(response.read(ANSWER_BYTES_MAX)))
            while piece := response.read(PIECE_BYTES):
                to.write(piece)

    @contextmanager
    def _response(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        data: bytes | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        failure: str | None = None,
    ) -> Iterator[HTTPResponse]:
        """The response, to be read in the block, where errors of the connection and of the data are UnreachableErrors,
        too. `failure` is what they say first.
        """
        try:
            with closing(self._connection(timeout_s)) as connection:
                target = self._url.path.rstrip("/") + ROOT + path
                connection.request(method, target, data, {**headers, **self._credentials})
                yield connection.getresponse()
        except (OSError, HTTPException, ValueError) as error:
            said = failure or f"{self._url.geturl()} does not answer as an admin port"
            raise UnreachableError(f"{said}: {reason_of_os(error)}") from error

    def _connection(self, timeout_s: float) -> HTTPConnection:
        if self._url.scheme not in ("http", "https") or not self._url.hostname:
            raise ValueError("the URL must be like http://host:port")
        kind = HTTPSConnection if self._url.scheme == "https" else HTTPConnection
        return kind(self._url.hostname, self._url.port, timeout=timeout_s)


def _events(lines: Iterable[bytes]) -> Iterator[tuple[str, Any]]:
    """Parse lines as server-sent events (WHATWG HTML, 9.2). Comments, ids and a truncated event yield nothing."""
    name, data = "message", b""
    for line in lines:
        field, _, value = line.rstrip(b"\r\n").partition(b":")
        value = value.removeprefix(b" ")
        if field == b"event":
            name = value.decode()
        elif field == b"data":
            data += value
        elif not field and not value:
            if data:
                yield name, json.loads(data)
            name, data = "message", b""


def _detail(body: bytes) -> str:
    """The detail of a problem document; the start of any other body."""
    try:
        return str(json.loads(body)["detail"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")
