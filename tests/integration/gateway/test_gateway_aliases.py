"""Aliases through the whole gateway: what serves a call, what its client is told, and what it is charged as."""

import asyncio
import json
import re

import pytest
from gateway_rig import (
    CHAT,
    COMPLETIONS,
    SLOW,
    answer,
    assert_error,
    bearer,
    call,
    engine,
    gateway,
    hang_up,
    scripted,
    snapshots_of,
    stencil,
    stream,
    until,
)
from test_gateway_surface import BODIES, FORM, form

BIG, SMALL = "org/big-v2", "small"
ALIAS = {"chat": {"models": [BIG, SMALL]}}
IMPATIENT = {"backend_wait_s_max": 0.2}
KNOWN = {"base_ms": 19, "token_us": 180, "context_token_ns": 1, "request_us": 700}  # of an engine that is SLOW
PROMISE = {"tiers": {"gold": {"envelope": {"ttft_ms": 1000}}}, "tenants": {"anonymous": {"tier": "gold"}}}


def named(model):
    usage = {"prompt_tokens": 9, "total_tokens": 12, "completion_tokens": 3}
    return answer({"id": "x", "model": model, "choices": [], "usage": usage})


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def pools(rig):
    """What each pool has charged."""
    return {
        name: sum(each.service for each in of.tenants.values()) for name, of in snapshots_of(rig.gateway.pools).items()
    }


def renamed(reply):
    """A body as it would be if its model had the name of the alias."""
    return stencil(reply.body).replace(b'"model":"' + BIG.encode(), b'"model":"chat')


def without_ids(body):
    return re.sub(rb'"((?:id|item_id)":"[a-z]+[-_])[^"]*|"created_at":\d+', rb'"\1', body)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/v1/messages", "/v1/responses"])
async def test_an_answer_has_the_asked_name_and_is_otherwise_as_of_the_model(path, is_stream):
    body = {**BODIES[path], "stream": is_stream}
    async with engine(model=BIG) as server, gateway(server, aliases=ALIAS) as rig:
        for headers in ({"x-request-id": "same"}, {"x-request-id": "same", "authorization": "Bearer b"}):
            real = await rig.post({**body, "model": BIG}, path, headers=headers)
            await until(rig.idle)
            asked = await rig.post({**body, "model": "chat"}, path, headers=headers)
            await until(rig.idle)
            assert (real.status, asked.status) == (200, 200)
            assert BIG.encode() not in asked.body
            assert b'"model":"chat"' in asked.body
            assert without_ids(stencil(asked.body)) == without_ids(renamed(real))


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/score", "/rerank", "/pooling", "/tokenize"])
async def test_other_calls_go_to_the_target_too(path):
    async with scripted(named(BIG), model=BIG) as backend, gateway(backend, aliases=ALIAS) as rig:
        sent = json.dumps({**BODIES[path], "model": "chat", "n.b.": [1.0, "model"]}, indent=1)
        reply = await rig.post(sent.encode(), path)
        assert (reply.status, reply.json["model"]) == (200, "chat")
        assert backend.calls[0].body == sent.replace('"model": "chat"', f'"model": "{BIG}"').encode()


async def test_a_sound_goes_to_the_target_too():
    async with scripted(named(BIG), model=BIG) as backend, gateway(backend, aliases=ALIAS) as rig:
        reply = await rig.post(form(model="chat", language="en"), "/v1/audio/transcriptions", headers=FORM)
        assert (reply.status, reply.json["model"]) == (200, "chat")
        assert backend.calls[0].body == form(model=BIG, language="en")


async def test_the_models_are_tried_in_order_of_which_have_a_live_backend():
    async with (
        scripted(named(BIG), model=BIG) as big,
        scripted(named(SMALL), model=SMALL) as small,
        gateway(big, small, aliases=ALIAS, listen={"port": 0, "show_backend": True}, queue=IMPATIENT) as rig,
    ):
        first = await rig.post(call(model="chat"))
        assert (first.json["model"], first.headers["x-fairlead-model"]) == ("chat", BIG)
        big.healthy = False
        await until(lambda: not rig.gateway.pools.routes.is_live(BIG))
        second = await rig.post(call(model="chat"))
        assert (second.status, second.json["model"]) == (200, "chat")
        assert (second.headers["x-fairlead-model"], second.headers["x-fairlead-backend"]) == (SMALL, "b1")
        small.healthy = False
        await until(lambda: not rig.gateway.pools.routes.is_live(SMALL))
        assert_error(await rig.post(call(model="chat")), 503, code="service_unavailable")
        own = await rig.post(call(model=SMALL))
        assert "x-fairlead-model" not in own.headers
        assert [len(each.calls) for each in (big, small)] == [1, 1]


