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
from typing import TYPE_CHECKING, Any

from gateway.api.trusted_hops import is_within
from gateway.config import ANONYMOUS, OPEN_TENANT_PREFIX
from gateway.config.jwt import TenantIssuer
from gateway.config.key_file import KeyHmac
from gateway.config.sections import AuthSection
from gateway.config.value_types import TENANT_NAME
from gateway.identity.key_ring import KeyRing
from gateway.identity.token_form import claim, looks_like_token

if TYPE_CHECKING:  # loaded only where tokens are configured
    from gateway.identity.tokens import Tokens

KEY_CHARS_MAX = 512
OPEN_TENANT_HEX_CHARS = 12
# Where SDKs send the key: Authorization, or these (Anthropic, Azure).
KEY_HEADERS = ("x-api-key", "api-key")
# Where a trusted proxy names the tenant; the first of these headers that is present counts.
TENANT_HEADERS = ("x-tenant-id", "x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")


class Unauthorized(Exception):  # noqa: N818 - named as HTTP names it
    """An error: the request has no valid key."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The authenticated tenant of a request. `models` has the models that it may use; None: all. `key_id` is the id of
    its API key; "": it has none.
    """

    tenant_id: str
    models: frozenset[str] | None = None
    key_id: str = field(default="", compare=False)

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models


class Authenticator:
    """The authenticator of the data port: it finds the tenant of a request, by an API key or by a token of an identity
    provider. Mutable: its key rings change.
    """

    def __init__(
        self,
        *,
        keys: KeyRing[Identity] | None = None,
        open_secret: bytes = b"",
        tokens: "Tokens[TenantIssuer, Identity] | None" = None,
    ) -> None:
        """`keys` are all that are accepted; None: any key is, or none, and `open_secret` names its tenant."""
        self.keys = keys
        self.beside: KeyRing[Identity] = KeyRing(secrets.token_bytes(32))
        """Further keys, mostly none."""
        self._open_hmac = KeyHmac(open_secret)
        self._tokens = tokens

    def identify(self, headers: Mapping[str, str]) -> Identity:
        """The identity of a request; `headers` looks names up case-insensitively. Raises Unauthorized."""
        if self._tokens is not None and (token := given_token(headers)) is not None:
            identity = self._tokens.find(token)
        else:
            identity = self._by_key(headers)
        if identity is None:
            raise Unauthorized
        return identity

    def _by_key(self, headers: Mapping[str, str]) -> Identity | None:
        """Raises Unauthorized where any key is accepted, but the given one is malformed."""
        try:
            key = given_key(headers) or ""
        except Unauthorized:
            if self.keys is None:
                raise
            key = ""  # it is looked up too, so that its answer takes the same time
        if self.beside.known and (identity := self.beside.find(key)) is not None:
            return identity
        if self.keys is not None:
            return self.keys.find(key)
        if not key:
            return Identity(ANONYMOUS)
        return Identity(OPEN_TENANT_PREFIX + self._open_hmac.of(key).hex()[:OPEN_TENANT_HEX_CHARS])


def tenant_of(issuer: TenantIssuer, claims: Mapping[str, Any]) -> Identity | None:
    """The tenant that the claims name; None where they name no tenant, or an invalid one."""
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
    """The bearer token (RFC 6750, 2.1); None where there is no bearer token, or it is an API key."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    token = token.strip()
    return token if scheme.lower() == "bearer" and looks_like_token(token) else None


class TrustedProxies:
    """The reader of the header with which a proxy names the tenant. It trusts only proxies in the networks of the
    setting `trusted_proxies`.
    """

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
    auth: AuthSection,
    process_secret: bytes | None = None,
    tokens: "Tokens[TenantIssuer, Identity] | None" = None,
) -> Authenticator:
    """The authenticator. Where keys are checked it knows none yet: the reconciler puts them in. `process_secret` is
    used where no secret is configured; None: a random one. Raises ValueError where the secret cannot be read.
    """
    if auth.mode == "open":
        secret = auth.secret_bytes() or process_secret or secrets.token_bytes(32)
        return Authenticator(open_secret=secret, tokens=tokens)
    return Authenticator(keys=KeyRing(auth.given_secret()), tokens=tokens)


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
