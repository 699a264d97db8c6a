"""HTTP polling of backends: GETs with limits on time and size, and one error for every failure."""

import asyncio
import json
import ssl
from dataclasses import dataclass
from typing import Any, Final

from backends.address_allowlist import AddressAllowlist
from backends.spec import BackendSpec
from backends.upstream import ConnectFailed, ConnectionLimits, Upstream, UpstreamError

IDLE_S_MAX = 15.0  # of a connection: polls come every second, and models are asked for twice a minute
IDLE_CONNECTIONS_MAX = 4  # of one backend: as many polls as there are at once
HEADERS: Final = {"accept": "*/*", "accept-encoding": "identity"}

_Place = tuple[str, ssl.SSLContext | None, AddressAllowlist | None]


@dataclass(frozen=True, slots=True)
class PollTimes:
    """The intervals and the time limits of the polls of a backend, in seconds. A scrape costs vLLM's API process 5
    ms.
    """

    idle_s: float = 1.0
    busy_s: float = 0.25
    models_s: float = 30.0
    timeout_s: float = 3.0
    start_s: float = 5.0  # the longest that `start` waits for the first rounds


class UnansweredError(Exception):
    """An error: a poll got no usable answer. `status` is the status of an answer that is not 2xx; None without one."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Poller:
    """The HTTP client that polls backends: connections and time limits. `start` it on the event loop that uses it."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._limits = ConnectionLimits(
            connect_timeout_s=2.0 * timeout_s,  # of both, as of all that follows, `get` is the limit
            silence_s_max=2.0 * timeout_s,
            idle_s_max=IDLE_S_MAX,
            idle_connections_max=IDLE_CONNECTIONS_MAX,
        )
        self._upstreams: dict[_Place, Upstream] = {}
        self._trusting: ssl.SSLContext | None = None  # the system's CAs, made once for all backends
        self._started = False

    def start(self) -> None:
        self._started = True

    async def stop(self) -> None:
        """Close all connections."""
        upstreams, self._upstreams = self._upstreams, {}
        for upstream in upstreams.values():
            await upstream.aclose()

    async def get(self, spec: BackendSpec, path: str, *, bytes_max: int, asks: Any = None) -> bytes:
        """Return the whole body of a 2xx answer; if `bytes_max` is 0, it is not read, and empty. `asks` is posted as
        JSON. Raises UnansweredError for every failure.
        """
        assert self._started, "asked before start"
        method, headers, body = "GET", {**HEADERS, **spec.headers}, b""
        if asks is not None:
            method, headers["content-type"], body = "POST", "application/json", json.dumps(asks).encode()
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                await self._upstream(spec).open(method, path, headers, body) as response,
            ):
                if not 200 <= response.status < 300:
                    raise UnansweredError(f"{path}: status {response.status}", response.status)
                return bytes(await response.read(bytes_max)) if bytes_max else b""
        except TimeoutError:
            raise UnansweredError(f"{path}: no answer in {self._timeout_s:g} s") from None
        except ConnectFailed as error:
            raise UnansweredError(f"{path}: cannot connect: {error}") from error
        except (UpstreamError, OSError, ValueError) as error:
            raise UnansweredError(f"{path}: {error or type(error).__name__}") from error

    def _upstream(self, spec: BackendSpec) -> Upstream:
        place = spec.url, spec.tls, spec.address_allowlist
        upstream = self._upstreams.get(place)
        if upstream is None:
            # Backends come and go: one without a connection is made anew when it is asked again.
            self._upstreams = {at: each for at, each in self._upstreams.items() if each.open_connections}
            upstream = self._upstreams[place] = Upstream(
                spec.url,
                self._limits,
                ssl_context=spec.tls or self._system_tls(spec.url),
                address_allowlist=spec.address_allowlist,
            )
        return upstream

    def _system_tls(self, url: str) -> ssl.SSLContext | None:
        if self._trusting is None and url.startswith("https:"):
            self._trusting = ssl.create_default_context()
        return self._trusting