async def test_a_call_that_waits_when_its_pool_ends_goes_on_to_the_next_model():
    async with (
        engine(**{**SLOW, "model": BIG}) as big,
        scripted(named(SMALL), model=SMALL) as small,
        gateway({"url": big.url, "requests_running_max": 1}, small, aliases=ALIAS) as rig,
    ):
        running = asyncio.create_task(rig.post(call(model=BIG, max_tokens=500)))
        await until(lambda: rig.snapshot(BIG).in_flight_requests == 1)
        waiting = asyncio.create_task(rig.post(call(model="chat")))
        await until(lambda: rig.snapshot(BIG).queued_requests == 1)
        await big.stop()
        async with asyncio.timeout(10):  # it would wait 15 s for a backend to come back
            reply = await waiting
        assert (reply.status, len(small.calls)) == (200, 1)
        running.cancel()


async def test_a_pool_that_would_miss_the_envelope_passes_on_and_the_last_one_does_as_its_tier_says():
    async with (
        engine(**{**SLOW, "model": BIG}) as big,
        scripted(named(SMALL), model=SMALL) as small,
        gateway(
            {"name": "gpu", "url": big.url, "requests_running_max": 1, "step_time": KNOWN},
            small,
            aliases={**ALIAS, "alone": {"models": [BIG]}},
            **PROMISE,
        ) as rig,
    ):
        assert (await rig.post(call(model="chat", stream=True))).status == 200
        assert small.calls == []
        running = asyncio.create_task(rig.post(call(model=BIG, max_tokens=200)))
        await until(lambda: rig.snapshot(BIG).in_flight_requests == 1)
        assert (await rig.post(call(model="chat", stream=True))).status == 200
        assert len(small.calls) == 1
        # The tier waits where there is no other model.
        waiting = asyncio.create_task(rig.post(call(model="alone", stream=True)))
        await until(lambda: rig.snapshot(BIG).queued_requests == 1)
        for task in (waiting, running):
            task.cancel()
        await until(rig.idle)


@pytest.mark.jumping  # it leaves when half of its time is left, which a busy machine makes late
async def test_a_call_that_goes_on_keeps_its_arrival_and_goes_while_it_can_be_in_time(tmp_path):
    log = tmp_path / "access.log"
    promise = {"tiers": {"gold": {"envelope": {"ttft_ms": 600}}}, "tenants": {"anonymous": {"tier": "gold"}}}
    event = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}],"usage":{"prompt_tokens":9,"completion_tokens":1}}'

    async def late(reader, writer):
        await asyncio.sleep(0.4)  # on its own in time
        return await stream(event + b"\n\n", b"data: [DONE]\n\n")(reader, writer)

    async with (
        engine(**{**SLOW, "model": BIG}) as big,
        scripted(late, model=SMALL) as small,
        gateway(
            {"name": "gpu", "url": big.url, "requests_running_max": 1},
            small,
            aliases=ALIAS,
            access_log={"path": str(log)},
            **promise,
        ) as rig,
    ):
        running = asyncio.create_task(rig.post(call(model=BIG, max_tokens=200)))
        await until(lambda: rig.snapshot(BIG).in_flight_requests == 1)
        assert (await rig.post(call(model="chat", stream=True))).status == 200
        attainment = {name: of.attainment["gold"] for name, of in snapshots_of(rig.gateway.pools).items()}
        assert (attainment[SMALL].requests, attainment[SMALL].ttft_met) == (1, 0), "it took 300 ms more"
        assert attainment[BIG].refused == 0
        metrics = (await rig.gateway.metrics.exposition()).decode()
        labels = f'alias="chat",model="{BIG}",reason="slo_unreachable"'
        assert f"fairlead_alias_passed_on_total{{{labels}}} 1.0" in metrics
        running.cancel()
    line = next(line for line in lines(log) if line["alias"])
    assert line["ttft_ms"] > 600
    assert 250 < line["queue_ms"] < 600, "it went when half of its time was left"


