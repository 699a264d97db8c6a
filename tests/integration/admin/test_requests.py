"""Requests one by one: which wait and run, why each waits, which have ended, and the end of one by an operator."""

import asyncio
import contextlib
import json

import pytest
from admin_rig import admin, within
from gateway_rig import HELLO, MODEL, SLOW, bearer, call, engine, running, until

from gateway.steering import requests

ONE_SLOT = {"name": "gpu", "requests_running_max": 1}


@contextlib.asynccontextmanager
async def one_slot(tmp_path, **options):
    """A gateway whose one backend runs one request at a time, and takes 20 ms for a token."""
    async with engine(**{**SLOW, **options}) as server, admin(tmp_path, {**ONE_SLOT, "url": server.url}) as api:
        for tenant in ("alice", "bob"):
            await api.post("/tenants", {"id": tenant})
        keys = {tenant: await api.key_for(tenant) for tenant in ("alice", "bob")}
        yield Asker(api, server, keys)


class Asker:
    """Tenants that call, and an operator who looks."""

    def __init__(self, api, server, keys):
        self.api, self.server, self.keys = api, server, keys
        self.calls = []

    def send(self, tenant, request_id, path=None, body=None, **fields):
        headers = bearer(self.keys[tenant]) | {"x-request-id": request_id}
        fields = {"max_tokens": 2000, "stream": True, **fields}
        where = {} if path is None else {"path": path}
        task = asyncio.ensure_future(self.api.rig.post(body or call(**fields), headers=headers, **where))
        self.calls.append(task)
        return task

    async def see(self, request_id, state, **holds):
        """The request, once it is in this state."""
        seen = []

        async def is_there():
            reply = await self.api.get(f"/requests/{request_id}")
            seen[:] = [reply.json]
            return reply.status == 200 and reply.json["state"] == state

        await within(is_there, timeout_s=15.0)
        return seen[0]

    async def end(self):
        for each in self.calls:
            each.cancel()
        await asyncio.gather(*self.calls, return_exceptions=True)
        await until(self.api.rig.idle)


@pytest.fixture
async def asker(tmp_path):
    async with one_slot(tmp_path) as made:
        yield made
        await made.end()


async def ids(api, query=""):
    reply = await api.get(f"/requests{query}")
    assert reply.status == 200, reply.body
    return [each["id"] for each in reply.json["items"]]


# -- what is there -----------------------------------------------------------------------------------------


async def test_requests_are_listed_longest_first_with_where_they_are_and_why_they_wait(asker):
    asker.send("alice", "a-0")
    await asker.see("a-0", "running")
    for number, tenant in enumerate(("alice", "alice", "bob"), start=1):
        asker.send(tenant, f"{tenant[0]}-{number}")
        await asker.see(f"{tenant[0]}-{number}", "queued")
    items = (await asker.api.get("/requests")).json["items"]
    assert [each["id"] for each in items] == ["a-0", "a-1", "a-2", "b-3"]
    runs, first, second, other = items
    assert (runs["state"], runs["backend"], runs["waits"], runs["pool"]) == ("running", "gpu", None, MODEL)
    assert (first["state"], first["backend"]) == ("queued", None)
    assert (first["waits"]["reason"], first["waits"]["ahead"]) == ("no_room", "bob")
    assert first["waits"]["text"] == "No backend has room, and it is the turn of bob."
    assert (second["waits"]["reason"], second["waits"]["ahead"]) == ("own_queue", "bob")
    assert (other["waits"]["reason"], other["waits"]["ahead"]) == ("no_room", None)
    assert runs["age_s"] > first["age_s"] > other["age_s"] > 0
    assert first["phases"] == {"queue_s": pytest.approx(first["age_s"], abs=0.5), "prefill_s": None, "decode_s": None}
    assert (first["model"], first["endpoint"], first["output_tokens_max"]) == (MODEL, "/v1/chat/completions", 2000)
    assert {each["process"] for each in items} == {(await asker.api.get("/cluster")).json["name"]}


async def test_a_stream_shows_how_far_it_is(asker):
    asker.send("alice", "a-0")

    async def has_begun():
        seen = (await asker.api.get("/requests/a-0")).json
        return seen.get("output_tokens", 0) > 3

    await within(has_begun, timeout_s=15.0)
    seen = (await asker.api.get("/requests/a-0")).json
    assert seen["prompt_tokens"] > 3
    assert seen["phases"]["queue_s"] + seen["phases"]["prefill_s"] + seen["phases"]["decode_s"] <= seen["age_s"]
    assert seen["phases"]["decode_s"] > 0.02


