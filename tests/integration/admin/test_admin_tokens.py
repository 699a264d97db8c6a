"""Tokens of an identity provider beside keys, on both ports."""

import asyncio
import base64
import json
import time
from functools import cache

import jwt
import pytest
from admin_rig import SECRET, admin
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from gateway_rig import bearer, scripted, until
from listening import listening

AUDIENCE = "fairlead"


@cache
def rsa_key(name):
    """Made once: it takes as long as a whole test."""
    return rsa.generate_private_key(65537, 2048)


class Provider:
    """Publishes keys, and signs with them."""

    def __init__(self):
        self.private = {"rsa": rsa_key("rsa"), "ec": ec.generate_private_key(ec.SECP256R1())}
        self.published = ["rsa", "ec"]
        self.fetches = 0
        self.is_there = True
        self.about = {}
        self.url = ""

    async def serve(self, request):
        if not self.is_there:
            return web.Response(status=500)
        if request.path == "/.well-known/openid-configuration":
            return web.json_response({"issuer": self.url, "jwks_uri": f"{self.url}/jwks", **self.about})
        if request.path == "/moved":
            raise web.HTTPFound("/jwks")
        self.fetches += 1
        return web.json_response({"keys": [self.jwk(name) for name in self.published]})

    def jwk(self, name):
        algorithm = jwt.algorithms.ECAlgorithm if name.startswith("ec") else jwt.algorithms.RSAAlgorithm
        public = json.loads(algorithm.to_jwk(self.private[name].public_key()))
        return {**public, "kid": name, "use": "sig"}

    def token(self, name="rsa", *, headers=None, algorithm=None, key=None, **claims):
        now = int(time.time())
        said = {"iss": self.url, "aud": AUDIENCE, "sub": "carol", "iat": now, "exp": now + 60, "tenant": "declared"}
        said = {claim: value for claim, value in (said | claims).items() if value is not None}
        algorithm = algorithm or ("ES256" if name.startswith("ec") else "RS256")
        return jwt.encode(said, key or self.private[name], algorithm=algorithm, headers=headers or {"kid": name})


@pytest.fixture
async def provider():
    made = Provider()
    async with listening(made.serve) as made.url:
        yield made


@pytest.fixture
async def api(tmp_path, provider):
    issuer = {"issuer": provider.url, "audience": AUDIENCE}
    roles = {"role_claim": "realm.roles", "roles": {"sre": "operator", "staff": "viewer", "lead": "group-admin"}}
    tokens = {"data": [issuer], "admin": [{**issuer, **roles}]}
    async with scripted() as backend, admin(tmp_path, backend, jwt=tokens) as asker:
        yield asker


async def status(api, token):
    return (await api.rig.get("/v1/models", headers=bearer(token))).status


@pytest.mark.parametrize("name", ["rsa", "ec"])
async def test_a_token_names_the_tenant_at_the_data_port(api, provider, name):
    reply = await api.rig.post(headers=bearer(provider.token(name)))
    assert reply.status == 200
    assert api.rig.service("declared") > 0


async def test_keys_go_on_beside_tokens(api):
    assert await status(api, await api.key_for("declared")) == 200


async def test_a_repeated_request_returns_nothing_of_another_group_to_a_caller_of_the_same_name(api, provider):
    """Tokens without a subject have one name in the audit log, and their groups differ."""
    for group in ("red", "blue"):
        await api.post("/groups", {"id": group})
    await api.patch("/tenants/declared", {"group": "red"})
    red, blue = (provider.token(realm={"roles": ["lead"]}, sub=None, group=group) for group in ("red", "blue"))
    made = await api.post("/keys", {"tenant": "declared"}, key=red, idempotency_key="deploy-1")
    assert made.status == 201
    asked = await api.post("/keys", {"tenant": "declared"}, key=blue, idempotency_key="deploy-1")
    assert (asked.status, "secret" in asked.json) == (409, False)


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": "other"}, {"aud": None}, {"iss": "http://evil.test"}, {"iss": None}, {"exp": None}, {"exp": 1},
        {"nbf": 1 << 33}, {"tenant": None}, {"tenant": ["declared"]}, {"tenant": "no tenant name"}, {"exp": "soon"},
    ],
)  # fmt: skip
async def test_a_token_for_others_or_of_another_time_or_of_no_tenant_is_refused(api, provider, claims):
    try:
        token = provider.token(**claims)
    except TypeError:  # PyJWT writes no such claim
        return
    assert await status(api, token) == 401


