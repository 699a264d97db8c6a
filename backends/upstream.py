"""Connections to one backend: a request goes out in one write on an open connection and returns an HttpExchange.

Idle connections wait in a LIFO pool, so that a few stay busy and the others age and are closed. `release()` returns an
exchange's connection to the pool if the response ended cleanly, and aborts it otherwise: so a client's disconnect
reaches the backend at once. All errors become an UpstreamError here.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from backends.address_allowlist import AddressAllowlist
from backends.connection import (
    ConnectFailed,
    Connection,
    HttpExchange,
    UpstreamAway,
    UpstreamClosed,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamSilent,
)

__all__ = [
    "ConnectFailed",
    "ConnectionLimits",
    "HttpExchange",
    "Upstream",
    "UpstreamAway",
    "UpstreamClosed",
    "UpstreamError",
    "UpstreamProtocolError",
    "UpstreamSilent",
]

NO_HEADERS: Final[Mapping[str, str]] = {}
_OWN_HEADERS = frozenset({"host", "content-length", "transfer-encoding", "connection"})
AWAY_CHECK_S = 0.25
AWAY_SILENCE_S = 0.5  # with two checks: a response is left within a second of the news that its backend is away
SILENCE_CHECKS = 8  # per limit: a silent response is found an eighth late at most
JOINED_BYTES_MAX = 64 * 1024  # largest body that is joined with its head
_DEFAULT_PORTS = {"http": 80, "https": 443}


class ConnectionLimits(NamedTuple):
    """The limits of the connections to one backend. An exchange fails after `silence_s_max` seconds without a byte of
    the response. `silence_s_least` is the shortest such limit that may be set for one exchange; None: it cannot be set.
    """

    connect_timeout_s: float
    idle_s_max: float
    idle_connections_max: int
    silence_s_max: float
    silence_s_least: float | None = None


class Upstream:
    """The HTTP client of one backend, with its open connections. `url` is http or https; a path in it is put before the
    path of every request.
    """

    def __init__(
        self,
        url: str,
        limits: ConnectionLimits,
        *,
        ssl_context: ssl.SSLContext | None = None,
        address_allowlist: AddressAllowlist | None = None,
        resends: bool = True,
        is_away: Callable[[], bool] = lambda: False,
    ) -> None:
        """`address_allowlist` limits the addresses, checked for every connection; None: any. `resends`: `open` may send
        a request again. `is_away`: whether the backend answers no polls while others do; a silent exchange that another
        backend can take over then fails with UpstreamAway. ValueError for a bad `url`.
        """
        parts = urlsplit(url)
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or parts.username or parts.query or parts.fragment:
            raise ValueError(f"not a backend's URL: {url!r} (want http[s]://host[:port][/path])")
        self._host, self._port = parts.hostname, parts.port or _DEFAULT_PORTS[parts.scheme]
        self._path = parts.path.rstrip("/")
        self._host_line = f"host: {parts.netloc}"
        self._ssl = (ssl_context or ssl.create_default_context()) if parts.scheme == "https" else None
        self._address_allowlist = address_allowlist
        self._limits = limits
        self._silence_check_s = min(limits.silence_s_max, limits.silence_s_least or inf) / SILENCE_CHECKS
        self._resends = resends
        self._silence_check: asyncio.TimerHandle | None = None
        self._is_away = is_away
        self._away_check: asyncio.TimerHandle | None = None
        self._connections: set[Connection] = set()
        self._idle: deque[Connection] = deque()  # oldest first
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False
        self._all_lost = asyncio.Event()  # since it was closed

    async def open(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str] = NO_HEADERS,
        body: bytes | bytearray = b"",
        *,
        on_sent: Callable[[], None] | None = None,
    ) -> HttpExchange:
        """Send a request and wait for the head of its response. Cancelling aborts the connection. `on_sent` is called
        when the request has a connection.

        The backend may have closed a pooled connection just before. If such a connection ends without a byte of an
        answer, the request is sent once more on a new connection, unless `resends` is off. If no new connection can be
        opened, the request itself may have ended the backend. Raises UpstreamError; ValueError for a request that
        cannot be written.
        """
        request = _serialized(method, self._path + target, self._host_line, headers, body)
        connection = self._take_idle()
        if connection is None:
            return await self._send_anew(request, on_sent)
        exchange = connection.begin(request)
        if on_sent is not None:
            on_sent()
        try:
            await connection.answered
        except UpstreamClosed as error:
            exchange.release()
            if error.bytes_received or not self._resends:
                raise
            with suppress(ConnectFailed):
                return await self._send_anew(request, None)
            raise
        except BaseException:
            exchange.release()
            raise
        return exchange

    async def aclose(self) -> None:
        """Abort every connection, idle or not, and wait until all are closed."""
        self._closed = True
        for timer in (self._sweep, self._silence_check, self._away_check):
            if timer is not None:
                timer.cancel()
        self._idle.clear()
        for connection in list(self._connections):
            connection.abort()
        if self._connections:
            await self._all_lost.wait()

    @property
    def idle_connections(self) -> int:
        """The number of pooled connections."""
        return len(self._idle)

    @property
    def open_connections(self) -> int:
        """The number of all connections, idle or not."""
        return len(self._connections)

    async def _send_anew(
        self, request: Sequence[bytes | bytearray], on_sent: Callable[[], None] | None
    ) -> HttpExchange:
        connection = await self._connect()
        exchange = connection.begin(request)
        if on_sent is not None:
            on_sent()
        try:
            await connection.answered
        except BaseException:
            exchange.release()
            raise
        return exchange

    def _take_idle(self) -> Connection | None:
        idle = self._idle
        if idle and idle[0].idle_since < idle[0].loop.time() - self._limits.idle_s_max:
            self._close_old()
        while idle:
            connection = idle.pop()
            if not connection.transport.is_closing():
                return connection
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._limits.connect_timeout_s):
                connection = await self._connection(loop)
        except TimeoutError as error:
            raise ConnectFailed(f"no connection within {self._limits.connect_timeout_s} s") from error
        except (OSError, UnicodeError) as error:  # refused, unreachable, unknown name, TLS; an invalid name
            raise ConnectFailed(getattr(error, "strerror", None) or str(error) or type(error).__name__) from error
        if self._closed or connection.transport.is_closing():
            connection.abort()
            raise ConnectFailed("closed at once")
        # Added here, not when it is made: uvloop calls no connection_lost if the opening was cancelled.
        self._connections.add(connection)
        if self._silence_check is None:
            self._silence_check = loop.call_later(self._silence_check_s, self._check_silence, loop)
        if self._away_check is None and self._resends:
            self._away_check = loop.call_later(AWAY_CHECK_S, self._check_away, loop)
        return connection

    async def _connection(self, loop: asyncio.AbstractEventLoop) -> Connection:
        """Open a connection. Raises the errors of `create_connection` for the last address of a host with several."""
        hosts = (
            [self._host]
            if self._address_allowlist is None
            else await self._address_allowlist.addresses(self._host, self._port)
        )
        server_hostname = self._host if self._ssl is not None else None
        for host in hosts[:-1]:
            with suppress(OSError):
                _, connection = await loop.create_connection(
                    lambda: Connection(self, loop), host, self._port, ssl=self._ssl, server_hostname=server_hostname
                )
                return connection
        _, connection = await loop.create_connection(
            lambda: Connection(self, loop), hosts[-1], self._port, ssl=self._ssl, server_hostname=server_hostname
        )
        return connection

    def give_back(self, connection: Connection) -> None:
        """Put a connection into the pool, or abort it if the pool is full."""
        if self._closed or len(self._idle) >= self._limits.idle_connections_max:
            connection.abort()
            return
        loop = connection.loop
        connection.idle_since = loop.time()
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = loop.call_later(self._limits.idle_s_max, self._on_sweep)

    def _check_silence(self, loop: asyncio.AbstractEventLoop) -> None:
        self._silence_check = None
        for connection in self._connections:
            connection.check_silence(loop.time(), self._limits.silence_s_max)
        if self._connections:
            self._silence_check = loop.call_later(self._silence_check_s, self._check_silence, loop)

    def _check_away(self, loop: asyncio.AbstractEventLoop) -> None:
        self._away_check = None
        if self._is_away():
            for connection in self._connections:
                connection.leave(loop.time(), AWAY_SILENCE_S)
        if self._connections:
            self._away_check = loop.call_later(AWAY_CHECK_S, self._check_away, loop)

    def _on_sweep(self) -> None:
        self._sweep = None
        self._close_old()
        if self._idle:
            oldest = self._idle[0]
            self._sweep = oldest.loop.call_at(oldest.idle_since + self._limits.idle_s_max, self._on_sweep)

    def _close_old(self) -> None:
        idle = self._idle
        while idle and idle[0].loop.time() - idle[0].idle_since >= self._limits.idle_s_max:
            idle.popleft().abort()

    def lost(self, connection: Connection) -> None:
        """Drop a connection that has closed."""
        self._connections.discard(connection)
        with suppress(ValueError):  # not idle: it carried an exchange
            self._idle.remove(connection)
        if self._closed and not self._connections:
            self._all_lost.set()


def _serialized(
    method: str, target: str, host_line: str, headers: Mapping[str, str], body: bytes | bytearray
) -> tuple[bytes | bytearray, ...]:
    """The request as it is written. ValueError where it cannot be."""
    if method == "HEAD":
        raise ValueError("HEAD: the length of its response is not the length of a body")
    if " " in target:
        raise ValueError("a space in the request target")
    if not _OWN_HEADERS.isdisjoint(map(str.lower, headers)):
        raise ValueError(f"one of these headers is set here: {', '.join(headers)}")
    size = len(body)
    head = f"{method} {target} HTTP/1.1\r\n{host_line}\r\ncontent-length: {size}\r\n"
    for name, value in headers.items():
        head += f"{name}: {value}\r\n"
    if not head.count("\r") == head.count("\n") == 3 + len(headers) or "\0" in head:
        raise ValueError("a line break or NUL in the request head")
    # The client's header bytes were decoded with surrogateescape; this restores them.
    start = f"{head}\r\n".encode("utf-8", "surrogateescape")
    return (start + body,) if size <= JOINED_BYTES_MAX else (start, body)  # a large body is not copied
