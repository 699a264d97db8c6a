"""Whose request is it? An API key becomes a tenant id, and is forgotten at once.

Keys are only ever compared as HMACs. Where they are checked ("keys"), an unknown key costs the same work
as a known one, and what can be looked up is the HMAC, which nobody can steer without the secret. Where
they are not ("open", for trying out), every distinct key is a tenant of its own, named by its HMAC, so
that no log or metric holds a key: a person with many keys has many shares.

A proxy in front may have asked for the key already: what it says of the tenant is believed where its address is
one of `trusted_proxies`, and not even read where it is not.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import TYPE_CHECKING, Any, Protocol

from gateway.config import ANONYMOUS, OPEN_TENANT_PREFIX
from gateway.config.jwt import TenantIssuer
from gateway.config.key_file import KeyRecord, key_hmac, read_keys
from gateway.config.sections import TENANT_NAME, AuthSection
from gateway.identity.key_ring import KeyRing
from gateway.identity.token_form import claim, looks_like_token

if TYPE_CHECKING:  # whoever takes no tokens need not load what reads them
    from gateway.identity.tokens import Tokens

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
    """Only the keys on this ring: those of the keys file, and what becomes of keys while the gateway runs."""

    def __init__(self, ring: KeyRing[Identity]) -> None:
        self._ring = ring

    def identify(self, headers: Mapping[str, str]) -> Identity:
        try:
            key = given_key(headers) or ""
        except Unauthorized:
            key = ""  # what cannot be a key is looked up like one: its answer comes no sooner
        identity = self._ring.find(key)
        if identity is None:
            raise Unauthorized
        return identity


class KeysOrTokens:
    """Keys, and tokens of identity providers."""

    def __init__(self, keys: Authenticator, tokens: "Tokens[TenantIssuer, Identity]") -> None:
        self._keys = keys
        self._tokens = tokens

    def identify(self, headers: Mapping[str, str]) -> Identity:
        token = given_token(headers)
        if token is None:
            return self._keys.identify(headers)
        identity = self._tokens.find(token)
        if identity is None:
            raise Unauthorized
        return identity


def tenant_of(issuer: TenantIssuer, claims: Mapping[str, Any]) -> Identity | None:
    """The tenant that the claims name; None where they name none that could be one."""
    tenant = claim(claims, issuer.tenant_claim)
    return Identity(tenant) if isinstance(tenant, str) and TENANT_NAME.fullmatch(tenant) else None


async def tenant_tokens(issuers: Sequence[TenantIssuer]) -> "Tokens[TenantIssuer, Identity] | None":
    """What takes these issuers' tokens, with their keys as far as they could be fetched; None where there are none.
    Raises ValueError where a file of CA certificates cannot be read.
    """
    if not issuers:
        return None
    from gateway.identity.tokens import Tokens  # noqa: PLC0415

    tokens = Tokens(issuers, tenant_of)
    await tokens.start()
    return tokens


def given_token(headers: Mapping[str, str]) -> str | None:
    """The bearer's token (RFC 6750, 2.1), None where there is none, or a key in its place."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    token = token.strip()
    return token if scheme.lower() == "bearer" and looks_like_token(token) else None


def tenant_keys(secret: bytes, records: Iterable[KeyRecord]) -> KeyRing[Identity]:
    """The ring of the keys of a keys file, each named by the beginning of its HMAC."""
    ring: KeyRing[Identity] = KeyRing(secret)
    for record in records:
        key_id = record.hmac[:HMAC_CHARS_IN_ID]
        ring.put(key_id, record.hmac, Identity(record.tenant, key_id=key_id))
    return ring


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


def make_authenticator(auth: AuthSection) -> tuple[Authenticator, KeyRing[Identity] | None]:
    """Read secret and keys, once; and the ring that says which keys there are, where keys are checked. Raises
    ValueError where a file cannot be read.
    """
    secret = auth.secret_bytes()
    if auth.mode == "open":
        return OpenKeys(secret or secrets.token_bytes(32)), None
    assert secret is not None, "mode keys has a secret or an error"
    ring = tenant_keys(secret, read_keys(auth.keys_file))
    return KnownKeys(ring), ring


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
