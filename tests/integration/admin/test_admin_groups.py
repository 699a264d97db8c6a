"""Groups of a running gateway: made and changed by the API, in force at once, over restarts, in the live document."""

from admin_rig import admin, within
from gateway_rig import bearer, scripted

from policies.types import Group


async def tree(api, **group):
    """A group of two tenants, each with a key."""
    made = await api.post("/groups", {"id": "research", **group})
    assert made.status == 201, made.body
    keys = {}
    for name in ("alice", "bob"):
        assert (await api.post("/tenants", {"id": name, "group": "research"})).status == 201
        keys[name] = await api.key_for(name)
    return keys


async def test_a_group_is_made_changed_and_deleted_with_its_versions_and_audit(tmp_path):
    async with admin(tmp_path) as api:
        made = await api.post("/groups", {"id": "research", "weight": 2, "tokens_per_day_max": 500})
        assert made.headers["Location"].endswith("/groups/research")
        assert (made.json["tier"], made.json["weight"], made.json["in_flight_max"]) == ("default", 2, None)
        changed = await api.patch("/groups/research", {"weight": 3}, if_match=made.headers["ETag"])
        assert (changed.status, changed.json["weight"]) == (200, 3)
        assert (await api.patch("/groups/research", {"weight": 4}, if_match=made.headers["ETag"])).status == 412
        assert [each["id"] for each in (await api.get("/groups")).json["items"]] == ["research"]
        assert (await api.delete("/groups/research")).status == 204
        assert (await api.get("/groups/research")).status == 404
        log = (await api.get("/audit?kind=groups")).json["items"]
        assert [each["action"] for each in log] == ["delete", "update", "create"]


async def test_what_would_break_a_reference_is_refused(tmp_path):
    async with admin(tmp_path) as api:
        await api.post("/tiers", {"id": "gold"})
        assert (await api.post("/groups", {"id": "research", "tier": "silver"})).status == 409
        assert (await api.post("/tenants", {"id": "alice", "group": "research"})).status == 409
        await api.post("/groups", {"id": "research", "tier": "gold"})
        assert (await api.delete("/tiers/gold")).status == 409, "a group is in it"
        assert (await api.post("/tenants", {"id": "alice", "group": "research", "tier": "default"})).status == 409
        made = await api.post("/tenants", {"id": "alice", "group": "research"})
        assert (made.status, made.json["tier"]) == (201, "gold"), "it is in the tier of its group"
        assert (await api.delete("/groups/research")).status == 409, "a tenant is in it"
        assert (await api.patch("/groups/research", {"tier": None})).status == 200
        assert (await api.get("/tenants/alice")).json["tier"] == "default"


async def test_a_group_and_the_moves_of_its_tenants_are_in_force_at_once(tmp_path):
    async with scripted() as backend, admin(tmp_path, backend) as api:
        keys = await tree(api, weight=2)
        for key in keys.values():
            assert (await api.rig.post(headers=bearer(key))).status == 200

        def known():
            (dispatcher,) = api.rig.gateway.pools.dispatchers.values()
            return {tenant.id: (tenant.tier_id, tenant.group_id) for tenant in dispatcher.tenants()}

        assert known() == {"alice": ("default", "research"), "bob": ("default", "research")}
        await api.post("/tiers", {"id": "gold"})
        await api.patch("/groups/research", {"tier": "gold"})
        await api.patch("/tenants/bob", {"group": None})

        async def moved():
            return known() == {"alice": ("gold", "research"), "bob": ("default", None)}

        await within(moved)
        for key in keys.values():
            assert (await api.rig.post(headers=bearer(key))).status == 200


async def test_requests_per_minute_of_a_group_hold_for_its_tenants_together(tmp_path):
    async with scripted() as backend, admin(tmp_path, backend) as api:
        keys = await tree(api, requests_per_minute_max=2)
        statuses = [
            (await api.rig.post(headers=bearer(keys[name]))).status for name in ("alice", "bob", "alice", "bob")
        ]
        assert statuses == [200, 200, 429, 429]


async def test_a_groups_budget_counts_all_of_its_tenants_wherever_they_were_before_and_over_a_restart(tmp_path):
    config = {"state": tmp_path / "state"}

    async def used(api):
        items = (await api.get("/state/budgets")).json["items"]
        return {each["group"]: each["used"] for each in items if each["group"]}

    async with scripted() as backend:
        async with admin(tmp_path, backend, **config) as api:
            keys = await tree(api, tokens_per_month_max=30)
            other = await api.key_for("declared")
            for key in (keys["alice"], keys["bob"], other):
                assert (await api.rig.post(headers=bearer(key))).status == 200
            assert await used(api) == {"research": 24}
            await api.patch("/tenants/declared", {"group": "research"})
            assert (await api.rig.post(headers=bearer(other))).status == 429, "it brings along what it has used"
        async with admin(tmp_path, backend, **config) as api:
            assert await used(api) == {"research": 36}
            assert (await api.rig.post(headers=bearer(keys["bob"]))).status == 429
            await api.patch("/tenants/declared", {"group": None})

            async def gone():
                return await used(api) == {"research": 24}

            await within(gone, 2.0)
            assert (await api.rig.post(headers=bearer(other))).status == 200


async def test_groups_of_the_file_and_of_the_api_are_one_and_an_old_file_means_what_it_meant(tmp_path):
    declared = {
        "groups": {"sales": {"weight": 3, "tier": "gold"}},
        "tiers": {"gold": {}},
        "tenants": {"crm": {"group": "sales"}, "old": {"weight": 2}},
    }
    async with admin(tmp_path, **declared) as api:
        assert (await api.get("/groups/sales")).json["origin"] == "declared"
        assert (await api.get("/tenants/crm")).json["tier"] == "gold"
        old = (await api.get("/tenants/old")).json
        assert (old["tier"], old["group"], old["weight"]) == ("default", None, 2)
        assert (await api.delete("/groups/sales")).status == 409
        assert (await api.patch("/groups/sales", {"weight": 5})).json["origin"] == "overridden"


async def test_the_live_document_has_each_tenants_group_and_what_each_group_is_due(tmp_path):
    async with scripted() as backend, admin(tmp_path, backend) as api:
        keys = await tree(api, weight=2)
        for key in keys.values():
            assert (await api.rig.post(headers=bearer(key))).status == 200

        async def shown():
            pools = (await api.get("/live")).json["pools"]
            (pool,) = pools.values()
            if set(pool["tenants"]) != {"alice", "bob"}:
                return False
            assert {each["group"] for each in pool["tenants"].values()} == {"research"}
            assert (pool["groups"]["research"]["weight"], pool["groups"]["research"]["tier"]) == (2, "default")
            return True

        await within(shown, 5.0)


async def test_a_pool_that_is_made_later_knows_the_groups(tmp_path):
    async with admin(tmp_path) as api:
        await tree(api, weight=2, in_flight_max=3)
        pools = api.rig.gateway.pools
        made = pools._dispatcher("another")
        state = made._scheduler._tenants.groups["research"]
        assert state.group == Group("research", weight=2, in_flight_max=3)
