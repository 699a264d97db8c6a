"""Token verification: the check of identity providers' JSON Web Tokens (RFC 7519), as RFC 8725 requires.

A token is valid if it is signed by a key that its issuer publishes, with an allowed algorithm, names the gateway's
audience, and has not expired. Keys are fetched in the background every REFRESH_S, and once more when a token names an
unknown key: no request waits for a provider, and tokens trigger at most one fetch per UNKNOWN_S. If a provider is
unavailable, its last keys stay valid. Valid tokens are cached by digest until they expire.
"""

import asyncio
import hashlib
import logging
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

import aiohttp
import jwt
import orjson

from backends.tls import tls_context
from gateway.config.jwt import Issuer
from gateway.identity.token_form import looks_like_token
from gateway.tasks import cancel

REFRESH_S = 300.0
UNKNOWN_S = 10.0  # between two fetches that tokens trigger
RETRY_S = 5.0  # after a failed fetch
FETCH_S_MAX = 5.0
JWKS_BYTES_MAX = 256 << 10
KEYS_MAX = 100  # of one issuer
REMEMBERED_MAX = 10_000
LEEWAY_S = 30.0  # by which clocks may differ
KEY_TYPES = ("RSA", "EC", "OKP")
DISCOVERY = "/.well-known/openid-configuration"

I = TypeVar("I", bound=Issuer)  # noqa: E741 - an issuer
T = TypeVar("T")

log = logging.getLogger(__name__)


class KeysUnavailableError(Exception):
    """An error: the public keys of an identity provider could not be fetched."""


class Tokens(Generic[I, T]):
    """The verifier of tokens that identity providers issue. It passes the claims of a valid token to `read`, and caches
    the result; None rejects the token. Call `start` and `stop`.
    """

    def __init__(
        self,
        issuers: Sequence[I],
        read: Callable[[I, Mapping[str, Any]], T | None],
    ) -> None:
        """Raises ValueError where a file of CA certificates cannot be read."""
        self._remembered: OrderedDict[bytes, tuple[float, T]] = OrderedDict()  # until an issuer changes its keys
        self._issuers = {each.issuer: _Keys(each, self._remembered.clear) for each in issuers}
        self._read = read

    async def start(self) -> None:
        """Fetch the keys, within a bounded time, and refresh them from then on."""
        await asyncio.gather(*(keys.start() for keys in self._issuers.values()))

    @property
    def issuers(self) -> list[I]:
        return [keys.issuer for keys in self._issuers.values()]

    async def stop(self) -> None:
        await asyncio.gather(*(keys.stop() for keys in self._issuers.values()))

    def find(self, token: str) -> T | None:
        """The result of `read` for a valid token; None where the token is invalid."""
        if not looks_like_token(token):
            return None
        digest, now = hashlib.sha256(token.encode(errors="surrogateescape")).digest(), time.time()
        known = self._remembered.get(digest)
        if known is not None and now < known[0]:
            return known[1]
        try:
            claims, keys = self._claims(token)
            over_at = float(claims["exp"])
        except (jwt.PyJWTError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return None
        found = self._read(keys.issuer, claims)
        if found is not None:
            self._remembered[digest] = over_at, found
            if len(self._remembered) > REMEMBERED_MAX:
                self._remembered.popitem(last=False)
        return found

    def claims(self, issuer: str, token: str, *, audience: str) -> Mapping[str, Any] | None:
        """The claims of this issuer's token for another audience than its own; None where the token is invalid."""
        try:
            claims, keys = self._claims(token, audience)
        except (jwt.PyJWTError, ValueError, TypeError, KeyError, RecursionError):
            return None
        return claims if keys.issuer.issuer == issuer else None

    def _claims(self, token: str, audience: str | None = None) -> tuple[dict[str, Any], "_Keys[I]"]:
        """The claims of a valid token, and the keys of its issuer. Raises PyJWTError; KeyError for an unknown issuer or
        key.
        """
        unverified = jwt.decode(token, options={"verify_signature": False})
        keys = self._issuers[unverified["iss"]]
        header, issuer = jwt.get_unverified_header(token), keys.issuer
        if header["alg"] not in issuer.algorithms:
            raise jwt.InvalidAlgorithmError
        claims: dict[str, Any] = jwt.decode(
            token,
            keys.find(header.get("kid"), header["alg"]),
            algorithms=[header["alg"]],
            audience=audience or issuer.audience,
            issuer=issuer.issuer,
            leeway=LEEWAY_S,
            options={"require": ["exp", "iss", "aud"]},
        )
        return claims, keys


class _Keys(Generic[I]):
    """The public keys of one issuer, as last fetched. Mutable."""

    def __init__(self, issuer: I, on_change: Callable[[], None]) -> None:
        self.issuer = issuer
        self._on_change = on_change
        self._tls = tls_of(issuer)
        self._jwks: dict[str | None, dict[str, Any]] = {}
        self._made: dict[tuple[str | None, str], jwt.PyJWK] = {}  # by id and algorithm
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        first = asyncio.Event()
        self._task = asyncio.create_task(self._refresh_on(first), name=f"keys of {self.issuer.issuer}")
        await first.wait()

    async def stop(self) -> None:
        await cancel(self._task)

    def find(self, key_id: str | None, algorithm: str) -> jwt.PyJWK:
        """The public key for a token. Raises KeyError where it is unknown, and requests a fetch; PyJWTError where it is
        for another algorithm.
        """
        made = self._made.get((key_id, algorithm))
        if made is not None:
            return made
        entry = self._jwks.get(key_id)
        if entry is None and key_id is None and len(self._jwks) == 1:
            entry = next(iter(self._jwks.values()))
        if entry is None:
            self._wanted.set()
            raise KeyError(key_id)
        if entry.get("alg", algorithm) != algorithm:
            raise jwt.InvalidAlgorithmError
        made = self._made[key_id, algorithm] = jwt.PyJWK(entry, algorithm)
        return made

    async def _refresh_on(self, first: asyncio.Event) -> None:
        while True:
            pause_s = REFRESH_S
            try:
                self._took(_parsed(await self._fetch()))
            except KeysUnavailableError as error:
                log.warning("the keys of %s cannot be fetched: %s", self.issuer.issuer, error)
                pause_s = RETRY_S
            first.set()
            # A fetch that tokens request waits too: they may request it often.
            await asyncio.sleep(min(UNKNOWN_S, pause_s))
            try:
                async with asyncio.timeout(max(pause_s - UNKNOWN_S, 0)):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()

    def _took(self, jwks: dict[str | None, dict[str, Any]]) -> None:
        if jwks != self._jwks:
            self._jwks = jwks
            self._made.clear()
            self._on_change()

    async def _fetch(self) -> Mapping[str, Any]:
        """Fetch the issuer's keys. Raises KeysUnavailableError."""
        issuer = self.issuer
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=FETCH_S_MAX)) as session:
                url = issuer.jwks_url
                if url is None:
                    url = (await discovered(session, issuer, "jwks_uri", tls=self._tls))["jwks_uri"]
                return await asked(session.get(url, allow_redirects=False, ssl=self._tls))
        except (aiohttp.ClientError, OSError, ValueError, TimeoutError) as error:
            raise KeysUnavailableError(str(error) or type(error).__name__) from error


