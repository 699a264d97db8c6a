"""The admin API's HTTP: problems that name fields, versions, lists in parts, roles."""

import asyncio
import socket

import pytest
from admin_rig import admin
from gateway_rig import PATIENCE_S, scripted

from gateway.admin import server


@pytest.fixture
async def api(tmp_path):
    async with scripted() as backend, admin(tmp_path, backend) as asker:
        yield asker


def assert_problem(reply, status, *fields):
    assert reply.status == status, reply.body
    assert reply.headers["Content-Type"] == "application/problem+json"
    assert reply.json["status"] == status
    assert [each["field"] for each in reply.json["errors"]] == list(fields)
    assert all(text for text in (reply.json["detail"], *(each["reason"] for each in reply.json["errors"])))


async def test_a_tenant_is_made_read_changed_in_part_and_taken_away(api):
    made = await api.post("/tenants", {"id": "org/alice", "weight": 3, "in_flight_max": 4})
    assert (made.status, made.headers["Location"]) == (201, "/admin/v1/tenants/org%2Falice")
    patched = await api.patch("/tenants/org%2Falice", {"in_flight_max": None, "envelope": {"ttft_ms": 500}})
    assert patched.json == {**made.json, "in_flight_max": None, "envelope": {"ttft_ms": 500, "tpot_ms": None}}
    assert (await api.get("/tenants/org%2Falice")).json == patched.json
    assert (await api.delete("/tenants/org%2Falice")).status == 204
    assert_problem(await api.get("/tenants/org%2Falice"), 404)


async def test_a_problem_names_every_field_that_is_wrong_and_no_value(api):
    reply = await api.post("/tenants", {"id": "a", "weight": "zebra", "in_flight_max": 0, "speed": 1})
    assert_problem(reply, 422, "body.weight", "body.in_flight_max", "body.speed")
    assert b"zebra" not in reply.body
    assert_problem(await api.patch("/tenants/declared", {"envelope": {"ttft_ms": -1}}), 422, "body.envelope.ttft_ms")
    assert_problem(await api.get("/tenants?limit=0"), 422, "query.limit")
    assert_problem(await api.get("/tenants?colour=red"), 422, "query.colour")


@pytest.mark.parametrize(("body", "status"), [(b"{", 400), (b"[]", 422), (b'"\\ud800"', 400), (b" " * 70_000, 413)])
async def test_a_body_that_cannot_be_read_is_refused(api, body, status):
    assert (await api.ask("POST", "/tenants", body)).status == status


async def test_a_body_of_another_type_is_refused(api):
    assert (await api.ask("POST", "/tenants", b"{}", Content_Type="text/plain")).status == 415


async def test_a_change_that_goes_not_together_with_what_is_there_is_a_conflict(api):
    assert_problem(await api.post("/tenants", {"id": "a", "tier": "gold"}), 409, "body.tier")
    assert (await api.post("/tiers", {"id": "gold"})).status == 201
    assert (await api.post("/tenants", {"id": "a", "tier": "gold"})).status == 201
    assert_problem(await api.post("/tenants", {"id": "a"}), 409)
    assert (await api.delete("/tiers/gold")).status == 409


async def test_what_the_file_declares_is_overridden_and_given_back_but_not_deleted(api):
    assert (await api.get("/tenants/declared")).json["origin"] == "declared"
    assert_problem(await api.delete("/tenants/declared"), 409)
    patched = await api.patch("/tenants/declared", {"weight": 5})
    assert (patched.json["origin"], patched.json["weight"]) == ("overridden", 5)
    assert (await api.delete("/tenants/declared")).status == 204
    assert (await api.get("/tenants/declared")).json["weight"] == 2


async def test_a_change_for_an_old_version_is_refused(api):
    made = await api.post("/tenants", {"id": "a"})
    etag = made.headers["ETag"]
    changed = await api.patch("/tenants/a", {"weight": 2}, If_Match=etag)
    assert changed.status == 200
    assert changed.headers["ETag"] != etag
    assert_problem(await api.patch("/tenants/a", {"weight": 3}, If_Match=etag), 412)
    assert_problem(await api.delete("/tenants/a", If_Match=f"W/{changed.headers['ETag']}"), 412)
    assert (await api.get("/tenants/a")).headers["ETag"] == changed.headers["ETag"]
    assert (await api.delete("/tenants/a", If_Match=f'"other", {changed.headers["ETag"]}')).status == 204


async def test_a_list_in_parts_is_the_whole_list_once(api):
    for number in range(5):
        await api.post("/tenants", {"id": f"t{number}"})
    names, cursor = [], ""
    while cursor is not None:
        part = (await api.get("/tenants?limit=2" + (f"&cursor={cursor}" if cursor else ""))).json
        names += [item["id"] for item in part["items"]]
        cursor = part["next_cursor"]
    assert names == ["declared", "t0", "t1", "t2", "t3", "t4"]


async def test_other_paths_and_methods_are_problems_too(api):
    assert_problem(await api.get("/nothing"), 404)
    assert_problem(await api.get("/admin/v2/tenants"), 404)
    reply = await api.ask("PUT", "/tenants")
    assert_problem(reply, 405)
    assert reply.headers["Allow"] == "GET, POST"


