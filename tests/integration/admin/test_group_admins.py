"""An administrator of a group reaches its own group and nothing else, whatever it tries."""

import asyncio
import contextlib
from urllib.parse import quote

import pytest
from admin_rig import SECRET, admin
from gateway_rig import bearer, scripted

from gateway.admin.access import change_rate
from gateway.admin.resources import group_scope
from gateway.admin.routes import Role, Route
from gateway.admin.server import AdminServer
from gateway.config.key_file import add_key

TIERS = {"gold": {"envelope": {"ttft_ms": 500}}}
GROUPS = {"red": {"tier": "gold", "tokens_per_day_max": 1_000, "in_flight_max": 10}, "blue": {}}
TENANTS = {"red/a": {"group": "red"}, "old-red": {"group": "red"}, "blue/b": {"group": "blue"}, "free": {}}
OTHERS = ("blue/b", "free")


class GroupAdmin:
    """Asks as the administrator of group red; `api` is the operator."""

    def __init__(self, api, key):
        self.api, self.key = api, key

    async def ask(self, method, path, body=None, **headers):
        return await self.api.ask(method, path, body, key=self.key, **headers)

    async def status(self, method, path, body=None, **headers):
        return (await self.ask(method, path, body, **headers)).status


@contextlib.asynccontextmanager
async def red(folder, *backends, **config):
    settings = {"tiers": TIERS, "groups": GROUPS, "tenants": TENANTS, **config}
    async with admin(folder, *backends, **settings) as api:
        made = await api.post("/keys", {"role": "group-admin", "group": "red"})
        assert made.status == 201, made.body
        yield GroupAdmin(api, made.json["secret"])


def at(name):
    return name.replace("/", "%2F")


async def everything(api):
    """All that is stored, but for the keys' times."""
    kinds = ("tenants", "groups", "tiers", "keys", "backends", "prices")
    return {kind: (await api.get(f"/{kind}")).body for kind in kinds}


# -- what it may -----------------------------------------------------------------------------------------------------


async def test_it_makes_tenants_and_keys_of_its_group_which_work_at_once(tmp_path):
    async with scripted() as backend, red(tmp_path, backend) as lead:
        made = await lead.ask("POST", "/tenants", {"id": "red/new", "weight": 2, "tokens_per_day_max": 400})
        assert (made.status, made.json["group"], made.json["tier"]) == (201, "red", "gold")
        key = await lead.ask("POST", "/keys", {"tenant": "red/new", "label": "x"})
        assert (await lead.api.rig.post(headers=bearer(key.json["secret"]))).status == 200
        rotated = await lead.ask("POST", f"/keys/{key.json['id']}/rotate", {"overlap_s": 0})
        assert rotated.status == 201
        assert await lead.status("PATCH", f"/keys/{rotated.json['id']}", {"revoked": True}) == 200
        assert await lead.status("PATCH", "/tenants/red%2Fnew", {"weight": 3}) == 200
        replaced = await lead.ask("PUT", "/tenants/red%2Fnew", {"weight": 5})
        assert (replaced.status, replaced.json["group"]) == (200, "red"), "what it does not set stays in its group"
        assert await lead.status("PUT", "/tenants/red%2Fnewer", {}) == 201
        assert await lead.status("DELETE", "/tenants/red%2Fnewer") == 204
        authors = {each["actor"] for each in (await lead.api.get("/audit?kind=tenants")).json["items"]}
        assert authors == {(await lead.ask("GET", "/me")).json["name"]}


