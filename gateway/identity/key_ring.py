"""Key ring: HMACs of API keys with their owners and expiry times, changed while the gateway runs.

Unknown, revoked and expired keys cost the same work and get the same answer.
"""

import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar

from gateway.config.key_file import KeyHmac

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Known(Generic[T]):
    digest: bytes
    owner: T
    expires_at_s: float


class KeyRing(Generic[T]):
    """A set of API keys and their owners, where each key is stored as an HMAC. Mutable."""

    def __init__(self, secret: bytes, *, clock: Callable[[], float] = time.time) -> None:
        """`clock` gives seconds since 1970."""
        self._hmac = KeyHmac(secret)
        self._clock = clock
        self._nobodys = secrets.token_bytes(32)
        self.known: dict[bytes, _Known[T]] = {}
        """By digest."""
        self._digests: dict[str, bytes] = {}  # by id

    def put(self, key_id: str, hmac_hex: str, owner: T, *, expires_at_s: float | None = None) -> None:
        """Add or replace the key with this id and HMAC, with its owner, until it expires."""
        self.drop(key_id)
        digest = self._digests[key_id] = bytes.fromhex(hmac_hex)
        self.known[digest] = _Known(digest, owner, inf if expires_at_s is None else expires_at_s)

    def drop(self, key_id: str) -> None:
        """Remove the key with this id, if there is one."""
        digest = self._digests.pop(key_id, None)
        if digest is not None:
            self.known.pop(digest, None)

    def find(self, key: str) -> T | None:
        """The owner of the key; None where it is unknown or expired."""
        digest = self._hmac.of(key)
        known = self.known.get(digest)
        is_same = hmac.compare_digest(self._nobodys if known is None else known.digest, digest)
        if known is None or not is_same or self._clock() >= known.expires_at_s:
            return None
        return known.owner

    def hmac_hex(self, key: str) -> str:
        """The HMAC under which a key is stored, in hex."""
        return self._hmac.of(key).hex()
