"""Address allowlist: the networks that a backend's address may be in.

The address of a backend that was added by the admin API may be one that the gateway can reach and the caller cannot: a
cloud's metadata service, or the gateway's own machine. The check is on the address of each connection, when the
connection is made. So a name that resolved differently a moment ago (DNS rebinding), 0x7f.1 or ::ffff:127.0.0.1 does
not pass. Addresses in NEVER are refused in any network.
"""

import asyncio
import errno
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Network = IPv4Network | IPv6Network

# Metadata services of clouds: link-local (169.254.169.254, fe80::/10), and AWS's over IPv6.
NEVER: tuple[Network, ...] = tuple(
    map(ip_network, ("169.254.0.0/16", "fe80::/10", "fd00:ec2::/32", "0.0.0.0/8", "::/128", "224.0.0.0/4", "ff00::/8"))
)


ANY: tuple[Network, ...] = tuple(map(ip_network, ("0.0.0.0/0", "::/0")))


class AddressRefusedError(OSError):
    """An error: the address is not allowed for a backend."""


@dataclass(frozen=True, slots=True)
class AddressAllowlist:
    """A list of the IP networks in which the addresses of backends have to be."""

    networks: tuple[Network, ...]

    def allows(self, address: str) -> bool:
        """Whether a connection to this literal address is allowed; False for a text that is not an address."""
        try:
            parsed = plain(ip_address(address.partition("%")[0]))
        except ValueError:
            return False
        return not _within(parsed, NEVER) and _within(parsed, self.networks)

    def check(self, address: str) -> None:
        """Raise AddressRefusedError if this address is not allowed."""
        if not self.allows(address):
            raise AddressRefusedError(errno.EACCES, f"{address} is not in the networks where backends may be")

    async def addresses(self, host: str, port: int) -> list[str]:
        """Resolve the host and return its addresses, which are all allowed. Raises OSError; AddressRefusedError if any
        address is not allowed.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        for address in addresses:
            self.check(address)
        return addresses


def plain(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address that an IPv4-mapped IPv6 address contains (RFC 4291, 2.5.5.2), or the address itself."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def literal(host: str) -> str | None:
    """Return the address that the host text stands for in any notation (127.1, 0x7f.1); None if it is a name."""
    try:
        return str(ip_address(host.partition("%")[0]))
    except ValueError:
        pass
    try:
        return socket.inet_ntoa(socket.inet_aton(host))
    except OSError:
        return None


def _within(address: IPv4Address | IPv6Address, networks: Iterable[Network]) -> bool:
    return any(address in network for network in networks)