@pytest.mark.parametrize("status", [400, 404, 500])
async def test_an_error_of_the_model_is_passed_on_to_the_client_and_not_to_the_next_model(status):
    error = {"error": {"message": "no", "type": "x", "param": None, "code": status}}
    async with (
        scripted(answer(error, status=status), model=BIG) as big,
        scripted(named(SMALL), model=SMALL) as small,
        gateway(big, small, aliases=ALIAS) as rig,
    ):
        reply = await rig.post(call(model="chat"))
        assert (reply.status, reply.json["error"]["message"]) == (status, "no")
        assert (len(big.calls), small.calls) == (1, [])


async def test_a_backend_that_breaks_before_or_in_an_answer_is_no_reason_to_go_on():
    chunk = b'data: {"model":"org/big-v2","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    async with (
        scripted(hang_up, model=BIG) as big,
        scripted(named(SMALL), model=SMALL) as small,
        gateway(big, small, aliases=ALIAS, limits={"resends_max": 0}) as rig,
    ):
        assert (await rig.post(call(model="chat"))).status == 502
        big.script.append(stream(chunk, end=False))
        await until(lambda: rig.gateway.pools.routes.is_live(BIG))
        cut = await rig.post(call(model="chat", stream=True))
        assert b'"model":"chat"' in cut.body
        assert b'"error"' in cut.body
        assert small.calls == []


async def test_the_charge_and_the_records_go_by_what_served(tmp_path):
    log, traces = tmp_path / "access.log", tmp_path / "trace.log"
    async with (
        scripted(named(BIG), model=BIG) as big,
        scripted(named(SMALL), model=SMALL) as small,
        gateway(
            big, small, aliases=ALIAS, access_log={"path": str(log)}, trace_log={"enabled": True, "path": str(traces)}
        ) as rig,
    ):
        assert (await rig.post(call(model="chat"))).status == 200
        await rig.post(call(model=BIG))
        await until(rig.idle)
        assert pools(rig) == {BIG: 2 * (9 + 2 * 3), SMALL: 0}
        estimate = rig.gateway._handlers.prompt_tokens.estimate
        assert estimate("anonymous", BIG, 1000) != estimate("anonymous", SMALL, 1000)
    assert [(line["model"], line["alias"]) for line in lines(log)] == [(BIG, "chat"), (BIG, None)]
    assert {line["model"] for line in lines(traces)} == {BIG}


async def test_an_alias_takes_the_place_of_a_model_of_its_name_and_reaches_it_as_a_target():
    aliases = {SMALL: {"models": [BIG, SMALL]}}
    async with (
        scripted(named(BIG), model=BIG) as big,
        scripted(named(SMALL), model=SMALL) as small,
        gateway(big, small, aliases=aliases) as rig,
    ):
        assert (await rig.post(call(model=SMALL))).json["model"] == SMALL
        assert (len(big.calls), len(small.calls)) == (1, 0)
        big.healthy = False
        await until(lambda: not rig.gateway.pools.routes.is_live(BIG))
        assert (await rig.post(call(model=SMALL))).json["model"] == SMALL
        assert json.loads(small.calls[0].body)["model"] == SMALL
        listed = {each["id"]: each for each in (await rig.get("/v1/models")).json["data"]}
        assert listed.keys() == {BIG, SMALL}
        assert listed[SMALL]["owned_by"] == "fairlead"


async def test_aliases_are_listed_as_models_without_what_they_stand_for():
    async with engine(model=BIG) as server, gateway(server, aliases=ALIAS) as rig:
        listed = {each["id"]: each for each in (await rig.get("/v1/models")).json["data"]}
        assert listed.keys() == {BIG, "chat"}
        alias = listed["chat"]
        assert alias == {**alias, "object": "model", "owned_by": "fairlead", "root": "chat", "parent": None}
        assert alias["max_model_len"] == listed[BIG]["max_model_len"]


async def test_an_alias_without_any_model_here_is_a_503_and_an_unknown_name_a_404():
    async with scripted(model="other") as backend, gateway(backend, aliases=ALIAS) as rig:
        assert_error(await rig.post(call(model="chat")), 503, code="service_unavailable")
        assert_error(await rig.post(call(model="chap")), 404)
        assert_error(await rig.post({"model": "chat", "prompt": "x"}, "/tokenize"), 503)


