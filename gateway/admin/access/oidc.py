"""OIDC: sign-in of browsers at identity providers, by the authorization code flow with PKCE (OpenID Connect Core, 3.1).

`/oidc/begin` sends the browser to the provider. `/oidc/callback` receives it with a code, and exchanges the code for an
ID token, whose claims identify a caller, as those of any token at this port do. The session is a cookie that this
gateway signs: every replica knows it, and it holds no secret of the provider. PyJWT signs and verifies the cookie; no
other part of the flow is cryptography.

A cookie comes with every request of its browser. So a session counts only for a request with the header of the page,
which no other origin can send without a preflight, and this port answers none; SameSite=Strict keeps it from other
sites.
"""

import hashlib
import hmac
import logging
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import quote_plus, urlencode, urlsplit

import aiohttp
import jwt
from aiohttp import hdrs, web

from gateway.admin.access.one_time_links import KEY_S
from gateway.admin.access.sign_in import caller_of
from gateway.admin.routes import Caller, Role
from gateway.config.jwt import AdminIssuer, SignInClient
from gateway.config.key_file import key_hmac
from gateway.config.sections import file_text
from gateway.identity.tokens import FETCH_S_MAX, KeysUnavailableError, Tokens, asked, discovered, tls_of

PREFIX: Final = "/oidc/"
PAGE_HEADER: Final = "x-fairlead-page"
FLOW_S: Final = 600.0  # to sign in at the provider: as long as a one-time link is valid
ALGORITHM: Final = "HS256"
SECRET_BYTES: Final = 32  # of a state, a nonce and a verifier (RFC 7636, 7.1)
SESSION, FLOW = "fairlead-session", "fairlead-sign-in"
REFUSED, NO_ROLE, FAILED = "refused", "no-role", "failed"
"""What the page is told: the provider or the state refused it, the token has no role here, the provider failed."""

log = logging.getLogger(__name__)