async def test_it_sees_its_group_its_tenants_their_keys_and_their_usage_page_by_page(tmp_path):
    async with scripted() as backend, red(tmp_path, backend) as lead:
        keys = {name: await lead.api.key_for(name) for name in TENANTS}
        for key in keys.values():
            assert (await lead.api.rig.post(headers=bearer(key))).status == 200
        await lead.api.rig.gateway._management.usage.flush()

        async def listed(path, field):
            names, query = [], "?limit=1"
            while True:
                page = (await lead.ask("GET", path + query)).json
                names += [each[field] for each in page["items"]]
                if page["next_cursor"] is None:
                    return names
                query = "?limit=1&cursor=" + at(page["next_cursor"]).replace("\n", "%0A")

        assert await listed("/tenants", "id") == ["old-red", "red/a"]
        assert await listed("/groups", "id") == ["red"]
        assert await listed("/keys", "tenant") in (["old-red", "red/a"], ["red/a", "old-red"])
        assert await listed("/usage", "tenant") == ["old-red", "red/a"]
        assert (await lead.ask("GET", "/usage?tenant=free")).json["items"] == []
        assert (await lead.ask("GET", "/keys?tenant=free")).json["items"] == []
        assert (await lead.ask("GET", "/me")).json["group"] == "red"


# -- ways out --------------------------------------------------------------------------------------------------------

ALLOWED = {
    "/tenants", "/tenants/{id}", "/groups", "/groups/{id}", "/keys", "/keys/{id}", "/keys/{id}/rotate",
    "/usage", "/usage/sums", "/usage/export", "/me", "/groups/{id}/live", "/state/budgets", "/resources",
    "/history", "/history/minute", "/trials",
}  # fmt: skip


def routes_of(api):
    server = api.rig.gateway._administration._port.server
    assert isinstance(server, AdminServer)
    return server._table.routes


READ = {
    "/groups", "/groups/{id}", "/groups/{id}/live", "/usage", "/usage/sums", "/usage/export", "/me", "/state/budgets",
    "/resources", "/history", "/history/minute",
}  # fmt: skip


async def test_every_other_path_is_closed_to_it_and_new_ones_are_until_they_say_otherwise(tmp_path):
    async with red(tmp_path) as lead:
        routes = [route for route in routes_of(lead.api) if route.role is not None]
        open_to_it = {(route.method, route.path) for route in routes if route.for_groups}
        assert {path for _, path in open_to_it} == ALLOWED
        changed = {path for method, path in open_to_it if method != "GET"}
        assert changed == ALLOWED - READ
        for route in routes:
            if (route.method, route.path) not in open_to_it:
                path = route.path.replace("{id}", "x")
                assert await lead.status(route.method, path, {}) == 403, route.path
                assert await lead.status(route.method, path, {}, Accept="text/event-stream") == 403, route.path
        assert await lead.status("GET", "/metrics") == 403
        assert Route(method="GET", path="/x", role=Role.VIEWER, summary="", run=None).for_groups is False
        with pytest.raises(AssertionError):  # another process would answer it without its group
            Route(method="GET", path="/x", role=Role.VIEWER, summary="", run=None, for_groups=True, live=True)


@pytest.mark.parametrize("name", [*OTHERS, "nothing"])
async def test_other_tenants_are_to_it_as_if_they_were_not_there(tmp_path, name):
    """The same answers for a tenant of another group, for one without a group, and for none."""
    async with red(tmp_path) as lead:
        before = await everything(lead.api)
        path, there = f"/tenants/{at(name)}", await lead.api.get(f"/tenants/{at(name)}")
        etag = there.headers.get("ETag", '"1"')
        answers = [
            await lead.ask("GET", path),
            await lead.ask("PATCH", path, {"weight": 2}),
            await lead.ask("PATCH", path, {"weight": 2}, if_match=etag),
            await lead.ask("PATCH", path, {"weight": 2}, if_match="*"),
            await lead.ask("PATCH", path, {"group": "red"}),
            await lead.ask("DELETE", path),
            await lead.ask("DELETE", path, if_match=etag),
        ]
        assert {(reply.status, reply.json["detail"]) for reply in answers} == {(404, "there is no such tenant")}
        made = [
            await lead.ask("PUT", path, {"group": "red"}),
            await lead.ask("PUT", path, {"group": "red"}, if_match=etag),
            await lead.ask("PUT", path, {"group": "red"}, if_none_match="*"),
            await lead.ask("POST", "/tenants", {"id": name, "group": "red"}),
        ]
        assert {reply.status for reply in made} == {403}
        assert {reply.json["errors"][0]["reason"] for reply in made} == {"must begin with 'red/'"}
        keyed = await lead.ask("POST", "/keys", {"tenant": name})
        assert (keyed.status, keyed.json["detail"]) == (409, f"body.tenant: there is no tenant '{name}'")
        assert await everything(lead.api) == before


