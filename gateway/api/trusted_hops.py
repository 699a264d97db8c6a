"""Trusted hops: the address of a client behind proxies, from X-Forwarded-For.

Every proxy appends the address of its own client to the header, so only the entries of trusted proxies can be believed:
reading from the right, the first address that is not a trusted proxy's is the client's. The client may have invented
all entries to its left. Without trusted hops, or where the peer is not one of them, the peer itself is the client. The
PROXY protocol is not read: it is not HTTP, and gets 400.
"""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from gateway.api.headers import Headers

HEADER = "x-forwarded-for"

Networks = tuple[IPv4Network | IPv6Network, ...]


class TrustedHops:
    """The finder of a client's address behind proxies (hops). It believes X-Forwarded-For only from proxies in the
    networks of the setting `trusted_hops`.
    """

    def __init__(self, networks: Iterable[IPv4Network | IPv6Network]) -> None:
        self._networks = tuple(networks)

    def client_address(self, headers: Headers, peer: str | None) -> str | None:
        """The address of the client: the right-most hop that is not trusted; where all hops are trusted, the left-most.
        None where the connection has no address. An entry that is not an address ends the search, because it names no
        client that a proxy saw.
        """
        if not self._networks or not is_within(peer, self._networks) or HEADER not in headers:
            return peer
        client = peer
        for hop in reversed(",".join(headers.getall(HEADER)).split(",")):
            address = _address(hop.strip())
            if address is None:
                break
            client = str(address)
            if not is_within(client, self._networks):
                break
        return client


def is_within(peer: str | None, networks: Networks) -> bool:
    """Whether this address is in one of the networks; False for a text that is not an address, as of a unix socket."""
    address = _address(peer or "")
    return address is not None and any(address in network for network in networks)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """The address in "a.b.c.d", "a.b.c.d:port", "::1" or "[::1]:port"; None for any other text. A listener on all
    addresses of both families sees IPv4 peers as ::ffff:a.b.c.d.
    """
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address