async def test_viewers_read_operators_change_and_admins_make_keys_at_every_path(api):
    roles = ("viewer", "operator", "admin")
    keys = [(await api.post("/keys", {"role": role})).json["secret"] for role in roles]
    paths = (await api.get("/openapi.json")).json["paths"]
    for path, method in [(path, method) for path, operations in paths.items() for method in operations]:
        if path.endswith("/sign-in"):
            continue  # for callers that have no role yet
        needed = (
            "viewer" if method == "get" or path.endswith("/preview") else "admin" if "/keys" in path else "operator"
        )
        asked = [await api.ask(method.upper(), path.replace("{id}", "nobody"), {}, key=key) for key in keys]
        assert [reply.status != 403 for reply in asked] == [
            roles.index(role) >= roles.index(needed) for role in roles
        ], (method, path)


async def test_a_key_of_a_role_does_what_its_role_may(api):
    viewer, operator = [(await api.post("/keys", {"role": role})).json["secret"] for role in ("viewer", "operator")]
    assert_problem(await api.patch("/tenants/declared", {"weight": 3}, key=viewer), 403)
    assert (await api.patch("/tenants/declared", {"weight": 3}, key=operator)).json["weight"] == 3


async def test_the_audit_log_says_who_changed_what_from_what_to_what(api):
    await api.post("/tenants", {"id": "a", "weight": 2})
    await api.patch("/tenants/a", {"weight": 3})
    newest = (await api.get("/audit?limit=1")).json["items"][0]
    assert (newest["actor"], newest["replica"]) == ("key-file", socket.gethostname())
    assert (newest["kind"], newest["name"]) == ("tenants", "a")
    assert (newest["before"], newest["after"]) == ({"weight": 2.0}, {"weight": 3.0})


async def test_the_audit_log_shows_no_hmac_and_times_as_all_of_the_api_does(api):
    viewer = (await api.post("/keys", {"role": "viewer"})).json["secret"]
    made = (await api.post("/keys", {"tenant": "declared", "expires_in_s": 60})).json
    await api.patch(f"/keys/{made['id']}", {"label": "x"})
    reply = await api.get("/audit", key=viewer)
    assert b"hmac" not in reply.body
    assert b"fingerprint" not in reply.body
    after = reply.json["items"][0]["after"]
    assert (after["created_at"], after["expires_at"]) == (made["created_at"], made["expires_at"])
    assert after["last_four"] == made["last_four"]
    assert reply.json["items"][0]["at"] >= after["created_at"]


async def test_a_post_with_an_idempotency_key_is_done_once(api):
    body, once = {"tenant": "declared"}, {"Idempotency_Key": "a-1"}
    first, *others = await asyncio.gather(*(api.post("/keys", body, **once) for _ in range(4)))
    assert first.status == 201
    assert {(other.status, other.body, other.headers["Location"]) for other in others} == {
        (201, first.body, first.headers["Location"])
    }
    assert len((await api.get("/keys")).json["items"]) == 1
    assert_problem(await api.post("/keys", {**body, "label": "x"}, **once), 422, "header.Idempotency-Key")
    assert_problem(await api.post("/tenants", {"id": "a"}, **once), 422, "header.Idempotency-Key")
    assert (await api.post("/keys", body, Idempotency_Key="a-2")).json["id"] != first.json["id"]
    operator = (await api.post("/keys", {"role": "admin"})).json["secret"]
    assert (await api.post("/tenants", {"id": "a"}, key=operator, **once)).status == 201, "another's key is another"
    assert_problem(await api.post("/tenants", {"id": "b"}, Idempotency_Key="x" * 256), 422, "header.Idempotency-Key")


async def test_what_was_refused_may_be_tried_again_by_its_key(api):
    again = {"Idempotency_Key": "b-1"}
    assert_problem(await api.post("/tenants", {"id": "a", "tier": "gold"}, **again), 409, "body.tier")
    await api.post("/tiers", {"id": "gold"})
    assert (await api.post("/tenants", {"id": "a", "tier": "gold"}, **again)).status == 201


async def test_bad_http_is_answered_with_a_problem_that_repeats_nothing(api):
    host, port = api.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /zebra HTTP/9.9\r\nHost: x\r\n\r\n")
    answer = await reader.read()
    writer.close()
    assert b" 400 " in answer.splitlines()[0]
    assert b"application/problem+json" in answer
    assert b"zebra" not in answer


async def said_raw(api, *lines, body=b""):
    """Status line and body of what is answered to a request that is not whole, or is too much."""
    host, port = api.url.removeprefix("http://").split(":")
    head = ["POST /admin/v1/tenants HTTP/1.1", "Host: x", f"Authorization: Bearer {api.key}", *lines]
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write("\r\n".join(head).encode() + b"\r\nContent-Type: application/json\r\n\r\n" + body)
    async with asyncio.timeout(PATIENCE_S):
        answer = await reader.read()  # it closes: what follows is not read as a request
    writer.close()
    return int(answer.split()[1]), answer


async def test_a_body_that_does_not_come_and_one_that_does_not_end_are_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "BODY_TIMEOUT_S", 0.1)
    monkeypatch.setattr(server, "LINGERING_S", 0.1)
    async with scripted() as backend, admin(tmp_path, backend) as api:
        status, answer = await said_raw(api, "Content-Length: 10")
        assert (status, b"application/problem+json" in answer) == (408, True)
        chunk = b"1000\r\n" + b" " * 4096 + b"\r\n"
        status, answer = await said_raw(api, "Transfer-Encoding: chunked", body=chunk * 17)
        assert (status, b"application/problem+json" in answer) == (413, True)
        assert [each["id"] for each in (await api.get("/tenants")).json["items"]] == ["declared"]
