"""The demo: two tenants that call the gateway by themselves, one quiet and one that floods; nothing is left of them."""

import pytest
from admin_rig import admin, within
from gateway_rig import MODEL, engine

from gateway.steering import demo

OPEN = {"auth": {"mode": "open"}, "tenants": {}}
QUICK = {"coefficients": "cpu-13m", "model": MODEL, "requests_running_max": 4}


@pytest.fixture(params=[{}, OPEN], ids=["keys", "open"])
async def api(request, tmp_path):
    """A gateway whose embedded engine answers."""
    async with admin(tmp_path, engine=QUICK, **request.param) as asker:
        yield asker


async def document(api):
    reply = await api.get("/live")
    assert reply.status == 200, reply.body
    return reply.json


async def seen_both(api):
    pools = (await document(api))["pools"]
    tenants = pools.get(MODEL, {"tenants": {}})["tenants"]
    served = [tenants.get(each, {}).get("service_per_s") or 0 for each in (demo.QUIET, demo.FLOOD)]
    return all(served) and tenants[demo.FLOOD]["queued"] > 0


async def has_begun(api):
    return (await document(api))["gateway"]["demo"]


async def is_over(api):
    return not (await document(api))["gateway"]["demo"]


async def test_a_quiet_tenant_and_a_flood_call_until_they_are_stopped_and_leave_nothing(api):
    operator = (await api.post("/keys", {"role": "operator"})).json
    viewer = (await api.post("/keys", {"role": "viewer"})).json["secret"]
    before = (await api.get("/tenants")).json
    assert (await api.post("/demo", key=viewer)).status == 403
    began = await api.post("/demo", key=operator["secret"])
    assert began.status == 202, began.body
    assert began.json["tenants"] == ["demo-quiet", "demo-flood"]
    assert (await api.post("/demo")).status == 409
    await within(lambda: seen_both(api), timeout_s=30.0)
    assert (await document(api))["gateway"]["demo"]
    # A weight of theirs can be changed, as any tenant's.
    assert (await api.patch("/tenants/demo-quiet", {"weight": 3})).status == 200
    (ended, *_) = (await api.get("/requests?state=ended&tenant=demo-quiet")).json["items"]
    assert (ended["outcome"], ended["status"]) == ("completed", 200)
    assert (await api.delete("/demo")).status == 204
    assert (await api.get("/tenants")).json == before
    await within(lambda: is_over(api), timeout_s=5.0)  # a document is half a second old at most
    assert len(api.rig.gateway._handlers.auth.beside.known) == 0, "its keys are not accepted any more"
    audit = (await api.get("/audit?kind=tenants")).json["items"]
    by_operator = [(each["action"], each["name"]) for each in audit if each["actor"] == operator["id"]]
    assert sorted(by_operator) == [
        ("create", "demo-flood"), ("create", "demo-quiet"), ("delete", "demo-flood"), ("delete", "demo-quiet"),
    ]  # fmt: skip
    assert (await api.delete("/demo")).status == 204, "it may be stopped twice"
    assert (await api.post("/demo")).status == 202, "and be begun again"


async def test_it_ends_by_itself_and_keeps_a_tenant_that_was_there(api, monkeypatch):
    """Takes seconds: the demonstration lasts two."""
    monkeypatch.setattr(demo, "DEMO_S", 2.0)
    await api.post("/tenants", {"id": demo.QUIET, "weight": 2})
    assert (await api.post("/demo")).status == 202
    await within(lambda: has_begun(api), timeout_s=15.0)
    await within(lambda: is_over(api), timeout_s=15.0)
    assert (await api.get(f"/tenants/{demo.QUIET}")).json["weight"] == 2
    assert (await api.get(f"/tenants/{demo.FLOOD}")).status == 404


async def test_before_other_backends_there_is_no_demo(tmp_path):
    async with engine() as server, admin(tmp_path, server) as api:
        reply = await api.post("/demo")
        assert reply.status == 409
        assert "embedded engine" in reply.json["detail"]
