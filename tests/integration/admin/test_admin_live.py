"""The live state: which requests are in time, by how much, and which were."""

import asyncio
import socket

from admin_rig import admin
from gateway_rig import SLOW, bearer, call, engine, until

ENVELOPE = {"ttft_ms": 60_000, "tpot_ms": 1000}
# Of an engine that is SLOW.
KNOWN = {"base_ms": 19, "token_us": 180, "context_token_ns": 1, "request_us": 700}


async def test_a_gateway_without_others_leads_itself(tmp_path):
    async with engine(**SLOW) as server, admin(tmp_path, {"name": "gpu", "url": server.url}) as api:
        view = (await api.get("/cluster")).json
    (member,) = view.pop("members")
    name = socket.gethostname()
    assert view == {
        "name": name, "role": "leader", "leader": name, "epoch": 0, "standalone": False, "elections": 0,
        "round_trip_s": None,
    }  # fmt: skip
    assert (member["name"], member["role"], member["address"]) == (name, "leader", None)


async def test_slack_and_attainment_are_shown_by_tier_tenant_and_request_and_steps_by_backend(tmp_path):
    async with engine(**SLOW) as server:
        gpu = {"name": "gpu", "url": server.url, "requests_running_max": 1, "step_time": KNOWN}
        async with admin(tmp_path, gpu) as api:
            await api.post("/tiers", {"id": "gold", "envelope": ENVELOPE})
            await api.post("/tenants", {"id": "alice", "tier": "gold"})
            await api.post("/tenants", {"id": "bob"})
            alice, bob = bearer(await api.key_for("alice")), bearer(await api.key_for("bob"))
            assert (await api.rig.post(call(max_tokens=3, stream=True), headers=alice)).status == 200
            await until(api.rig.idle)
            runs = asyncio.ensure_future(api.rig.post(call(max_tokens=300, stream=True), headers=alice))
            await until(lambda: api.rig.snapshot().in_flight_requests == 1)
            waits = [asyncio.ensure_future(api.rig.post(call(), headers=each)) for each in (alice, bob)]
            await until(lambda: api.rig.snapshot().queued_requests == 2)
            (pool,) = (await api.get("/state")).json["pools"]
            tenants = {each["tenant"]: each for each in (await api.get("/state/tenants")).json["items"]}
            for each in (runs, *waits):
                each.cancel()
            await asyncio.gather(runs, *waits, return_exceptions=True)
    gold, default = pool["tiers"]["gold"], pool["tiers"]["default"]
    assert (gold["queued_requests"], gold["in_flight_requests"]) == (1, 1)
    assert (default["queued_requests"], default["slack_s_min"]) == (1, None)
    assert [(each["tenant"], each["backend"]) for each in pool["urgent"]] in (
        [("alice", "gpu"), ("alice", None)],
        [("alice", None), ("alice", "gpu")],  # while its first tokens pass it has more and more time
    )
    assert 0 < pool["urgent"][0]["slack_s"] <= 60
    assert gold["slack_s_min"] == pool["urgent"][0]["slack_s"]
    assert 0 < tenants["alice"]["slack_s_min"] <= 60
    assert tenants["bob"]["slack_s_min"] is None
    assert gold["attainment"] == tenants["alice"]["attainment"] == {
        "requests": 1, "ttft_met": 1, "tpot_met": 1, "tpot_envelope_met": 1, "met": 1,
        "tokens": 3, "tokens_in_time": 3, "refused": 0,
    }  # fmt: skip
    steps = pool["backends"]["gpu"]["steps"]
    assert 0.019 < steps["step_s"] < 0.03
    assert steps["step_s_max"] == 1.0
    assert steps["budget_tokens"] > 0
