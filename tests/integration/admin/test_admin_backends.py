"""Backends by the admin API: how long their steps take, of which kind they are, and what they are believed to be."""

import asyncio
import time

import pytest
from admin_rig import admin
from gateway_rig import SLOW, answer, bearer, call, engine, scripted
from tls_rig import NEEDS_OPENSSL, behind_tls, make_authority

SHOWN_S = 15.0
# Of an engine that is SLOW.
KNOWN = {"base_ms": 19.0, "token_us": 180.0, "context_token_ns": 1.0, "request_us": 700.0, "error_ratio": 0.1}


@pytest.fixture
async def api(tmp_path):
    async with scripted() as backend, admin(tmp_path, backend) as asker:
        yield asker


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return make_authority(tmp_path_factory.mktemp("tls"))


async def shown(api, backend_id, condition):
    """The backend as it is shown, as soon as the condition is true of that."""
    deadline = time.monotonic() + SHOWN_S
    while not condition(backend := (await api.get(f"/backends/{backend_id}")).json):
        assert time.monotonic() < deadline, backend
        await asyncio.sleep(0.02)
    return backend


async def test_coefficients_that_are_named_are_believed_at_once_and_limit_what_is_sent(api):
    async with engine(**SLOW) as server:
        made = await api.post("/backends", {"id": "gpu", "url": server.url, "pool": "gpus", "step_time": KNOWN})
        assert (made.status, made.json["step_time"]) == (201, KNOWN)
        backend = await shown(api, "gpu", lambda backend: backend["step_time_now"])
        assert backend["step_time_now"] == pytest.approx(KNOWN | {"sure": True, "origin": "named"})
        assert backend["steps"]["step_s"] == pytest.approx(0.019, abs=0.001)
        assert backend["steps"]["step_s_max"] == pytest.approx(0.19), "ten times its base"
        changed = await api.patch("/backends/gpu", {"step_time": {"base_ms": 30}})
        assert changed.json["step_time"] == KNOWN | {"base_ms": 30.0}
        backend = await shown(api, "gpu", lambda backend: backend["step_time_now"]["base_ms"] == pytest.approx(30.0))
        assert backend["steps"]["step_s_max"] == pytest.approx(0.3)


async def test_coefficients_that_are_no_longer_named_are_not_forgotten(api):
    async with engine(**SLOW) as server:
        await api.post("/backends", {"id": "gpu", "url": server.url, "pool": "gpus", "step_time": KNOWN})
        await shown(api, "gpu", lambda backend: backend["step_time_now"])
        assert (await api.patch("/backends/gpu", {"step_time": None})).json["step_time"] is None
        backend = await shown(api, "gpu", lambda backend: backend["step_time_now"]["origin"] != "named")
        assert backend["step_time_now"]["base_ms"] == pytest.approx(19.0)


async def test_coefficients_of_a_calibration_are_stored_ones(tmp_path):
    stored = tmp_path / "gpu.yaml"
    stored.write_text("base_ms: 19\ntoken_us: 180\n")
    async with engine(**SLOW) as server:
        gpu = {"name": "gpu", "url": server.url, "step_time_file": str(stored)}
        async with admin(tmp_path, gpu) as api:
            backend = await shown(api, "gpu", lambda backend: backend["step_time_now"])
            assert (backend["step_time"], backend["step_time_now"]["origin"]) == (None, "stored")
            changed = await api.patch("/backends/gpu", {"draining": True})
            assert changed.json["step_time_now"]["base_ms"] == pytest.approx(19.0)


async def test_what_is_learnt_replaces_what_was_named_and_says_so(tmp_path):
    async with engine(**SLOW) as server, admin(tmp_path, server) as api:
        await api.post("/backends", {"id": "gpu", "url": server.url, "step_time": KNOWN | {"base_ms": 5.0}})
        await api.post("/tenants", {"id": "alice"})
        key = await api.key_for("alice")
        calls = [asyncio.ensure_future(api.rig.post(call(max_tokens=400), headers=bearer(key))) for _ in range(4)]
        backend = await shown(
            api, "gpu", lambda each: each["step_time_now"] and each["step_time_now"]["origin"] == "learnt"
        )
        assert backend["step_time"]["base_ms"] == 5.0, "what was named stays what was named"
        for each in calls:
            each.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


async def test_coefficients_that_no_engine_has_are_refused(api):
    async with engine() as server:
        new = {"id": "gpu", "url": server.url}
        for nothing, status in (({"base_ms": 0, "token_us": 0}, 409), ({"base_ms": 5}, 422), ({}, 422)):
            assert (await api.post("/backends", {**new, "step_time": nothing})).status == status
        reply = await api.post("/backends", {**new, "step_time": KNOWN | {"token_us": -1}})
        assert (reply.status, reply.json["errors"][0]["field"]) == (422, "body.step_time.token_us")


