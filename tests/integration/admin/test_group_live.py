"""The live document of one group: its tenants as the whole document has them, and no string of any other."""

import asyncio
import contextlib
import json

import aiohttp
import msgspec
from admin_rig import admin
from gateway_rig import SLOW, bearer, call, engine, until
from live_viewer import EVENTS, Viewer
from typer.testing import CliRunner

from gateway.cli import app
from gateway.live.schema import LiveGroupDocument

TIERS = {"gold": {"weight": 7.25, "envelope": {"ttft_ms": 500}}, "iron": {"weight": 3.125, "reserve_ratio": 0.25}}
GROUPS = {"red": {"tier": "gold", "weight": 1.5}, "blue": {"tier": "gold", "weight": 2.75}, "grey": {"tier": "iron"}}
TENANTS = {
    "red/a": {"group": "red", "weight": 3},
    "red/b": {"group": "red"},
    "blue/c": {"group": "blue", "weight": 4.5},
    "grey/d": {"group": "grey"},
    "alone": {"tier": "gold"},
}
SETTINGS = {"tiers": TIERS, "groups": GROUPS, "tenants": TENANTS}
OTHERS = {"blue", "blue/c", "grey", "grey/d", "alone", "iron", "gpu-secret", "2.75", "4.5", "7.25", "3.125"}
"""What the whole document has, and the part of red must not: names, and weights that occur once."""


@contextlib.asynccontextmanager
async def all_call(folder):
    """A gateway that is busy with two calls of each tenant, and keys of administrators of both groups."""
    async with engine(**SLOW) as server:
        gpu = {"name": "gpu-secret", "url": server.url, "requests_running_max": 3}
        async with admin(folder, gpu, **SETTINGS) as api:
            keys = {name: bearer(await api.key_for(name)) for name in TENANTS}
            leads = {
                group: (await api.post("/keys", {"role": "group-admin", "group": group})).json
                for group in ("red", "blue")
            }
            calls = [
                asyncio.ensure_future(api.rig.post(call(max_tokens=400, stream=True), headers=key))
                for key in keys.values()
                for _ in range(2)
            ]
            await until(lambda: api.rig.snapshot().queued_requests == 2 * len(TENANTS) - 3)
            try:
                yield api, leads
            finally:
                for each in calls:
                    each.cancel()
                await asyncio.gather(*calls, return_exceptions=True)


def strings(value):
    """Every string and number of a document, as text: names of members, too."""
    if isinstance(value, dict):
        return set(value) | set().union(*map(strings, value.values()))
    if isinstance(value, list):
        return set().union(*map(strings, value))
    return {str(value)}


def stream(api, group, key):
    sent = {"Authorization": f"Bearer {key}", **EVENTS, "Accept-Encoding": "identity"}
    return api.session.get(f"{api.url}/admin/v1/groups/{group}/live", headers=sent)


async def test_it_is_the_groups_rows_of_the_whole_document_and_no_string_of_another(tmp_path):
    async with all_call(tmp_path) as (api, leads):
        whole = (await api.get("/live")).json
        part = (await api.get("/groups/red/live", key=leads["red"]["secret"])).json
        by_operator = (await api.get("/groups/red/live")).json
    msgspec.convert(part, LiveGroupDocument)
    assert part == by_operator
    (name,), (pool,) = part["pools"], part["pools"].values()
    assert pool["tenants"].keys() == {"red/a", "red/b"}
    assert pool["tenants"] == {each: whole["pools"][name]["tenants"][each] for each in pool["tenants"]}
    assert pool["groups"] == {"red": whole["pools"][name]["groups"]["red"]}
    assert (pool["queued"] + pool["in_flight"], whole["pools"][name]["queued"]) == (4, 2 * len(TENANTS) - 3)
    secrets = OTHERS | {whole["gateway"]["name"], whole["gateway"]["version"]}
    assert secrets <= strings(whole), "the whole document has what is searched for"
    assert not strings(part) & secrets
    assert not [each for each in secrets if not each.replace(".", "").isdigit() and each in json.dumps(part)]


