"""A change takes effect within a second, and what runs is unharmed."""

import asyncio
import time

import pytest
from admin_rig import EFFECT_S, admin, within
from gateway_rig import SLOW, answer, bearer, call, engine, running, scripted, until

from gateway.store.base import StoreUnavailable
from policies.fairness import FAIRNESS


@pytest.fixture
async def api(tmp_path):
    async with engine(**SLOW) as server, admin(tmp_path, server) as asker:
        asker.server = server
        yield asker


async def test_a_tenant_and_its_key_are_served_as_soon_as_they_are_made(api):
    assert (await api.post("/tenants", {"id": "alice"})).status == 201
    key = await api.key_for("alice")
    reply = await api.rig.post(headers=bearer(key))
    assert reply.status == 200
    assert api.rig.tenant("alice").service > 0


async def test_a_revoked_an_expired_and_a_deleted_key_are_unknown(api):
    await api.post("/tenants", {"id": "alice"})
    for change in (
        lambda key: api.patch(f"/keys/{key['id']}", {"revoked": True}),
        lambda key: api.delete(f"/keys/{key['id']}"),
    ):
        key = (await api.post("/keys", {"tenant": "alice"})).json
        assert (await api.rig.get("/v1/models", headers=bearer(key["secret"]))).status == 200
        assert (await change(key)).status in (200, 204)
        assert (await api.rig.get("/v1/models", headers=bearer(key["secret"]))).status == 401
    short = await api.key_for("alice", expires_in_s=1)
    await within(lambda: status_is(api, short, 401), 2.5)


async def status_is(api, key, status):
    return (await api.rig.get("/v1/models", headers=bearer(key))).status == status


async def test_an_answer_that_streams_goes_on_when_its_key_is_revoked(api):
    await api.post("/tenants", {"id": "alice"})
    key = (await api.post("/keys", {"tenant": "alice"})).json
    streams = asyncio.ensure_future(api.rig.post(call(stream=True, max_tokens=30), headers=bearer(key["secret"])))
    await until(lambda: running(api.server))
    assert (await api.patch(f"/keys/{key['id']}", {"revoked": True})).status == 200
    assert await status_is(api, key["secret"], 401)
    assert not streams.done()
    assert (await streams).events[-1] == "[DONE]"


async def test_a_rotated_key_goes_on_for_its_overlap_beside_the_new_one(api):
    await api.post("/tenants", {"id": "alice"})
    old = (await api.post("/keys", {"tenant": "alice", "models": ["tiny"]})).json
    new = await api.post(f"/keys/{old['id']}/rotate", {"overlap_s": 1})
    assert new.status == 201
    assert new.json["models"] == ["tiny"]
    assert await status_is(api, old["secret"], 200)
    assert await status_is(api, new.json["secret"], 200)
    await within(lambda: status_is(api, old["secret"], 401), 2.5)
    assert await status_is(api, new.json["secret"], 200)
    assert (await api.post(f"/keys/{old['id']}/rotate", {})).status == 409


async def test_the_secret_of_a_key_is_shown_once(api):
    await api.post("/tenants", {"id": "alice"})
    made = (await api.post("/keys", {"tenant": "alice"})).json
    for path in (f"/keys/{made['id']}", "/keys", "/audit"):
        reply = await api.get(path)
        assert reply.status == 200
        assert made["secret"].encode() not in reply.body


ASKED = {
    "/v1/chat/completions": call(),
    "/v1/completions": {"model": "tiny", "prompt": "hello", "max_tokens": 2},
    "/v1/messages": call(max_tokens=2),
    "/v1/responses": {"model": "tiny", "input": "hello", "max_output_tokens": 2},
    "/v1/embeddings": {"model": "tiny", "input": "hello"},
    "/tokenize": {"model": "tiny", "prompt": "hello"},
}


