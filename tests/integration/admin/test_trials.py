"""Trials: a call as a tenant by an operator that has none of its keys, whose limits hold and which is charged."""

import asyncio
import gc
import json
from pathlib import Path

import pytest
from admin_rig import ROOT, admin
from gateway_rig import MODEL, SLOW, engine, running, scripted, until
from test_group_admins import red

EVENTS = "text/event-stream"


def trial(tenant="declared", **fields):
    return {"tenant": tenant, "model": MODEL, "prompt": "a word of mine", **fields}


def events(body):
    """The names and values of the events of a stream."""
    found = [each.split("\n") for each in body.decode().split("\n\n") if each.startswith("event: ")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in found]


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


async def used(api):
    await api.rig.gateway._management.usage.flush()
    rows = (await api.get("/usage")).json["items"]
    return {row["tenant"]: (row["requests"], row["output_tokens"]) for row in rows}


async def test_an_answer_is_streamed_and_its_tenant_pays(tmp_path):
    prices = {MODEL: {"currency": "EUR", "periods": [{"prompt": "1", "output": "2"}]}}
    async with engine() as backend, admin(tmp_path, backend, prices=prices) as api:
        streamed = await api.post("/trials", trial(max_tokens=5), Accept=EVENTS)
        assert streamed.headers["Content-Type"].startswith(EVENTS), streamed.body
        *texts, (name, result) = events(streamed.body)
        assert {each for each, _ in texts} == {"text"}
        assert name == "result"
        assert len(texts) > 1, "it comes as it is written"
        assert "".join(text for _, text in texts) == result["text"] != ""
        assert (result["status"], result["error"]) == (200, None)
        assert 0 <= result["queue_s"] <= result["ttft_s"] <= result["duration_s"]
        assert result["currency"] == "EUR"
        assert float(result["cost"]) > 0
        assert await used(api) == {"declared": (1, result["output_tokens"])}
        assert (await api.post("/trials", trial(max_tokens=5))).json["text"] == result["text"]


async def test_the_backend_is_told_the_trace_of_the_result(tmp_path):
    async with scripted() as backend, admin(tmp_path, backend) as api:
        result = (await api.post("/trials", trial())).json
        assert backend.calls[-1].headers["traceparent"].split("-")[1] == result["trace_id"]
        assert b"of mine" not in (await api.get(f"/requests/{result['request_id']}")).body


async def test_the_audit_log_names_caller_tenant_and_model_and_no_text(tmp_path):
    async with scripted() as backend, admin(tmp_path, backend) as api:
        await api.post("/trials", trial())
        (entry,) = (await api.get("/audit?kind=trials")).json["items"]
        assert (entry["actor"], entry["action"], entry["name"]) == ("key-file", "trial", f"declared at {MODEL}")
        assert b"of mine" not in (await api.get("/audit")).body


async def test_the_limits_of_its_tenant_hold(tmp_path):
    tenants = {"declared": {"requests_per_minute_max": 1}}
    async with scripted() as backend, admin(tmp_path, backend, tenants=tenants) as api:
        assert (await api.post("/trials", trial())).json["status"] == 200
        refused = (await api.post("/trials", trial())).json
        assert (refused["status"], refused["text"]) == (429, "")
        assert "requests" in refused["error"]


@pytest.mark.parametrize(("fields", "status"), [({"tenant": "no-such"}, 403), ({"model": "no-such"}, 404)])
async def test_what_is_not_there_is_said_as_to_a_client(tmp_path, fields, status):
    async with scripted() as backend, admin(tmp_path, backend) as api:
        result = (await api.post("/trials", trial(**fields))).json
        assert result["status"] == status
        assert result["error"]


async def test_a_client_that_leaves_ends_the_call_whose_key_is_gone_then(tmp_path):
    async with engine(**SLOW) as backend, admin(tmp_path, backend) as api:
        keys = api.rig.gateway._handlers.auth.beside
        headers = {"Authorization": f"Bearer {api.key}", "Accept": EVENTS}
        body = trial(max_tokens=4000)
        async with api.session.post(f"{api.url}{ROOT}/trials", json=body, headers=headers) as answer:
            assert (await answer.content.readline()).startswith(b"event: text")
            assert (running(backend), len(keys.known)) == (1, 1)
        await until(lambda: running(backend) == 0 and api.rig.idle() and len(keys.known) == 0)


async def test_one_that_ends_before_it_is_connected_leaves_no_socket(tmp_path):
    async with scripted() as backend, admin(tmp_path, backend) as api:
        trials = api.rig.gateway.operators.steering.trials
        open_before = descriptors()
        for turns in range(5):
            connecting = asyncio.create_task(trials._connect())
            for _ in range(turns):
                await asyncio.sleep(0)
            connecting.cancel()
            await asyncio.wait([connecting])
            if not connecting.cancelled():
                connecting.result()[1].close()
            del connecting
            gc.collect()  # a socket that is only dropped warns, which fails the test
        await until(lambda: descriptors() == open_before)


async def test_roles(tmp_path):
    async with scripted() as backend, red(tmp_path, backend) as lead:
        viewer = (await lead.api.post("/keys", {"role": "viewer"})).json["secret"]
        assert (await lead.api.post("/trials", trial("red/a"), key=viewer)).status == 403
        assert (await lead.ask("POST", "/trials", trial("red/a"))).json["status"] == 200
        answers = {(await lead.ask("POST", "/trials", trial(name))).body for name in ("blue/b", "free", "no-such")}
        assert len(answers) == 1, "those of others are as if they were not there"
        assert b"is no tenant" in answers.pop()
        assert list(await used(lead.api)) == ["red/a"]


async def test_where_models_are_the_tenants_the_tenant_is_the_model(tmp_path):
    auth = {"mode": "open", "secret": "0123456789abcdef", "tenant_from": "model"}
    async with scripted() as backend, admin(tmp_path, backend, auth=auth, tenants={}) as api:
        assert (await api.post("/trials", trial("someone"))).status == 409
        assert (await api.post("/trials", trial(MODEL))).json["status"] == 200
