"""What is this request called? As its client calls it, where that is harmless and nobody else is called so now.

Two requests of one name in an engine could be taken for each other, and a name may come back in a log, a header and
an answer's id; so it is plain and short, and no two in flight have the same. A name made here is random, as vLLM's are:
a count would tell every tenant how many calls there are of all others.
"""

import re
import secrets
from collections.abc import Iterator, Mapping
from typing import Final

# As other gateways and SDKs name it; the first that is usable counts.
REQUEST_ID_HEADERS: Final = ("x-request-id", "x-correlation-id", "x-trace-id", "request-id")

_USABLE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=@-]{0,127}")
_NAME_BYTES: Final = 8
_NAMES_AT_ONCE: Final = 512  # one call of the operating system for so many names: each alone costs 0.5 us


class RequestIds:
    """The names of the requests in flight. Mutable: what is taken has to be freed."""

    def __init__(self) -> None:
        self._made = random_ids()
        self._in_flight: set[str] = set()

    def take(self, headers: Mapping[str, str]) -> str:
        """The client's own name, or a new one."""
        name = self.name(headers)
        self._in_flight.add(name)
        return name

    def name(self, headers: Mapping[str, str]) -> str:
        """What it would be called, for an answer that is given at once."""
        for name in REQUEST_ID_HEADERS:
            given = headers.get(name)
            if given is not None and _USABLE.fullmatch(given):
                return given if given not in self._in_flight else self._new()
        return self._new()

    def renamed(self, name: str, given: object, headers: Mapping[str, str]) -> str:
        """The name of a request whose body names it, which counts where no header does."""
        if type(given) is not str or not _USABLE.fullmatch(given) or given in self._in_flight:
            return name
        if any(header in headers for header in REQUEST_ID_HEADERS):
            return name
        self._in_flight.discard(name)
        self._in_flight.add(given)
        return given

    def free(self, name: str) -> None:
        self._in_flight.discard(name)

    def _new(self) -> str:
        while (name := next(self._made)) in self._in_flight:  # a client has named its own so
            pass
        return name


def random_ids() -> Iterator[str]:
    """Names of 16 random hex digits."""
    while True:
        block = secrets.token_hex(_NAME_BYTES * _NAMES_AT_ONCE)
        for start in range(0, len(block), 2 * _NAME_BYTES):
            yield "fl-" + block[start : start + 2 * _NAME_BYTES]
