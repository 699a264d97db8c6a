"""Sign-in of browsers at an identity provider: who gets a session, and when it counts."""

import contextlib
import time
from http.cookies import SimpleCookie
from urllib.parse import parse_qs, urlsplit

import jwt
import pytest
from admin_rig import admin
from listening import listening
from oidc_provider import CLIENT_SECRET, OidcProvider

from gateway.admin.access import oidc
from gateway.admin.access.oidc import ALGORITHM, FLOW, PAGE_HEADER, SESSION

PAGE = {PAGE_HEADER: "1"}


class Browser:
    """A browser: it keeps cookies, and follows no redirect by itself."""

    def __init__(self, api):
        self.api, self.cookies, self.seen = api, {}, []

    async def ask(self, method, url, **headers):
        if self.cookies and url.startswith("/"):
            headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        url = url if url.startswith("http") else self.api.url + url
        async with self.api.session.request(method, url, headers=headers, allow_redirects=False) as response:
            for given in response.headers.getall("Set-Cookie", ()):
                self.seen.append(given)
                for name, each in SimpleCookie(given).items():
                    self.cookies[name] = each.value
                    if each["max-age"] == "0":
                        del self.cookies[name]
            return response.status, response.headers.get("Location"), await response.read()

    async def begin(self):
        """Begin, and return where the provider sends the browser back to, at this gateway."""
        status, place, _ = await self.ask("GET", "/oidc/begin?provider=0")
        assert status == 303
        _, back, _ = await self.ask("GET", place)
        parts = urlsplit(back)
        assert back.startswith("https://page.example/oidc/callback?")
        return f"{parts.path}?{parts.query}"

    async def sign_in(self):
        return (await self.ask("GET", await self.begin()))[1]

    async def me(self, **headers):
        return (await self.ask("GET", "/admin/v1/me", **(PAGE | headers)))[0]


@pytest.fixture
async def provider():
    made = OidcProvider()
    async with listening(made.serve) as made.url:
        yield made


@contextlib.asynccontextmanager
async def signed_by(provider, folder, **config):
    secret = folder / "client-secret"
    secret.write_text(CLIENT_SECRET + "\n")
    issuer = provider.issuer("https://page.example/", secret)
    async with admin(folder, jwt={"admin": [issuer]}, groups={"red": {}}, **config) as api:
        yield api


async def test_a_browser_gets_the_session_of_its_roles_and_gives_it_back(tmp_path, provider):
    async with signed_by(provider, tmp_path) as api:
        browser = Browser(api)
        assert await browser.sign_in() == "/#sign-in=done"
        status, _, body = await browser.ask("GET", "/admin/v1/me", **PAGE)
        assert (status, b'"role":"operator"' in body, f"carol@{provider.url}".encode() in body) == (200, True, True)
        (session,) = [each for each in browser.seen if each.startswith(SESSION) and "Max-Age=0" not in each]
        assert {"HttpOnly", "Secure", "SameSite=Strict", "Path=/"} <= {each.strip() for each in session.split(";")}
        assert FLOW not in browser.cookies
        assert (await browser.ask("POST", "/oidc/sign-out"))[0] == 404, "without the header of the page"
        assert (await browser.ask("POST", "/oidc/sign-out", **PAGE))[0] == 204
        assert await browser.me() == 401


async def test_a_cookie_alone_is_no_sign_in_and_a_key_is_above_it(tmp_path, provider):
    """As it is with a request that another site makes the browser send."""
    async with signed_by(provider, tmp_path) as api:
        browser = Browser(api)
        await browser.sign_in()
        assert (await browser.ask("GET", "/admin/v1/me"))[0] == 401
        assert (await browser.ask("DELETE", "/admin/v1/tenants/declared"))[0] == 401
        assert await browser.me(Authorization="Bearer wrong") == 401


async def test_the_session_ends(tmp_path, provider, monkeypatch):
    monkeypatch.setattr(oidc, "KEY_S", 1.0)
    async with signed_by(provider, tmp_path) as api:
        browser = Browser(api)
        await browser.sign_in()
        assert await browser.me() == 200
        api.rig.gateway._administration._port.server._oidc._clock = lambda: time.time() + 1.0
        assert await browser.me() == 401


