"""Interface of a discovery source, which reports the servers again whenever they may have changed.

A source reports only the addresses of servers that are ready; the models and the health come from polling them
(backends/pool.py). When a source fails it reports nothing: the servers found before stay, and polling shows whether
they answer.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

OnFound = Callable[[frozenset[str]], None]
"""A function that gets all present root URLs; URLs that are missing from the next call are gone."""

SERVERS_MAX = 1024  # of one source; more are a wrong selector


class Source(Protocol):
    """A discovery source: which servers exist now?"""

    async def watch(self, on_found: OnFound) -> None:
        """Report every change until cancelled. Never raises: an error is logged once, and the source tries again."""
        ...


def root_url(scheme: str, address: str, port: int) -> str:
    """Return the URL of a server at an IP address."""
    return f"{scheme}://[{address}]:{port}" if ":" in address else f"{scheme}://{address}:{port}"


def limited(urls: Iterable[str]) -> frozenset[str]:
    """Return at most SERVERS_MAX of these URLs, the first in order of name."""
    return frozenset(sorted(set(urls))[:SERVERS_MAX])
