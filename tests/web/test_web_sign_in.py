"""Who may see the page: by key, token, one-time link or identity provider, each with the controls of its role."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec
from oidc_provider import CLIENT_SECRET, OidcProvider
from playwright._impl._driver import compute_driver_executable
from playwright.sync_api import expect
from web_rig import ROOT, START_S_MAX, serving

ROLES = ("viewer", "operator", "admin")


@pytest.mark.parametrize("role", ROLES)
def test_a_key_signs_in_with_the_controls_of_its_role_and_no_others(visit, loaded, keys, role):
    page = visit(loaded).sign_in(keys[role])
    expect(page.locator(".caller")).to_contain_text(f"role {role}")
    page.goto("/#/tenant/flood")
    expect(page.locator("dl.settings")).to_be_visible()
    edits = page.get_by_role("button", name=re.compile("^Edit "))
    expect(edits).to_have_count(0 if role == "viewer" else 14)
    page.goto("/#/tier/batch")
    expect(page.get_by_role("heading", level=1)).to_contain_text("batch")
    expect(page.locator("dl.settings")).to_be_visible()
    expect(edits).to_have_count(0 if role == "viewer" else 7)
    page.goto("/#/what-if")
    expect(page.get_by_role("button", name="Play it")).to_have_count(0 if role == "viewer" else 1)


def test_a_viewer_sees_no_control_that_would_be_refused_at_requests(visit, loaded, keys):
    cancels = re.compile("^Cancel ")
    operator = visit(loaded).sign_in(keys["operator"], "#/requests?state=running")
    expect(operator.get_by_role("button", name=cancels).first).to_be_visible()
    viewer = visit(loaded).sign_in(keys["viewer"], "#/requests?state=running")
    expect(viewer.locator("tbody tr th .name").first).to_be_visible()
    expect(viewer.get_by_role("button", name=cancels)).to_have_count(0)


def test_a_wrong_key_is_refused_and_not_kept(visit, loaded):
    page = visit(loaded).open()
    page.fill("#key", "fl-no-such-key")
    page.click("form button")
    expect(page.get_by_role("alert")).to_contain_text("does not know this key")
    assert page.evaluate("Object.keys(sessionStorage)") == []


def test_what_is_no_key_is_not_sent(visit, loaded):
    page = visit(loaded).open()
    page.fill("#key", "clé à trouver")
    page.click("form button")
    expect(page.get_by_role("alert")).to_contain_text("ASCII")


def test_the_key_lives_in_the_tab_alone_without_a_cookie(visit, loaded, keys):
    page = visit(loaded).sign_in(keys["viewer"])
    assert page.context.cookies() == []
    assert page.evaluate("Object.values(localStorage).join()").count(keys["viewer"]) == 0
    page.reload()
    expect(page.locator(".caller")).to_be_visible()  # the tab still has it
    other = page.context.new_page()
    other.goto("/")
    expect(other.locator("#key")).to_be_visible()  # another has not
    page.get_by_role("button", name="Sign out").click()
    expect(page.locator("#key")).to_be_visible()
    assert page.evaluate("Object.keys(sessionStorage)") == []


def test_nothing_but_files_is_served_without_a_key(loaded, visit):
    page = visit(loaded).open()
    expect(page.locator("#key")).to_be_visible()
    for path in ("/live", "/me", "/requests", "/state", "/tenants"):
        status = page.evaluate("async (path) => (await fetch('/admin/v1' + path)).status", path)
        assert status == 401, path


def test_a_key_that_is_revoked_ends_the_session(visit, loaded):
    key = loaded.key_of("viewer")
    page = visit(loaded).sign_in(key)
    listed = loaded.ask("GET", "/keys?limit=1000")[1]["items"]
    (made,) = [each["id"] for each in listed if key.endswith(each["last_four"]) and not each["revoked"]]
    assert loaded.ask("PATCH", f"/keys/{made}", {"revoked": True})[0] == 200
    page.goto("/#/tenant/flood")
    expect(page.get_by_role("alert")).to_contain_text("does not know this key any more")


def test_a_token_of_the_identity_provider_signs_in(visit, background, engines, tmp_path):
    """A JWT is pasted in place of a key; its role is that of its claim."""
    private = ec.generate_private_key(ec.SECP256R1())
    url, runner = background.run(provider(private))
    issuer = {"issuer": url, "audience": "fairlead", "role_claim": "role", "roles": {"sre": "operator"}}
    backends = [{"name": "vllm-0", "url": engines[0].url}]
    with serving(tmp_path, backends, jwt={"admin": [issuer]}) as gateway:
        claims = {"iss": url, "aud": "fairlead", "sub": "carol", "exp": int(time.time()) + 600, "role": "sre"}
        token = jwt.encode(claims, private, algorithm="ES256", headers={"kid": "one"})
        page = visit(gateway).sign_in(token)
        expect(page.locator(".caller")).to_contain_text("carol@")
        expect(page.locator(".caller")).to_contain_text("role operator")
    background.run(runner.cleanup())


def test_a_browser_signs_in_at_the_provider_and_out(visit, background, engines, tmp_path):
    """The page's own cookie, which no script can read; a reload and another tab have the session, too."""
    provider = OidcProvider()
    provider.url, runner = background.run(serving_at(provider.serve))
    secret = tmp_path / "client-secret"
    secret.write_text(CLIENT_SECRET)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    admin = {"enabled": True, "port": port, "key_file": str(tmp_path / "admin-key")}
    issuer = provider.issuer(f"http://127.0.0.1:{port}", secret)
    backends = [{"name": "vllm-0", "url": engines[0].url}]
    with serving(tmp_path, backends, jwt={"admin": [issuer]}, admin=admin) as gateway:
        visitor = visit(gateway)
        page = visitor.open()
        page.get_by_role("link", name="Sign in with Dex").click()
        expect(page.locator(".caller")).to_contain_text("carol@")
        expect(page.locator(".caller")).to_contain_text("role operator")
        assert page.evaluate("document.cookie") == ""
        assert page.evaluate("Object.keys(sessionStorage)") == []
        (cookie,) = page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        page.reload()
        expect(page.locator(".caller")).to_be_visible()
        other = page.context.new_page()
        other.goto("/#/tenant/x")
        expect(other.locator(".caller")).to_be_visible()
        page.get_by_role("button", name="Sign out").click()
        expect(page.locator("#key")).to_be_visible()
        page.reload()
        expect(page.locator("#key")).to_be_visible()
        assert page.context.cookies() == []
        provider.claims = {"sub": "eve", "roles": ["guest"]}
        page.get_by_role("link", name="Sign in with Dex").click()
        expect(page.get_by_role("alert")).to_contain_text("none of your roles has one here")
        visitor.asked = [url for url in visitor.asked if not url.startswith(provider.url)]
    background.run(runner.cleanup())


