"""Which program is this call a part of? An agent, that is: an application that makes many calls one after the other.

Its client names it, in a header of ours or by the session that vLLM knows; what is kept of the name is an HMAC over it
and its tenant, because a session's name may be what opens the session. So two tenants never have a program in common,
and no log holds a name that anybody gave. A name decides nothing but whose calls belong together within one tenant.
"""

import hmac
from collections.abc import Mapping
from typing import Any, Final

# The first that is there counts, then the field of the body.
PROGRAM_HEADERS: Final = ("x-fairlead-program-id", "x-session-id")
PROGRAM_FIELD: Final = "session_id"
NAME_CHARS_MAX: Final = 512
HEX_CHARS: Final = 16


class Programs:
    """The programs that calls belong to."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def of(self, tenant_id: str, headers: Mapping[str, str], values: Mapping[str, Any]) -> str | None:
        """The program of a call with these headers and fields, None where it names none, or none that is a name."""
        name = values.get(PROGRAM_FIELD)
        for header in PROGRAM_HEADERS:
            if header in headers:
                name = headers[header]
                break
        if type(name) is not str or not 0 < len(name) <= NAME_CHARS_MAX:
            return None
        told = f"program {len(tenant_id)} {tenant_id} {name}".encode(errors="surrogateescape")
        return hmac.digest(self._secret, told, "sha256").hex()[:HEX_CHARS]
