"""Transport: frames of the shared order over WebSockets of aiohttp, on TCP or a Unix socket (place.py).

On TCP both sides have first shown certificates of the cluster (credentials.py); each then sends its name, which its
certificate must contain. Messages wait in a queue of the connection; the order gets the size and age of the queue, so
that it notices a side that does not read (rule 26).
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import aiohttp
from aiohttp import ClientWebSocketResponse, WSMsgType, web

from gateway.cluster.hello import Hello, HelloError, OtherMemberError
from gateway.shared_order.place import MemberPlace

Socket = web.WebSocketResponse | ClientWebSocketResponse

GREETING_S_MAX: Final = 5.0
CLOSE_S_MAX: Final = 0.5
READ_BYTES_MAX: Final = 1 << 16  # in one turn of the loop: with frames of the usual size, 2 ms


class OrderConnection:
    """An open WebSocket to another process of a shared order, with its unsent messages. Made and used on one loop."""

    def __init__(self, websocket: Socket, peer: str, clock: Callable[[], float]) -> None:
        self.peer = peer
        self._websocket = websocket
        self._clock = clock
        self._queue: deque[tuple[bytes, float]] = deque()
        self._queued_bytes = 0
        self._waiting: asyncio.Future[None] | None = None  # the writer waits for something to send
        self._rest: Awaitable[None] | None = None  # of what is being sent
        self._sending_since: float | None = None
        self._sending_bytes = 0
        self._closing = False
        self._writer = asyncio.create_task(self._write(), name=f"write to {peer}")

    def send(self, body: bytes) -> None:
        """Send this message after all earlier ones: at once if the peer reads, because a turn of a busy loop takes
        several milliseconds.
        """
        if self._waiting is None or self._waiting.done() or self._closing:  # the writer is at work
            self._queue.append((body, self._clock()))
            self._queued_bytes += len(body)
            return
        sending = self._websocket.send_bytes(body)
        with suppress(StopIteration, OSError, ConnectionError, RuntimeError):  # it is sent, or the reader notices
            self._rest = _Rest(sending, sending.send(None))
            self._sending_since, self._sending_bytes = self._clock(), len(body)
            self._waiting.set_result(None)

    def unsent(self, now: float) -> tuple[int, float]:
        """The number of bytes that the peer has not taken, and the seconds for which the oldest of them wait."""
        since = self._sending_since if self._sending_since is not None else (self._queue[0][1] if self._queue else now)
        return self._queued_bytes + self._sending_bytes, now - since

    async def run(self, received: Callable[[bytes], None]) -> None:
        """Pass every message to `received` until the connection ends. Raises the errors of `received`."""
        read = 0
        try:
            async for message in self._websocket:
                if message.type is not WSMsgType.BINARY:
                    return
                received(message.data)
                read += len(message.data)
                if read >= READ_BYTES_MAX:  # what has come is read without a pause otherwise
                    read = 0
                    await asyncio.sleep(0)
        finally:
            self._closing = True
            self._writer.cancel()

    def close(self) -> None:
        """Close the connection at once: queued messages are not sent."""
        if not self._closing:
            self._closing = True
            self._writer.cancel()
            self._ending = asyncio.create_task(self._close())

    async def _close(self) -> None:
        with suppress(OSError, TimeoutError, ConnectionError):
            async with asyncio.timeout(CLOSE_S_MAX):
                await self._websocket.close()

    async def _write(self) -> None:
        with suppress(OSError, ConnectionError, RuntimeError):  # the reading side notices that it is gone
            while True:
                while self._queue or self._rest is not None:
                    if self._rest is None:
                        body, self._sending_since = self._queue.popleft()
                        self._queued_bytes -= len(body)
                        self._sending_bytes = len(body)
                        self._rest = self._websocket.send_bytes(body)
                    await self._rest
                    self._rest, self._sending_since, self._sending_bytes = None, None, 0
                self._waiting = asyncio.get_running_loop().create_future()
                await self._waiting
                self._waiting = None


class _Rest:
    """The rest of a coroutine that was begun without a task, and waits for a future. Await it once."""

    def __init__(self, begun: Coroutine[Any, Any, None], future: Any) -> None:
        self._begun = begun
        self._future = future

    def __await__(self) -> Generator[Any, Any, None]:
        yield self._future
        yield from self._begun.__await__()


async def greet(websocket: Socket, place: MemberPlace) -> Hello:
    """Exchange versions and names; return the peer's Hello, whose name is checked against its certificate. Raises
    HelloError, TimeoutError.
    """
    own = Hello(place.version, place.name, place.leads)
    async with asyncio.timeout(GREETING_S_MAX):
        await websocket.send_bytes(own.encode())
        message = await websocket.receive()
    if message.type is not WSMsgType.BINARY:
        raise HelloError("the connection ended before a greeting")
    peer = own.met(message.data)
    tls = websocket.get_extra_info("ssl_object")
    if place.credentials is not None and not place.credentials.are_of(peer.member, tls):
        raise HelloError(f"the certificate of {peer.member!r} is not its own")
    return peer


@asynccontextmanager
async def connected(
    session: aiohttp.ClientSession, url: str, place: MemberPlace, bytes_max: int, member: str | None
) -> AsyncGenerator[tuple[ClientWebSocketResponse, Hello]]:
    """A connection to the member (None: any) at this URL, for messages of at most `bytes_max` bytes, and the peer's
    Hello. Raises HelloError, TimeoutError, OSError, ClientError.
    """
    tls = True if place.credentials is None else place.credentials.connecting
    try:
        websocket = await session.ws_connect(url, max_msg_size=bytes_max + 1, ssl=tls)
    except aiohttp.ClientSSLError as error:
        raise HelloError(f"the process there does not know the cluster's secret ({error})") from error
    async with websocket:
        peer = await greet(websocket, place)
        if member not in (None, peer.member):  # its address is another's now, or something in between leads elsewhere
            raise OtherMemberError(f"{peer.member} listens there")
        yield websocket, peer


def accepting_socket(bytes_max: int) -> web.WebSocketResponse:
    """The server's side of a connection, for messages of at most `bytes_max` bytes. The order pings by itself."""
    return web.WebSocketResponse(max_msg_size=bytes_max + 1, compress=False, timeout=CLOSE_S_MAX)
