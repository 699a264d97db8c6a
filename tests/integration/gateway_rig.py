"""A whole gateway in this process, in front of engines or of backends that misbehave by script."""

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import openai
from faulty_engine import FaultyServer
from listening import backend_listening
from multidict import CIMultiDict

from backends.engine.http.server import EngineServer
from backends.engine.text import text_prompt
from backends.model_identity import TEXT
from gateway.app import Gateway, open_gateway
from gateway.config import Config
from gateway.order import OwnOrder
from gateway.replicas import open_replica
from gateway.scheduling.pools import Pools
from gateway.store.sqlite import SqliteStore
from policies.types import Snapshot

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MODEL = "tiny"
HELLO = [{"role": "user", "content": "Hello there, how are you today?"}]
PATIENCE_S = 60.0  # for what would hang: a machine that others use may stop a process for seconds
FINGERPRINTED = json.dumps(TEXT)[1:30].encode()  # in what the polls ask the tokenizer
MARKER = "zebra-marker"  # in what is sent wrong, and never in an answer

# A step is about a millisecond; every answer runs to its max_tokens.
FAST = {
    "model": MODEL,
    "coefficients": "cpu-tiny",
    "max_model_len": 4096,
    "block_tokens": 128,
    "seed": 7,
    "output_tokens_mean": None,
}
SLOW = {**FAST, "speed": 0.05}  # 20 ms a step


def snapshots_of(pools: Pools) -> dict[str, Snapshot]:
    """What each pool's Scheduler shows, with all tenants."""
    return {pool: dispatcher.snapshot() for pool, dispatcher in pools.dispatchers.items()}


def call(**fields: Any) -> dict[str, Any]:
    """A chat call of 8 tokens."""
    return {"model": MODEL, "messages": HELLO, "max_tokens": 8, **fields}


async def until(condition: Callable[[], Any], timeout_s: float = PATIENCE_S, *, every_s: float = 0.002) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        await asyncio.sleep(every_s)


@contextlib.asynccontextmanager
async def engine(**options: Any):
    """An EngineServer; `url` is where it listens."""
    server = FaultyServer(**{**FAST, **options})
    server.url = await server.start()
    try:
        yield server
    finally:
        await server.stop()


def running(server: EngineServer) -> int:
    return sum(snapshot.requests_running + snapshot.requests_waiting for snapshot in server.snapshots())


def tokens_emitted(server: EngineServer) -> int:
    return sum(snapshot.emitted_tokens_total for snapshot in server.snapshots())


@dataclass
class Rig:
    """A gateway that serves, and what a test asks it."""

    gateway: Gateway
    url: str
    session: aiohttp.ClientSession

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def snapshot(self, pool: str | None = None):
        snapshots = snapshots_of(self.gateway.pools)
        return snapshots[pool] if pool else next(iter(snapshots.values()))

    def tenant(self, tenant_id: str = "anonymous"):
        return self.snapshot().tenants.get(tenant_id)

    def service(self, tenant_id: str = "anonymous") -> float:
        tenant = self.tenant(tenant_id)
        return tenant.service if tenant else 0.0

    def idle(self) -> bool:
        return not self.gateway.pools.busy() and all(
            not snapshot.queued_requests and not snapshot.in_flight_requests
            for snapshot in snapshots_of(self.gateway.pools).values()
        )

    async def post(self, body: Any = None, path: str = CHAT, **kwargs: Any) -> "Reply":
        data = body if isinstance(body, bytes) else json.dumps(call() if body is None else body).encode()
        async with self.session.post(self.url + path, data=data, **kwargs) as response:
            return Reply(response.status, response.headers, await response.read())

    async def get(self, path: str, **kwargs: Any) -> "Reply":
        async with self.session.get(self.url + path, **kwargs) as response:
            return Reply(response.status, response.headers, await response.read())

    @contextlib.asynccontextmanager
    async def openai(self, key: str = "alice"):
        # A client that verifies nothing does not read the authorities of this machine, which takes 0.05 s.
        async with openai.AsyncOpenAI(
            base_url=f"{self.url}/v1",
            api_key=key,
            max_retries=0,
            http_client=openai.DefaultAsyncHttpxClient(verify=False),
        ) as client:
            yield client


