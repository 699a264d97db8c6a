"""The preview of an edit over a gateway that serves: shares now and then, and nothing changed."""

import asyncio

from admin_rig import admin, within
from gateway_rig import MODEL, SLOW, bearer, call, engine, until

NO_GROUPS = "body.tenants.declared.group", "body.groups.lead"


async def test_two_tenants_that_flood_see_what_weight_3_would_do_and_nothing_is_changed(tmp_path):
    """Takes seconds: engines are slow, so that both wait until all is asked."""
    async with engine(**SLOW) as server:
        gpu = {"name": "gpu", "url": server.url, "requests_running_max": 1}
        async with admin(tmp_path, gpu) as api:
            await api.post("/tiers", {"id": "gold", "weight": 2})
            viewer = (await api.post("/keys", {"role": "viewer"})).json["secret"]
            calls = []
            for tenant in ("alice", "bob"):
                await api.post("/tenants", {"id": tenant})
                headers = bearer(await api.key_for(tenant))
                calls += [asyncio.ensure_future(api.rig.post(call(max_tokens=4), headers=headers)) for _ in range(200)]

            async def both_wait():
                found = (await api.post("/preview", {}, key=viewer)).json["pools"].get(MODEL, {"tenants": {}})
                return {each for each, share in found["tenants"].items() if share["asks_all"]} == {"alice", "bob"}

            await within(both_wait, timeout_s=20.0)
            edit = {"tenants": {"alice": {"weight": 3, "in_flight_max": 2}}, "pool": MODEL}
            found = (await api.post("/preview", edit, key=viewer)).json["pools"]
            assert found == {
                MODEL: {
                    "tenants": {
                        "alice": {"share_now": 0.5, "share_then": 0.75, "asks_all": True},
                        "bob": {"share_now": 0.5, "share_then": 0.25, "asks_all": True},
                    },
                    "tiers": {"default": {"share_now": 1.0, "share_then": 1.0, "asks_all": True}},
                    "groups": {},
                }
            }
            moved = (await api.post("/preview", {"tenants": {"bob": {"tier": "gold", "weight": None}}})).json["pools"]
            assert moved[MODEL]["tenants"]["bob"]["share_then"] == 0.6667
            await api.post("/groups", {"id": "lab", "tier": "gold"})
            edit = {"tenants": {"bob": {"group": "lab"}}, "groups": {"lab": {"weight": 9}}}
            joined = (await api.post("/preview", edit)).json["pools"][MODEL]
            assert joined["tenants"]["bob"]["share_then"] == joined["groups"]["lab"]["share_then"] == 0.6667
            alice = (await api.get("/tenants/alice")).json
            assert (alice["weight"], alice["in_flight_max"]) == (1.0, None)
            for each in calls:
                each.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            await until(api.rig.idle)


async def test_an_edit_of_what_is_not_there_is_refused_by_field(tmp_path):
    async with engine() as server, admin(tmp_path, server) as api:
        edit = {
            "pool": "none", "tenants": {"nobody": {"weight": 2}, "declared": {"tier": "none", "group": "none"}},
            "groups": {"lead": {"weight": 1}}, "tiers": {"lead": {"weight": 1}},
        }  # fmt: skip
        reply = await api.post("/preview", edit)
        assert reply.status == 422
        fields = {each["field"] for each in reply.json["errors"]}
        others = {"body.pool", "body.tenants.nobody", "body.tenants.declared.tier", "body.tiers.lead"}
        assert fields == others | set(NO_GROUPS)
        for body in ({"tenants": {"<b>": {}}}, {"tenants": {"declared": {"weight": 0}}}, {"weight": 1}, []):
            assert (await api.post("/preview", body)).status == 422, body