async def test_a_key_opens_the_models_it_is_for_and_shows_no_others(api):
    await api.post("/tenants", {"id": "alice"})
    for models, is_allowed in ((["other"], False), (["tiny", "other"], True), ([], False), (None, True)):
        key = bearer(await api.key_for("alice", models=models))
        shown = (await api.rig.get("/v1/models", headers=key)).json["data"]
        assert [each["id"] for each in shown] == (["tiny"] if is_allowed else [])
        for path, body in ASKED.items():
            reply = await api.rig.post(body, path, headers=key)
            assert (reply.status == 403) != is_allowed, (path, reply.body)
            assert is_allowed or b"model" in reply.body


@pytest.mark.jumping
async def test_a_deleted_tenants_queue_is_answered_403_and_what_runs_goes_on(api):
    await api.post("/tenants", {"id": "alice", "in_flight_max": 1})
    key = await api.key_for("alice")
    runs = asyncio.ensure_future(api.rig.post(call(max_tokens=40), headers=bearer(key)))
    await until(lambda: running(api.server))
    waits = asyncio.ensure_future(api.rig.post(call(), headers=bearer(key)))
    await until(lambda: api.rig.tenant("alice") and api.rig.tenant("alice").queued_requests)
    started = time.monotonic()
    assert (await api.delete("/tenants/alice")).status == 204
    refused = await waits
    assert (refused.status, refused.error["reason"]) == (403, "tenant_unknown")
    assert time.monotonic() - started < EFFECT_S
    assert (await runs).json["usage"]["completion_tokens"] == 40
    assert (await api.rig.post(headers=bearer(key))).status == 401  # its keys went with it


@pytest.mark.parametrize("placement", ["round-robin", "preble", "d2lpm"])
async def test_a_deleted_tenants_calls_are_answered_403_where_they_wait_for_one_backend_too(tmp_path, placement):
    async with engine(**SLOW) as server:
        one_slot = {"name": "b0", "url": server.url, "requests_running_max": 1}
        async with admin(tmp_path, one_slot, scheduling={"placement": placement}) as api:
            await api.post("/tenants", {"id": "alice"})
            key = bearer(await api.key_for("alice"))
            calls = [asyncio.ensure_future(api.rig.post(call(max_tokens=40), headers=key)) for _ in range(3)]
            await until(lambda: running(server) and api.rig.tenant("alice").queued_requests == 2)
            assert (await api.delete("/tenants/alice")).status == 204
            assert sorted(reply.status for reply in await asyncio.gather(*calls)) == [200, 403, 403]


async def test_a_limit_that_is_raised_lets_in_what_waits(api):
    await api.post("/tenants", {"id": "alice", "in_flight_max": 1})
    key = await api.key_for("alice")
    calls = [asyncio.ensure_future(api.rig.post(call(max_tokens=50), headers=bearer(key))) for _ in range(2)]
    await until(lambda: api.rig.tenant("alice") and api.rig.tenant("alice").queued_requests)
    await api.patch("/tenants/alice", {"in_flight_max": 2})
    await until(lambda: running(api.server) == 2, EFFECT_S)
    assert [reply.status for reply in await asyncio.gather(*calls)] == [200, 200]


async def test_a_limit_of_requests_per_minute_holds_from_when_it_is_set(api):
    await api.post("/tenants", {"id": "alice"})
    key = await api.key_for("alice")
    assert (await api.rig.post(headers=bearer(key))).status == 200
    await api.patch("/tenants/alice", {"requests_per_minute_max": 1})
    assert (await api.rig.post(headers=bearer(key))).status == 200
    assert (await api.rig.post(headers=bearer(key))).status == 429


