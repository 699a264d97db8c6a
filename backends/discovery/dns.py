"""Discovery by DNS: one server per address of a name, such as a headless service or several A or AAAA records.

The name is resolved every few seconds. If it has no address now, the servers found before stay: a failing resolver
looks the same as one without an address because all pods are down, and the pods are polled anyway.
"""

import asyncio
import logging
import socket

from backends.discovery.source import OnFound, limited, root_url

DNS_EVERY_S = 5.0
DNS_TIMEOUT_S = 5.0
log = logging.getLogger(__name__)


class Dns:
    """A discovery source that looks up the name `host` in DNS. Each address is one server, at the port `port`."""

    def __init__(self, host: str, port: int, *, scheme: str = "http", every_s: float = DNS_EVERY_S) -> None:
        self._host = host
        self._port = port
        self._scheme = scheme
        self._every_s = every_s
        self._found: frozenset[str] | None = None
        self._trouble = ""

    async def watch(self, on_found: OnFound) -> None:
        while True:
            found = await self._ask()
            if found and found != self._found:
                self._found = found
                on_found(found)
            await asyncio.sleep(self._every_s)

    async def _ask(self) -> frozenset[str]:
        """Resolve the name now; empty if that fails."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(DNS_TIMEOUT_S):
                addresses = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:  # TimeoutError is an OSError
            if str(error) != self._trouble:
                self._trouble = str(error)
                log.warning("discovery: %s has no address: %s", self._host, error or "no answer in time")
            return frozenset()
        self._trouble = ""
        return limited(root_url(self._scheme, str(address[4][0]), self._port) for address in addresses)
