"""Programs: the program that a call belongs to: an agent or application that makes many calls one after another.

The client names it, in the gateway's own header or by the session id that vLLM knows. The gateway keeps only an HMAC
over the tenant and the name, because a session's name may grant access to the session. So two tenants never share a
program, and no log has a client's name for one. The name only groups calls within one tenant.
"""

import hmac
from collections.abc import Mapping
from typing import Any, Final

# The first header that is present counts, else the field of the body.
PROGRAM_HEADERS: Final = ("x-fairlead-program-id", "x-session-id")
PROGRAM_FIELD: Final = "session_id"
NAME_CHARS_MAX: Final = 512
HEX_CHARS: Final = 16


class Programs:
    """Derives program ids from calls. `secret` keys the HMAC."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def of(self, tenant_id: str, headers: Mapping[str, str], values: Mapping[str, Any]) -> str | None:
        """The program id of a call with these headers and fields: 16 hex digits. None without a name of 1 to
        NAME_CHARS_MAX characters.
        """
        name = program_name(headers, values)
        if name is None:
            return None
        message = f"program {len(tenant_id)} {tenant_id} {name}".encode(errors="surrogateescape")
        return hmac.digest(self._secret, message, "sha256").hex()[:HEX_CHARS]


def program_name(headers: Mapping[str, str], values: Mapping[str, Any]) -> str | None:
    """The name that the client gives to the program of a call. None without one of 1 to NAME_CHARS_MAX characters."""
    name = values.get(PROGRAM_FIELD)
    for header in PROGRAM_HEADERS:
        if header in headers:
            name = headers[header]
            break
    return name if type(name) is str and 0 < len(name) <= NAME_CHARS_MAX else None