async def test_a_kind_is_taken_as_named_and_only_one_that_there_is(api):
    async with scripted() as server:
        new = {"id": "x", "url": server.url, "kind": "tgi", "scheduling_policy": "priority"}
        made = await api.post("/backends", new)
        assert (made.status, made.json["kind"]) == (201, "tgi")
        assert api.rig.gateway.backends["x"].spec.reads_priority
        backend = await shown(api, "x", lambda backend: backend["state"] == "healthy")
        assert backend["kind"] == "tgi"
        refused = await api.post("/backends", {"id": "y", "url": server.url, "kind": "tensorrt"})
        assert (refused.status, refused.json["errors"][0]["field"]) == (422, "body.kind")


@NEEDS_OPENSSL
async def test_a_backend_whose_ca_came_with_it_is_spoken_to_and_no_other(api, authority):
    async with behind_tls(authority, answer()) as backend:
        ca_pem = (authority / "ca.pem").read_text()
        made = await api.post("/backends", {"id": "safe", "url": backend.url, "ca_pem": ca_pem})
        assert made.status == 201
        assert b"BEGIN" not in made.body
        await api.post("/backends", {"id": "unknown", "url": backend.url})
        assert (await shown(api, "safe", lambda each: each["state"] == "healthy"))["trouble"] == ""
        unknown = await shown(api, "unknown", lambda each: each["trouble"])
        assert "certificate" in unknown["trouble"].lower()


@NEEDS_OPENSSL
async def test_calls_reach_a_backend_by_the_ca_that_came_with_it(tmp_path, authority):
    async with behind_tls(authority, answer()) as backend, admin(tmp_path, {"url": "http://127.0.0.1:9"}) as api:
        await api.post("/backends", {"id": "b", "url": backend.url, "ca_pem": (authority / "ca.pem").read_text()})
        await api.post("/tenants", {"id": "alice"})
        await shown(api, "b", lambda each: each["models"])
        assert (await api.rig.post(headers=bearer(await api.key_for("alice")))).status == 200
        assert len(backend.calls) == 1


@NEEDS_OPENSSL
async def test_a_ca_lets_no_backend_be_where_none_may_be(tmp_path, authority):
    networks = {"enabled": True, "port": 0, "key_file": str(tmp_path / "admin-key"), "backend_networks": ["10.0.0.0/8"]}
    async with (
        behind_tls(authority, answer()) as backend,
        scripted() as own,
        admin(tmp_path, own, admin=networks) as api,
    ):
        ca_pem, url = (authority / "ca.pem").read_text(), backend.url
        assert (await api.post("/backends", {"id": "a", "url": url, "ca_pem": ca_pem})).status == 409
        named = url.replace("127.0.0.1", "localhost")
        assert (await api.post("/backends", {"id": "b", "url": named, "ca_pem": ca_pem})).status == 201
        shown_b = await shown(api, "b", lambda each: each["trouble"])
        assert "networks where backends may be" in shown_b["trouble"]
        assert backend.polls == []


async def test_the_url_of_the_api_is_checked_also_where_the_file_declares_such_a_backend_later(tmp_path):
    networks = {"enabled": True, "port": 0, "key_file": str(tmp_path / "admin-key"), "backend_networks": ["10.0.0.0/8"]}
    settings = {"admin": networks, "state": tmp_path / "state.db"}
    async with scripted() as own, scripted() as other:
        async with admin(tmp_path, {"name": "b0", "url": own.url}, **settings) as api:
            named = other.url.replace("127.0.0.1", "localhost")
            assert (await api.post("/backends", {"id": "b1", "url": named})).status == 201
            assert (await api.patch("/backends/b0", {"draining": False})).json["origin"] == "overridden"
        declared = [{"name": name, "url": own.url} for name in ("b0", "b1")]
        async with admin(tmp_path, *declared, **settings) as api:
            assert (await api.get("/backends/b1")).json["origin"] == "overridden"
            refused = await shown(
                api, "b1", lambda each: each["state"] != "absent" and (each["trouble"] or other.polls)
            )
            assert "networks where backends may be" in refused["trouble"]
            await shown(api, "b0", lambda each: each["state"] == "healthy")
        assert other.polls == []


@pytest.mark.parametrize(
    "ca_pem",
    [
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n",
        "é -----BEGIN CERTIFICATE-----",
    ],
)
async def test_what_is_no_certificate_or_a_secret_is_not_kept(api, ca_pem):
    reply = await api.post("/backends", {"id": "x", "url": "https://127.0.0.1:9", "ca_pem": ca_pem})
    assert (reply.status, reply.json["errors"][0]["field"]) == (409, "body.ca_pem")
    assert (await api.get("/backends/x")).status == 404


async def test_a_file_of_the_gateway_cannot_be_named(api):
    reply = await api.post("/backends", {"id": "x", "url": "https://127.0.0.1:9", "ca_file": "/etc/passwd"})
    assert (reply.status, reply.json["errors"][0]["field"]) == (422, "body.ca_file")
