"""How many wrong keys may one address try?

A key of 256 random bits is not found by trying, so this is about load and logs: an address that fails over and over
is told to wait, each with a bucket of its own (a burst, refilled slowly). A right key is always let in, or whoever
shares an address with a fool could be locked out by him. IPv6 addresses count by their /64, which is one customer's.
There are at most ADDRESSES_MAX buckets; the one that failed longest ago is forgotten first.
"""

from collections import OrderedDict
from ipaddress import IPv6Address, ip_address

FAILURES_BURST = 20.0
FAILURES_PER_S = 0.5
ADDRESSES_MAX = 10_000
_HOST_BITS = 64


class FailureThrottle:
    """The failures of each address. Mutable."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # what is left, and as of when

    def failed(self, peer: str | None, now: float) -> float | None:
        """Count a failure. Returns None, or in how many seconds one more is heard where there were too many."""
        source = _source(peer)
        left, at = self._buckets.pop(source, (FAILURES_BURST, now))
        left = min(FAILURES_BURST, left + (now - at) * FAILURES_PER_S)
        is_heard = left >= 1
        self._buckets[source] = (left - 1 if is_heard else left, now)
        if len(self._buckets) > ADDRESSES_MAX:
            self._buckets.popitem(last=False)
        return None if is_heard else (1 - left) / FAILURES_PER_S

    def __len__(self) -> int:
        return len(self._buckets)


def _source(peer: str | None) -> str:
    try:
        address = ip_address((peer or "").partition("%")[0])
    except ValueError:  # a unix socket has none
        return ""
    if isinstance(address, IPv6Address):
        mapped = address.ipv4_mapped
        return str(mapped) if mapped else format(int(address) >> _HOST_BITS, "x")
    return str(address)