@dataclass(frozen=True)
class Reply:
    """A response as its client got it."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        return self.json["error"]

    @property
    def events(self) -> list[str]:
        """Payloads of a stream, [DONE] included."""
        assert self.body.endswith(b"\n\n")
        lines = self.body.decode().removesuffix("\n\n").split("\n\n")
        assert all(line.startswith("data: ") for line in lines)
        return [line.removeprefix("data: ") for line in lines]


def stencil(body: bytes) -> bytes:
    """Without what differs between two answers to one call."""
    return re.sub(rb'"created":\d+', b'"created":0', body)


@contextlib.asynccontextmanager
async def gateway(*backends: Any, wrap_scheduler: Any = None, store: Any = None, folder: Path = Path(), **config: Any):
    """A Rig in front of these backends: servers with a `url`, or entries of the configuration."""
    entries = [
        backend if isinstance(backend, dict) else {"name": f"b{number}", "url": backend.url}
        for number, backend in enumerate(backends)
    ]
    settings = {
        "listen": {"port": 0},
        "backends": entries,
        "access_log": {"enabled": False},
        "health": {"idle_s": 0.1, "busy_s": 0.05},
        "shutdown": {"lame_duck_s": 0.0, "drain_s": 5.0},
        **config,
    }
    made = Config(**settings).placed_in(folder)
    if made.cluster_redis is not None:
        served = await open_replica(made, made.cluster_redis, store)
    else:
        order = OwnOrder(made, wrap_scheduler=wrap_scheduler)
        served = await open_gateway(made, SqliteStore(None) if store is None else store, order=order)
    try:
        url = await served.start()
        headers = {"Content-Type": "application/json"}
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as session:
            yield Rig(served, url, session)
    finally:
        await served.stop()


@contextlib.asynccontextmanager
async def gateway_and_engine(config: Mapping[str, Any] | None = None, **options: Any):
    """One engine, and a gateway in front of it."""
    async with engine(**options) as server, gateway(server, **(config or {})) as rig:
        yield rig, server


@dataclass
class Wire:
    """A raw connection to the gateway."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def head(self) -> tuple[int, CIMultiDict[str]]:
        """Status and headers of the next response."""
        async with asyncio.timeout(PATIENCE_S):
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = CIMultiDict(line.split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split()[1]), headers

    async def reply(self, passed: Callable[[bytes], Any] = lambda _piece: None) -> Reply:
        """The next response, whole: by length, chunks or close. `passed` sees the pieces of one without length."""
        status, headers = await self.head()
        async with asyncio.timeout(PATIENCE_S):
            if "content-length" in headers:
                body = await self.reader.readexactly(int(headers["content-length"]))
            else:
                body = b""
                async for piece in self._chunks() if "transfer-encoding" in headers else self._reads():
                    body += piece
                    passed(piece)
        return Reply(status, headers, body)

    async def at_end(self, timeout_s: float = PATIENCE_S) -> bool:
        """Whether the gateway closes the connection, with nothing more to say."""
        async with asyncio.timeout(timeout_s):
            return await self.reader.read() == b""

    def reset(self) -> None:
        self.writer.transport.abort()

    async def _reads(self):
        while data := await self.reader.read(1 << 16):
            yield data

    async def _chunks(self):
        while size := int(await self.reader.readline(), 16):
            yield await self.reader.readexactly(size)
            await self.reader.readexactly(2)
        await self.reader.readline()


@contextlib.asynccontextmanager
async def wire(rig: Rig):
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    try:
        yield Wire(reader, writer)
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def http(body: Any, *headers: str, path: str = CHAT, method: str = "POST", version: str = "1.1") -> bytes:
    """A request as bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/{version}", "Host: gateway", f"Content-Length: {len(data)}"]
    lines += ["Content-Type: application/json", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


@dataclass
class Asked:
    """A request as a scripted backend received it."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass
