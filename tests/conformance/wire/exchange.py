"""One request and its answer, with nothing between the test and the wire that would tidy them up."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Ask:
    """`body` is sent as it is where it is bytes, else as JSON; without one there is no content type either."""

    method: str
    path: str
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Got:
    """An answer. `headers` in lower case, in the order they came; `body` without the framing of chunks."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def is_stream(self) -> bool:
        return dict(self.headers).get("content-type", "").startswith("text/event-stream")


def post(path: str, body: Any, **headers: str) -> Ask:
    return Ask("POST", path, body, {name.replace("_", "-"): value for name, value in headers.items()})


def get(path: str, **headers: str) -> Ask:
    return Ask("GET", path, None, {name.replace("_", "-"): value for name, value in headers.items()})


def exchange(url: str, ask: Ask) -> Got:
    connection = HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_S)
    try:
        data = ask.body if ask.body is None or isinstance(ask.body, bytes) else json.dumps(ask.body).encode()
        headers = {"content-type": "application/json"} if data is not None else {}
        connection.request(ask.method, ask.path, data, {**headers, **ask.headers})
        response = connection.getresponse()
        names = tuple((name.lower(), value) for name, value in response.getheaders())
        return Got(response.status, names, response.read())
    finally:
        connection.close()
