"""The live document: what it says of pools, tiers, tenants and backends, as JSON and as a stream."""

import asyncio
import contextlib
import json
import time
import zlib

import aiohttp
import msgspec
import pytest
from admin_rig import admin
from gateway_rig import FAST, SLOW, bearer, call, engine, until
from live_viewer import EVENTS, Viewer, merged, without_nulls

from gateway.live.schema import LivePageDocument

pytestmark = pytest.mark.jumping

KNOWN = {"base_ms": 19, "token_us": 180, "context_token_ns": 1, "request_us": 700}


def stream(api, **headers):
    sent = {"Authorization": f"Bearer {api.key}", **EVENTS, **headers}
    return api.session.get(f"{api.url}/admin/v1/live", headers=sent)


async def test_the_document_shows_queues_shares_waits_backends_and_what_ended(tmp_path):
    async with engine(**SLOW) as server:
        gpu = {"name": "gpu", "url": server.url, "requests_running_max": 1, "step_time": KNOWN}
        async with admin(tmp_path, gpu) as api:
            await api.post("/tenants", {"id": "alice", "weight": 3})
            await api.post("/tenants", {"id": "bob", "queued_requests_max": 1})
            alice, bob = bearer(await api.key_for("alice")), bearer(await api.key_for("bob"))
            assert (await api.rig.post(call(max_tokens=3, stream=True), headers=alice)).status == 200
            await until(api.rig.idle)
            async with stream(api) as response:
                assert response.headers["Content-Type"].startswith("text/event-stream")
                viewer = Viewer(response)
                calls = [
                    asyncio.ensure_future(api.rig.post(call(max_tokens=400, stream=True), headers=each))
                    for each in (alice, bob)
                ]
                await until(lambda: api.rig.snapshot().in_flight_requests == 1)
                await until(lambda: api.rig.snapshot().queued_requests == 1)
                assert (await api.rig.post(call(), headers=bearer("no-such-key"))).status == 401
                refused = await api.rig.post(call(), headers=bob)
                assert refused.status == 429
                shown = await viewer.until(
                    lambda it: any(pool["refused"] and pool["queued"] for pool in it["pools"].values())
                )
                whole = (await api.get("/live")).json
                for each in calls:
                    each.cancel()
                await asyncio.gather(*calls, return_exceptions=True)
    msgspec.convert(whole, LivePageDocument)
    assert viewer.events[0]["event"] == "state"
    assert [int(each["id"]) for each in viewer.events] == sorted(int(each["id"]) for each in viewer.events)
    (pool,) = shown["pools"].values()
    assert (pool["policy"], pool["queued"], pool["in_flight"]) == ("vtc", 1, 1)
    assert pool["refused"] == {"tenant_queue_full": 1}
    assert shown["keys_refused"] == 1
    assert pool["backends"]["gpu"]["bound_by"] == "slots"
    assert pool["backends"]["gpu"]["in_flight"] == 1
    tenants = pool["tenants"]
    waiting = tenants["bob"] if tenants["bob"]["queued"] else tenants["alice"]
    assert waiting["waits"] == "no_room"
    assert waiting["oldest_wait_s"] >= 0
    assert (tenants["bob"]["refused"], tenants["bob"]["refused_by"]) == (1, {"tenant_queue_full": 1})
    assert tenants["alice"]["weight"] == 3
    assert sum(each["share"][2] for each in tenants.values()) > 0.99
    median, high = tenants["alice"]["ttft_s"]
    assert 0 < median <= high < 20
    assert 0.5 * 0.02 < tenants["alice"]["tpot_s"][0] < 1
    assert whole["gateway"]["role"] == "leader"
    assert whole["cluster"]["members"][0]["name"] == whole["gateway"]["name"]


