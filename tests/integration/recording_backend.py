"""A backend that trusts no request: it takes requests off the wire as bytes and notes whatever is not as it must be.

The gateway writes one call at a time, in the plainest HTTP there is. Everything else that arrives here was
brought in by a client: a second request in a body, a header that became two, a length that is not the body's.
"""

import asyncio
import contextlib
import re

from gateway_rig import CHAT, MODEL, whole

from backends.kinds import BACKEND_KINDS

_FIELD = re.compile(rb"([A-Za-z0-9-]+): ([\x20-\x7e]*)")
_LENGTH = re.compile(rb"0|[1-9][0-9]{0,8}")
_FORBIDDEN = {"transfer-encoding", "connection", "upgrade", "te", "trailer", "expect", "keep-alive"}
_OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
_MODELS = whole({"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 4096}]})
# What the health checks ask for, and the kinds of servers for their size; anything else that is no call is a fault.
_POLLS = {b"GET /health": _OK, b"GET /metrics": _NOT_FOUND, b"GET /v1/models": _MODELS, b"GET /version": _NOT_FOUND}
_POLLS |= {f"GET {kind.sizes_path}".encode(): _NOT_FOUND for kind in BACKEND_KINDS.values() if kind.sizes_path}
_USAGE = {"prompt_tokens": 9, "total_tokens": 12, "completion_tokens": 3}
# What may be asked of it, by method and path.
_CALLS = {
    f"POST {CHAT}".encode(): whole({"choices": [], "usage": _USAGE}),
    b"POST /v1/responses": whole({"id": "resp_1", "status": "completed", "output": [], "usage": _USAGE}),
    b"GET /v1/responses/resp_1": whole({"id": "resp_1", "status": "completed", "output": []}),
}


class RecordingBackend:
    """`bodies`, `headers` and `targets` are what came, by x-request-id; `faults` is what may not happen."""

    def __init__(self) -> None:
        self.bodies: dict[str, list[bytes]] = {}
        self.headers: dict[str, dict[str, str]] = {}
        self.targets: dict[str, str] = {}
        self.faults: list[str] = []
        self.url = ""

    def taken(self, target: str, body: bytes, headers: dict[str, str]) -> None:
        request_id = headers["x-request-id"]
        self.bodies.setdefault(request_id, []).append(body)
        self.headers[request_id] = headers
        self.targets[request_id] = target


class _Connection(asyncio.Protocol):
    def __init__(self, backend: RecordingBackend) -> None:
        self._backend = backend
        self._data = b""

    def connection_made(self, transport):
        self._transport = transport

    def connection_lost(self, exc):
        if self._data:
            self._fault(f"the connection ended within a request: {self._data[:200]!r}")

    def data_received(self, data):
        self._data += data
        head, end, rest = self._data.partition(b"\r\n\r\n")
        if not end:
            return
        method_and_target, headers = _parsed(head)
        length = int(headers.get("content-length", "0"))
        if method_and_target is None or len(rest) > length:
            self._fault(f"not one plain request: {self._data[:1000]!r}")
        elif len(rest) == length:
            self._data = b""
            self._answer(method_and_target, headers, rest)

    def _answer(self, method_and_target: bytes, headers: dict[str, str], body: bytes) -> None:
        method_and_path = method_and_target.partition(b"?")[0]
        if method_and_path in _CALLS:
            self._backend.taken(method_and_target.decode().partition(" ")[2], body, headers)
            self._transport.write(_CALLS[method_and_path])
        elif method_and_target in _POLLS:
            self._transport.write(_POLLS[method_and_target])
        else:
            self._fault(f"asked for {method_and_target!r}")

    def _fault(self, what: str) -> None:
        self._backend.faults.append(what)
        self._data = b""
        self._transport.abort()


def _parsed(head: bytes) -> tuple[bytes | None, dict[str, str]]:
    """Method with target, and the headers; None where anything at all is out of the ordinary."""
    first, *lines = head.split(b"\r\n")
    fields = [_FIELD.fullmatch(line) for line in lines]
    if first.count(b" ") != 2 or not first.endswith(b" HTTP/1.1") or not all(fields):
        return None, {}
    pairs = [(field[1].decode().lower(), field[2].decode()) for field in fields]
    headers = dict(pairs)
    is_plain = (
        len(headers) == len(pairs)
        and not headers.keys() & _FORBIDDEN
        and "host" in headers
        and (first.startswith(b"GET ") or _LENGTH.fullmatch(headers.get("content-length", "").encode()))
    )
    return (first.removesuffix(b" HTTP/1.1") if is_plain else None), headers if is_plain else {}


@contextlib.asynccontextmanager
async def recording():
    backend = RecordingBackend()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(backend), "127.0.0.1", 0)
    backend.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield backend
    finally:
        server.close()
