"""Responses that a backend keeps: of which tenant, at which backend, and what those cost that no client waits for."""

import asyncio
import time

import pytest
from gateway_rig import (
    MODEL,
    answer,
    bearer,
    engine,
    fall_silent,
    gateway,
    http,
    running,
    scripted,
    tokens_emitted,
    until,
    wire,
)

pytestmark = pytest.mark.jumping

RESPONSES = "/v1/responses"
ALICE, BOB = bearer("alice"), bearer("bob")
KEEPING = {"responses_stored": True}


def ask(**fields):
    return {"model": MODEL, "input": "Hello there", "max_output_tokens": 8, **fields}


def charged(rig):
    """Service of all tenants: a prompt token is 1, an output token 2."""
    return sum(tenant.service for tenant in rig.snapshot().tenants.values())


@pytest.fixture
async def house():
    async with engine(**KEEPING) as server, gateway(server) as rig:
        yield rig, server


async def test_a_response_is_charged_by_its_usage_whole_and_streamed(house):
    rig, _ = house
    whole = await rig.post(ask(), RESPONSES, headers=ALICE)
    usage = whole.json["usage"]
    assert usage["output_tokens"] == 8
    assert charged(rig) == usage["input_tokens"] + 2 * 8
    streamed = await rig.post(ask(stream=True), RESPONSES, headers=ALICE)
    assert streamed.body.count(b"event: response.output_text.delta") > 1
    assert charged(rig) == 2 * (usage["input_tokens"] + 2 * 8)


async def test_a_response_is_given_to_its_owner_alone(house):
    rig, _ = house
    for fields in ({}, {"stream": True}):
        made = await rig.post(ask(**fields), RESPONSES, headers=ALICE)
        response_id = made.body.split(b'"id":"', 1)[1].split(b'"', 1)[0].decode()
        mine = await rig.get(f"{RESPONSES}/{response_id}", headers=ALICE)
        assert (mine.status, mine.json["id"]) == (200, response_id)
        for path, method in ((response_id, rig.get), (f"{response_id}/cancel", rig.post)):
            others = await method(path=f"{RESPONSES}/{path}", headers=BOB)
            assert (others.status, others.error["reason"]) == (404, "response_not_found")
            assert response_id not in others.body.decode()


@pytest.mark.parametrize("path_id", ["resp_unknown", "a" * 200, "..", "%2e%2e", "a%2fb", "a%3fb", "%00"])
async def test_an_id_that_was_never_made_reaches_no_backend(house, path_id):
    rig, _ = house
    assert (await rig.get(f"{RESPONSES}/{path_id}")).status == 404


async def test_a_response_goes_on_from_one_of_the_same_owner_at_the_same_backend():
    async with engine(**KEEPING) as one, engine(**KEEPING) as two, gateway(one, two) as rig:
        first = await rig.post(ask(), RESPONSES, headers=ALICE)
        for _ in range(6):  # one of two would miss it now and then
            onward = await rig.post(ask(previous_response_id=first.json["id"]), RESPONSES, headers=ALICE)
            assert onward.status == 200
        stolen = await rig.post(ask(previous_response_id=first.json["id"]), RESPONSES, headers=BOB)
        assert (stolen.status, stolen.error["param"]) == (404, "previous_response_id")
        for nonsense in ("resp_none", 7, ["a"]):
            assert (await rig.post(ask(previous_response_id=nonsense), RESPONSES, headers=ALICE)).status == 404


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"background": True}], ids=["whole", "stream", "background"])
async def test_a_response_that_goes_on_from_another_is_charged_for_all_that_came_before(fields):
    """Also where its client leaves before its usage comes, at the very end."""
    long = "word " * 400
    async with engine(**KEEPING) as server, gateway(server) as rig:
        rig.gateway._handlers._background._poll_s = 0.05
        first = await rig.post(ask(input=long, **fields), RESPONSES, headers=ALICE)
        first_id = first.body.split(b'"id":"', 1)[1].split(b'"', 1)[0].decode()
        await until(rig.idle)
        before = charged(rig)
        async with wire(rig) as connection:
            onward = ask(input="a", previous_response_id=first_id, stream=True, max_output_tokens=2000)
            connection.send(http(onward, "Authorization: Bearer alice", path=RESPONSES))
            await connection.reader.readuntil(b"output_text.delta")
            connection.reset()
            await until(rig.idle)
        assert charged(rig) - before > 400


async def test_what_came_before_a_response_teaches_nothing_of_how_its_prompt_is_written():
    async with engine(**KEEPING) as server, gateway(server) as rig:
        first = await rig.post(ask(input="word " * 400), RESPONSES, headers=ALICE)
        learnt = rig.gateway._handlers._generation._context.request_admission._prompt_tokens
        ratios = [ratio.tokens_per_byte for ratio in learnt._ratios.values()]
        for _ in range(5):
            await rig.post(ask(input="a b c", previous_response_id=first.json["id"]), RESPONSES, headers=ALICE)
        assert [ratio.tokens_per_byte for ratio in learnt._ratios.values()] == ratios


async def test_a_response_of_another_pool_is_none_that_one_could_go_on_from():
    async with engine(**KEEPING) as one, engine(**KEEPING, model="other") as two, gateway(one, two) as rig:
        first = await rig.post(ask(), RESPONSES, headers=ALICE)
        onward = ask(model="other", previous_response_id=first.json["id"])
        async with asyncio.timeout(2):
            refused = await rig.post(onward, RESPONSES, headers=ALICE)
        assert (refused.status, refused.error["param"]) == (404, "previous_response_id")
        assert tokens_emitted(two) == 0