async def test_ended_ones_are_found_by_key_model_backend_and_outcome_and_have_their_trace(asker):
    api, body = asker.api, {"tenant": "alice"}
    other = (await api.post("/keys", body)).json
    asker.send("alice", "a-0", max_tokens=4)
    await asker.see("a-0", "ended")
    traced = bearer(other["secret"]) | {"x-request-id": "a-1", "traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}
    assert (await api.rig.post(call(max_tokens=4), headers=traced)).status == 200
    seen = await asker.see("a-1", "ended")
    assert (seen["key"], seen["backend"], seen["outcome"]) == (other["id"], "gpu", "completed")
    for query, found in {
        f"key={other['id']}": ["a-1"],
        f"model={MODEL}": ["a-1", "a-0"],
        "model=none": [],
        "backend=gpu": ["a-1", "a-0"],
        "backend=none": [],
        "outcome=completed&tenant=alice": ["a-1", "a-0"],
        "outcome=queue_full": [],
    }.items():
        assert await ids(api, f"?state=ended&{query}") == found, query
    running = asker.send("bob", "b-0")
    await asker.see("b-0", "running")
    assert await ids(api, f"?backend=gpu&model={MODEL}") == ["b-0"]
    assert await ids(api, "?backend=none") == []
    assert await ids(api, f"?key={other['id']}") == []
    running.cancel()


async def test_lists_are_by_state_tenant_and_pool_and_come_in_pages(asker):
    asker.send("alice", "a-0")
    await asker.see("a-0", "running")
    for number in range(1, 4):
        asker.send("bob", f"b-{number}")
        await asker.see(f"b-{number}", "queued")
    api = asker.api
    assert await ids(api, "?state=running") == ["a-0"]
    assert await ids(api, "?state=queued") == ["b-1", "b-2", "b-3"]
    assert await ids(api, "?tenant=bob&state=running") == []
    assert await ids(api, f"?pool={MODEL}&tenant=alice") == ["a-0"]
    assert await ids(api, "?pool=other") == []
    first = (await api.get("/requests?limit=3")).json
    assert [each["id"] for each in first["items"]] == ["a-0", "b-1", "b-2"]
    query = f"?limit=3&cursor={first['next_cursor'].replace(' ', '%20')}"
    rest = (await api.get(f"/requests{query}")).json
    assert ([each["id"] for each in rest["items"]], rest["next_cursor"]) == (["b-3"], None)


async def test_what_ended_is_found_by_its_id_the_newest_first(asker):
    for request_id, fields in (("one", {"stream": False}), ("two", {}), ("three", {"max_tokens": -1})):
        await asker.send("alice", request_id, **{"max_tokens": 2, **fields})
    api = asker.api
    assert await ids(api) == []
    listed = (await api.get("/requests?state=ended")).json["items"]
    assert [each["id"] for each in listed] == ["three", "two", "one"]
    assert [each["outcome"] for each in listed] == ["bad_request", "completed", "completed"]
    assert [each["status"] for each in listed] == [400, 200, 200]
    two = (await api.get("/requests/two")).json
    assert (two["state"], two["tenant"], two["backend"], two["output_tokens"]) == ("ended", "alice", "gpu", 2)
    assert two["ended_at"] == pytest.approx(two["arrived_at"] + two["age_s"], abs=0.5)
    assert two["phases"]["prefill_s"] > 0
    assert await ids(api, "?state=ended&limit=1") == ["three"]
    cursor = (await api.get("/requests?state=ended&limit=1")).json["next_cursor"].replace(" ", "%20")
    assert await ids(api, f"?state=ended&limit=1&cursor={cursor}") == ["two"]


async def test_an_id_that_is_used_again_is_the_living_request(asker):
    await asker.send("alice", "same", max_tokens=2)
    asker.send("bob", "same")
    assert (await asker.see("same", "running"))["tenant"] == "bob"


async def test_only_the_last_that_ended_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(requests, "ENDED_MAX", 3)
    async with one_slot(tmp_path) as asker:
        for number in range(5):
            await asker.send("alice", f"r-{number}", max_tokens=1)
        await asker.send("alice", "r-3", max_tokens=1)  # again
        assert await ids(asker.api, "?state=ended") == ["r-3", "r-4", "r-3"]
        assert (await asker.api.get("/requests/r-2")).status == 404
        await asker.send("alice", "r-5", max_tokens=1)
        assert (await asker.api.get("/requests/r-3")).status == 200


# -- the end of one ----------------------------------------------------------------------------------------


async def test_a_queued_request_is_cancelled_and_no_other(asker):
    api = asker.api
    asker.send("alice", "a-0")
    await asker.see("a-0", "running")
    queued = asker.send("bob", "b-1")
    other = asker.send("bob", "b-2")
    await asker.see("b-2", "queued")
    operator = (await api.post("/keys", {"role": "operator"})).json
    assert (await api.delete("/requests/b-1", key=operator["secret"])).status == 204
    reply = await queued
    assert (reply.status, reply.error["reason"]) == (403, "cancelled")
    assert "operator" in reply.error["message"]
    assert reply.headers["x-llm-d-request-dropped-reason"] == "rejected-cancelled"
    ended = await asker.see("b-1", "ended")
    assert (ended["outcome"], ended["status"], ended["backend"]) == ("cancelled", 403, None)
    assert await ids(api) == ["a-0", "b-2"]
    assert not other.done()
    assert (await api.delete("/requests/b-1")).status == 409
    (entry,) = (await api.get("/audit?kind=requests")).json["items"]
    assert (entry["actor"], entry["action"], entry["name"]) == (operator["id"], "delete", "b-1")


async def test_a_running_stream_is_cancelled_with_an_event_and_its_slot_is_free_at_once(asker):
    api = asker.api
    stream = asker.send("alice", "a-0")
    await within(lambda: _has_tokens(api, "a-0"), timeout_s=15.0)
    asker.send("bob", "b-1")
    await asker.see("b-1", "queued")
    assert (await api.delete("/requests/a-0")).status == 204
    reply = await stream
    assert reply.status == 200
    *_, last = reply.events
    assert json.loads(last)["error"] | {"message": ""} == {
        "message": "", "type": "permission_error", "param": None, "code": 403, "reason": "cancelled",
    }  # fmt: skip
    assert (await asker.see("b-1", "running"))["backend"] == "gpu"
    assert running(asker.server) == 1, "the backend's connection was closed"
    ended = (await api.get("/requests/a-0")).json
    assert (ended["outcome"], ended["state"]) == ("cancelled", "ended")
    assert 0 < ended["output_tokens"] < 2000
    assert api.rig.service("alice") == pytest.approx(ended["prompt_tokens"] + 2 * ended["output_tokens"], rel=0.2)
    (backend,) = (await api.get("/backends")).json["items"]
    assert backend["state"] == "healthy"
    metrics = (await api.get("/metrics")).body.decode()
    assert 'outcome="client_gone"' in metrics
    assert "backend_failed" not in metrics, "that it was cancelled is no evidence of the backend"


async def _has_tokens(api, request_id):
    return (await api.get(f"/requests/{request_id}")).json.get("output_tokens", 0) > 3


async def test_a_running_call_that_is_not_streamed_gets_an_error(asker):
    whole = asker.send("alice", "a-0", stream=False)
    await asker.see("a-0", "running")
    await until(lambda: running(asker.server) == 1)
    assert (await asker.api.delete("/requests/a-0")).status == 204
    reply = await whole
    assert (reply.status, reply.error["reason"]) == (403, "cancelled")
    await until(lambda: running(asker.server) == 0)
    assert (await asker.see("a-0", "ended"))["outcome"] == "cancelled"
    assert (await asker.send("alice", "a-1", max_tokens=1)).status == 200


async def test_a_stream_of_another_api_ends_with_its_own_error(asker):
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 2000, "stream": True}
    stream = asker.send("alice", "a-0", path="/v1/messages", body=body)
    await within(lambda: _has_tokens(asker.api, "a-0"), timeout_s=15.0)
    assert (await asker.api.delete("/requests/a-0")).status == 204
    last = (await stream).body.decode().strip().rsplit("\n\n", 1)[-1]
    name, data = last.split("\n")
    assert name == "event: error"
    error = json.loads(data.removeprefix("data: "))["error"]
    assert error["type"] == "permission_error"
    assert "operator" in error["message"]


