"""One-time links: a link signs a browser in once, within ten minutes of its creation, and gives it a key that expires.

The token is in the fragment of the page's address, which no browser sends to a server, so that no server logs it. Only
HMACs of tokens and keys are kept, in this process alone.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gateway.admin.routes import Caller, Role
from gateway.config.key_file import new_key
from gateway.identity.key_ring import KeyRing

LINK_S: Final = 600.0  # as long as the links by which services sign in by mail are commonly valid
KEY_S: Final = 12 * 3600.0  # a working day
NAME: Final = "one-time-link-"  # and its number: its caller's name in the audit log
LINKS_MAX: Final = 100  # open at a time: more than people open, and some kilobytes


@dataclass(frozen=True, slots=True)
class Session:
    """A session at the admin port, which a one-time link has opened: its API key and its role, until `expires_at_s`
    (seconds since 1970).
    """

    key: str
    role: Role
    expires_at_s: float


class OneTimeLinks:
    """The valid one-time links to the page (the web interface of the admin port). Opening a link makes a Session, and
    the link is invalid afterwards. Mutable.
    """

    def __init__(self, admin_keys: KeyRing[Caller], secret: bytes, *, clock: Callable[[], float] = time.time) -> None:
        """A sign-in adds its key to `admin_keys`. `clock` gives seconds since 1970."""
        self._admin_keys = admin_keys
        self._links: KeyRing[Caller] = KeyRing(secret, clock=clock)
        self._clock = clock
        self._made = 0

    def make(self, role: Role) -> str:
        """The token of a new link; where LINKS_MAX are open, the oldest link ends."""
        self._made += 1
        self._links.drop(f"{NAME}{self._made - LINKS_MAX}")
        token, name = new_key(), f"{NAME}{self._made}"
        expires_at_s = self._clock() + LINK_S
        self._links.put(name, self._links.hmac_hex(token), Caller(name, role), expires_at_s=expires_at_s)
        return token

    def open(self, token: str) -> Session | None:
        """The session for this token, which works once; None: the token is unknown, was used before, or has expired."""
        caller = self._links.find(token)
        if caller is None:
            return None
        self._links.drop(caller.name)
        key, expires_at_s = new_key(), self._clock() + KEY_S
        self._admin_keys.put(caller.name, self._admin_keys.hmac_hex(key), caller, expires_at_s=expires_at_s)
        return Session(key, caller.role, expires_at_s)
