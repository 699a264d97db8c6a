"""PUT makes or replaces: the same request again leaves the same, and conditions say which of the two may happen."""

import asyncio

import pytest
from admin_rig import admin
from gateway_rig import scripted
from test_admin_api import assert_problem

URL = "http://127.0.0.1:9"
WHOLE = {
    "tenants": ({"weight": 2, "in_flight_max": 4}, {"tier": "default"}),
    "tiers": ({"weight": 2, "reserve_ratio": 0.5}, {"priority": -1}),
    "backends": ({"url": URL, "kv_tokens_max": 1000, "draining": True}, {"url": URL, "requests_running_max": 4}),
}


@pytest.fixture
async def api(tmp_path):
    async with scripted() as backend, admin(tmp_path, backend) as asker:
        yield asker


def settable(reply, fields):
    """What was answered of these fields."""
    return {name: reply.json[name] for name in fields}


@pytest.mark.parametrize("kind", WHOLE)
async def test_put_makes_and_then_replaces_the_whole(api, kind):
    (one, other), where = WHOLE[kind], f"/{kind}/a"
    made = await api.ask("PUT", where, one)
    assert (made.status, made.headers["Location"]) == (201, f"/admin/v1{where}")
    again = await api.ask("PUT", where, one)
    assert (again.status, "Location" in again.headers) == (200, False)
    assert settable(again, one) == settable(made, one) == one
    replaced = await api.ask("PUT", where, other, If_Match=again.headers["ETag"])
    assert replaced.status == 200
    assert replaced.headers["ETag"] == (await api.get(where)).headers["ETag"] != made.headers["ETag"]
    assert (await api.delete(where)).status == 204
    fresh = await api.post(f"/{kind}", {"id": "a", **other})
    fields = one.keys() | other.keys()
    assert settable(replaced, fields) == settable(fresh, fields), "what is not given has its default"
    actions = [entry["action"] for entry in (await api.get(f"/audit?kind={kind}")).json["items"]]
    assert len(actions) == 5


@pytest.mark.parametrize("kind", WHOLE)
async def test_a_condition_that_does_not_hold_changes_nothing(api, kind):
    (one, other), where = WHOLE[kind], f"/{kind}/a"
    for condition in ('"1"', "*"):
        assert (await api.ask("PUT", where, one, If_Match=condition)).status == 412
    assert (await api.get(where)).status == 404
    made = await api.ask("PUT", where, one, If_None_Match="*")
    assert made.status == 201
    etag = made.headers["ETag"]
    for conditions in (
        {"If_None_Match": "*"}, {"If_None_Match": etag}, {"If_None_Match": f'"x", {etag}'}, {"If_Match": '"x"'},
        {"If_Match": etag, "If_None_Match": "*"},
    ):  # fmt: skip
        assert (await api.ask("PUT", where, other, **conditions)).status == 412, conditions
        assert (await api.get(where)).headers["ETag"] == etag
    assert (await api.ask("PUT", where, other, If_Match="*")).status == 200
    assert (await api.ask("PUT", where, one, If_None_Match=etag)).status == 200, "it is another by now"
    for method in ("PATCH", "DELETE"):
        assert (await api.ask(method, where, {}, If_None_Match="*")).status == 412


async def test_of_many_that_want_to_make_it_one_does(api):
    replies = await asyncio.gather(
        *(api.ask("PUT", "/tiers/a", {"weight": n + 1}, If_None_Match="*") for n in range(5))
    )
    assert sorted(reply.status for reply in replies) == [201, 412, 412, 412, 412]
    (made,) = (reply for reply in replies if reply.status == 201)
    assert (await api.get("/tiers/a")).json == made.json
    replies = await asyncio.gather(*(api.ask("PUT", "/tiers/b", {"weight": n + 1}) for n in range(5)))
    assert sorted(reply.status for reply in replies) == [200, 200, 200, 200, 201]


async def test_what_the_file_declares_is_overridden_whole_and_comes_back(api):
    replaced = await api.ask("PUT", "/tenants/declared", {"in_flight_max": 3})
    assert settable(replaced, ["origin", "weight", "in_flight_max"]) == {
        "origin": "overridden", "weight": 1.0, "in_flight_max": 3,
    }  # fmt: skip
    assert (await api.delete("/tenants/declared")).status == 204
    assert settable(await api.get("/tenants/declared"), ["origin", "weight"]) == {"origin": "declared", "weight": 2.0}


async def test_where_a_backend_is_stays_also_where_it_is_not_said_again(api):
    with_pool = {"url": URL, "pool": "tiny", "kind": "vllm", "step_tokens_max": 512}
    made = await api.ask("PUT", "/backends/a", with_pool)
    assert made.status == 201, made.body
    same = await api.ask("PUT", "/backends/a", {"url": URL + "/"})
    assert settable(same, ["url", "pool", "step_tokens_max"]) == {"url": URL, "pool": "tiny", "step_tokens_max": None}
    moved = await api.ask("PUT", "/backends/a", {"url": "http://127.0.0.1:8", "pool": "other"})
    assert_problem(moved, 409, "body.pool", "body.url")
    assert (await api.get("/backends/a")).headers["ETag"] == same.headers["ETag"]


async def test_what_cannot_be_is_refused_as_everywhere(api):
    assert_problem(await api.ask("PUT", "/tenants/%20", {}), 422, "path.id")
    assert_problem(await api.ask("PUT", "/tenants/a", {"id": "a"}), 422, "body.id")
    assert_problem(await api.ask("PUT", "/tenants/a", {"tier": "gold"}), 409, "body.tier")
    assert_problem(await api.ask("PUT", "/backends/a", {"url": "http://169.254.169.254"}), 409, "body.url")
    assert_problem(await api.ask("PUT", "/backends/a", {}), 422, "body.url")
    key = (await api.post("/keys", {"tenant": "declared"})).json["id"]
    assert_problem(await api.ask("PUT", f"/keys/{key}", {}), 405)
    viewer = (await api.post("/keys", {"role": "viewer"})).json["secret"]
    assert (await api.ask("PUT", "/tiers/a", {}, key=viewer)).status == 403


async def test_a_pool_that_is_there_is_not_made(api):
    etag = (await api.get("/pools/tiny")).headers["ETag"]
    assert (await api.ask("PUT", "/pools/tiny", {}, If_None_Match="*")).status == 412
    for _ in range(2):
        assert (await api.ask("PUT", "/pools/tiny", {}, If_Match="*")).status == 200
    assert (await api.ask("PUT", "/pools/tiny", {}, If_Match=etag)).status == 412


async def test_the_document_says_of_every_header_where_it_is_read(api):
    paths = (await api.get("/openapi.json")).json["paths"]

    def takes(path, method):
        return {each["name"] for each in paths[f"/admin/v1{path}"][method]["parameters"] if each["in"] == "header"}

    for path, operations in paths.items():
        for method, operation in operations.items():
            is_repeated = method == "post" and operation.get("security") != []  # a sign-in works once
            assert ("Idempotency-Key" in takes(path.removeprefix("/admin/v1"), method)) == is_repeated, path
    for kind in WHOLE:
        assert takes(f"/{kind}/{{id}}", "put") == {"If-Match", "If-None-Match"}
        assert paths[f"/admin/v1/{kind}/{{id}}"]["put"]["responses"].keys() >= {"200", "201", "412"}
    assert takes("/keys/{id}/rotate", "post") == {"If-Match", "Idempotency-Key"}
    assert takes("/tenants/{id}", "patch") == {"If-Match"}