async def test_its_stream_has_patches_of_its_own_rows_alone(tmp_path):
    """Takes two seconds: of looks, each a second after the one before."""
    async with (
        all_call(tmp_path) as (api, leads),
        stream(api, "red", leads["red"]["secret"]) as red,
        stream(api, "blue", api.key) as blue,
    ):
        viewers = {"red": Viewer(red), "blue": Viewer(blue)}
        for viewer in viewers.values():
            await viewer.until(lambda document: document["pools"])
            while len(viewer.events) < 3:
                await viewer.read()
    for group, viewer in viewers.items():
        assert viewer.document["group"] == group
        for event in viewer.events:
            for pool in json.loads(event.get("data", "{}")).get("pools", {}).values():
                assert all(name.startswith(f"{group}/") for name in pool.get("tenants", {}))
                assert set(pool.get("groups", {})) <= {group}
                assert set(pool) <= {"policy", "queued", "in_flight", "oldest_wait_s", "groups", "tenants"}


async def test_another_group_and_one_that_is_not_there_are_alike_to_an_administrator(tmp_path):
    async with all_call(tmp_path) as (api, leads):
        for accept in ("application/json", "text/event-stream"):
            for group in ("blue", "grey", "none", "red%2Fa"):
                reply = await api.get(f"/groups/{group}/live", key=leads["red"]["secret"], Accept=accept)
                assert (reply.status, reply.json["detail"]) == (404, "there is no such group")
            assert (await api.get("/groups/none/live", Accept=accept)).status == 404
            assert (await api.get("/live", key=leads["red"]["secret"], Accept=accept)).status == 403


async def test_a_tenant_that_is_moved_away_leaves_the_stream(tmp_path):
    async with all_call(tmp_path) as (api, leads), stream(api, "red", leads["red"]["secret"]) as response:
        viewer = Viewer(response)
        await viewer.until(lambda it: any("red/b" in pool["tenants"] for pool in it["pools"].values()))
        assert (await api.patch("/tenants/red%2Fb", {"group": "blue"})).status == 200
        shown = await viewer.until(lambda it: not any("red/b" in pool["tenants"] for pool in it["pools"].values()))
    assert "red/a" in next(iter(shown["pools"].values()))["tenants"]


async def test_the_stream_ends_with_the_key_and_with_the_group(tmp_path):
    """Takes seconds: two streams end when somebody looks next."""
    async with engine(**SLOW) as server, admin(tmp_path, {"name": "gpu", "url": server.url}) as api:
        await api.post("/groups", {"id": "green"})
        made = (await api.post("/keys", {"role": "group-admin", "group": "green"})).json
        for path in (f"/keys/{made['id']}", "/groups/green"):
            key = made["secret"] if path.startswith("/keys") else api.key
            async with stream(api, "green", key) as response:
                viewer = Viewer(response)
                await viewer.read()
                assert viewer.document["pools"] == {}
                assert (await api.delete(path)).status == 204
                async with asyncio.timeout(20):
                    with contextlib.suppress(aiohttp.ClientError):
                        while await response.content.readany():
                            pass
                assert api.rig.gateway.operators.live.feed.viewers == 0


async def test_commands_show_its_group_and_say_what_is_not_for_it(tmp_path):
    async with all_call(tmp_path) as (api, leads):
        (tmp_path / "lead").write_text(leads["red"]["secret"])
        given = ["--url", api.url, "--key-file", str(tmp_path / "lead")]
        top = await asyncio.to_thread(CliRunner().invoke, app, ["top", *given, "--once", "--json"])
        assert (top.exit_code, json.loads(top.stdout)["group"]) == (0, "red")
        assert not strings(json.loads(top.stdout)) & OTHERS
        listed = await asyncio.to_thread(CliRunner().invoke, app, ["admin", *given, "list", "tenants"])
        assert [json.loads(line)["id"] for line in listed.stdout.splitlines()] == ["red/a", "red/b"]
        tiers = await asyncio.to_thread(CliRunner().invoke, app, ["admin", *given, "list", "tiers"])
        assert (tiers.exit_code, tiers.stderr) == (1, "this is not for the administrator of a group\n")