@pytest.mark.parametrize("kind", ["tiers", "tenants"])
async def test_a_weight_that_is_changed_decides_between_those_that_wait_already(tmp_path, kind):
    opened = asyncio.Event()

    async def act(reader, writer):
        await opened.wait()
        return await answer()(reader, writer)

    async with scripted(act) as backend:
        one_slot = {"name": "gpu", "url": backend.url, "requests_running_max": 1}
        async with admin(tmp_path, one_slot, scheduling={"prediction": "none"}) as api:
            calls = []
            for name in ("gold", "iron"):
                await api.post("/tiers", {"id": name})
                await api.post("/tenants", {"id": name, "tier": name if kind == "tiers" else "default"})
                asked = call(messages=[{"role": "user", "content": name}])
                headers = bearer(await api.key_for(name))
                calls += [asyncio.ensure_future(api.rig.post(asked, headers=headers)) for _ in range(20)]
            await until(lambda: api.rig.snapshot().queued_requests == len(calls) - 1)
            assert (await api.patch(f"/{kind}/gold", {"weight": 4})).json["weight"] == 4
            opened.set()
            assert {reply.status for reply in await asyncio.gather(*calls)} == {200}
    first = [b"gold" in asked.body for asked in backend.calls[:20]]
    assert sum(first) == pytest.approx(16, abs=1), "four to one"


async def test_a_tier_of_the_api_says_what_is_refused_late_what_gives_back_slots_and_what_is_shed_last(api):
    said = {"envelope": {"ttft_ms": 1000}, "on_miss": "reject", "priority": -2, "preemptible": True}
    made = await api.post("/tiers", {"id": "batch", **said})
    assert {name: made.json[name] for name in ("on_miss", "priority", "preemptible")} == {
        "on_miss": "reject", "priority": -2, "preemptible": True,
    }  # fmt: skip
    await api.post("/tenants", {"id": "alice", "tier": "batch", "in_flight_max": 1})
    key = await api.key_for("alice")
    runs = asyncio.ensure_future(api.rig.post(call(max_tokens=80), headers=bearer(key)))
    await until(lambda: running(api.server))
    late = await api.rig.post(headers=bearer(key))
    assert (late.status, late.headers["x-llm-d-request-dropped-reason"]) == (429, "rejected-saturated")
    await api.patch("/tiers/batch", {"on_miss": None})
    assert [reply.status for reply in await asyncio.gather(runs, api.rig.post(headers=bearer(key)))] == [200, 200]


async def test_a_tenants_envelope_is_that_of_its_calls_from_when_it_is_said(api):
    await api.post("/tenants", {"id": "alice"})
    key = bearer(await api.key_for("alice"))
    for said, judged in (({"ttft_ms": 60_000}, 1), (None, 1), ({"tpot_ms": 60_000}, 2)):
        assert (await api.patch("/tenants/alice", {"envelope": None})).status == 200
        assert (await api.patch("/tenants/alice", {"envelope": said})).status == 200
        assert (await api.rig.post(call(stream=True), headers=key)).status == 200
        await until(api.rig.idle)
        assert api.rig.tenant("alice").attainment.requests == judged


@pytest.mark.parametrize("policy", sorted(FAIRNESS))
async def test_a_pool_changes_its_policy_while_calls_wait_and_run(api, policy):
    await api.post("/tenants", {"id": "alice", "in_flight_max": 2})
    key = await api.key_for("alice")
    calls = [asyncio.ensure_future(api.rig.post(headers=bearer(key))) for _ in range(6)]
    await until(lambda: running(api.server))
    changed = await api.ask(
        "PUT", "/pools/tiny", {"fairness": {"policy": policy}, "placement": {"policy": "round-robin"}}
    )
    assert (changed.status, changed.json["fairness"]["policy"]) == (200, policy), changed.body
    assert [reply.status for reply in await asyncio.gather(*calls)] == [200] * 6
    assert (await api.get("/pools")).json["items"] == [changed.json]


async def test_a_wrong_parameter_of_a_policy_is_named(api):
    body = {"fairness": {"policy": "drr", "quantum": 5}}
    reply = await api.ask("PUT", "/pools/tiny", body)
    assert reply.status == 422
    assert "quantum" in reply.json["errors"][0]["field"]


