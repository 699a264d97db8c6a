"""What is this request called? As its client calls it, where that is harmless and nobody else is called so now.

Two requests of one name in an engine could be taken for each other, and a name may come back in a log, a header and
an answer's id; so it is plain and short, and no two in flight have the same.
"""

import itertools
import re
import secrets
from collections.abc import Mapping
from typing import Final

# As other gateways and SDKs name it; the first that is usable counts.
REQUEST_ID_HEADERS: Final = ("x-request-id", "x-correlation-id", "x-trace-id", "request-id")

_USABLE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=@-]{0,127}")


class RequestNames:
    """The names of the requests in flight. Mutable: what is taken has to be freed."""

    def __init__(self) -> None:
        process = secrets.token_hex(4)  # names of two gateways, or of one before and after a restart, are different
        self._made = (f"fl-{process}-{number:x}" for number in itertools.count(1))
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
        while (name := next(self._made)) in self._in_flight:  # a client has guessed it
            pass
        return name