async def test_stored_responses_stay_at_the_model_that_has_them():
    aliases = {"chat": {"models": [SMALL, BIG]}}
    async with (
        engine(model=BIG, responses_stored=True) as big,
        scripted(named(SMALL), model=SMALL) as small,
        gateway(big, small, aliases=aliases) as rig,
    ):
        small.healthy = False
        await until(lambda: not rig.gateway.pools.routes.is_live(SMALL))
        ask = {"model": "chat", "input": "Hello", "max_output_tokens": 8}
        made = await rig.post(ask, "/v1/responses", headers=bearer("alice"))
        small.healthy = True
        await until(lambda: rig.gateway.pools.routes.is_live(SMALL))
        following = {**ask, "previous_response_id": made.json["id"]}
        more = await rig.post(following, "/v1/responses", headers=bearer("alice"))
        assert (more.status, more.json["model"], small.calls) == (200, "chat", [])
        kept = await rig.get(f"/v1/responses/{made.json['id']}", headers=bearer("alice"))
        assert (kept.status, kept.json["model"]) == (200, "chat")
        assert (await rig.post(following, "/v1/responses", headers=bearer("bob"))).status == 404


async def test_a_split_sends_each_tenant_to_one_model_and_a_weight_of_zero_none():
    aliases = {
        "chat": {"models": [BIG], "sticky": "tenant", "split": {BIG: 50, SMALL: 50}},
        "all": {"models": [BIG], "split": {BIG: 1, SMALL: 0}},
    }
    async with (
        scripted(named(BIG), model=BIG) as big,
        scripted(named(SMALL), model=SMALL) as small,
        gateway(big, small, aliases=aliases, listen={"port": 0, "show_backend": True}) as rig,
    ):
        served = {}
        for tenant in map(str, range(12)):
            replies = [await rig.post(call(model="chat"), headers=bearer(tenant)) for _ in range(2)]
            (served[tenant],) = {reply.headers["x-fairlead-model"] for reply in replies}
            assert {reply.json["model"] for reply in replies} == {"chat"}
        assert set(served.values()) == {BIG, SMALL}
        before = len(small.calls)
        for tenant in served:
            await rig.post(call(model="all"), headers=bearer(tenant))
        assert len(small.calls) == before
        # Where the canary has no live backend, its tenants go on to the models.
        small.healthy = False
        await until(lambda: not rig.gateway.pools.routes.is_live(SMALL))
        replies = [await rig.post(call(model="chat"), headers=bearer(tenant)) for tenant in served]
        assert {reply.headers["x-fairlead-model"] for reply in replies} == {BIG}


async def test_a_conversation_without_a_name_stays_at_its_model_and_another_may_have_another():
    aliases = {"chat": {"models": [BIG], "sticky": "session", "split": {BIG: 50, SMALL: 50}}}
    async with (
        scripted(named(BIG), model=BIG) as big,
        scripted(named(SMALL), model=SMALL) as small,
        gateway(big, small, aliases=aliases, listen={"port": 0, "show_backend": True}) as rig,
    ):

        async def model_of(*texts, **fields):
            messages = [{"role": "user", "content": text} for text in texts]
            reply = await rig.post(call(model="chat", messages=messages, **fields), headers=bearer("alice"))
            assert reply.status == 200
            return reply.headers["x-fairlead-model"]

        served = {first: await model_of(first) for first in map(str, range(12))}
        assert set(served.values()) == {BIG, SMALL}
        for first, model in served.items():
            assert await model_of(first, "and then?") == model
            assert await model_of(first, "x" * 200_000) == model, "its body is long"
        assert len({await model_of(first, session_id="one") for first in served}) == 1, "a name counts before it"


async def test_with_models_as_tenants_the_asked_name_is_the_tenant():
    async with (
        scripted(named(BIG), model=BIG) as big,
        gateway(big, aliases=ALIAS, auth={"tenant_from": "model"}) as rig,
    ):
        assert (await rig.post(call(model="chat"))).status == 200
        assert {tenant_id for tenant_id, each in rig.snapshot().tenants.items() if each.service} == {"chat"}