async def test_keys_of_others_and_of_roles_are_to_it_as_if_they_were_not_there(tmp_path):
    async with red(tmp_path) as lead:
        others = [(await lead.api.post("/keys", {"tenant": name})).json["id"] for name in OTHERS]
        others += [(await lead.api.post("/keys", {"role": "admin"})).json["id"]]
        others += [(await lead.api.post("/keys", {"role": "group-admin", "group": "red"})).json["id"], "key-none"]
        before = await everything(lead.api)
        for name in others:
            for method, path, body in (
                ("GET", f"/keys/{name}", None),
                ("PATCH", f"/keys/{name}", {"revoked": True}),
                ("DELETE", f"/keys/{name}", None),
                ("POST", f"/keys/{name}/rotate", {}),
            ):
                reply = await lead.ask(method, path, body)
                assert (reply.status, reply.json["detail"]) == (404, "there is no such key")
        assert (await lead.ask("GET", "/keys")).json["items"] == []
        assert await everything(lead.api) == before


@pytest.mark.parametrize(
    "body",
    [
        {"role": "admin"},
        {"role": "viewer"},
        {"role": "group-admin", "group": "red"},
        {"role": "group-admin", "group": "blue"},
        {"tenant": "red/a", "group": "blue"},
    ],
)
async def test_it_makes_no_key_for_a_role(tmp_path, body):
    async with red(tmp_path) as lead:
        before = await everything(lead.api)
        assert await lead.status("POST", "/keys", body) == 403
        assert await everything(lead.api) == before


@pytest.mark.parametrize(
    ("patch", "status"),
    [
        ({"group": "blue"}, 403),
        ({"group": None}, 403),
        ({"group": "nothing"}, 403),
        ({"tier": "default"}, 409),
        ({"queued_requests_max": 9}, 403),
        ({"queued_bytes_max": 9}, 403),
        ({"tokens_per_day_max": 1_001}, 409),
        ({"in_flight_max": 11}, 409),
        ({"envelope": {"ttft_ms": 499}}, 409),
        ({"envelope": {"tpot_ms": 50}}, 409),
    ],
)
async def test_it_gives_nothing_that_its_group_does_not_have(tmp_path, patch, status):
    async with red(tmp_path) as lead:
        before = await everything(lead.api)
        whole = {name: value for name, value in patch.items() if value is not None}
        assert await lead.status("PATCH", "/tenants/red%2Fa", patch) == status
        if whole:
            assert await lead.status("PUT", "/tenants/red%2Fa", whole) == status
            assert await lead.status("PUT", "/tenants/red%2Fnew", whole) == status
            assert await lead.status("POST", "/tenants", {"id": "red/new", **whole}) == status
        assert await everything(lead.api) == before


async def test_budgets_of_its_tenants_sum_up_to_at_most_the_groups(tmp_path):
    async with red(tmp_path) as lead:
        assert await lead.status("PATCH", "/tenants/red%2Fa", {"tokens_per_day_max": 600}) == 200
        over = await lead.ask("PATCH", "/tenants/old-red", {"tokens_per_day_max": 401})
        assert (over.status, over.json["errors"][0]["reason"]) == (
            409,
            "must be at most 400, which the group has left of 1000",
        )
        assert await lead.status("PATCH", "/tenants/old-red", {"tokens_per_day_max": 400}) == 200
        assert await lead.status("POST", "/tenants", {"id": "red/c", "tokens_per_day_max": 1}) == 409
        # What the operator set beyond it stays, and other settings can be changed beside it.
        await lead.api.patch("/tenants/old-red", {"tokens_per_day_max": 5_000})
        assert await lead.status("PATCH", "/tenants/old-red", {"weight": 2}) == 200