def tls_of(issuer: Issuer) -> ssl.SSLContext | bool:
    """The TLS context for an issuer's connections; True: the default. Raises ValueError for an unreadable CA file."""
    return True if issuer.ca_file is None else tls_context(issuer.ca_file)


async def discovered(
    session: aiohttp.ClientSession, issuer: Issuer, *names: str, tls: ssl.SSLContext | bool
) -> Mapping[str, Any]:
    """The discovery document of an issuer, in which `names` are texts. Raises KeysUnavailableError, and the errors of
    the request.
    """
    url = issuer.issuer.rstrip("/") + DISCOVERY
    found = await asked(session.get(url, allow_redirects=False, ssl=tls))
    # OpenID Connect Discovery 1.0, 4.3: the document must name this issuer.
    if found.get("issuer") != issuer.issuer or not all(isinstance(found.get(name), str) for name in names):
        raise KeysUnavailableError("its discovery document is not about it")
    return found


async def asked(request: AbstractAsyncContextManager[aiohttp.ClientResponse]) -> Mapping[str, Any]:
    """The JSON object in an issuer's response. Raises KeysUnavailableError, and the errors of the request."""
    async with request as response:
        body = bytearray()
        while len(body) <= JWKS_BYTES_MAX and (chunk := await response.content.readany()):
            body += chunk
        if response.status != 200 or len(body) > JWKS_BYTES_MAX:
            raise KeysUnavailableError(f"{response.url}: status {response.status}, {len(body)} bytes")
    value = orjson.loads(bytes(body))
    if not isinstance(value, dict):
        raise KeysUnavailableError(f"{response.url}: not an object")
    return value


def _parsed(jwks: Mapping[str, Any]) -> dict[str | None, dict[str, Any]]:
    """The signature keys by id; keys for other uses, and secrets, are skipped. Raises KeysUnavailableError."""
    entries = jwks.get("keys")
    keys: dict[str | None, dict[str, Any]] = {}
    for entry in entries[:KEYS_MAX] if isinstance(entries, list) else []:
        is_key = isinstance(entry, dict) and isinstance(entry.get("kid", ""), str)
        if is_key and entry.get("use", "sig") == "sig" and entry.get("kty") in KEY_TYPES:
            keys[entry.get("kid")] = entry
    if not keys:
        raise KeysUnavailableError("there is no key for signatures among them")
    return keys