async def test_a_token_that_was_believed_is_believed_no_longer_than_it_says(api, provider, monkeypatch):
    """Takes up to three seconds: what a token says is in whole ones."""
    monkeypatch.setattr("gateway.identity.tokens.LEEWAY_S", 0.0)
    over_at = int(time.time()) + 3
    token = provider.token(exp=over_at)
    assert await status(api, token) == 200
    await asyncio.sleep(over_at - time.time() + 0.01)
    assert await status(api, token) == 401


async def test_a_token_of_a_tenant_that_is_not_there_is_refused_until_it_is(api, provider):
    token = provider.token(tenant="acme")
    refused = await api.rig.post(headers=bearer(token))
    assert (refused.status, refused.error["reason"]) == (403, "tenant_unknown")
    assert (await api.post("/tenants", {"id": "acme"})).status == 201
    assert (await api.rig.post(headers=bearer(token))).status == 200


async def test_a_token_that_is_not_signed_by_its_issuer_is_refused(api, provider):
    body = provider.token().split(".")
    unsigned = base64.urlsafe_b64encode(b'{"alg":"none","kid":"rsa"}').rstrip(b"=").decode()
    public = provider.private["rsa"].public_key().public_numbers()
    tokens = [
        ".".join([*body[:2], ""]),
        ".".join([*body[:2], body[2][:-6] + "AAAAAA"]),
        provider.token(key=rsa_key("another")),
        ".".join([unsigned, body[1], ""]),
        provider.token(algorithm="HS256", key=SECRET * 2),
        provider.token(algorithm="HS256", key=str(public.n)),
        provider.token("ec", headers={"kid": "rsa"}),
        provider.token(algorithm="RS512"),  # good, but not of the list
        "ey..", "ey.a.b", "ey" + "a" * 10_000 + ".b.c",
    ]  # fmt: skip
    assert [await status(api, token) for token in tokens] == [401] * len(tokens)


async def test_tokens_that_name_made_up_keys_set_off_no_flood_of_fetches(api, provider):
    before = provider.fetches
    for number in range(20):
        await status(api, provider.token(headers={"kid": f"made-up-{number}"}))
    await asyncio.sleep(0.1)
    assert provider.fetches == before  # what tokens ask for waits


async def test_new_keys_are_known_after_a_refresh_and_old_ones_hold_while_the_issuer_is_away(
    tmp_path, provider, monkeypatch
):
    monkeypatch.setattr("gateway.identity.tokens.UNKNOWN_S", 0.05)
    monkeypatch.setattr("gateway.identity.tokens.RETRY_S", 0.05)
    issuer = {"issuer": provider.url, "audience": AUDIENCE, "jwks_url": f"{provider.url}/jwks"}
    async with scripted() as backend, admin(tmp_path, backend, jwt={"data": [issuer]}) as api:
        provider.private["new"], provider.published = rsa_key("new"), ["new"]
        assert await status(api, provider.token("rsa")) == 200
        await asyncio.sleep(0.1)
        assert await status(api, provider.token("new")) == 401

        before = provider.fetches
        await until(lambda: provider.fetches > before)
        await asyncio.sleep(0.05)
        assert await status(api, provider.token("new")) == 200
        assert await status(api, provider.token("rsa")) == 401  # also where it was believed before
        provider.is_there = False
        assert await status(api, provider.token("other", key=provider.private["new"], headers={"kid": "x"})) == 401
        await asyncio.sleep(0.2)
        assert await status(api, provider.token("new")) == 200