async def test_budgets_that_are_set_at_once_sum_up_to_at_most_the_groups(tmp_path):
    async with red(tmp_path) as lead:
        budget = {"tokens_per_day_max": 300}
        asked = [lead.ask("POST", "/tenants", {"id": f"red/{number}", **budget}) for number in range(4)]
        asked += [lead.ask("PATCH", f"/tenants/{at(name)}", budget) for name in ("red/a", "old-red")]
        asked += [lead.ask("PUT", "/tenants/red%2Fput", budget) for _ in range(2)]
        replies = await asyncio.gather(*asked)
        assert {reply.status for reply in replies} <= {200, 201, 409, 412}
        tenants = (await lead.ask("GET", "/tenants")).json["items"]
        assert sum(each["tokens_per_day_max"] or 0 for each in tenants) == 900
        assert [each["kind"] for each in (await lead.api.get("/audit")).json["items"]].count("guards") == 0


async def test_it_does_not_change_a_tenant_that_the_operator_has_moved_away_since_it_was_judged(tmp_path, monkeypatch):
    async with red(tmp_path) as lead:
        changes = lead.api.rig.gateway._management.registry.changes
        patch = changes.patch

        async def moved_before(kind, name, body, **asked):
            await patch("tenants", "red/a", {"group": "blue"}, actor="operator", etag=None)
            return await patch(kind, name, body, **asked)

        monkeypatch.setattr(changes, "patch", moved_before)
        assert await lead.status("PATCH", "/tenants/red%2Fa", {"weight": 9}, if_match="*") == 412
        monkeypatch.undo()
        assert (await lead.api.get("/tenants/red%2Fa")).json["weight"] == 1.0


async def test_a_name_of_its_own_that_another_group_has_is_refused_without_showing_it(tmp_path):
    async with red(tmp_path, tenants={**TENANTS, "red/odd": {"group": "blue", "weight": 7}}) as lead:
        for reply in (
            await lead.ask("POST", "/tenants", {"id": "red/odd"}),
            await lead.ask("PUT", "/tenants/red%2Fodd", {}),
        ):
            assert (reply.status, reply.json["detail"]) == (409, "there is one of this id")
        assert (await lead.ask("GET", "/tenants/red%2Fodd")).status == 404


@pytest.mark.parametrize("name", ["red/../blue/b", "red/%2e%2e", "red//x", "redx", "Red/x", "red", "/red/x", "red/x\n"])
async def test_a_name_that_only_looks_like_its_own_is_none(tmp_path, name):
    async with red(tmp_path) as lead:
        status = await lead.status("POST", "/tenants", {"id": name})
        if status == 201:  # a name without meaning beyond its letters: it is its own group's tenant all the same
            assert name.startswith("red/")
            assert (await lead.api.get(f"/tenants/{at(name)}")).json["group"] == "red"
        else:
            assert status in (403, 422)


async def test_a_repeated_request_of_another_caller_returns_it_nothing(tmp_path):
    """An Idempotency-Key that another caller has used says nothing to this one."""
    async with red(tmp_path) as lead:
        body = {"tenant": "red/a"}
        mine = await lead.ask("POST", "/keys", body, idempotency_key="k")
        theirs = await lead.api.post("/keys", body, idempotency_key="k")
        assert mine.json["secret"] != theirs.json["secret"]


async def test_its_key_opens_nothing_at_the_data_port_and_ends_with_its_group(tmp_path):
    async with scripted() as backend, red(tmp_path, backend) as lead:
        assert (await lead.api.rig.post(headers=bearer(lead.key))).status in (401, 403)
        await lead.api.post("/groups", {"id": "green"})
        made = (await lead.api.post("/keys", {"role": "group-admin", "group": "green"})).json
        assert (await lead.api.get("/me", key=made["secret"])).status == 200
        assert (await lead.api.delete("/groups/green")).status == 204
        assert (await lead.api.get("/me", key=made["secret"])).status == 401


@pytest.mark.parametrize(
    "body", [{"role": "group-admin"}, {"role": "viewer", "group": "red"}, {"tenant": "free", "group": "red"}]
)
async def test_a_key_has_a_group_with_that_role_and_with_no_other(tmp_path, body):
    async with red(tmp_path) as lead:
        assert (await lead.api.post("/keys", body)).status == 409


