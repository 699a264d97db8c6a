"""One-time links: they sign in once; and `fairlead serve` without a configuration prints one, and writes nothing."""

import asyncio
import contextlib
import os
import re

import aiohttp
import pytest
from admin_rig import ROOT, admin
from forked import FAIRLEAD, fork
from gateway_rig import scripted

from gateway.admin.access.one_time_links import KEY_S, LINK_S, OneTimeLinks
from gateway.admin.routes import Role
from gateway.config import Config
from gateway.config.trial import NEXT_PORTS, admin_ports, made_trial
from gateway.identity.key_ring import KeyRing
from gateway.identity.throttle import FAILURES_BURST

PAGE = re.compile(r"^page: (http://127\.0\.0\.1:(\d+))/#once=(\S+) ", re.MULTILINE)
START_S_MAX = 60.0


@pytest.fixture
async def api(tmp_path):
    async with scripted() as backend, admin(tmp_path, backend) as asker:
        yield asker


def token_of(link: str) -> str:
    return link.partition("#once=")[2]


async def test_a_link_signs_in_once_and_its_key_has_its_role(api):
    once = token_of(api.rig.gateway.page_link())
    opened = await api.post("/sign-in", {"once": once}, key="")
    assert (opened.status, opened.json["role"]) == (200, "admin")
    again = await api.post("/sign-in", {"once": once}, key="")
    assert again.status == 401
    key = opened.json["key"]
    known = {"name": "one-time-link-1", "label": None, "role": "admin", "group": None}
    assert (await api.get("/me", key=key)).json == known
    assert (await api.post("/tenants", {"id": "mine"}, key=key)).status == 201
    (entry, *_) = (await api.get("/audit")).json["items"]
    assert (entry["actor"], entry["name"]) == ("one-time-link-1", "mine")


async def test_an_idempotency_key_opens_no_link_again(api):
    once = token_of(api.rig.gateway.page_link())
    replies = [await api.post("/sign-in", {"once": once}, key="", Idempotency_Key="same") for _ in (1, 2)]
    assert [reply.status for reply in replies] == [200, 401]


async def test_each_link_is_its_own(api):
    tokens = [token_of(api.rig.gateway.page_link()) for _ in (1, 2)]
    names = set()
    for once in tokens:
        key = (await api.post("/sign-in", {"once": once}, key="")).json["key"]
        names.add((await api.get("/me", key=key)).json["name"])
    assert names == {"one-time-link-1", "one-time-link-2"}


async def test_wrong_links_are_told_to_wait_as_wrong_keys_are(api):
    replies = [await api.post("/sign-in", {"once": "wrong"}, key="") for _ in range(int(FAILURES_BURST) + 2)]
    assert replies[0].status == 401
    assert replies[-1].status == 429
    assert (await api.post("/sign-in", {"once": token_of(api.rig.gateway.page_link())}, key="")).status == 200


@pytest.mark.parametrize("body", [{}, {"once": ""}, {"once": 1}, {"once": "x", "more": 1}, {"once": "x" * 600}])
async def test_a_body_that_is_no_link_is_refused_by_field(api, body):
    assert (await api.post("/sign-in", body, key="")).status == 422


async def test_a_caller_learns_its_name_and_role(api):
    made = (await api.post("/keys", {"role": "viewer", "label": "on call"})).json
    known = {"name": made["id"], "label": "on call", "role": "viewer", "group": None}
    assert (await api.get("/me", key=made["secret"])).json == known
    assert (await api.get("/me", key="")).status == 401


def test_links_and_their_keys_expire():
    now = [1000.0]
    ring = KeyRing(b"s" * 32, clock=lambda: now[0])
    links = OneTimeLinks(ring, b"s" * 32, clock=lambda: now[0])
    late, timely = links.make(Role.ADMIN), links.make(Role.VIEWER)
    now[0] += LINK_S - 1
    session = links.open(timely)
    now[0] += 1
    assert links.open(late) is None
    assert ring.find(session.key).role is Role.VIEWER
    now[0] = session.expires_at_s
    assert ring.find(session.key) is None
    assert session.expires_at_s == 1000 + LINK_S - 1 + KEY_S


@pytest.mark.parametrize(
    "settings",
    [
        {"admin": {"port": 9000}},
        {"auth": {"mode": "keys"}, "tenants": {"alice": {}}},
        {"workers": 2},
        {"state": {"file": "state.db"}},
        {"log": {"format": "json"}},
        {"listen": {"host": "0.0.0.0"}},
    ],
)
def test_a_gateway_that_is_configured_opens_no_admin_port_of_itself(settings, monkeypatch):
    monkeypatch.setattr("gateway.config.sections.AuthSection.secret_bytes", lambda _auth: None)
    assert not made_trial(Config(**settings)).is_trial


def test_a_trial_leaves_the_data_port_alone():
    config = made_trial(Config(listen={"port": 8083}))
    assert config.is_trial
    assert admin_ports(config) == (*(port for port in range(8081, 8081 + NEXT_PORTS) if port != 8083), 0)


@contextlib.asynccontextmanager
async def trial(folder):
    """`fairlead serve` without a configuration: the match of its page's line."""
    process = await fork(FAIRLEAD, "serve", "--port", "0", folder=folder, environment=dict(os.environ))
    try:
        said = ""
        async with asyncio.timeout(START_S_MAX):
            while not (found := PAGE.search(said)):
                line = (await process.stderr.readline()).decode()
                assert line, said
                said += line
        yield found
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_without_a_configuration_each_gateway_prints_its_page_and_a_link_and_writes_nothing(tmp_path):
    async with trial(tmp_path) as first, trial(tmp_path) as second, aiohttp.ClientSession() as session:
        assert first[2] != second[2], "each has a port of its own"
        for found in (first, second):
            async with session.post(f"{found[1]}{ROOT}/sign-in", json={"once": found[3]}) as reply:
                opened = await reply.json()
            headers = {"Authorization": f"Bearer {opened['key']}"}
            async with session.post(f"{found[1]}{ROOT}/tenants", json={"id": "bob"}, headers=headers) as reply:
                assert reply.status == 201
        other = {"Authorization": f"Bearer {opened['key']}"}
        async with session.get(f"{first[1]}{ROOT}/me", headers=other) as reply:
            assert reply.status == 401, "a key is for the gateway that made it"
    assert list(tmp_path.iterdir()) == []
