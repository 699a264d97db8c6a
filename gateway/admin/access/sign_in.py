"""Sign-in at the admin port: by a key with a role, or by a token of an identity provider; never by a tenant's key.

Unknown, revoked and malformed keys get the same 401, and after too many failures an address gets 429. Only the holder
of a tenant's key learns that the key is for the other port.
"""

from collections.abc import Callable, Mapping
from math import ceil
from typing import TYPE_CHECKING, Any

from aiohttp import hdrs

from gateway.admin.problems import AdminProblem
from gateway.admin.routes import ROLES, Caller, Role
from gateway.config.jwt import AdminIssuer
from gateway.identity.auth import Identity, Unauthorized, given_key, given_token
from gateway.identity.key_ring import KeyRing
from gateway.identity.throttle import FailureThrottle
from gateway.identity.token_form import claim

if TYPE_CHECKING:
    from gateway.identity.tokens import Tokens

SUBJECT_CHARS_MAX = 128


class SignIn:
    """The authenticator of callers at the admin port, by a key with a role or by an identity provider's token."""

    def __init__(
        self,
        *,
        admin_keys: KeyRing[Caller],
        tenant_keys: KeyRing[Identity] | None,
        clock: Callable[[], float],
        tokens: "Tokens[AdminIssuer, Caller] | None" = None,
        session_of: Callable[[Mapping[str, str]], Caller | None] | None = None,
    ) -> None:
        """`tenant_keys` None: tenants' keys are not recognised. `clock` gives monotonic seconds. `session_of` finds the
        caller of a browser's session, for a request without a key; None: browsers have none.
        """
        self._session_of = session_of
        self._tokens = tokens
        self._admin_keys = admin_keys
        self._tenant_keys = tenant_keys
        self._clock = clock
        self._failures = FailureThrottle()

    def caller(self, headers: Mapping[str, str], peer: str | None) -> Caller:
        """The caller that the headers' key or token identifies. Raises AdminProblem (401, 403, 429)."""
        token = given_token(headers)
        if token is not None and self._tokens is not None:
            found = self._tokens.find(token)
            if found is not None:
                return found
        if self._session_of is not None and hdrs.AUTHORIZATION not in headers:
            found = self._session_of(headers)
            if found is not None:
                return found
        try:
            key = given_key(headers) or ""
        except Unauthorized:
            key = ""
        caller = self._admin_keys.find(key)
        is_tenants = self._tenant_keys is not None and self._tenant_keys.find(key) is not None
        if caller is not None:
            return caller
        if is_tenants:
            raise AdminProblem(403, "this key is for the data port: the admin port has keys of its own")
        raise self.refusal(peer, "no valid key was given: send it as 'Authorization: Bearer KEY'")

    def refusal(self, peer: str | None, detail: str) -> AdminProblem:
        """The problem of a failure to sign in from this address: 401, or 429 after too many."""
        wait_s = self._failures.failed(peer, self._clock())
        if wait_s is not None:
            retry = {"retry-after": str(max(1, ceil(wait_s)))}
            return AdminProblem(429, "too many requests with wrong keys came from your address", headers=retry)
        return AdminProblem(401, detail, headers={"www-authenticate": "Bearer"})


def caller_of(issuer: AdminIssuer, claims: Mapping[str, Any]) -> Caller | None:
    """The caller that the claims identify, with the highest of its roles. None where the claims give no role, or the
    role of a group's administrator without a group.
    """
    names = claim(claims, issuer.role_claim)
    names = [names] if isinstance(names, str) else names if isinstance(names, list) else []
    roles = [ROLES[issuer.roles[name]] for name in names if isinstance(name, str) and name in issuer.roles]
    subject = str(claims.get("sub", ""))[:SUBJECT_CHARS_MAX]
    if not roles:
        return None
    name, role = f"{subject}@{issuer.issuer}", max(roles)
    if role is not Role.GROUP_ADMIN:
        return Caller(name, role)
    group = claim(claims, issuer.group_claim)
    return Caller(name, role, group) if isinstance(group, str) and group else None
