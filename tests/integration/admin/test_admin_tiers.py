"""A tier that is deleted goes from the gateway that runs, once no tenant is of it; a tenant of one that the file has no
more is served all the same.
"""

from functools import partial

import pytest
from admin_rig import admin, within
from gateway_rig import MODEL, PATIENCE_S, bearer, call, engine

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


async def test_tenants_whose_tier_the_file_has_no_more_are_in_the_default_one_until_it_is_back(tmp_path, caplog):
    served = partial(admin, tmp_path, state=tmp_path / "state.db")
    async with engine() as server:
        async with served(server, tiers={"gold": {}}) as api:
            await api.post("/tenants", {"id": "alice", "tier": "gold"})
            await api.post("/groups", {"id": "team", "tier": "gold"})
            await api.post("/tenants", {"id": "team/bob", "group": "team"})
            await api.post("/tenants", {"id": "carol", "tier": "gold"})
            keys = [await api.key_for("alice"), await api.key_for("team/bob")]
        async with served(server) as api:

            async def tiers():
                assert [(await api.rig.post(call(), headers=bearer(key))).status for key in keys] == [200, 200]
                shown = await api.get("/live")
                assert shown.status == 200, shown.body
                return {each["tier"] for each in shown.json["pools"][MODEL]["tenants"].values()}

            async def are_in(tier):
                return await tiers() == {tier}

            await within(partial(are_in, "default"), PATIENCE_S)
            assert (await api.post("/tiers", {"id": "gold"})).status == 201
            await within(partial(are_in, "gold"), PATIENCE_S)
            told = [each.message for each in caplog.records if "gold" in each.message]
            assert told == ["there is no tier 'gold': 3 tenants and 1 groups are in tier 'default'"]
