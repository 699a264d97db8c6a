"""A tier that is deleted goes from the gateway that runs, once no tenant is of it."""

from functools import partial

import pytest
from admin_rig import admin, within
from gateway_rig import bearer, call, engine

GOLD = {"id": "gold", "weight": 3, "reserve_ratio": 0.5, "priority": -1}


async def is_there(api, name, *, there):
    return (name in api.rig.snapshot().tiers) == there


@pytest.mark.parametrize("is_declared", [False, True], ids=["made over the API", "overridden there"])
async def test_a_deleted_tier_goes_from_the_scheduler_within_a_second(tmp_path, is_declared):
    tiers = {"gold": {"weight": 7}} if is_declared else {}
    async with engine() as server, admin(tmp_path, server, tiers=tiers) as api:
        gold = await (api.patch("/tiers/gold", {"weight": 3}) if is_declared else api.post("/tiers", GOLD))
        assert gold.json["weight"] == 3
        await api.post("/tenants", {"id": "alice", "tier": "gold"})
        key = await api.key_for("alice")
        assert (await api.rig.post(call(), headers=bearer(key))).status == 200
        assert (await api.patch("/tenants/alice", {"tier": "default"})).status == 200
        assert (await api.delete("/tiers/gold")).status == 204
        await within(partial(is_there, api, "gold", there=is_declared))
        assert (await api.rig.post(call(), headers=bearer(key))).status == 200
        assert (await api.post("/tiers", GOLD)).status == (409 if is_declared else 201)
        await within(partial(is_there, api, "gold", there=True))