class ScriptedBackend:
    """A backend that is well, has one model, no metrics, and answers calls as it is told.

    `script` holds what to do with the next calls, one each; `default` with all others. An action gets the
    connection and returns whether the connection may go on.
    """

    default: Callable[..., Any]
    script: list[Callable[..., Any]] = field(default_factory=list)
    model: str = MODEL
    calls: list[Asked] = field(default_factory=list)
    polls: list[Asked] = field(default_factory=list)
    healthy: bool = True
    url: str = ""
    _connections: set[asyncio.Task] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(asyncio.current_task())
        try:
            await self._serve(reader, writer)
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                asked = await read_request(reader)
                if asked.target == "/tokenize" and FINGERPRINTED in asked.body:
                    writer.write(whole({"tokens": [*text_prompt(TEXT, block_tokens=FAST["block_tokens"]).ids()]}))
                elif asked.method == "POST":
                    self.calls.append(asked)
                    action = self.script.pop(0) if self.script else self.default
                    if not await action(reader, writer):
                        break
                else:
                    self.polls.append(asked)
                    writer.write(self._poll(asked.target))

    def _poll(self, target: str) -> bytes:
        if target == "/v1/models":
            card = {"id": self.model, "object": "model", "root": self.model, "max_model_len": FAST["max_model_len"]}
            return whole({"object": "list", "data": [card]})
        found = target == "/health" and self.healthy
        return b"HTTP/1.1 %d X\r\ncontent-length: 0\r\n\r\n" % (200 if found else 503 if target == "/health" else 404)

    async def close(self) -> None:
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)


async def read_request(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _ = head[0].split(" ")
    headers = dict(line.split(": ", 1) for line in head[1:] if line)
    length = headers.get("content-length", headers.get("Content-Length", "0"))
    body = await reader.readexactly(int(length))
    return Asked(method, target, headers, body)


def whole(body: Any, status: int = 200) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(data)) + data


def answer(body: Any = None, *, status: int = 200) -> Callable[..., Any]:
    """Answer whole."""
    usage = {"prompt_tokens": 9, "total_tokens": 12, "completion_tokens": 3}
    choices = [{"index": 0, "message": {"role": "assistant", "content": "one two three"}, "finish_reason": "stop"}]
    data = whole({"choices": choices, "usage": usage} if body is None else body, status)

    async def act(reader, writer):
        writer.write(data)
        return True

    return act


def stream(*pieces: bytes, pause_s: float = 0.0, end: bool = True) -> Callable[..., Any]:
    """Send an event stream in these pieces; without `end` the connection is dropped after the last."""

    async def act(reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for piece in pieces:
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
            await asyncio.sleep(pause_s)
        if end:
            writer.write(b"0\r\n\r\n")
        return end

    return act


async def hang_up(reader, writer) -> bool:
    """Close without a byte of an answer."""
    return False


async def fall_silent(reader, writer) -> bool:
    """Never answer; end when the gateway has left."""
    await reader.read()
    return False


@contextlib.asynccontextmanager
async def scripted(default: Callable[..., Any] | None = None, *script: Callable[..., Any], model: str = MODEL):
    backend = ScriptedBackend(default or answer(), list(script), model)
    async with backend_listening(backend):
        yield backend


def assert_error(reply, status, *, code=None):
    assert reply.status == status
    assert reply.headers["Content-Type"] == "application/json"
    named = {"limit"} if "x-fairlead-limit" in reply.headers else set()
    assert set(reply.error) == {"message", "type", "param", "code", "reason"} | named
    assert reply.error["code"] == status
    assert MARKER not in reply.body.decode()
    if code is not None:
        assert reply.error["reason"] == code


def assert_untouched(rig, backend):
    """Nothing was queued, charged or forwarded."""
    assert backend.calls == []
    for snapshot in snapshots_of(rig.gateway.pools).values():
        assert snapshot.queued_requests == snapshot.in_flight_requests == 0
        assert all(tenant.service == 0 and tenant.rank == 0 for tenant in snapshot.tenants.values())


def bearer(key):
    return {"Authorization": f"Bearer {key}"}
