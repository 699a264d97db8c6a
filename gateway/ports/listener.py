"""Listener: binds one port to a server, with its certificate, and accepts its connections.

An event loop accepts one connection at a port in a turn. Where the gateway is short of CPU, turns are long, and more
than one connection arrives in each. They would wait in the order of their arrival, and the kernel would drop them
before the gateway could know their tenants and use the fair queue. So a turn in which a connection arrives accepts all
waiting connections.

Without a free file descriptor, uvloop (libuv) accepts a connection and closes it at once, and other loops try again in
every turn. This listener instead stops accepting while descriptors are short; `pause` serves other reasons. Connections
then wait in the kernel. Clients see only that connections take long, so the gateway logs it (Descriptors). Connections
that idle would keep them waiting, so these are closed.

At a port where clients authenticate by TLS, any machine that can reach the port can begin a handshake, so only a few
handshakes are in progress at once.
"""

import asyncio
import errno
import logging
import os
import resource
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final, Protocol

from gateway.config.sections import ServerTls
from gateway.store.periodic import Periodic

if TYPE_CHECKING:  # loaded only where a port has a certificate
    from gateway.ports.certificate import Certificate

BACKLOG: Final = 4096
# Of a turn. To accept as many takes about as long as the calls that a turn of a busy gateway begins
# (DECISIONS_MAX of policies/pool/scheduler_parts.py).
ACCEPTS_MAX: Final = 64
DESCRIPTORS_RATIO_MAX: Final = 0.75  # of the limit, for clients; the others are for connections to backends and files
LOOK_AGAIN_S: Final = 0.1  # while descriptors are short: costs two system calls
HANDSHAKES_MAX: Final = ACCEPTS_MAX  # under way at once: a turn never ends one that it has begun
HANDSHAKE_S_MAX: Final = 5.0  # so long a client may take to say its first word, where others wait for its place
OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
SHORT_OF_DESCRIPTORS: Final = "descriptors"
LOOK_S: Final = 1.0
SAID_AGAIN_S: Final = 60.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Handshakes:
    """The limits on TLS handshakes at a port where clients authenticate by certificates. `context` returns the TLS
    settings for one handshake.

    At most HANDSHAKES_MAX handshakes are in progress, each for at most `s_max` seconds. A further handshake ends the
    oldest one, which is hardly of a valid client: that needs two round trips at most. `failed` is called with the
    reason of each failure.
    """

    context: Callable[[], ssl.SSLContext]
    failed: Callable[[str], None]
    s_max: float = HANDSHAKE_S_MAX


class PortServer(Protocol):
    """The interface of a server that handles the connections of a port: aiohttp's, or that of the data port."""

    def __call__(self) -> asyncio.BaseProtocol:
        """The protocol of a new connection."""
        ...

    def pre_shutdown(self) -> None:
        """Close connections that have no request, and every other connection after its response."""
        ...

    def shutdown(self, timeout: float, /) -> Awaitable[None]:
        """Wait at most `timeout` seconds for responses in progress, then end them."""
        ...