class Oidc:
    """The browser sign-in at the admin port, by the identity providers with a `sign_in` section. Create it on the loop
    that runs it.
    """

    def __init__(
        self,
        issuers: Sequence[AdminIssuer],
        tokens: Tokens[AdminIssuer, Caller],
        secret: bytes,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`secret` signs sessions, and is the same at all replicas; `clock` gives seconds since 1970. Raises ValueError
        where a file cannot be read.
        """
        self._providers = [_Provider(each, each.sign_in, tokens) for each in issuers if each.sign_in is not None]
        self._key = key_hmac(secret, "sessions of browsers")
        self._clock = clock

    @property
    def labels(self) -> list[str]:
        """The labels of the providers on the sign-in page, in the order of the parameter `provider`."""
        return [each.client.label for each in self._providers]

    def caller(self, headers: Mapping[str, str]) -> Caller | None:
        """The caller whose session cookie this request of the page has; None without a valid one."""
        if PAGE_HEADER not in headers:
            return None
        found = self._opened(headers, SESSION)
        return None if found is None else Caller(found["sub"], Role(found["role"]), found["group"])

    async def answer(self, request: web.BaseRequest) -> web.Response | None:
        """The response to a browser that begins or ends a session; None for any other request."""
        if not request.path.startswith(PREFIX):
            return None
        match request.method, request.path.removeprefix(PREFIX):
            case "GET", "begin":
                return await self._begin(request.query.get("provider", "0"))
            case "GET", "callback":
                return await self._callback(request)
            case "POST", "sign-out" if PAGE_HEADER in request.headers:
                return self._with_cookie(web.Response(status=204), SESSION, "", 0.0)
        return web.Response(status=404)

    async def _begin(self, number: str) -> web.Response:
        if not number.isdecimal() or int(number) >= len(self._providers):
            return web.Response(status=404)
        provider = self._providers[int(number)]
        state, nonce, verifier = (secrets.token_urlsafe(SECRET_BYTES) for _ in range(3))
        flow = {"state": state, "nonce": nonce, "verifier": verifier, "provider": int(number)}
        try:
            place = await provider.place(state, nonce, verifier)
        except (KeysUnavailableError, aiohttp.ClientError, OSError, ValueError, TimeoutError) as error:
            log.warning("no sign-in can begin at %s: %s", provider.issuer.issuer, error or type(error).__name__)
            return _sent(f"/#sign-in={FAILED}")
        # Lax: the callback comes from the provider's site.
        return self._with_cookie(_sent(place), FLOW, self._signed(FLOW, flow, FLOW_S), FLOW_S, same_site="Lax")

    async def _callback(self, request: web.BaseRequest) -> web.Response:
        flow = self._opened(request.headers, FLOW)
        state, code = request.query.get("state", ""), request.query.get("code", "")
        if flow is None or not hmac.compare_digest(flow["state"].encode(), state.encode()):
            return self._over(_sent(f"/#sign-in={REFUSED}"))
        provider = self._providers[flow["provider"]]
        try:
            claims = await provider.claims(code, flow["verifier"]) if code else None
        except (KeysUnavailableError, aiohttp.ClientError, OSError, ValueError, TimeoutError) as error:
            log.warning("a sign-in at %s has failed: %s", provider.issuer.issuer, error or type(error).__name__)
            return self._over(_sent(f"/#sign-in={FAILED}"))
        if claims is None or not hmac.compare_digest(str(claims.get("nonce", "")).encode(), flow["nonce"].encode()):
            return self._over(_sent(f"/#sign-in={REFUSED}"))
        caller = caller_of(provider.issuer, claims)
        if caller is None:
            return self._over(_sent(f"/#sign-in={NO_ROLE}"))
        session = {"sub": caller.name, "role": int(caller.role), "group": caller.group}
        answer = self._over(_sent("/#sign-in=done"))
        return self._with_cookie(answer, SESSION, self._signed(SESSION, session, KEY_S), KEY_S)

    def _over(self, answer: web.Response) -> web.Response:
        """The flow is over: its state works once."""
        return self._with_cookie(answer, FLOW, "", 0.0, same_site="Lax")

    def _with_cookie(
        self, answer: web.Response, name: str, value: str, max_age_s: float, *, same_site: str = "Strict"
    ) -> web.Response:
        secure = any(urlsplit(each.client.page_url).scheme == "https" for each in self._providers)
        answer.set_cookie(
            name, value, max_age=int(max_age_s), path="/", secure=secure, httponly=True, samesite=same_site
        )
        return answer

    def _signed(self, name: str, values: Mapping[str, Any], seconds: float) -> str:
        said = {**values, "aud": name, "exp": int(self._clock() + seconds)}
        return jwt.encode(said, self._key, algorithm=ALGORITHM)

    def _opened(self, headers: Mapping[str, str], name: str) -> dict[str, Any] | None:
        """What our cookie of this name holds; None where there is none of ours, or it is too old."""
        try:
            cookie = SimpleCookie(headers.get(hdrs.COOKIE, "")).get(name)
            found: dict[str, Any] = jwt.decode(
                "" if cookie is None else cookie.value,
                self._key,
                algorithms=[ALGORITHM],
                audience=name,
                options={"require": ["exp", "aud"], "verify_exp": False},
            )
        except (jwt.PyJWTError, CookieError):
            return None
        return found if self._clock() < found["exp"] else None


class _Provider:
    """One provider, and this gateway as its client."""

    def __init__(self, issuer: AdminIssuer, client: SignInClient, tokens: Tokens[AdminIssuer, Caller]) -> None:
        self.issuer, self.client = issuer, client
        self._tokens = tokens
        self._tls = tls_of(issuer)
        file = client.client_secret_file
        self._secret = None if file is None else file_text(file)
        self._callback = client.page_url.rstrip("/") + f"{PREFIX}callback"
        self._known: Mapping[str, Any] | None = None

    async def place(self, state: str, nonce: str, verifier: str) -> str:
        """Where the browser is sent."""
        query = {
            "response_type": "code",
            "client_id": self.client.client_id,
            "redirect_uri": self._callback,
            "scope": " ".join(("openid", *self.client.scopes)),
            "state": state,
            "nonce": nonce,
            "code_challenge": _challenge(verifier),
            "code_challenge_method": "S256",
        }
        endpoint = (await self._endpoints())["authorization_endpoint"]
        return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{urlencode(query)}"

    async def claims(self, code: str, verifier: str) -> Mapping[str, Any] | None:
        """The claims of the ID token for this code; None where the token is not for this client."""
        client_id = self.client.client_id
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._callback,
            "client_id": client_id,
            "code_verifier": verifier,
        }
        headers = {}
        if self._secret is not None:  # RFC 6749, 2.3.1: both are encoded as in a form
            headers[hdrs.AUTHORIZATION] = aiohttp.encode_basic_auth(quote_plus(client_id), quote_plus(self._secret))
        endpoint = (await self._endpoints())["token_endpoint"]
        async with _session() as session:
            answer = await asked(
                session.post(endpoint, data=form, headers=headers, allow_redirects=False, ssl=self._tls)
            )
        token = answer.get("id_token")
        claims = None
        if isinstance(token, str):
            claims = self._tokens.claims(self.issuer.issuer, token, audience=client_id)
        # OpenID Connect Core, 3.1.3.7: a token for several parties names the one that it was issued to.
        return None if claims is None or claims.get("azp", client_id) != client_id else claims

    async def _endpoints(self) -> Mapping[str, Any]:
        """The discovery document, which is read once: visitors make no more requests to the provider."""
        if self._known is None:
            async with _session() as session:
                names = "authorization_endpoint", "token_endpoint"
                self._known = await discovered(session, self.issuer, *names, tls=self._tls)
        return self._known


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=FETCH_S_MAX))


def _challenge(verifier: str) -> str:
    """RFC 7636, 4.2."""
    return urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()


def _sent(place: str) -> web.Response:
    """A redirect, which no cache keeps."""
    return web.Response(status=303, headers={hdrs.LOCATION: place, hdrs.CACHE_CONTROL: "no-store"})