async def test_patches_lead_to_the_document_that_a_new_viewer_gets_compressed_or_not(tmp_path):
    async with engine(**SLOW) as server, admin(tmp_path, {"name": "gpu", "url": server.url}) as api:
        await api.post("/tenants", {"id": "alice"})
        alice = bearer(await api.key_for("alice"))
        async with stream(api, **{"Accept-Encoding": "identity"}) as response:
            viewer = Viewer(response)
            await viewer.until(lambda it: it["pools"])
            await api.rig.post(call(max_tokens=20), headers=alice)
            await viewer.until(lambda it: any(pool["tenants"] for pool in it["pools"].values()))
            sent = {"Authorization": f"Bearer {api.key}", **EVENTS, "Accept-Encoding": "gzip"}
            async with api.session.get(f"{api.url}/admin/v1/live", headers=sent, auto_decompress=False) as packed:
                assert packed.headers["Content-Encoding"] == "gzip"
                inflater, text = zlib.decompressobj(16 + zlib.MAX_WBITS), b""
                async with asyncio.timeout(20):
                    while text.count(b"\n\n") < 3:
                        text += inflater.decompress(await packed.content.readany())
            events = [
                dict(line.split(": ", 1) for line in part.split("\n")) for part in text.decode().split("\n\n")[:3]
            ]
            state, *patches = events
            assert (state["event"], [each["event"] for each in patches]) == ("state", ["patch", "patch"])
            number = patches[-1]["id"]
            while viewer.events[-1].get("id") != number:
                await viewer.read()
    document = json.loads(state["data"])
    for patch in patches:
        document = merged(document, json.loads(patch["data"]))
    assert without_nulls(document) == without_nulls(viewer.document)


async def test_a_lost_backend_is_shown_with_the_time_since_when(tmp_path):
    async with engine() as server, admin(tmp_path, {"name": "gpu", "url": server.url}) as api, stream(api) as response:
        viewer = Viewer(response)

        def since(document):
            (pool,) = document["pools"].values()
            return pool["backends"]["gpu"].get("unavailable_since")

        assert since(await viewer.until(lambda it: it["pools"])) is None
        before = time.time()
        await server.stop()
        assert before - 1 <= since(await viewer.until(since)) <= time.time() + 1


async def test_a_stream_needs_a_key_and_ends_when_the_key_is_revoked(tmp_path):
    async with engine(**SLOW) as server, admin(tmp_path, {"name": "gpu", "url": server.url}) as api:
        async with stream(api, Authorization="Bearer wrong") as response:
            assert response.status == 401
        made = (await api.post("/keys", {"role": "viewer"})).json
        async with stream(api, Authorization=f"Bearer {made['secret']}") as response:
            viewer = Viewer(response)
            await viewer.read()
            assert (await api.delete(f"/keys/{made['id']}")).status == 204
            async with asyncio.timeout(20):
                with contextlib.suppress(aiohttp.ClientError):
                    while await response.content.readany():
                        pass
            assert api.rig.gateway.operators.live.feed.viewers == 0


async def test_the_service_gap_of_tenants_that_wait_stands_beside_its_bound(tmp_path):
    """Takes seconds: the gap is known once both have waited for a while."""
    async with engine(**FAST) as server:
        gpu = {"name": "gpu", "url": server.url, "requests_running_max": 2, "kv_tokens_max": 4096}
        async with admin(tmp_path, gpu) as api:
            keys = [bearer(await api.key_for(each)) for each in ("declared", "other") if await make(api, each)]
            flood = [asyncio.ensure_future(keep_calling(api, key)) for key in keys for _ in range(8)]
            async with stream(api) as response:
                shown = await Viewer(response).until(has_gap)
            for each in flood:
                each.cancel()
            await asyncio.gather(*flood, return_exceptions=True)
    (pool,) = shown["pools"].values()
    tier = pool["tiers"]["default"]
    assert 0 <= tier["gap"] <= tier["bound"]
    assert 0 < tier["jain"] <= 1
    assert tier["share"][0] == tier["due"][0] == 1.0


async def make(api, tenant):
    return tenant == "declared" or (await api.post("/tenants", {"id": tenant})).status == 201


async def keep_calling(api, key):
    while True:
        await api.rig.post(call(max_tokens=30), headers=key)


def has_gap(document):
    return any(tier.get("gap") is not None for pool in document["pools"].values() for tier in pool["tiers"].values())


async def test_a_tenant_whose_calls_are_all_refused_is_in_the_document(tmp_path):
    """Its budget refuses them before the scheduler is told of any."""
    async with engine() as server, admin(tmp_path, {"name": "gpu", "url": server.url}) as api:
        await api.post("/tenants", {"id": "poor", "tokens_per_day_max": 1})
        poor = bearer(await api.key_for("poor"))
        assert (await api.rig.post(call(), headers=poor)).status == 429
        async with stream(api) as response:
            shown = await Viewer(response).until(
                lambda it: any("poor" in pool["tenants"] for pool in it["pools"].values())
            )
    (pool,) = shown["pools"].values()
    assert pool["tenants"]["poor"]["refused_by"] == {"budget_spent": 1}
