"""RequestIds: the id of a request: the client's own, where it is well-formed and not in flight, else a random one.

An engine could confuse two requests with one id, so no two requests in flight have the same id. An id also appears in
logs, headers and answer ids, so it is plain ASCII of at most 128 characters. An id made here is random, as vLLM's are:
a counter would reveal to every tenant how many calls all others make.
"""

import re
import secrets
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Final

# The names that other gateways and SDKs use; the first usable value counts.
REQUEST_ID_HEADERS: Final = ("x-request-id", "x-correlation-id", "x-trace-id", "request-id")

_ID_HEADERS: Final = frozenset(REQUEST_ID_HEADERS)
_USABLE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=@-]{0,127}")
_NAME_BYTES: Final = 8
_NAMES_AT_ONCE: Final = 512  # random bytes are read for so many ids at once: a system call for each costs 0.5 us


class RequestIds:
    """The ids of the requests in flight, no two of them equal. Mutable: every id that `take` returns must be freed."""

    def __init__(self) -> None:
        self._made = random_ids()
        self._in_flight: set[str] = set()

    def take(self, headers: Mapping[str, str]) -> str:
        """The client's own id, or a new one. It is in flight until it is freed."""
        name = self.name(headers)
        self._in_flight.add(name)
        return name

    def name(self, headers: Mapping[str, str]) -> str:
        """The id that `take` would return, for a response that is sent at once."""
        given = None if _ID_HEADERS.isdisjoint(headers) else _given(headers)
        if given is not None and given not in self._in_flight:
            return given
        while (name := next(self._made)) in self._in_flight:  # a client uses this id
            pass
        return name

    def renamed(self, name: str, given: object, headers: Mapping[str, str]) -> str:
        """The id of a request whose body has a `request_id`. It is `given` where that is usable and no header has an
        id; else `name`.
        """
        if type(given) is not str or not _USABLE.fullmatch(given) or given in self._in_flight:
            return name
        if any(header in headers for header in REQUEST_ID_HEADERS):
            return name
        self._in_flight.discard(name)
        self._in_flight.add(given)
        return given

    def free(self, name: str) -> None:
        self._in_flight.discard(name)


def _given(headers: Mapping[str, str]) -> str | None:
    """The first usable id in the headers."""
    return next((headers[each] for each in REQUEST_ID_HEADERS if _USABLE.fullmatch(headers.get(each, ""))), None)


def random_ids() -> Iterator[str]:
    """An endless iterator of ids: "fl-" and 16 random hex digits."""
    return chain.from_iterable(_blocks())


def _blocks() -> Iterator[list[str]]:
    while True:
        block = secrets.token_hex(_NAME_BYTES * _NAMES_AT_ONCE)
        yield [f"fl-{block[start : start + 2 * _NAME_BYTES]}" for start in range(0, len(block), 2 * _NAME_BYTES)]
