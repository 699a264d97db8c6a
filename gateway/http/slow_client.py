"""StallingConnection: cuts a client that reads nothing, during a stream, a whole answer, or the last bytes of either.

A transport reports when more waits in it than its high-water mark, and when it is down at its low-water mark again.
Between the two the gateway allows CLIENT_STALL_S_MAX. Long bodies are written in pieces, each after the client has
read the one before, so a client that is slow but reads 300 kB a minute is not cut.
"""

import asyncio
from typing import Final, cast

from gateway.ports.error_connection import ErrorConnection

# The longest time without a drained write buffer before the connection is cut.
CLIENT_STALL_S_MAX = 60.0
WAITING_BYTES_MAX: Final = 64 * 1024  # the high-water mark of both event loops
STALLED: Final = "client_stalled"


class StallingConnection(ErrorConnection):
    """aiohttp's connection with a limit on waiting for its client. `cut_reason` is None until it is cut."""

    __slots__ = ("_stall", "_waiting_transport", "cut_reason")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._stall: asyncio.TimerHandle | None = None
        # aiohttp drops its reference when it closes the transport, which then still sends what it holds.
        self._waiting_transport = cast("asyncio.Transport", transport)
        self._waiting_transport.set_write_buffer_limits(high=WAITING_BYTES_MAX)  # with TLS it would be 512 KiB
        self.cut_reason: str | None = None
        super().connection_made(transport)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall = self._loop.call_later(CLIENT_STALL_S_MAX, self.cut, STALLED)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_waiting()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def cut(self, reason: str) -> None:
        """Abort the connection and drop what the client has not read. Idempotent."""
        if self.cut_reason is None:
            self.cut_reason = reason
            self.on_cut(reason)
            self._waiting_transport.abort()

    def on_cut(self, reason: str) -> None:
        """Called once, when the connection is cut."""

    def _stop_waiting(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
