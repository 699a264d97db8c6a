"""Keys in time: how long one holds, and what a rotation makes of that."""

import time
from datetime import UTC, datetime

import pytest
from admin_rig import SECRET, admin, within
from gateway_rig import PATIENCE_S, bearer, scripted

from gateway.identity import last_use
from gateway.store.base import StoreUnavailable, Totals, UsageKey, UsageRow

EXACT_S = 10.0  # times are told in whole seconds, and a machine may be busy


@pytest.fixture
async def api(tmp_path):
    async with scripted() as backend, admin(tmp_path, backend) as asker:
        yield asker


async def made(api, **fields):
    reply = await api.post("/keys", {"tenant": "declared", **fields})
    assert reply.status == 201, reply.body
    return reply.json


async def rotated(api, key, overlap_s):
    reply = await api.post(f"/keys/{key['id']}/rotate", {"overlap_s": overlap_s})
    assert reply.status == 201, reply.body
    return reply.json


async def ends_in_s(api, key):
    expires_at = (await api.get(f"/keys/{key['id']}")).json["expires_at"]
    return None if expires_at is None else expires_at - time.time()


async def test_where_a_key_is_named_its_label_is_too(api):
    """In the audit log, in events of the history and in sums of usage: the label that it has now."""
    key = (await api.post("/keys", {"role": "operator", "label": "before"})).json
    await api.patch(f"/keys/{key['id']}", {"label": "ana"})
    await api.patch("/tenants/declared", {"weight": 2}, key=key["secret"])
    newest = (await api.get("/audit?limit=1")).json["items"][0]
    assert (newest["actor"], newest["actor_label"]) == (key["id"], "ana")
    event = (await api.get("/history?of=tenant:declared")).json["events"][-1]
    assert (event["name"], event["actor_label"]) == ("tenants/declared", "ana")
    assert (await api.get("/audit?limit=2")).json["items"][1]["actor_label"] is None, "of the key file"
    used = UsageRow("w", UsageKey(datetime.now(UTC).date().isoformat(), "declared", key["id"], "m"), Totals(1, 1, 0, 1))
    await api.rig.gateway._management.store.put_usage([used])
    rows = (await api.get("/usage/sums?by=key")).json
    assert (rows["items"][0]["key_label"], rows["total"]["key_label"]) == ("ana", None)


async def test_a_rotated_key_ends_after_the_overlap_and_the_new_one_is_like_it(api):
    old = await made(api, models=["tiny"], label="the app's")
    new = await rotated(api, old, 500)
    assert await ends_in_s(api, old) == pytest.approx(500, abs=EXACT_S)
    assert {**new, "id": 0, "secret": 0, "last_four": 0, "created_at": 0} == {
        **old, "id": 0, "secret": 0, "last_four": 0, "created_at": 0,
    }  # fmt: skip
    assert new["secret"] != old["secret"]


async def test_no_rotation_makes_a_key_last_longer_than_it_was_made_for(api):
    old = await made(api, expires_in_s=100)
    new = await rotated(api, old, 86_400)
    assert await ends_in_s(api, old) == pytest.approx(100, abs=EXACT_S)
    assert await ends_in_s(api, new) == pytest.approx(100, abs=EXACT_S)


async def test_a_key_is_given_another_end_or_none(api):
    key = await made(api, expires_in_s=100)
    await api.patch(f"/keys/{key['id']}", {"expires_in_s": 900})
    assert await ends_in_s(api, key) == pytest.approx(900, abs=EXACT_S)
    await api.patch(f"/keys/{key['id']}", {"expires_in_s": None})
    assert await ends_in_s(api, key) is None


async def test_a_revoked_key_stays_revoked_and_has_no_successor(api):
    key = await made(api)
    await api.patch(f"/keys/{key['id']}", {"revoked": True})
    again = await api.patch(f"/keys/{key['id']}", {"revoked": False})
    assert (again.status, again.json["errors"][0]["field"]) == (409, "body.revoked")
    assert (await api.post(f"/keys/{key['id']}/rotate", {})).status == 409
    assert (await api.rig.get("/v1/models", headers=bearer(key["secret"]))).status == 401


async def test_a_key_is_for_a_tenant_or_for_a_role_and_the_tenant_is_there(api):
    for body in ({}, {"tenant": "declared", "role": "viewer"}, {"tenant": "nobody"}):
        assert (await api.post("/keys", body)).status == 409
    assert (await api.post("/keys", {"role": "owner"})).status == 422
    assert (await api.get("/keys")).json["items"] == []


async def test_where_every_key_is_let_in_only_keys_of_roles_are_made(tmp_path):
    """One of a tenant would revoke nothing and allow nothing."""
    auth = {"mode": "open", "secret": SECRET, "trusted_proxies": ["10.0.0.0/8"]}
    async with scripted() as backend, admin(tmp_path, backend, auth=auth) as api:
        refused = await api.post("/keys", {"tenant": "declared"})
        assert (refused.status, refused.json["errors"][0]["field"]) == (409, "body.tenant")
        viewer = (await api.post("/keys", {"role": "viewer"})).json["secret"]
        assert (await api.get("/tenants", key=viewer)).status == 200
        assert (await api.get("/tenants", key="any")).status == 401
        assert (await api.rig.get("/v1/models", headers=bearer("any"))).status == 200


async def test_a_key_says_when_it_was_used_last_and_one_that_was_not_says_so(api, monkeypatch):
    monkeypatch.setattr(last_use, "REFRESH_S", 0.0)
    used, unused = await made(api), await made(api)
    assert (await api.get(f"/keys/{used['id']}")).json["last_used_on"] is None
    assert (await api.rig.post(headers=bearer(used["secret"]))).status == 200

    async def is_told():
        return (await api.get(f"/keys/{used['id']}")).json["last_used_on"] is not None

    await within(is_told, PATIENCE_S)
    days = {each["id"]: each["last_used_on"] for each in (await api.get("/keys")).json["items"]}
    assert days[unused["id"]] is None
    (row,) = (await api.get("/usage")).json["items"]
    assert days[used["id"]] == row["day"]


async def test_a_key_is_shown_where_its_use_cannot_be_read(api, monkeypatch):
    async def fails(_since):
        raise StoreUnavailable("away")

    key = await made(api)
    monkeypatch.setattr(api.rig.gateway._management.store, "last_days", fails)
    assert (await api.get(f"/keys/{key['id']}")).json["last_used_on"] is None


async def test_a_repeated_rotation_with_the_same_idempotency_key_makes_one_key(api):
    key, once = await made(api), {"Idempotency_Key": "rotation-1"}
    replies = [await api.post(f"/keys/{key['id']}/rotate", {"overlap_s": 60}, **once) for _ in range(2)]
    assert [reply.status for reply in replies] == [201, 201]
    assert replies[0].json == replies[1].json
    assert len((await api.get("/keys")).json["items"]) == 2