async def test_a_response_in_the_background_is_cancelled_at_its_backend(tmp_path):
    async with one_slot(tmp_path, responses_stored=True) as asker:
        body = {"model": MODEL, "input": "Hello", "max_output_tokens": 2000, "background": True}
        reply = await asker.send("alice", "a-0", path="/v1/responses", body=body)
        assert reply.status == 200, reply.body
        (running_id,) = await ids(asker.api, "?state=running")
        assert (await asker.api.delete(f"/requests/{running_id}")).status == 204
        await until(lambda: running(asker.server) == 0)
        await until(asker.api.rig.idle)
        (ended, _) = (await asker.api.get("/requests?state=ended")).json["items"]
        assert (ended["id"], ended["outcome"]) == ("a-0", "cancelled")


async def test_what_is_not_there_is_404_and_a_viewer_cancels_nothing(asker):
    api = asker.api
    viewer = (await api.post("/keys", {"role": "viewer"})).json["secret"]
    asker.send("alice", "a-0")
    await asker.see("a-0", "running")
    assert (await api.get("/requests/a-0", key=viewer)).status == 200
    assert (await api.delete("/requests/a-0", key=viewer)).status == 403
    assert (await api.delete("/requests/never")).status == 404
    assert (await api.get("/requests/never")).status == 404
    assert (await api.get("/audit?kind=requests")).json["items"] == []
    for query in ("state=gone", "limit=0", "cursor=x", "cursor=1e5%20a", "tenant=%3Cb%3E", "more=1"):
        assert (await api.get(f"/requests?{query}")).status == 422, query
    assert (await api.get("/requests/a-0")).json["state"] == "running"
