"""The question that every source answers, again whenever the answer may have changed.

A source knows addresses of servers that are ready, nothing else: what they serve and how they are is asked of them
(backends/pool.py). What it cannot find out just now it does not say: servers that were there a moment ago are still
there, as far as anybody knows, and whether they answer is seen by asking them.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

OnFound = Callable[[frozenset[str]], None]
"""Hears all root URLs that there are now; those that it heard before and does not hear now are gone."""

SERVERS_MAX = 1024  # of one source; more are a wrong selector


class Source(Protocol):
    """Which servers are there?"""

    async def watch(self, on_found: OnFound) -> None:
        """Tell of every change until cancelled. Never raises: what goes wrong is logged once, and tried again."""
        ...


def root_url(scheme: str, address: str, port: int) -> str:
    """The URL of a server at an IP address."""
    return f"{scheme}://[{address}]:{port}" if ":" in address else f"{scheme}://{address}:{port}"


def limited(urls: Iterable[str]) -> frozenset[str]:
    """The first of them by name, where there are more than one source may have."""
    return frozenset(sorted(set(urls))[:SERVERS_MAX])