CERTIFIED = ROOT / "build/oidc-provider/node_modules/oidc-provider/lib/index.js"


@pytest.fixture
def certified(tmp_path):
    """A provider that is not of these tests, whose client is the page at the port that is given with it."""
    if not CERTIFIED.is_file():
        pytest.skip("no oidc-provider: tests/web/provider.sh")
    with contextlib.ExitStack() as taken:
        ports = [taken.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(2)]
    issuer, page_url = (f"http://127.0.0.1:{port}" for port in ports)
    secret = tmp_path / "client-secret"
    secret.write_text("of the client: +&%/")
    client = {
        "issuer": issuer,
        "client_id": "the page",
        "client_secret": secret.read_text(),
        "redirect_uris": [f"{page_url}/oidc/callback"],
        "accounts": {"carol": ["sre"], "eve": ["guest"]},
    }
    node, _ = compute_driver_executable()
    command = [node, Path(__file__).parent / "identity_provider.mjs", CERTIFIED, json.dumps(client)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "it serves\n"
        sign_in = {
            "client_id": "the page",
            "client_secret_file": str(secret),
            "page_url": page_url,
            "label": "Certified",
        }
        yield {"issuer": issuer, "audience": "machines", "roles": {"sre": "operator"}, "sign_in": sign_in}, ports[1]
        process.terminate()


@pytest.mark.parametrize(("account", "shown"), [("carol", "role operator"), ("eve", "none of your roles has one")])
def test_a_browser_signs_in_at_a_certified_provider(visit, certified, tmp_path, account, shown):
    """It asks for PKCE and the client's secret, and has pages of its own to sign in and to consent."""
    issuer, port = certified
    admin = {"enabled": True, "port": port, "key_file": str(tmp_path / "admin-key")}
    with serving(tmp_path, [], jwt={"admin": [issuer]}, admin=admin) as gateway:
        visitor = visit(gateway)
        page = visitor.open()
        page.get_by_role("link", name="Sign in with Certified").click()
        page.get_by_placeholder("Enter any login").fill(account)
        page.get_by_placeholder("and password").fill("any")
        page.get_by_role("button", name="Sign-in").click()
        page.get_by_role("button", name="Continue").click()
        expect(page.locator(".caller, [role=alert]")).to_contain_text(shown)
        expect(page.locator(".caller")).to_have_count(1 if account == "carol" else 0)
        visitor.asked.clear()  # the provider's pages ask for fonts; those of the page are seen by all other tests


async def serving_at(answer):
    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return f"http://127.0.0.1:{runner.addresses[0][1]}", runner


async def provider(private):
    """Publishes the key by which it signs."""
    public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(private.public_key()))

    async def answer(request):
        if request.path.endswith("openid-configuration"):
            return web.json_response({"issuer": str(request.url.origin()), "jwks_uri": f"{request.url.origin()}/jwks"})
        return web.json_response({"keys": [{**public, "kid": "one", "use": "sig", "alg": "ES256"}]})

    return await serving_at(answer)


