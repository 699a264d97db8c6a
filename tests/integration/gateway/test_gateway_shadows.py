"""Copies of calls for another model: what they get, and that no tenant pays for them in room, money or time."""

import asyncio
import json

import pytest
from admin_rig import admin, within
from gateway_rig import answer, bearer, call, fall_silent, gateway, scripted, stream, until
from test_gateway_aliases import BIG, SMALL, lines, named

from gateway.observability.metrics.instruments import ALIAS_CALLS

pytestmark = pytest.mark.jumping

TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}],"usage":{"prompt_tokens":5,"total_tokens":%d,"completion_tokens":%d}}\n\n'  # noqa: E501
STREAM = stream(*[TOKEN % (5 + n, n) for n in range(1, 4)], b"data: [DONE]\n\n")


def shadowed(**fields):
    return {"chat": {"models": [BIG], "shadow": {"model": SMALL, **fields}}}


def sized(backend, name, slots=4):
    return {"name": name, "url": backend.url, "requests_running_max": slots}


def services(rig, pool):
    return {name: each.service for name, each in rig.snapshot(pool).tenants.items()}


async def known(rig):
    """Its backends have been found, and their pools have them."""
    await until(lambda: all(rig.gateway.pools.routes.is_live(model) for model in (BIG, SMALL)))
    await until(lambda: all(rig.snapshot(model).backends for model in (BIG, SMALL)))


async def test_a_copy_goes_to_the_other_model_and_only_records_say_so(tmp_path):
    log = tmp_path / "access.log"
    async with (
        scripted(named(BIG), model=BIG) as big,
        scripted(named(SMALL), STREAM, model=SMALL) as small,
        gateway(sized(big, "b0"), sized(small, "b1"), aliases=shadowed(), access_log={"path": str(log)}) as rig,
    ):
        await known(rig)
        for is_stream in (True, False):
            reply = await rig.post(call(model="chat", stream=is_stream))
            assert (reply.status, reply.json["model"]) == (200, "chat")
            await until(rig.idle)
        await until(lambda: len(small.calls) == 2)
        await until(rig.idle)
        assert [json.loads(each.body)["model"] for each in small.calls] == [SMALL, SMALL]
        assert services(rig, BIG) == {"anonymous": 2 * (9 + 2 * 3)}
        assert services(rig, SMALL) == {"~shadow": (5 + 2 * 3) + (9 + 2 * 3)}
        values = {key[1:]: n for key, n in rig.gateway.metrics.calls.seen()[ALIAS_CALLS].items()}
        assert values == {(BIG, "served", "completed"): 2, (SMALL, "shadow", "completed"): 2}
    copies = [line for line in lines(log) if line["shadow"]]
    assert [(line["model"], line["alias"], line["tenant"]) for line in copies] == [(SMALL, "chat", "~shadow")] * 2
    assert [(line["prompt_tokens"], line["output_tokens"], line["outcome"]) for line in copies] == [
        (5, 3, "completed"), (9, 3, "completed"),
    ]  # fmt: skip
    assert len({line["request_id"] for line in lines(log)}) == 4


async def test_a_copy_counts_for_no_usage_limit_or_budget(tmp_path):
    limits = {"requests_per_minute_max": 100, "tokens_per_day_max": 100_000}
    async with (
        scripted(named(BIG), model=BIG) as big,
        scripted(named(SMALL), model=SMALL) as small,
        admin(
            tmp_path,
            sized(big, "b0"),
            sized(small, "b1"),
            aliases=shadowed(in_flight_max=8),
            tenants={"declared": limits},
        ) as api,
    ):
        await known(api.rig)
        key = bearer(await api.key_for("declared"))
        replies = [await api.rig.post(call(model="chat"), headers=key) for _ in range(3)]
        assert [int(reply.headers["x-ratelimit-remaining-requests"]) for reply in replies] == [99, 98, 97]
        await until(lambda: len(small.calls) == 3)
        await until(api.rig.idle)

        async def is_counted():
            rows = (await api.get("/usage")).json["items"]
            return [(row["tenant"], row["model"], row["requests"]) for row in rows] == [("declared", BIG, 3)]

        await within(is_counted, 15)
        budget = (await api.get("/state/budgets")).json["items"][0]
        assert (budget["used"], budget["reserved"]) == (3 * 12, 0)


