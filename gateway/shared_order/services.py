"""Services between the processes of one order, besides the order itself: the state of worker 0, shared counts, views.

Every process answers authenticated callers at its port (transport.py), on separate connections: a large answer does not
delay the order's frames. Each member has one such connection besides its connection for the order.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from math import inf
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import aiohttp
import msgspec
from aiohttp import WSMsgType, web

from gateway.cluster.hello import HelloError
from gateway.cluster.wire import FRAME_BYTES_MAX, wire_id
from gateway.others import Others, Service
from gateway.ports.listener import Handshakes, Listener
from gateway.shared_order.order import SharedOrder
from gateway.shared_order.place import MemberPlace, open_session
from gateway.shared_order.transport import CLOSE_S_MAX, accepting_socket, connected, greet
from gateway.store.base import StoreFull, StoreUnavailable
from gateway.tasks import Tasks, cancel

ANSWER_S_MAX: Final = 2.0
BODY_BYTES_MAX: Final = 64 << 20
STOP_S_MAX: Final = 0.2
REFUSED_S: Final = 10.0  # between log lines of refused connections: a peer that is refused tries 20 times a second
OK, NOT_FOUND, UNAVAILABLE, FULL = 200, 404, 503, 507  # as of HTTP

log = logging.getLogger(__name__)


class _Question(msgspec.Struct, array_like=True):
    number: int
    service: str
    body: bytes


class _Answer(msgspec.Struct, array_like=True):
    number: int
    status: int
    body: bytes


_pack: Final = msgspec.msgpack.Encoder().encode
_QUESTION: Final = msgspec.msgpack.Decoder(_Question)
_ANSWER: Final = msgspec.msgpack.Decoder(_Answer)


class MemberPort:
    """The port at which the other processes of a shared order (a leader decides for several processes) reach this one.
    The path /order carries the leader's and the followers' messages. The path /services carries questions to the named
    functions in `services`, and their answers.
    """

    def __init__(
        self,
        place: MemberPlace,
        services: Mapping[str, Service],
        *,
        order: Callable[[web.WebSocketResponse, str], Awaitable[None]],
    ) -> None:
        """`order` serves the order's connection of the member with this name, until the connection ends."""
        self._place = place
        self._services = services
        self._paths = {"/order": (order, FRAME_BYTES_MAX), "/services": (self._serve, BODY_BYTES_MAX)}
        self._server = web.Server(self._handle, access_log=None)
        self._asking: dict[str, web.WebSocketResponse] = {}
        self._answering = Tasks()
        self._opened = AsyncExitStack()
        self._refused, self._refused_until = 0, -inf

    async def start(self) -> None:
        """Listen, and note the address in the place. Raises OSError."""
        place, credentials = self._place, self._place.credentials
        if isinstance(place.listen, str):
            _remove(place.listen)  # of a worker 0 that was killed
            runner = web.ServerRunner(self._server, shutdown_timeout=STOP_S_MAX)
            await runner.setup()
            await web.UnixSite(runner, place.listen).start()
            self._opened.push_async_callback(runner.cleanup)
            self._opened.callback(_remove, place.listen)
            place.address = place.listen
            return
        assert credentials is not None, "replicas have credentials when they listen"
        host = place.listen[0]
        listener = Listener(
            self._server,
            place.listen,
            Handshakes(lambda: (place.credentials or credentials).accepting, self._refuse),
            stop_s_max=STOP_S_MAX,
            descriptors_ratio_max=1.0,  # members, not clients
        )
        bound = urlsplit(await listener.start()).port
        self._opened.push_async_callback(listener.stop)
        named = f"[{host}]" if ":" in host else host
        place.address = place.advertise or f"{named}:{bound}"

    async def stop(self) -> None:
        await asyncio.gather(self._answering.cancel(), self._opened.aclose())

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        found = self._paths.get(request.path)
        if found is None:
            return web.Response(status=NOT_FOUND)
        serve, bytes_max = found
        websocket = accepting_socket(bytes_max)
        await websocket.prepare(request)
        try:
            peer = await greet(websocket, self._place)
        except (HelloError, TimeoutError) as error:
            self._refuse(str(error) or "no greeting came")
            await websocket.close()
        else:
            await serve(websocket, peer.member)
        return websocket

    def _refuse(self, reason: str) -> None:
        self._refused += 1
        now = asyncio.get_running_loop().time()
        if now >= self._refused_until:
            log.warning("a connection of another process was refused (%d so far): %s", self._refused, reason)
            self._refused_until = now + REFUSED_S

    async def _serve(self, websocket: web.WebSocketResponse, name: str) -> None:
        before, self._asking[name] = self._asking.get(name), websocket
        if before is not None:
            await before.close()
        async for message in websocket:
            if message.type is not WSMsgType.BINARY:
                break
            self._answering.start(self._answer(websocket, _QUESTION.decode(message.data)))
        if self._asking.get(name) is websocket:
            del self._asking[name]

    async def _answer(self, websocket: web.WebSocketResponse, asked: _Question) -> None:
        service, status, body = self._services.get(asked.service), OK, b""
        try:
            if service is None:
                status = NOT_FOUND
            else:
                body = await service(asked.body)
        except StoreUnavailable as error:
            status, body = UNAVAILABLE, str(error).encode()
        except StoreFull as error:
            status, body = FULL, str(error).encode()
        except Exception:
            log.exception("the service %s has failed", asked.service)
            status = UNAVAILABLE
        with suppress(ConnectionError, RuntimeError):  # the asking process is gone
            await websocket.send_bytes(_pack(_Answer(asked.number, status, body)))