async def test_the_roles_that_a_token_names_are_those_at_the_admin_port(api, provider):
    roles = [["staff"], "sre", ["staff", "sre", 5], ["unknown"], None]
    keys = [provider.token(realm={"roles": each}) for each in roles]
    assert [(await api.get("/tenants", key=key)).status for key in keys] == [200, 200, 200, 401, 401]
    assert [(await api.patch("/tenants/declared", {"weight": 3}, key=key)).status for key in keys] == [
        403, 200, 200, 401, 401,
    ]  # fmt: skip
    assert (await api.get("/audit?limit=1")).json["items"][0]["actor"] == f"carol@{provider.url}"


async def test_a_token_of_a_groups_administrator_names_its_group_or_is_none(api, provider):
    await api.post("/groups", {"id": "red"})
    await api.patch("/tenants/declared", {"group": "red"})

    def token(roles, **claims):
        return provider.token(realm={"roles": roles}, **claims)

    lead = token("lead", group="red")
    assert (await api.get("/me", key=lead)).json == {
        "name": f"carol@{provider.url}", "role": "group-admin", "group": "red", "label": None,
    }  # fmt: skip
    assert (await api.patch("/tenants/declared", {"weight": 4}, key=lead)).status == 200
    assert (await api.get("/tiers", key=lead)).status == 403
    for none in (token("lead"), token("lead", group=""), token("lead", group=["red"]), token("lead", group=None)):
        assert (await api.get("/me", key=none)).status == 401
    other = token("lead", group="blue")
    assert (await api.get("/tenants", key=other)).json["items"] == []
    assert (await api.post("/tenants", {"id": "blue/x"}, key=other)).status == 403, "there is no such group"
    both = (await api.get("/me", key=token(["lead", "staff"], group="red"))).json
    assert (both["role"], both["group"]) == ("viewer", None)


@pytest.mark.parametrize(
    "claims", [{"aud": "other"}, {"aud": None}, {"iss": "http://evil.test"}, {"exp": 1}, {"exp": None}]
)
async def test_at_the_admin_port_too_a_token_is_for_us_from_its_issuer_and_not_over(api, provider, claims):
    roles = {"realm": {"roles": ["sre"]}}
    assert (await api.get("/tenants", key=provider.token(**roles))).status == 200
    assert (await api.get("/tenants", key=provider.token(**roles, **claims))).status == 401


@pytest.mark.parametrize("about", [{"issuer": "http://evil.test"}, {"jwks_uri": None}, {"jwks_uri": "elsewhere"}])
async def test_a_discovery_document_that_is_not_about_its_issuer_brings_no_keys(tmp_path, provider, about):
    provider.about = about
    issuer = {"issuer": provider.url, "audience": AUDIENCE}
    async with scripted() as backend, admin(tmp_path, backend, jwt={"data": [issuer]}) as api:
        assert await status(api, provider.token()) == 401


async def test_keys_are_not_fetched_from_where_an_issuer_redirects_to(tmp_path, provider):
    issuer = {"issuer": provider.url, "audience": AUDIENCE, "jwks_url": f"{provider.url}/moved"}
    async with scripted() as backend, admin(tmp_path, backend, jwt={"data": [issuer]}) as api:
        assert await status(api, provider.token()) == 401
        assert provider.fetches == 0


async def test_with_an_issuer_that_is_away_the_gateway_starts_and_takes_keys(tmp_path, provider):
    provider.is_there = False
    issuer = {"issuer": provider.url, "audience": AUDIENCE}
    async with scripted() as backend, admin(tmp_path, backend, jwt={"data": [issuer]}) as api:
        assert await status(api, await api.key_for("declared")) == 200
        assert await status(api, provider.token()) == 401