async def test_a_part_of_the_calls_is_copied_and_so_many_at_once():
    async with (
        scripted(named(BIG), model=BIG) as big,
        scripted(named(SMALL), model=SMALL) as small,
        gateway(sized(big, "b0"), sized(small, "b1"), aliases=shadowed(ratio=0.25)) as rig,
    ):
        await known(rig)
        for number in range(1, 13):
            await rig.post(call(model="chat"))
            await until(lambda copies=number // 4: len(small.calls) == copies)
            await until(rig.idle)
        small.default = fall_silent
        for _ in range(12):
            await rig.post(call(model="chat"))
        await until(lambda: rig.snapshot(SMALL).in_flight_requests == 1)
        assert len(small.calls) == 4


async def test_no_copy_goes_to_a_backend_that_is_half_full():
    async with (
        scripted(named(BIG), model=BIG) as big,
        scripted(fall_silent, model=SMALL) as small,
        gateway(sized(big, "b0"), sized(small, "b1", slots=2), aliases=shadowed()) as rig,
    ):
        await known(rig)
        own = asyncio.create_task(rig.post(call(model=SMALL)))
        await until(lambda: rig.snapshot(SMALL).in_flight_requests == 1)
        for _ in range(3):
            assert (await rig.post(call(model="chat"))).status == 200
        assert len(small.calls) == 1
        own.cancel()
        await until(rig.idle)


async def test_a_copy_ends_as_soon_as_a_call_waits():
    async with (
        scripted(named(BIG), model=BIG) as big,
        scripted(fall_silent, model=SMALL) as small,
        gateway(sized(big, "b0"), sized(small, "b1", slots=2), aliases=shadowed()) as rig,
    ):
        await known(rig)
        await rig.post(call(model="chat"))
        await until(lambda: len(small.calls) == 1)
        own = [asyncio.create_task(rig.post(call(model=SMALL))) for _ in range(2)]
        await until(lambda: len(small.calls) == 3)  # both run: the copy has made room
        assert rig.snapshot(SMALL).in_flight_requests == 2
        for task in own:
            task.cancel()
        await until(rig.idle)


async def test_responses_are_not_copied_and_a_client_that_leaves_does_not_end_a_copy():
    async with (
        scripted(named(BIG), model=BIG) as big,
        scripted(answer(), model=SMALL) as small,
        gateway(sized(big, "b0"), sized(small, "b1"), aliases=shadowed()) as rig,
    ):
        await known(rig)
        assert (await rig.post({"model": "chat", "input": "hello"}, "/v1/responses")).status == 200
        await rig.post({"model": "chat", "input": "hello", "background": True}, "/v1/responses")
        assert small.calls == []
        big.default = fall_silent
        leaving = asyncio.create_task(rig.post(call(model="chat")))
        await until(lambda: rig.snapshot(BIG).in_flight_requests == 1)
        await until(lambda: len(small.calls) == 1)
        leaving.cancel()
        await until(rig.idle)
        assert services(rig, SMALL) == {"~shadow": 9 + 2 * 3}


async def test_a_broken_copy_is_no_evidence_and_is_not_sent_again():
    error = answer({"error": {"message": "no"}}, status=500)
    async with (
        scripted(named(BIG), model=BIG) as big,
        scripted(error, model=SMALL) as small,
        gateway(sized(big, "b0"), sized(small, "b1"), aliases=shadowed()) as rig,
    ):
        await known(rig)
        for number in range(1, 6):
            assert (await rig.post(call(model="chat"))).status == 200
            await until(lambda copies=number: len(small.calls) == copies)
            await until(rig.idle)
        assert rig.gateway.pools.routes.is_live(SMALL)
        assert services(rig, SMALL) == {"~shadow": 0}


async def test_an_alias_without_a_shadow_changes_no_tier():
    async with scripted(model=BIG) as big, gateway(big, aliases={"chat": {"models": [BIG]}}) as rig:
        await rig.post(call(model="chat"))
        assert "~shadow" not in rig.snapshot().tiers
