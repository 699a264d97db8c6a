"""Authentication at the data port: maps the API key, token or trusted proxy header of a request to a tenant id.

Keys are only compared as HMACs. With auth.mode keys an unknown key costs the same work as a known one, and lookups use
the HMAC, which a client cannot choose without the secret. With auth.mode open (for trying out), every distinct key is a
tenant of its own, named by its HMAC, so that no log or metric holds a key: a person with many keys has many shares.

A proxy in front may have authenticated the client already: its tenant header counts if its address is one of
`trusted_proxies`, and is ignored otherwise.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from typing import TYPE_CHECKING, Any, Protocol

from gateway.api.trusted_hops import is_within
from gateway.config import ANONYMOUS, OPEN_TENANT_PREFIX
from gateway.config.jwt import TenantIssuer
from gateway.config.key_file import KeyRecord, key_hmac, read_keys
from gateway.config.sections import AuthSection
from gateway.config.value_types import TENANT_NAME
from gateway.identity.key_ring import KeyRing
from gateway.identity.token_form import claim, looks_like_token

if TYPE_CHECKING:  # loaded only where tokens are configured
    from gateway.identity.tokens import Tokens

KEY_CHARS_MAX = 512
HMAC_CHARS_IN_ID = 16  # of a key of the key file, whose id is the start of its HMAC
OPEN_TENANT_HEX_CHARS = 12
# Where SDKs send the key: Authorization, or these (Anthropic, Azure).
KEY_HEADERS = ("x-api-key", "api-key")
# Where a trusted proxy names the tenant; the first of these headers that is present counts.
TENANT_HEADERS = ("x-tenant-id", "x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")


class Unauthorized(Exception):  # noqa: N818 - named as HTTP names it
    """An error: the request has no valid key."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The authenticated tenant of a request. `models` None: it may use all. `key_id` is the id of its key; "" where it
    has none.
    """

    tenant_id: str
    models: frozenset[str] | None = None
    key_id: str = field(default="", compare=False)

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models


class Authenticator(Protocol):
    """An authenticator: which tenant does a request belong to?"""

    def identify(self, headers: Mapping[str, str]) -> Identity:
        """The identity of a request; `headers` looks names up case-insensitively. Raises Unauthorized."""
        ...


class KnownKeys:
    """An authenticator that accepts only the keys of one key ring: those of the key file, and those of the admin
    API.
    """

    def __init__(self, ring: KeyRing[Identity]) -> None:
        self._ring = ring

    def identify(self, headers: Mapping[str, str]) -> Identity:
        try:
            key = given_key(headers) or ""
        except Unauthorized:
            key = ""  # a malformed key is looked up too, so that its answer takes the same time
        identity = self._ring.find(key)
        if identity is None:
            raise Unauthorized
        return identity


class KeysBeside:
    """An authenticator that accepts all keys that another authenticator accepts, and also the keys of a key ring. This
    ring is mostly empty.
    """

    def __init__(self, others: Authenticator, ring: KeyRing[Identity]) -> None:
        self._others = others
        self._ring = ring

    def identify(self, headers: Mapping[str, str]) -> Identity:
        if self._ring.known:
            identity = self._ring.find(given_key(headers) or "")
            if identity is not None:
                return identity
        return self._others.identify(headers)


class KeysOrTokens:
    """An authenticator that accepts keys, and tokens of identity providers."""

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
    """The tenant that the claims name; None where they name none, or an invalid one."""
    tenant = claim(claims, issuer.tenant_claim)
    return Identity(tenant) if isinstance(tenant, str) and TENANT_NAME.fullmatch(tenant) else None


async def tenant_tokens(issuers: Sequence[TenantIssuer]) -> "Tokens[TenantIssuer, Identity] | None":
    """The verifier of these issuers' tokens, after a first attempt to fetch their keys; None without issuers. Raises
    ValueError where a file of CA certificates cannot be read.
    """
    if not issuers:
        return None
    from gateway.identity.tokens import Tokens  # noqa: PLC0415

    tokens = Tokens(issuers, tenant_of)
    await tokens.start()
    return tokens


def given_token(headers: Mapping[str, str]) -> str | None:
    """The bearer token (RFC 6750, 2.1); None where there is none, or a key in its place."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    token = token.strip()
    return token if scheme.lower() == "bearer" and looks_like_token(token) else None


def tenant_keys(secret: bytes, records: Iterable[KeyRecord]) -> KeyRing[Identity]:
    """The ring of the keys in a key file, each with the start of its HMAC as id."""
    ring: KeyRing[Identity] = KeyRing(secret)
    for record in records:
        key_id = record.hmac[:HMAC_CHARS_IN_ID]
        ring.put(key_id, record.hmac, Identity(record.tenant, key_id=key_id))
    return ring


class OpenKeys:
    """An authenticator that accepts any key, or none."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def identify(self, headers: Mapping[str, str]) -> Identity:
        key = given_key(headers)
        if not key:
            return Identity(ANONYMOUS)
        return Identity(OPEN_TENANT_PREFIX + key_hmac(self._secret, key).hex()[:OPEN_TENANT_HEX_CHARS])


class TrustedProxies:
    """The networks of proxies whose tenant header is trusted."""

    def __init__(self, networks: Iterable[IPv4Network | IPv6Network]) -> None:
        self._networks = tuple(networks)

    @property
    def any(self) -> bool:
        return bool(self._networks)

    def named(self, headers: Mapping[str, str], peer: str | None) -> Identity | None:
        """The tenant that a trusted proxy names; None where the key decides. Raises Unauthorized where the given name
        is invalid.
        """
        tenant = next((headers[name] for name in TENANT_HEADERS if name in headers), None)
        if tenant is None or not is_within(peer, self._networks):
            return None
        if not TENANT_NAME.fullmatch(tenant):
            raise Unauthorized
        return Identity(tenant)


def make_authenticator(
    auth: AuthSection, process_secret: bytes | None = None
) -> tuple[Authenticator, KeyRing[Identity] | None]:
    """The authenticator, from the secret and the key file; and the ring of keys, None where keys are not checked.
    `process_secret` is used where no secret is configured; None: a random one. Raises ValueError where a file cannot be
    read.
    """
    if auth.mode == "open":
        return OpenKeys(auth.secret_bytes() or process_secret or secrets.token_bytes(32)), None
    ring = tenant_keys(auth.given_secret(), read_keys(auth.keys_file))
    return KnownKeys(ring), ring


def given_key(headers: Mapping[str, str]) -> str | None:
    """The key, from the headers in which SDKs send it; None where there is none. Raises Unauthorized if malformed."""
    authorization = headers.get("authorization")
    if authorization is None:
        key = next((headers[name] for name in KEY_HEADERS if name in headers), None)
    else:
        scheme, _, key = authorization.partition(" ")
        if scheme != "Bearer" and scheme.lower() != "bearer":
            raise Unauthorized
    if key is None:
        return None
    key = key.strip()
    if len(key) > KEY_CHARS_MAX:
        raise Unauthorized
    return key