async def test_the_live_state_shows_queues_limits_counters_and_rates(api):
    """Takes two seconds: a rate is known at the second look."""
    await api.post("/tenants", {"id": "alice", "in_flight_max": 1})
    key = await api.key_for("alice")
    await api.get("/state/tenants")
    calls = [asyncio.ensure_future(api.rig.post(call(max_tokens=80), headers=bearer(key))) for _ in range(3)]
    await until(lambda: running(api.server) and api.rig.tenant("alice").queued_requests == 2)
    state = (await api.get("/state")).json
    assert state["store_available"]
    assert (state["pools"][0]["queued_requests"], state["pools"][0]["in_flight_requests"]) == (2, 1)
    assert state["pools"][0]["backends"]["b0"]["requests_limit"] >= 1
    first = (await api.get("/state/tenants")).json["items"][0]
    assert (first["tenant"], first["queued_requests"], first["in_flight_requests"]) == ("alice", 2, 1)
    assert first["rank"] == first["key"] > first["counter"], "what is in flight is outstanding"

    async def has_rate():
        return (await api.get("/state/tenants?pool=tiny&limit=1")).json["items"][0]["service_per_s"] > 0

    await within(has_rate, 2.5)
    for each in calls:
        each.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


async def test_the_first_look_at_a_tenant_that_is_served_has_its_rate(api):
    await api.post("/tenants", {"id": "alice"})
    key = await api.key_for("alice")
    running_call = asyncio.ensure_future(api.rig.post(call(max_tokens=400, stream=True), headers=bearer(key)))
    await until(lambda: running(api.server))
    (first,) = (await api.get("/state/tenants?pool=tiny")).json["items"]
    assert first["in_flight_requests"] == 1
    assert first["service_per_s"] > 0
    running_call.cancel()


async def test_what_was_changed_is_there_after_a_restart(tmp_path):
    state = tmp_path / "state"
    async with scripted() as backend, scripted() as other:
        async with admin(tmp_path, backend, state=state) as api:
            await api.post("/tenants", {"id": "alice"})
            key = await api.key_for("alice")
            await api.post("/backends", {"id": "other", "url": other.url})
            await api.ask("PUT", "/pools/tiny", {"fairness": {"policy": "drr"}})
            role = (await api.post("/keys", {"role": "viewer"})).json["secret"]
        async with admin(tmp_path, backend, state=state) as api:
            assert await status_is(api, key, 200)
            assert (await api.get("/tenants/alice", key=role)).status == 200
            assert (await api.get("/pools/tiny", key=role)).json["fairness"]["policy"] == "drr"
            await until(lambda: api.rig.gateway.backends.states().get("other") == "healthy")


async def test_with_an_admin_port_the_first_tenant_and_key_may_come_by_it(tmp_path):
    secret = tmp_path / "secret"
    settings = {
        "auth": {"mode": "keys", "secret_file": str(secret), "keys_file": str(tmp_path / "none")},
        "tenants": {},
    }
    async with scripted() as backend, admin(tmp_path, backend, **settings) as api:
        await api.post("/tenants", {"id": "alice"})
        assert await status_is(api, await api.key_for("alice"), 200)
        assert secret.stat().st_mode & 0o777 == 0o600


async def test_while_the_state_cannot_be_written_a_change_is_refused_and_calls_go_on(api, monkeypatch):
    await api.post("/tenants", {"id": "alice"})
    key = bearer(await api.key_for("alice"))

    async def full(*_args, **_kwargs):
        raise StoreUnavailable("database or disk is full")

    store = api.rig.gateway._management.store
    with monkeypatch.context() as broken:
        for name in ("commit", "news", "put_usage", "usage", "audit"):
            broken.setattr(store, name, full)
        for reply in (
            await api.patch("/tenants/alice", {"weight": 5}),
            await api.get("/usage"),
            await api.get("/audit"),
        ):
            assert (reply.status, reply.headers["Retry-After"]) == (503, "1")
        assert (await api.rig.post(headers=key)).status == 200
        assert (await api.get("/tenants/alice")).json["weight"] == 1
    assert (await api.patch("/tenants/alice", {"weight": 5})).json["weight"] == 5