@pytest.fixture
def tried_out(tmp_path):
    """`fairlead serve` without a configuration; the address with its one-time link."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")}
    environment |= {"PYTHONPATH": str(ROOT), "FAIRLEAD_LISTEN__PORT": "0", "FAIRLEAD_SHUTDOWN__LAME_DUCK_S": "0"}
    said = tmp_path / "said"
    with said.open("w") as file:
        command = [sys.executable, "-c", "from gateway.cli import main; main()", "serve"]
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, cwd=tmp_path, env=environment)
    deadline = time.monotonic() + START_S_MAX
    while not (found := re.search(r"page: (http://[^/ ]+)(/#once=\S+)", said.read_text())):
        assert process.poll() is None, said.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    yield found[1], found[2]
    process.send_signal(signal.SIGTERM)
    process.wait(START_S_MAX)


class At:
    """A gateway by the address of its page."""

    def __init__(self, admin_url):
        self.admin_url = admin_url


def test_a_one_time_link_signs_in_once_and_stays_in_no_history(visit, tried_out):
    url, link = tried_out
    page = visit(At(url)).open(link.removeprefix("/"))
    expect(page.locator(".caller")).to_contain_text("role admin")
    assert "once" not in page.url
    again = visit(At(url)).open(link.removeprefix("/"))
    expect(again.get_by_role("alert")).to_contain_text("This link was used")


def test_a_newcomer_sees_fairness_within_a_minute(visit, tried_out):
    """The embedded engine is offered two demo tenants: one floods, and the other is hardly kept waiting."""
    url, link = tried_out
    page = visit(At(url)).open(link.removeprefix("/"))
    page.get_by_role("button", name="Start two demo tenants").click()
    rows = page.get_by_role("region", name="Tenants")
    expect(rows.get_by_role("link", name="demo-flood")).to_be_visible(timeout=60_000)
    expect(rows.get_by_role("link", name="demo-quiet")).to_be_visible(timeout=60_000)
    page.get_by_role("button", name="Stop the demo").click()
    expect(page.get_by_role("button", name="Start two demo tenants")).to_be_visible(timeout=60_000)