async def test_a_body_cannot_name_the_response_that_it_makes(house):
    rig, _ = house
    first = await rig.post(ask(), RESPONSES, headers=ALICE)
    other = await rig.post(ask(request_id=first.json["id"]), RESPONSES, headers=BOB)
    assert other.json["id"] != first.json["id"]


async def test_a_server_that_keeps_nothing_says_so_itself():
    async with engine() as server, gateway(server) as rig:
        refused = await rig.post(ask(background=True), RESPONSES)
        assert refused.status == 400
        assert charged(rig) == 0
        await until(rig.idle)


# -- in the background ---------------------------------------------------------------------------------------------


async def in_background(rig, **fields):
    rig.gateway._handlers._background._poll_s = 0.05
    reply = await rig.post(ask(background=True, **fields), RESPONSES, headers=ALICE)
    assert (reply.status, reply.json["status"]) == (200, "queued")
    return reply.json["id"]


async def test_what_is_made_in_the_background_holds_its_seat_and_is_charged_when_it_has_ended():
    async with engine(**{**KEEPING, "speed": 0.05}) as server, gateway(server) as rig:
        await rig.post(ask(max_output_tokens=1), RESPONSES, headers=ALICE)  # the first is not in the background
        before = charged(rig)
        response_id = await in_background(rig, max_output_tokens=60)
        assert rig.snapshot().in_flight_requests == 1
        await until(rig.idle)
        done = (await rig.get(f"{RESPONSES}/{response_id}", headers=ALICE)).json
        assert done["usage"]["output_tokens"] == 60
        assert charged(rig) == pytest.approx(before + done["usage"]["input_tokens"] + 2 * 60 + 1)  # 1: asking for it


async def test_what_runs_in_the_background_is_charged_while_it_runs():
    async with engine(**{**KEEPING, "speed": 0.02}) as server, gateway(server) as rig:
        await in_background(rig, max_output_tokens=2000)
        await until(lambda: charged(rig) > 20)
        assert rig.snapshot().in_flight_requests == 1


async def test_cancelling_in_the_background_is_no_way_to_free_tokens():
    async with engine(**{**KEEPING, "speed": 0.02}) as server, gateway(server) as rig:
        response_id = await in_background(rig, max_output_tokens=2000)
        await asyncio.sleep(0.5)
        cancelled = await rig.post(path=f"{RESPONSES}/{response_id}/cancel", headers=ALICE)
        assert cancelled.json["status"] == "cancelled"
        await until(rig.idle)
        assert 20 < charged(rig) < 2000


async def test_the_name_of_a_call_in_the_background_may_be_used_again(house):
    rig, _ = house
    named = {**ALICE, "X-Request-Id": "mine"}
    for _ in range(3):
        reply = await rig.post(ask(background=True, max_output_tokens=2000), RESPONSES, headers=named)
        assert (reply.status, reply.headers["x-request-id"]) == (200, "mine")


async def test_a_background_that_would_be_streamed_is_refused_and_costs_nothing(house):
    rig, server = house
    refused = await rig.post(ask(background=True, stream=True), RESPONSES)
    assert (refused.status, refused.error["param"]) == (400, "background")
    assert server.snapshots()[0].emitted_tokens_total == 0


async def test_a_backend_that_dies_ends_what_it_made_in_the_background():
    async with engine(**KEEPING, speed=0.02) as server, gateway(server) as rig:
        await in_background(rig, max_output_tokens=2000)
        await server.stop()
        await until(rig.idle, timeout_s=15)


async def test_the_end_of_the_gateway_ends_what_is_in_the_background_and_charges_it():
    async with engine(**KEEPING, speed=0.02) as server:
        async with gateway(server) as rig:
            rig.gateway._handlers._background._poll_s = 60.0
            for _ in range(3):
                await rig.post(ask(background=True, max_output_tokens=2000), RESPONSES, headers=ALICE)
            before = charged(rig)
            await asyncio.sleep(0.3)
            assert running(server) == 3
        await until(lambda: not running(server), timeout_s=0.5)
        assert not rig.gateway.pools.busy()
        assert charged(rig) > before + 3


async def test_what_is_in_the_background_is_followed_while_the_gateway_drains():
    async with engine(**{**KEEPING, "speed": 0.1}) as server, gateway(server) as rig:
        response_id = await in_background(rig, max_output_tokens=100)
        draining = asyncio.create_task(rig.gateway.drain())
        await until(lambda: rig.gateway._handlers._request_parser.draining)
        assert (await rig.post(ask(), RESPONSES)).status == 503
        assert (await rig.get(f"{RESPONSES}/{response_id}", headers=ALICE)).json["status"] == "in_progress"
        await draining
        assert tokens_emitted(server) == 100
        assert (await rig.get(f"{RESPONSES}/{response_id}", headers=ALICE)).json["status"] == "incomplete"  # its limit
        assert charged(rig) > 2 * 100


async def test_a_backend_that_does_not_answer_holds_up_no_end_of_the_gateway():
    begun = {"id": "resp_1", "status": "queued", "output": []}
    async with scripted(fall_silent, answer(begun)) as backend:
        async with gateway(backend) as rig:
            await rig.post(ask(background=True), RESPONSES)
            await until(lambda: rig.snapshot().in_flight_requests)
            started = time.monotonic()
        assert time.monotonic() - started < 2.5
        assert [asked.target for asked in backend.calls] == [RESPONSES, f"{RESPONSES}/resp_1/cancel"]
