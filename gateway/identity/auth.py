"""Whose request is it? An API key becomes a tenant id, and is forgotten at once.

Keys are only ever compared as HMACs. Where they are checked ("keys"), an unknown key costs the same work
as a known one, and what can be looked up is the HMAC, which nobody can steer without the secret. Where
they are not ("open", for trying out), every distinct key is a tenant of its own, named by its HMAC, so
that no log or metric holds a key: a person with many keys has many shares.

A proxy in front may have asked for the key already: what it says of the tenant is believed where its address is
one of `trusted_proxies`, and not even read where it is not.
"""

import hmac
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network, IPv6Network, ip_address
from math import inf
from typing import Protocol

from gateway.config import ANONYMOUS, OPEN_TENANT_PREFIX
from gateway.config.sections import TENANT_NAME, Auth
from gateway.identity.key_file import KeyRecord, key_hmac, read_keys

KEY_CHARS_MAX = 512
HMAC_CHARS_IN_ID = 16  # of a key of the keys file, which is named by its HMAC
OPEN_TENANT_HEX_CHARS = 12
# Where SDKs put a key: Authorization, or these (Anthropic, Azure).
KEY_HEADERS = ("x-api-key", "api-key")
# Where a trusted proxy names the tenant; the first that is there counts.
TENANT_HEADERS = ("x-tenant-id", "x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")


class Unauthorized(Exception):  # noqa: N818 - named as HTTP names it
    """The request has no valid key."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a request is from, as far as the gateway vouches for it. `models` None: it may ask for all. `key_id` names
    the key that was given, "" where none was that is known by itself.
    """

    tenant_id: str
    models: frozenset[str] | None = None
    key_id: str = field(default="", compare=False)

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models


class Authenticator(Protocol):
    """Whose request is it?"""

    def identify(self, headers: Mapping[str, str]) -> Identity:
        """`headers` looks up case-insensitively. Raises Unauthorized."""
        ...


class KnownKeys:
    """Only the keys that it was told of: those of the keys file, and what becomes of keys while the gateway runs.
    Mutable.
    """

    def __init__(self, secret: bytes, records: Iterable[KeyRecord], *, clock: Callable[[], float] = time.time) -> None:
        """`clock`: seconds since 1970."""
        self._secret = secret
        self._clock = clock
        self._nobody = _Known(secrets.token_bytes(32), Identity(""), inf)
        self._known: dict[bytes, _Known] = {}
        self._digests: dict[str, bytes] = {}  # by id
        for record in records:
            self.put(record.hmac[:HMAC_CHARS_IN_ID], record.hmac, Identity(record.tenant))

    def put(self, key_id: str, hmac_hex: str, identity: Identity, *, expires_at_s: float | None = None) -> None:
        """The key with this id and HMAC is this one's, until it expires."""
        self.drop(key_id)
        digest = self._digests[key_id] = bytes.fromhex(hmac_hex)
        self._known[digest] = _Known(
            digest, replace(identity, key_id=key_id), inf if expires_at_s is None else expires_at_s
        )

    def drop(self, key_id: str) -> None:
        """The key with this id, if there is one, is nobody's."""
        digest = self._digests.pop(key_id, None)
        if digest is not None:
            self._known.pop(digest, None)

    def identify(self, headers: Mapping[str, str]) -> Identity:
        return self.find(given_key(headers) or "")

    def find(self, key: str) -> Identity:
        """Whose key it is. Raises Unauthorized; what is expired costs what is unknown."""
        digest = key_hmac(self._secret, key)
        known = self._known.get(digest, self._nobody)
        is_same, is_over = hmac.compare_digest(known.digest, digest), self._clock() >= known.expires_at_s
        if is_over or not is_same:
            raise Unauthorized
        return known.identity


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of one key."""

    digest: bytes
    identity: Identity
    expires_at_s: float


class OpenKeys:
    """Any key, or none."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def identify(self, headers: Mapping[str, str]) -> Identity:
        key = given_key(headers)
        if not key:
            return Identity(ANONYMOUS)
        return Identity(OPEN_TENANT_PREFIX + key_hmac(self._secret, key).hex()[:OPEN_TENANT_HEX_CHARS])


class TrustedProxies:
    """The peers whose word on the tenant is taken."""

    def __init__(self, networks: Iterable[IPv4Network | IPv6Network]) -> None:
        self._networks = tuple(networks)

    @property
    def any(self) -> bool:
        return bool(self._networks)

    def named(self, headers: Mapping[str, str], peer: str | None) -> Identity | None:
        """The tenant that a trusted peer names, None where it is for the key to say. Raises Unauthorized where a
        trusted peer names none that could be one.
        """
        tenant = next((headers[name] for name in TENANT_HEADERS if name in headers), None)
        if tenant is None or not self._trusts(peer):
            return None
        if not TENANT_NAME.fullmatch(tenant):
            raise Unauthorized
        return Identity(tenant)

    def _trusts(self, peer: str | None) -> bool:
        try:
            address = ip_address(peer or "")
        except ValueError:  # a unix socket has none
            return False
        # A listener on all addresses of both families sees IPv4 peers as ::ffff:a.b.c.d.
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self._networks)


def make_authenticator(auth: Auth) -> Authenticator:
    """Read secret and keys, once. Raises ValueError where a file cannot be read."""
    secret = auth.secret_bytes()
    if auth.mode == "open":
        return OpenKeys(secret or secrets.token_bytes(32))
    assert secret is not None, "mode keys has a secret or an error"
    return KnownKeys(secret, read_keys(auth.keys_file))


def given_key(headers: Mapping[str, str]) -> str | None:
    """The key where SDKs put it, None where there is none. Raises Unauthorized for what cannot be one."""
    authorization = headers.get("authorization")
    if authorization is None:
        key = next((headers[name] for name in KEY_HEADERS if name in headers), None)
    else:
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer":
            raise Unauthorized
    if key is None:
        return None
    key = key.strip()
    if len(key) > KEY_CHARS_MAX:
        raise Unauthorized
    return key