class ServiceClient:
    """A client that sends questions to another process's MemberPort. It uses one connection, and opens it again after
    it was lost. Made on the loop; call `close` at the end.
    """

    def __init__(self, place: MemberPlace, address: str, member: str | None = None) -> None:
        """`member` is the process that must listen at this address; None: any."""
        self.address = address
        self._place = place
        self._member = member
        self._session: aiohttp.ClientSession | None = None
        self._websocket: aiohttp.ClientWebSocketResponse | None = None
        self._opened = AsyncExitStack()  # the connection
        self._reading: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()
        self._asked: dict[int, asyncio.Future[_Answer]] = {}
        self._number = 0

    async def ask(self, service: str, body: bytes = b"") -> bytes:
        """The answer of the service. Raises StoreUnavailable where it does not answer, StoreFull."""
        self._number += 1
        number = self._number
        answered = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                websocket = await self._connected()
                await websocket.send_bytes(_pack(_Question(number, service, body)))
                answer = await answered
        except (aiohttp.ClientError, HelloError, OSError, TimeoutError) as error:
            why = str(error) or f"not in {ANSWER_S_MAX:g} s"  # a TimeoutError has no text
            raise StoreUnavailable(f"the process that has it does not answer: {why}") from error
        finally:
            del self._asked[number]
        if answer.status == FULL:
            raise StoreFull(answer.body.decode(errors="replace"))
        if answer.status != OK:
            raise StoreUnavailable(answer.body.decode(errors="replace") or f"status {answer.status}")
        return bytes(answer.body)

    async def close(self) -> None:
        await cancel(self._reading)
        await self._disconnect()
        if self._session is not None:
            await self._session.close()

    async def _connected(self) -> aiohttp.ClientWebSocketResponse:
        async with self._connecting:
            if self._websocket is None or self._websocket.closed:
                await self._disconnect()
                if self._session is None:
                    self._session, self._root = open_session(self.address)
                url = f"{self._root}/services"
                connecting = connected(self._session, url, self._place, BODY_BYTES_MAX, self._member)
                websocket, _ = await self._opened.enter_async_context(connecting)
                self._websocket = websocket
                self._reading = asyncio.create_task(self._read(websocket), name=f"answers of {self.address}")
            return self._websocket

    async def _disconnect(self) -> None:
        with suppress(OSError, TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(CLOSE_S_MAX):
                await self._opened.aclose()

    async def _read(self, websocket: aiohttp.ClientWebSocketResponse) -> None:
        try:
            async for message in websocket:
                if message.type is not WSMsgType.BINARY:
                    break
                answer = _ANSWER.decode(message.data)
                asked = self._asked.get(answer.number)
                if asked is not None and not asked.done():
                    asked.set_result(answer)
        finally:
            if websocket.closed and self._websocket is websocket:
                self._websocket = None
            for each in self._asked.values():
                if not each.done():
                    each.set_exception(ConnectionResetError("the connection has ended"))


class Peers(Others):
    """The access of one process to the other processes of its shared order (a leader decides for all): it sends
    questions to their MemberPorts. Made on the loop; call `close` at the end.
    """

    def __init__(self, order: SharedOrder, tasks: Tasks) -> None:
        super().__init__(order.place.name)
        self._place = order.place
        self._order = order
        self._tasks = tasks
        self._clients: dict[str | None, ServiceClient] = {}  # None: the leader that a parent process names
        self._closing = Tasks()

    @property
    def is_leading(self) -> bool:
        return self._order.leader is not None

    def names(self) -> list[str]:
        return [member.name for member in self._order.view().members if member.name != self.name]

    def followers(self) -> list[str]:
        return self._order.accepted.names()

    def scheduler_id(self, request_id: str) -> str:
        own = self._order.member.follower.requests.find(request_id)
        return "" if own is None else wire_id(self.name, own.number)

    def tell(self, service: str, body: bytes, name: str | None = None) -> None:
        async def tell() -> None:
            with suppress(StoreUnavailable, StoreFull):
                await (self.ask_leader(service, body) if name is None else self.ask(name, service, body))

        self._tasks.start(tell())

    async def ask_leader(self, service: str, body: bytes = b"") -> bytes:
        if self._place.leader_address is not None:
            return await self._client(None, self._place.leader_address).ask(service, body)
        leader = None if self.is_leading else self._order.member.follower.link.leader
        if leader is None:
            raise StoreUnavailable("no process leads now")
        return await self.ask(leader, service, body)

    async def ask(self, name: str, service: str, body: bytes = b"") -> bytes:
        address = self._place.addresses.get(name)
        if address is None:
            return await super().ask(name, service, body)
        return await self._client(name, address).ask(service, body)

    def forget(self, member: str) -> None:
        """Close the connection to a member that has ended."""
        client = self._clients.pop(member, None)
        if client is not None:
            self._closing.start(client.close())

    async def close(self) -> None:
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.close()
        await self._closing.finish()

    def _client(self, member: str | None, address: str) -> ServiceClient:
        client = self._clients.get(member)
        if client is None or client.address != address:
            if client is not None:
                self._closing.start(client.close())
            client = self._clients[member] = ServiceClient(self._place, address, member)
        return client


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        Path(path).unlink()