async def test_an_administrator_of_a_group_has_the_group_of_its_claim(tmp_path, provider):
    provider.claims = {"sub": "lea", "roles": ["lead"], "group": "red"}
    async with signed_by(provider, tmp_path) as api:
        browser = Browser(api)
        await browser.sign_in()
        assert b'"group":"red"' in (await browser.ask("GET", "/admin/v1/me", **PAGE))[2]
        assert (await browser.ask("GET", "/admin/v1/audit", **PAGE))[0] == 403


@pytest.mark.parametrize(
    ("claims", "place"),
    [
        ({"sub": "eve", "roles": ["guest"]}, "no-role"),
        ({"sub": "lea", "roles": ["lead"]}, "no-role"),
        ({"nonce": "of another"}, "refused"),
        ({"aud": "machines"}, "refused"),
        ({"aud": ["fairlead-page", "other"], "azp": "other"}, "refused"),
        ({"iss": "https://elsewhere.example"}, "refused"),
        ({"exp": 1}, "refused"),
    ],
)
async def test_what_is_not_right_in_a_token_gives_no_session(tmp_path, provider, claims, place):
    provider.claims = {"sub": "carol", "roles": ["sre"], **claims}
    async with signed_by(provider, tmp_path) as api:
        browser = Browser(api)
        assert await browser.sign_in() == f"/#sign-in={place}"
        assert browser.cookies == {}


async def test_a_callback_counts_once_and_for_the_browser_that_began(tmp_path, provider):
    async with signed_by(provider, tmp_path) as api:
        victim, other = Browser(api), Browser(api)
        back = await other.begin()
        assert (await victim.ask("GET", back))[1] == "/#sign-in=refused", "it has begun none"
        await victim.begin()
        assert (await victim.ask("GET", back))[1] == "/#sign-in=refused", "it has begun another"
        assert victim.cookies == {}
        assert (await other.ask("GET", back))[1] == "/#sign-in=done"
        assert (await other.ask("GET", back))[1] == "/#sign-in=refused"


async def test_a_code_that_another_began_is_worth_nothing_because_of_its_verifier(tmp_path, provider):
    async with signed_by(provider, tmp_path) as api:
        victim, thief = Browser(api), Browser(api)
        stolen = parse_qs(urlsplit(await victim.begin()).query)["code"][0]
        state = parse_qs(urlsplit(await thief.begin()).query)["state"][0]
        assert (await thief.ask("GET", f"/oidc/callback?code={stolen}&state={state}"))[1] == "/#sign-in=failed"


async def test_cookies_that_others_made_are_none(tmp_path, provider):
    async with signed_by(provider, tmp_path) as api:
        browser = Browser(api)
        said = {"sub": "mallory", "role": 3, "group": None, "aud": SESSION, "exp": int(time.time()) + 60}
        for key, algorithm in ((b"x" * 32, ALGORITHM), (None, "none")):
            browser.cookies[SESSION] = jwt.encode(said, key, algorithm=algorithm)
            assert await browser.me() == 401
        await browser.begin()
        browser.cookies[SESSION] = browser.cookies[FLOW]  # ours, for something else
        assert await browser.me() == 401


async def test_a_provider_that_is_away_is_said(tmp_path, provider):
    async with signed_by(provider, tmp_path) as api:
        provider.is_there = False
        assert (await Browser(api).ask("GET", "/oidc/begin"))[:2] == (303, "/#sign-in=failed")
        provider.is_there = True
        assert await Browser(api).sign_in() == "/#sign-in=done"


async def test_without_a_client_there_is_no_way(tmp_path, provider):
    async with admin(tmp_path, jwt={"admin": [{"issuer": provider.url, "audience": "machines"}]}) as api:
        assert (await Browser(api).ask("GET", "/oidc/begin"))[0] == 401
        assert (await Browser(api).ask("GET", "/web/providers.js"))[2] == b"export const PROVIDERS = [];\n"
