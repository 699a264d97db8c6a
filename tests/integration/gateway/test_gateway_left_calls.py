"""However a client leaves, what its tenant was served, what its usage says and what its budgets have spent agree."""

import asyncio
import random

import pytest
from admin_rig import admin
from gateway_rig import (
    CHAT,
    COMPLETIONS,
    answer,
    call,
    engine,
    gateway_and_engine,
    hang_up,
    http,
    running,
    scripted,
    stream,
    tokens_emitted,
    until,
    whole,
    wire,
)

pytestmark = pytest.mark.jumping

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
PLENTY = 10**9
LONG_PROMPT = [{"role": "user", "content": "word " * 3000}]
HEAD = b'data: {"choices":[{"index":0,"delta":{}}],"usage":{"prompt_tokens":5,"completion_tokens":0}}\n\n'
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}],"usage":{"prompt_tokens":5,"completion_tokens":1}}\n\n'

BODIES = [
    (CHAT, call(max_tokens=200)),
    (CHAT, call(max_tokens=200, n=4)),
    (CHAT, call(max_tokens=200, stream=True)),
    (CHAT, call(max_tokens=200, stream=True, n=3)),
    (CHAT, call(max_tokens=200, stream=True, messages=LONG_PROMPT)),
    (CHAT, call(max_tokens=200, messages=LONG_PROMPT)),
    (COMPLETIONS, {"model": "tiny", "prompt": ["a b", "c d e"], "max_tokens": 300, "stream": True}),
    (MESSAGES, call(max_tokens=200, stream=True)),
    (RESPONSES, {"model": "tiny", "input": "Hello", "max_output_tokens": 200, "stream": True}),
    (RESPONSES, {"model": "tiny", "input": "Hello", "max_output_tokens": 200, "background": True}),
    (RESPONSES, {"model": "tiny", "input": "Hello", "max_output_tokens": 200}),
]


async def busy(reader, writer):
    writer.write(whole({"error": {"message": "busy"}}, 503))
    return True


async def fall_silent_for_a_moment(reader, writer):
    await asyncio.sleep(0.4)
    return False


async def answer_late(reader, writer):
    await asyncio.sleep(0.4)
    writer.write(whole({"id": "resp_1", "status": "completed", "usage": {"input_tokens": 9, "output_tokens": 3}}))
    return True


FAULTS = [
    hang_up,
    fall_silent_for_a_moment,
    busy,
    answer(status=500),
    answer(),
    stream(HEAD, end=False),
    stream(HEAD, TOKEN, end=False),
    stream(HEAD, TOKEN, TOKEN, pause_s=0.02, end=False),
    stream(b"data: [DONE]\n\n"),
]


async def one_story(api, tenant):
    """Fails where service, usage and budgets differ. Returns the usage."""
    background = api.rig.gateway._handlers._background
    await until(lambda: api.rig.idle() and not background._tasks)  # usage is recorded after the slot is free
    await api.rig.gateway._management.usage.flush()
    rows = [each for each in (await api.get("/usage")).json["items"] if each["tenant"] == tenant]
    prompt, cached, output = (
        sum(row[name] for row in rows) for name in ("prompt_tokens", "cached_tokens", "output_tokens")
    )
    served = api.rig.tenant(tenant)
    assert served.service == pytest.approx(prompt - 0.9 * cached + 2 * output)
    assert served.rank == pytest.approx(served.counter), "nothing is outstanding"
    (budget,) = [each for each in (await api.get("/state/budgets")).json["items"] if each["tenant"] == tenant]
    assert (budget["used"], budget["reserved"]) == (prompt + output, 0)
    (dispatcher,) = api.rig.gateway.pools.dispatchers.values()
    (known,) = [each for each in dispatcher.tenants() if each.id == tenant]
    limit = dispatcher.rate_limits(known).tokens
    assert limit.limit - limit.remaining == prompt + output
    return prompt, cached, output


async def leave(api, key, path, body, *, after_s):
    """Send a call and leave after so long; None: in the tick in which it was sent; infinite: with the answer."""
    async with wire(api.rig) as connection:
        connection.send(http(body, f"Authorization: Bearer {key}", "Connection: close", path=path))
        if after_s is not None:
            try:
                async with asyncio.timeout(after_s):
                    await connection.reader.read()
            except TimeoutError:
                pass
        connection.reset()


async def tenant_with_budgets(api):
    limits = {"tokens_per_day_max": PLENTY, "tokens_per_minute_max": PLENTY}
    assert (await api.post("/tenants", {"id": "alice", **limits})).status == 201
    return await api.key_for("alice")


@pytest.mark.parametrize("seed", range(2))
async def test_service_usage_and_budgets_tell_one_story_however_clients_leave(tmp_path, seed):
    rng = random.Random(seed)
    script = [rng.choice(FAULTS) for _ in range(200)]
    async with (
        engine(speed=0.1, responses_stored=True) as server,
        scripted(hang_up, *script) as faulty,
        admin(
            tmp_path,
            {"name": "engine", "url": server.url, "requests_running_max": 6},
            {"name": "faulty", "url": faulty.url, "requests_running_max": 2},
        ) as api,
    ):
        api.rig.gateway._handlers._background._poll_s = 0.05
        key = await tenant_with_budgets(api)

        async def live():
            await asyncio.sleep(rng.uniform(0.0, 1.5))
            path, body = rng.choice(BODIES)
            await leave(api, key, path, body, after_s=rng.choice([None, 0.0, rng.uniform(0.0, 1.0), 3.0]))

        await asyncio.gather(*(live() for _ in range(30)))
        await one_story(api, "alice")
        await until(lambda: not running(server))


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_prompt_that_is_being_computed_when_its_client_leaves_counts_everywhere(tmp_path, is_stream):
    async with engine(speed=0.001) as server, admin(tmp_path, server) as api:
        key = await tenant_with_budgets(api)
        for _ in range(3):
            async with wire(api.rig) as connection:
                body = call(stream=is_stream, messages=LONG_PROMPT)
                connection.send(http(body, f"Authorization: Bearer {key}"))
                await until(lambda: running(server))
                connection.reset()
            await until(lambda: not running(server))
        prompt, _, _ = await one_story(api, "alice")
        assert prompt >= 3 * 2000, "of each that much at least was about to be computed"


@pytest.mark.parametrize("choices", [1, 4])
async def test_a_whole_answer_that_was_left_is_charged_what_its_engine_decoded(choices):
    async with gateway_and_engine(speed=0.1) as (rig, server), wire(rig) as connection:
        prompt = (await rig.post(call(max_tokens=1))).json["usage"]["prompt_tokens"]
        before, emitted_before = rig.service(), tokens_emitted(server)
        connection.send(http(call(max_tokens=3000, n=choices)))
        await until(lambda: tokens_emitted(server) - emitted_before > 300 * choices, every_s=0.01)
        connection.reset()
        await until(lambda: not running(server))
        await until(rig.idle)
        decoded = tokens_emitted(server) - emitted_before
        assert (rig.service() - before - prompt) / 2 == pytest.approx(decoded, rel=0.1)


async def test_what_is_made_in_the_background_for_a_client_that_left_counts_once(tmp_path):
    async with scripted(answer_late) as backend, admin(tmp_path, backend) as api:
        key = await tenant_with_budgets(api)
        await leave(api, key, RESPONSES, {"model": "tiny", "input": "Hi", "background": True}, after_s=0.1)
        assert await one_story(api, "alice") == (9, 0, 3)
