"""JWT section: identity providers whose tokens are accepted beside API keys."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from gateway.config.sections import Section

ISSUERS_MAX = 16

# Public-key signatures alone: with an HMAC, the key that a provider publishes could sign tokens (RFC 8725, 3.1).
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
Role = Literal["viewer", "operator", "admin", "group-admin"]
ROLES: Mapping[str, Role] = {"viewer": "viewer", "operator": "operator", "admin": "admin"}


def _url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise ValueError("must be like https://host/path")
    return value


def _name(value: str) -> str:
    if not value.isprintable():
        raise ValueError("must be printable")
    return value


Url = Annotated[str, AfterValidator(_url)]
Claim = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_name)]


class Issuer(Section):
    """The settings of an identity provider whose tokens the gateway accepts. `jwks_url` is where the provider's keys
    are; None: found by OpenID Connect Discovery. Where a setting names a claim, a.b is the claim b inside the claim a.
    """

    issuer: Url
    audience: Annotated[str, Field(min_length=1, max_length=256)]
    jwks_url: Url | None = None
    ca_file: Path | None = None
    algorithms: Annotated[tuple[Algorithm, ...], Field(min_length=1)] = ("RS256", "ES256")


class TenantIssuer(Issuer):
    """The settings of an identity provider of the data port. The claim `tenant_claim` of a token names the tenant."""

    tenant_claim: Claim = "tenant"


class SignInClient(Section):
    """The settings of browser sign-in at the admin port by an identity provider (OpenID Connect, code flow with PKCE).
    `page_url` is where browsers open the page; its path `/oidc/callback` is to be registered at the provider. Without a
    `client_secret_file`, the gateway is a public client. `scopes` are asked for besides openid. `label` is the
    provider's name on the page.
    """

    client_id: Annotated[str, Field(min_length=1, max_length=256)]
    client_secret_file: Path | None = None
    page_url: Url
    scopes: tuple[Claim, ...] = ()
    label: Claim = "single sign-on"


class AdminIssuer(Issuer):
    """The settings of an identity provider of the admin port. The claim `role_claim` of a token has names that `roles`
    maps to roles; the highest role counts. A group-admin's token names its group in the claim `group_claim`. If
    `sign_in` is set, the page offers to sign in at this provider.
    """

    role_claim: Claim = "roles"
    group_claim: Claim = "group"
    roles: Annotated[dict[str, Role], Field(min_length=1)] = Field(default_factory=lambda: {**ROLES})
    sign_in: SignInClient | None = None


class Jwt(Section):
    """The identity providers whose tokens are accepted besides API keys: at the data port (where auth.mode is keys),
    and at the admin port.
    """

    data: Annotated[tuple[TenantIssuer, ...], Field(max_length=ISSUERS_MAX)] = ()
    admin: Annotated[tuple[AdminIssuer, ...], Field(max_length=ISSUERS_MAX)] = ()