async def test_a_tier_that_is_there_and_one_that_is_not_are_alike_to_it(tmp_path):
    async with red(tmp_path, tiers={**TIERS, "iron": {}}) as lead:
        answers = set()
        for tier in ("iron", "none"):
            for method, path, body in (
                ("PATCH", "/tenants/red%2Fa", {"tier": tier}),
                ("PUT", "/tenants/red%2Fa", {"tier": tier}),
                ("POST", "/tenants", {"id": "red/new", "tier": tier}),
            ):
                reply = await lead.ask(method, path, body)
                answers.add((reply.status, reply.json["detail"]))
        assert answers == {(409, "body.tier: must be that of its group, 'gold', or not be set")}


async def test_deleting_a_tenant_gives_the_group_no_budget_back(tmp_path):
    """What its tenants have used counts for the group until the month ends, also after a restart."""
    groups = {"red": {"tokens_per_day_max": 60, "cost_per_month_max": 1}}
    state = tmp_path / "state.db"
    settings = {"groups": groups, "tiers": {}, "tenants": {}, "state": state}

    async def used(api):
        rows = (await api.get("/state/budgets?limit=1000")).json["items"]
        return {(row["unit"], row["period"]): row["used"] for row in rows if row["group"] == "red"}

    async with scripted() as backend, red(tmp_path, backend, **settings) as lead:
        await lead.ask("POST", "/tenants", {"id": "red/spent"})
        key = (await lead.ask("POST", "/keys", {"tenant": "red/spent"})).json["secret"]
        while (await lead.api.rig.post(headers=bearer(key))).status == 200:
            pass
        before = await used(lead.api)
        assert before["tokens", "day"] >= 50
        assert await lead.status("DELETE", "/tenants/red%2Fspent") == 204
        assert await used(lead.api) == before
        await lead.ask("POST", "/tenants", {"id": "red/fresh"})
        fresh = (await lead.ask("POST", "/keys", {"tenant": "red/fresh"})).json["secret"]
        assert (await lead.api.rig.post(headers=bearer(fresh))).status == 429
        await lead.api.rig.gateway._management.usage.flush()
    async with scripted() as backend, admin(tmp_path, backend, **settings) as api:
        assert await used(api) == before
        assert (await api.rig.post(headers=bearer(fresh))).status == 429


async def test_it_does_not_set_a_tenant_of_the_file_back_to_what_the_file_says(tmp_path):
    """The operator has moved it here; its removal would move it back, with the limits of the file."""
    async with red(tmp_path) as lead:
        moved = await lead.api.patch("/tenants/blue%2Fb", {"group": "red", "queued_requests_max": 3})
        assert (moved.status, moved.json["origin"]) == (200, "overridden")
        refused = await lead.ask("DELETE", "/tenants/blue%2Fb")
        assert (refused.status, refused.json["detail"]) == (409, "only the configuration file has it: delete it there")
        assert (await lead.api.get("/tenants/blue%2Fb")).json["group"] == "red"


async def test_it_does_not_make_a_revoked_key_of_the_file_valid_again(tmp_path):
    """Its removal would leave what the file says of it, which knows of no revocation."""
    file = tmp_path / "file.keys"
    secret = add_key(file, tenant="red/a", secret=SECRET.encode(), created_at="2026-01-01T00:00:00+00:00")
    auth = {"mode": "keys", "secret": SECRET, "keys_file": str(file)}
    async with scripted() as backend, red(tmp_path, backend, auth=auth) as lead:
        (key,) = [each for each in (await lead.ask("GET", "/keys")).json["items"] if each["origin"] == "declared"]
        assert (await lead.api.rig.post(headers=bearer(secret))).status == 200
        assert (await lead.api.patch(f"/keys/{key['id']}", {"revoked": True})).status == 200
        assert await lead.status("DELETE", f"/keys/{key['id']}") == 409
        assert (await lead.api.rig.post(headers=bearer(secret))).status == 401


