"""What holds of every sort of thing there is: a change is for a version, and a list in parts is the list."""

import asyncio
from urllib.parse import quote

import pytest
from admin_rig import admin
from gateway_rig import bearer, scripted


@pytest.fixture
async def api(tmp_path):
    async with scripted() as backend, admin(tmp_path, backend) as asker:
        yield asker


async def first_of(api, kind):
    """Make one of this kind, and say where it is."""
    bodies = {
        "tenants": {"id": "a"},
        "tiers": {"id": "a"},
        "keys": {"tenant": "declared"},
        "backends": {"id": "a", "url": "http://127.0.0.1:9"},
    }
    if kind == "pools":
        return "/pools/tiny"
    return (await api.post(f"/{kind}", bodies[kind])).headers["Location"]


CHANGES = {
    "tenants": ("PATCH", {"weight": 2}, {"weight": 3}),
    "tiers": ("PATCH", {"weight": 2}, {"weight": 3}),
    "keys": ("PATCH", {"label": "x"}, {"label": "y"}),
    "backends": ("PATCH", {"draining": True}, {"draining": False}),
    "pools": ("PUT", {"fairness": {"policy": "drr"}}, {"fairness": {"policy": "fifo"}}),
}


def kept(entry):
    """What is kept of it, without what polls of a backend find meanwhile."""
    return {name: value for name, value in entry.items() if name not in ("state", "trouble")}


@pytest.mark.parametrize("kind", CHANGES)
async def test_a_change_for_an_old_version_changes_nothing(api, kind):
    where, (method, one, other) = await first_of(api, kind), CHANGES[kind]
    old = (await api.get(where)).headers["ETag"]
    assert (await api.ask(method, where, one, If_Match=old)).status == 200
    before = await api.get(where)
    attempts = [(method, where, other), ("DELETE", where, None)]
    attempts += [("POST", f"{where}/rotate", {})] if kind == "keys" else []
    for tried, path, body in attempts if kind != "pools" else attempts[:1]:
        assert (await api.ask(tried, path, body, If_Match=old)).status == 412, tried
    after = await api.get(where)
    assert kept(after.json) == kept(before.json)
    assert after.headers["ETag"] == before.headers["ETag"]
    assert (await api.ask(method, where, other, If_Match=after.headers["ETag"])).status == 200
    if kind == "keys":
        assert len((await api.get("/keys")).json["items"]) == 1


async def test_a_pool_of_which_nothing_was_said_has_a_version_too(api):
    assert (await api.ask("PUT", "/pools/tiny", {}, If_Match='"7"')).status == 412
    assert (
        await api.ask("PUT", "/pools/tiny", {}, If_Match=(await api.get("/pools/tiny")).headers["ETag"])
    ).status == 200


async def parts(api, path):
    """The list, one by one."""
    items, cursor, joined = [], "", "&" if "?" in path else "?"
    while cursor is not None:
        part = (await api.get(f"{path}{joined}limit=1" + (f"&cursor={quote(cursor)}" if cursor else ""))).json
        assert len(part["items"]) <= 1
        items += part["items"]
        assert len(items) < 1000, "it does not end"
        cursor = part["next_cursor"]
    return items


@pytest.mark.parametrize(
    "path",
    [
        "/tenants", "/tiers", "/keys", "/keys?tenant=t1", "/backends", "/pools", "/state/tenants",
        "/state/tenants?pool=tiny", "/usage", "/usage?tenant=t1", "/audit", "/audit?kind=tiers",
    ],
)  # fmt: skip
async def test_a_list_one_by_one_is_the_whole_list(api, path):
    for number in range(3):
        await api.post("/tiers", {"id": f"tier{number}"})
        await api.post("/tenants", {"id": f"t{number}"})
        await api.post("/backends", {"id": f"x{number}", "url": "http://127.0.0.1:9"})
        for _ in range(2):
            assert (await api.rig.post(headers=bearer(await api.key_for(f"t{number}")))).status == 200
    await api.rig.gateway._management.usage.flush()
    states = ["unknown"]
    while "unknown" in states:  # a poll that ends now would change it between the two
        await asyncio.sleep(0.01)
        states = [each["state"] for each in (await api.get("/backends")).json["items"]]
    whole = (await api.get(path)).json
    assert whole["next_cursor"] is None
    assert len(whole["items"]) >= (1 if path == "/pools" else 2)
    assert await parts(api, path) == whole["items"]
