"""Failure throttle: a limit on how often one address can fail to authenticate.

Guessing a key of 256 random bits is hopeless, so this limits load and logs: an address that fails repeatedly gets 429.
Each address has a token bucket (a burst, refilled slowly). A valid key is always accepted: otherwise one bad client
could lock out all others behind the same address. IPv6 addresses count by their /64, which belongs to one customer.
There are at most ADDRESSES_MAX buckets; the one whose last failure is oldest is dropped first.
"""

from collections import OrderedDict
from ipaddress import IPv6Address, ip_address

FAILURES_BURST = 20.0
FAILURES_PER_S = 0.5
ADDRESSES_MAX = 10_000
_HOST_BITS = 64


class Buckets:
    """A set of token buckets for rate limits, one for each name. A bucket holds at most `burst` tokens, and is refilled
    by `per_s` tokens per second. Mutable. There are at most ADDRESSES_MAX buckets: a further one replaces the least
    recently used one.
    """

    def __init__(self, burst: float, per_s: float) -> None:
        self._burst, self._per_s = burst, per_s
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens left, and the time of that count

    def take(self, name: str, now: float, tokens: int = 1) -> float | None:
        """Take `tokens` tokens from the bucket. Returns None, or if there are too few, the seconds until there are."""
        left, at = self._buckets.pop(name, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._per_s)
        is_there = left >= tokens
        self._buckets[name] = (left - tokens if is_there else left, now)
        if len(self._buckets) > ADDRESSES_MAX:
            self._buckets.popitem(last=False)
        return None if is_there else (tokens - left) / self._per_s


class FailureThrottle:
    """A limit on the rate of failed authentications from each client address. Mutable."""

    def __init__(self) -> None:
        self._buckets = Buckets(FAILURES_BURST, FAILURES_PER_S)

    def failed(self, peer: str | None, now: float) -> float | None:
        """Count a failure. Returns None or, after too many, the seconds until the next one is answered."""
        return self._buckets.take(_source(peer), now)


def _source(peer: str | None) -> str:
    try:
        address = ip_address((peer or "").partition("%")[0])
    except ValueError:  # a unix socket has none
        return ""
    if isinstance(address, IPv6Address):
        mapped = address.ipv4_mapped
        return str(mapped) if mapped else format(int(address) >> _HOST_BITS, "x")
    return str(address)