class Listener:
    """The listener of one port, with or without TLS. Call `start` on the loop that runs it, and `stop`."""

    def __init__(
        self,
        server: PortServer,
        address: tuple[str, int],
        security: ServerTls | Handshakes | None,
        *,
        stop_s_max: float,
        inherited: socket.socket | None = None,
        descriptors_ratio_max: float = DESCRIPTORS_RATIO_MAX,
        close_idle: Callable[[int, float, float], None] | None = None,
    ) -> None:
        """The listener uses this host and port, with a certificate, or with Handshakes if clients authenticate by
        certificates. `stop_s_max` is the time in seconds for responses in progress when it stops. Raises ValueError if
        the files have no certificate.

        `inherited` is a socket of several processes that already listens there: then each accept takes one connection,
        so that no process takes more than it can serve. Accepting pauses when more than `descriptors_ratio_max` of the
        process's file descriptors are in use. `close_idle` is then called at each look: it closes at most so many
        connections that have been idle for so many seconds after an answer, or unused for so many seconds.
        """
        self._server = server
        self._inherited = inherited
        self._accepts_max = ACCEPTS_MAX if inherited is None else 1
        self._address = address
        self._stop_s_max = stop_s_max
        self._descriptors_ratio_max = descriptors_ratio_max
        self._close_idle = close_idle
        self._sockets: list[socket.socket] = []
        self._pauses: set[str] = set()  # the reasons
        self._looking: asyncio.TimerHandle | None = None
        self._connecting: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._handshakes = security if isinstance(security, Handshakes) else None
        files = None if isinstance(security, Handshakes) else security
        self._certificate = None if files is None else _make_certificate(files)
        self._context = None if self._certificate is None else self._certificate.context

    async def start(self) -> str:
        """Listen, and return the URL. Raises OSError where the port is in use."""
        self._loop = asyncio.get_running_loop()
        self._sockets = await self._bind() if self._inherited is None else [self._inherited.dup()]
        if self._certificate is not None:
            self._certificate.renewal.start()
        for listening in self._sockets:
            listening.setblocking(False)
        self._listen_again()
        host, port = self._sockets[0].getsockname()[:2]
        scheme = "http" if self._context is None and self._handshakes is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    async def stop(self) -> None:
        """Close every connection and the port."""
        if self._certificate is not None:
            await self._certificate.renewal.stop()
        if self._looking is not None:
            self._looking.cancel()
        while self._sockets:
            listening = self._sockets.pop()
            self._loop.remove_reader(listening)
            listening.close()
        for task in self._connecting:
            task.cancel()
        await asyncio.sleep(0)  # handlers of requests that have just arrived begin
        self._server.pre_shutdown()
        await self._server.shutdown(self._stop_s_max)

    def pause(self, reason: str) -> None:
        """Accept no connection until `resume` is called for every reason. Idempotent."""
        if not self._pauses:
            for listening in self._sockets:
                self._loop.remove_reader(listening)
        self._pauses.add(reason)

    def resume(self, reason: str) -> None:
        """Remove a reason to pause. Idempotent."""
        if reason in self._pauses:
            self._pauses.discard(reason)
            self._listen_again()

    def _listen_again(self) -> None:
        if not self._pauses:
            for listening in self._sockets:
                self._loop.add_reader(listening, self._accept, listening)

    async def _bind(self) -> list[socket.socket]:
        """Sockets that listen at all addresses of the host; the event loop resolves and binds them."""
        bound = await self._loop.create_server(self._server, *self._address, start_serving=False)
        sockets = [socket.socket(fileno=os.dup(each.fileno())) for each in bound.sockets]
        for each in sockets:
            each.listen(BACKLOG)
        bound.close()
        return sockets

    def _accept(self, listening: socket.socket) -> None:
        """Accept the connections that wait at this socket."""
        for _ in range(self._accepts_max):
            try:
                connection, _address = listening.accept()
            except OSError as error:  # mostly: none waits
                if error.errno in OUT_OF_DESCRIPTORS:
                    self._await_descriptors()
                return
            task = self._loop.create_task(self._connect(connection))
            self._connecting[task] = None
            task.add_done_callback(lambda ended: self._connecting.pop(ended, None))
            if self._handshakes is not None and len(self._connecting) > HANDSHAKES_MAX:
                oldest = next(iter(self._connecting))
                del self._connecting[oldest]  # it ends in the next turn, and others come in this one
                oldest.cancel()
            if connection.fileno() >= descriptors_max(self._descriptors_ratio_max):
                self._await_descriptors()
                return

    def _await_descriptors(self) -> None:
        self.pause(SHORT_OF_DESCRIPTORS)
        self._looking = self._loop.call_later(LOOK_AGAIN_S, self._look)

    def _look(self) -> None:
        if are_descriptors_short(self._descriptors_ratio_max):
            if self._close_idle is not None:  # as many as are accepted in a turn, and idle since the last look
                self._close_idle(ACCEPTS_MAX, LOOK_AGAIN_S, HANDSHAKE_S_MAX)
            self._await_descriptors()
        else:
            self.resume(SHORT_OF_DESCRIPTORS)

    async def _connect(self, connection: socket.socket) -> None:
        proving = self._handshakes
        try:
            if proving is None:
                await self._loop.connect_accepted_socket(self._server, connection, ssl=self._context)
            else:
                await self._loop.connect_accepted_socket(
                    self._server, connection, ssl=proving.context(), ssl_handshake_timeout=proving.s_max
                )
        except (OSError, TimeoutError) as error:  # its client has left, or fails at its handshake
            if proving is not None:
                proving.failed(str(error) or "nothing came")
            with suppress(OSError):
                connection.close()


def descriptors_max(ratio: float) -> float:
    """The number of file descriptors that makes up this part of the process's limit."""
    return ratio * resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def are_descriptors_short(ratio: float = DESCRIPTORS_RATIO_MAX) -> bool:
    """Whether more than this part of the file descriptors are in use, as the number of a new descriptor shows."""
    try:
        lowest_free = os.dup(2)
    except OSError as error:
        return error.errno in OUT_OF_DESCRIPTORS
    os.close(lowest_free)
    return lowest_free >= descriptors_max(ratio)


class Descriptors:
    """A watch on this process's file descriptors, which logs an error, once a minute, if too few are free. Mutable."""

    def __init__(self) -> None:
        self.looks = Periodic(self._look, LOOK_S, "look at file descriptors")
        """Checks once a second."""
        self._said_at = -inf

    async def _look(self) -> None:
        self.look(asyncio.get_running_loop().time())

    def look(self, now: float) -> None:
        """Check now; `now` is in seconds."""
        if are_descriptors_short() and now - self._said_at >= SAID_AGAIN_S:
            self._said_at = now
            log.error("file descriptors are short: no connection is accepted until some are free; raise ulimit -n")


def _make_certificate(files: ServerTls) -> "Certificate":
    """The certificate of a port. Raises ValueError where its files hold none."""
    from gateway.ports.certificate import Certificate  # noqa: PLC0415

    return Certificate(files.cert_file, files.key_file)