async def test_it_reads_the_budgets_of_its_group_its_tenants_and_their_keys_and_no_others(tmp_path):
    tenants = {**TENANTS, "red/a": {"group": "red", "tokens_per_day_max": 5}, "free": {"tokens_per_day_max": 7}}
    groups = {**GROUPS, "blue": {"tokens_per_month_max": 9}}
    async with red(tmp_path, tenants=tenants, groups=groups, state=tmp_path / "state") as lead:
        key = (await lead.api.post("/keys", {"tenant": "old-red", "tokens_per_day_max": 3})).json["id"]
        await lead.api.post("/keys", {"tenant": "blue/b", "tokens_per_day_max": 3})

        async def limits(path, ask=lead.ask):
            items = (await ask("GET", path)).json["items"]
            return {(each["group"], each["tenant"], each["key"]): each["limit"] for each in items}

        own = {("red", "", ""): 1_000, ("", "red/a", ""): 5, ("", "old-red", key): 3}
        assert await limits("/state/budgets") == await limits("/state/budgets?group=red") == own
        assert await limits("/state/budgets?group=red", lead.api.ask) == own
        assert len(await limits("/state/budgets", lead.api.ask)) == 6
        paged, cursor = {}, ""
        for _ in own:
            page = (await lead.ask("GET", f"/state/budgets?limit=1{cursor}")).json
            paged |= {(each["group"], each["tenant"], each["key"]): each["limit"] for each in page["items"]}
            cursor = f"&cursor={quote(page['next_cursor'] or '')}"
        assert (paged, page["next_cursor"]) == (own, None)
        for other in ("blue", "none"):
            assert await lead.status("GET", f"/state/budgets?group={other}") == 404
        await lead.api.patch("/tenants/old-red", {"group": "blue"})
        assert ("", "old-red", key) not in await limits("/state/budgets")


async def test_the_leader_is_asked_for_the_budgets_of_its_group_alone(tmp_path):
    async with red(tmp_path) as lead:
        server, asked = lead.api.rig.gateway._administration._port.server, []

        async def ask_leader(target):
            asked.append(target)
            return await server.answer_peer(target)

        server._ask_leader = ask_leader
        items = (await lead.ask("GET", "/state/budgets?limit=5&cursor=a%0Ab")).json["items"]
        assert asked == ["/admin/v1/state/budgets?limit=5&cursor=a%0Ab&group=red"]
        assert {each["group"] for each in items} == {"red"}


async def test_a_group_has_room_for_so_many_tenants_and_keys_of_its_administrators(tmp_path, monkeypatch):
    monkeypatch.setattr(group_scope, "GROUP_ENTRIES_MAX", {"tenants": 4, "keys": 2})
    async with red(tmp_path) as admin_of_red:
        made = [await admin_of_red.status("POST", "/tenants", {"id": f"red/{number}"}) for number in range(4)]
        assert made == [201, 201, 409, 409], "two are there already"
        made = [await admin_of_red.status("POST", "/keys", {"tenant": "red/a"}) for _ in range(4)]
        assert made == [201, 201, 409, 409]
        assert await admin_of_red.status("DELETE", f"/tenants/{at('red/0')}") == 204
        assert await admin_of_red.status("POST", "/tenants", {"id": "red/9"}) == 201
        full = await admin_of_red.ask("POST", "/tenants", {"id": "red/10"})
        assert "4 tenants" in full.json["detail"]
        assert (await admin_of_red.api.post("/tenants", {"id": "red/11", "group": "red"})).status == 201, "an operator"


async def test_a_group_does_not_fill_the_store_by_the_second(tmp_path, monkeypatch):
    monkeypatch.setattr(change_rate, "RATES", {True: (5.0, 0.1), False: (1_000.0, 50.0)})
    async with red(tmp_path) as admin_of_red:
        made = [await admin_of_red.ask("POST", "/tenants", {"id": f"red/{number}"}) for number in range(8)]
        assert [each.status for each in made] == [201] * 5 + [429] * 3
        assert int(made[-1].headers["Retry-After"]) >= 1
        assert await admin_of_red.status("GET", "/tenants") == 200
