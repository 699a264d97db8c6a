"""HTTP polling of backends: GETs with limits on time and size, and one error for every failure."""

import socket
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohappyeyeballs import AddrInfoType

from backends.address_allowlist import AddressAllowlist
from backends.spec import BackendSpec


@dataclass(frozen=True, slots=True)
class PollTimes:
    """Polling intervals of a backend, and time limits, in seconds. A scrape costs vLLM's API process 5 ms."""

    idle_s: float = 1.0
    busy_s: float = 0.25
    models_s: float = 30.0
    timeout_s: float = 3.0
    start_s: float = 5.0  # the longest that `start` waits for the first rounds


class UnansweredError(Exception):
    """An error: a poll without a usable answer. `status` is set where the server answered with a status but 2xx."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Poller:
    """The HTTP sessions for polling, one per address allowlist. `start` it on the event loop that uses it."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._sessions: dict[AddressAllowlist | None, aiohttp.ClientSession] = {}
        self._started = False

    def start(self) -> None:
        self._started = True

    def _session(self, address_allowlist: AddressAllowlist | None) -> aiohttp.ClientSession:
        session = self._sessions.get(address_allowlist)
        if session is None:
            session = self._sessions[address_allowlist] = self._make_session(address_allowlist)
        return session

    def _make_session(self, address_allowlist: AddressAllowlist | None) -> aiohttp.ClientSession:
        def checked(address: AddrInfoType) -> socket.socket:
            assert address_allowlist is not None, "only where there is something to check"
            address_allowlist.check(str(address[4][0]))
            return socket.socket(address[0], address[1], address[2])

        return aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self._timeout_s),
            # The check sees the address that is connected to, whatever the name resolved to before.
            connector=aiohttp.TCPConnector(limit=0, socket_factory=None if address_allowlist is None else checked),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity"},
            auto_decompress=False,
        )

    async def stop(self) -> None:
        """Close all sessions."""
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            await session.close()

    async def get(self, spec: BackendSpec, path: str, *, bytes_max: int, asks: Any = None) -> bytes:
        """Return the whole body of a 2xx; empty and unread if `bytes_max` is 0. `asks` is posted as JSON. Raises
        UnansweredError for every failure.
        """
        assert self._started, "asked before start"
        tls = spec.tls if spec.tls is not None else True
        try:
            async with self._session(spec.address_allowlist).request(
                "GET" if asks is None else "POST",
                spec.url + path,
                json=asks,
                headers=spec.headers,
                allow_redirects=False,
                ssl=tls,
            ) as response:
                if not 200 <= response.status < 300:
                    raise UnansweredError(f"{path}: status {response.status}", response.status)
                body = bytearray()
                while bytes_max and (chunk := await response.content.readany()):
                    body += chunk
                    if len(body) > bytes_max:
                        raise UnansweredError(f"{path}: more than {bytes_max} bytes")
                return bytes(body)
        except TimeoutError:
            raise UnansweredError(f"{path}: no answer in {self._timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise UnansweredError(f"{path}: {error or type(error).__name__}") from error
