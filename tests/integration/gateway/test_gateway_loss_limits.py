"""How often and how long a stream looks for its next backend.

All streams of dead backends move, one that breaks backends is given up, the only backend is waited for, and so is
another one while some answer with errors.
"""

import asyncio
import contextlib
import json
from dataclasses import replace
from urllib.parse import urlsplit

import aiohttp
import orjson
import pytest
from gateway_rig import (
    CHAT,
    COMPLETIONS,
    FAST,
    SLOW,
    Reply,
    answer,
    call,
    engine,
    gateway,
    hang_up,
    scripted,
    stream,
    tokens_emitted,
    until,
)

from backends.engine.http.server import EngineOptions, EngineServer
from gateway.continuation.loss_evidence import ENGINES_MAX
from gateway.forwarding import retry_budget
from policies.pool.outage import BACKEND_WAIT_S_MAX
from policies.types import Cause

pytestmark = pytest.mark.jumping

TOKENS = 40
CUT_AFTER = 5
LONG = 1000
MANY = 24
BEAT = b": waiting\n\n"
OPTIONS = {"include_usage": True, "continuous_usage_stats": True}
PATIENT = aiohttp.ClientTimeout(total=120)


def streamed(**fields):
    return call(stream=True, max_tokens=TOKENS, stream_options=OPTIONS, **fields)


def messages(reply):
    return [json.loads(event) for event in reply.events if event != "[DONE]"]


def errors(reply):
    return [message["error"] for message in messages(reply) if "error" in message]


def tokens(reply):
    choices = [choice for message in messages(reply) for choice in message.get("choices", ())]
    return sum(len(choice["delta"].get("content", "").split()) for choice in choices)


async def begin(rig):
    """Ask for a stream, and wait for its first event. Returns what waits for the rest."""
    response = await rig.session.post(rig.url + CHAT, json=streamed(), timeout=PATIENT)
    first = await response.content.readline()

    async def rest():
        async with response:
            return Reply(response.status, response.headers, first + await response.read())

    return rest()


def vllm_at(number, backend):
    return {"name": f"b{number}", "url": backend.url, "kind": "vllm"}


async def test_streams_whose_next_backend_is_dead_too_wait_for_no_budget_of_retries(monkeypatch):
    """All run at one, which dies beside another that ran nothing. The third is slow to answer: calls whose streams have
    not begun would be refused meanwhile.
    """
    monkeypatch.setattr(retry_budget, "WAIT_S_MAX", 0.01)
    unnoticed = {"idle_s": 30, "busy_s": 30}
    async with contextlib.AsyncExitStack() as stack:
        one, idle, slow = [await stack.enter_async_context(engine(**each)) for each in (SLOW, FAST, SLOW)]
        rig = await stack.enter_async_context(gateway(one, idle, slow, health=unnoticed))
        for backend_id in ("b1", "b2"):
            rig.gateway.backends.drain(backend_id, draining=True)
        begun = await asyncio.gather(*(begin(rig) for _ in range(MANY)))
        for backend_id in ("b1", "b2"):
            rig.gateway.backends.drain(backend_id, draining=False)
        await asyncio.gather(one.stop(), idle.stop())
        replies = await asyncio.gather(*begun)
        assert [errors(reply) for reply in replies] == [[]] * MANY
        assert [tokens(reply) for reply in replies] == [TOKENS] * MANY
        assert rig.snapshot().interruptions[Cause.FAILED] == MANY
        assert rig.service() == sum(messages(each)[-1]["usage"]["prompt_tokens"] + 2 * TOKENS for each in replies)


async def test_a_stream_that_breaks_one_backend_after_the_other_leaves_some():
    """Each breaks a few tokens later; what this stream may break is bounded, and it ends once."""
    async with contextlib.AsyncExitStack() as stack:
        several = [
            await stack.enter_async_context(engine(cut_stream_after_tokens=CUT_AFTER)) for _ in range(ENGINES_MAX + 3)
        ]
        rig = await stack.enter_async_context(gateway(*several))
        reply = await rig.post(call(stream=True, max_tokens=LONG, stream_options=OPTIONS))
        assert len(errors(reply)) == 1
        assert ENGINES_MAX * CUT_AFTER <= tokens(reply) < LONG  # an event may have several tokens
        assert sum(tokens_emitted(each) > 0 for each in several) == ENGINES_MAX
        await until(rig.idle)
        usage = [message["usage"] for message in messages(reply) if message.get("usage")][-1]
        assert rig.service() == usage["prompt_tokens"] + 2 * tokens(reply)


async def test_losses_before_and_after_the_first_event_are_one_count():
    async with engine() as good, gateway(good) as rig:
        begun = (await rig.post({**streamed(), "return_token_ids": True})).body.split(b"\n\n")[:CUT_AFTER]
    events = b"".join(event + b"\n\n" for event in begun)
    async with contextlib.AsyncExitStack() as stack:
        several = [await stack.enter_async_context(scripted(hang_up)) for _ in range(6)]
        for each in several:
            each.default = cut_or_hang_up(several, stream(events, end=False))
        backends = [vllm_at(number, each) for number, each in enumerate(several)]
        rig = await stack.enter_async_context(gateway(*backends))
        reply = await rig.post(streamed())
        assert len(errors(reply)) == 1
        assert sum(len(each.calls) for each in several) == ENGINES_MAX


def cut_or_hang_up(several, begin):
    """The first call begins a stream that breaks; all others break before an answer."""

    async def act(reader, writer):
        is_first = sum(len(each.calls) for each in several) == 1
        return await (begin if is_first else hang_up)(reader, writer)

    return act


@contextlib.asynccontextmanager
async def only_one(**queue):
    """A gateway in front of one engine that has begun a stream, and dies. Yields the rig, the call and the port."""
    server = EngineServer(EngineOptions(**{**FAST, "speed": 0.05}))
    url = await server.start()
    async with gateway({"name": "b0", "url": url}, queue=queue) as rig:
        asked = asyncio.create_task(rig.post(streamed()))
        await until(lambda: rig.service() > 4 * CUT_AFTER)
        await server.stop()
        await until(lambda: rig.snapshot().interruptions)
        yield rig, asked, urlsplit(url).port


@pytest.mark.parametrize("heartbeat_s", [None, 0.1])
async def test_a_stream_waits_for_the_only_backend_and_goes_on_when_it_is_back(heartbeat_s):
    async with only_one(backend_wait_s_max=30, heartbeat_s=heartbeat_s) as (rig, asked, port):
        await until(lambda: set(rig.gateway.backends.states().values()) == {"down"})
        await asyncio.sleep(3 * (heartbeat_s or 0))
        back = EngineServer(EngineOptions(**FAST))
        await back.start(port=port)
        try:
            reply = await asked
        finally:
            await back.stop()
        before = len(reply.body)
        reply = replace(reply, body=reply.body.replace(BEAT, b""))
        assert (before - len(reply.body)) // len(BEAT) >= (2 if heartbeat_s else 0)
        assert heartbeat_s or before == len(reply.body)
        assert not errors(reply)
        assert tokens(reply) == TOKENS
        assert rig.service() == messages(reply)[-1]["usage"]["prompt_tokens"] + 2 * TOKENS


async def test_a_stream_whose_only_backend_does_not_come_back_in_time_ends_once_and_pays_for_what_it_got():
    async with only_one(backend_wait_s_max=0.5) as (rig, asked, _):
        reply = await asked
        assert len(errors(reply)) == 1
        assert "[DONE]" not in reply.events
        assert 0 < tokens(reply) < TOKENS
        await until(rig.idle)
        usage = [message["usage"] for message in messages(reply) if message.get("usage")][-1]
        assert rig.service() == usage["prompt_tokens"] + 2 * tokens(reply)


def text_event(**choice):
    head = {"id": "c", "object": "text_completion", "created": 1, "model": "tiny"}
    choice = {"index": 0, "text": "", "logprobs": None, "finish_reason": None, "token_ids": [], **choice}
    return b"data: " + orjson.dumps({**head, "choices": [choice]}) + b"\n\n"


FIRST = text_event(text=" a", token_ids=[5], prompt_token_ids=[1, 2])
LAST = text_event(finish_reason="length") + b"data: [DONE]\n\n"


def mortal(backend, is_over):
    """What a backend does that a call of the user "poison" ends after its first token; all others wait for `is_over`,
    and are then complete.
    """
    ended = asyncio.Event()

    async def act(reader, writer):
        asked = json.loads(backend.calls[-1].body)
        if ended.is_set():
            return False
        await stream(FIRST, end=False)(reader, writer)
        if asked.get("user") == "poison":
            await asyncio.sleep(0.05)
            backend.healthy = False
            ended.set()
            return False
        waits = [asyncio.ensure_future(event.wait()) for event in (ended, is_over)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()
        if not ended.is_set():
            await send_end(writer)
        return False

    return act


async def send_end(writer):
    writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(LAST), LAST))
    await writer.drain()


async def test_a_call_that_ends_every_engine_costs_three_and_no_other_call_fails():
    body, is_over = {"model": "tiny", "prompt": "hello", "stream": True, "max_tokens": 9}, asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        several = [await stack.enter_async_context(scripted()) for _ in range(5)]
        for each in several:
            each.default = mortal(each, is_over)
        backends = [vllm_at(number, each) for number, each in enumerate(several)]
        rig = await stack.enter_async_context(gateway(*backends))
        others = [asyncio.create_task(rig.post(body, path=COMPLETIONS)) for _ in range(MANY)]
        await until(lambda: sum(len(each.calls) for each in several) == MANY)
        poison = await rig.post({**body, "user": "poison"}, path=COMPLETIONS)
        is_over.set()
        assert len(errors(poison)) == 1
        assert [reply.events[-1] for reply in await asyncio.gather(*others)] == ["[DONE]"] * MANY
        assert sum(not each.healthy for each in several) == ENGINES_MAX


@contextlib.asynccontextmanager
async def lost_by_two(number, *, slots, answer_s, before_last=None):
    """A gateway whose calls, so many, run at two engines that end after ten seconds each, and are left with a third
    one. Yields the rig, that one and the calls.
    """
    ends = [asyncio.Event(), asyncio.Event()]

    def until_ended(end):
        async def act(reader, writer):
            await end.wait()
            return False

        return act

    async def take_long(reader, writer):
        await asyncio.sleep(answer_s)
        return await answer()(reader, writer)

    async with contextlib.AsyncExitStack() as stack:
        several = [await stack.enter_async_context(scripted(each)) for each in (*map(until_ended, ends), take_long)]
        backends = [
            {"name": f"b{each}", "url": backend.url, "requests_running_max": slots if each == 2 else number}
            for each, backend in enumerate(several)
        ]
        seldom = {"idle_s": 1.0, "busy_s": 1.0}  # time jumps from one poll to the next
        rig = await stack.enter_async_context(gateway(*backends, health=seldom))

        def only(number):
            for each in range(3):
                rig.gateway.backends.drain(f"b{each}", draining=each != number)

        only(0)
        calls = [asyncio.create_task(rig.post(timeout=PATIENT)) for _ in range(number)]
        for each, end in enumerate(ends):
            await until(lambda each=each: len(several[each].calls) == number)
            await asyncio.sleep(10.0)
            only(each + 1)
            if each == 1 and before_last is not None:
                before_last(rig)
            end.set()
        yield rig, several[2], calls


async def test_calls_that_lost_the_same_two_engines_run_apart_for_a_bounded_time_however_many_they_are():
    """Each holds a slot while it waits to be apart, so calls that lost nothing wait for them."""
    number, slots, answer_s, loop = 40, 8, 2.0, asyncio.get_running_loop()
    async with lost_by_two(number, slots=slots, answer_s=answer_s) as (_, _, calls):
        began = loop.time()
        assert [(await each).status for each in calls] == [200] * number
        one_by_one = BACKEND_WAIT_S_MAX / answer_s
        assert loop.time() - began < BACKEND_WAIT_S_MAX + (number - one_by_one) / slots * answer_s + 5.0


async def test_a_call_that_others_wait_for_waits_for_the_budget_of_retries_before_them():
    def exhausted(rig):
        rig.gateway._handlers._generation._budget.retrying = retry_budget.RETRIES_MIN

    async with lost_by_two(2, slots=2, answer_s=2.0, before_last=exhausted) as (rig, last, calls):
        await asyncio.sleep(1.0)
        assert not last.calls
        for _ in range(retry_budget.RETRIES_MIN):
            rig.gateway._handlers._generation._budget.leave()
        await until(lambda: last.calls)
        await asyncio.sleep(1.0)
        assert len(last.calls) == 1, "the other waits until it has left"
        assert [(await each).status for each in calls] == [200, 200]


@contextlib.asynccontextmanager
async def cut_beside(refused, **settings):
    """A gateway whose stream is cut at one backend, and is then left with one that refuses, while a third one drains.
    Yields the rig, that one and the call.
    """
    slow = {**SLOW, "cut_stream_after_tokens": CUT_AFTER}
    async with (
        engine(**slow) as bad,
        scripted(refused) as refusing,
        engine() as good,
        gateway(bad, vllm_at(1, refusing), good, **settings) as rig,
    ):
        for backend_id in ("b1", "b2"):
            rig.gateway.backends.drain(backend_id, draining=True)
        asked = asyncio.create_task(rig.post(streamed()))
        await until(lambda: tokens_emitted(bad))
        rig.gateway.backends.drain("b1", draining=False)
        rig.gateway.backends.drain("b0", draining=True)
        yield rig, refusing, asked


@pytest.mark.parametrize("status", [404, 429, 500, 502, 503])
async def test_a_stream_waits_for_another_backend_while_the_next_one_answers_with_errors(status):
    refused = answer({"error": {"message": "no", "code": status}}, status=status)
    async with cut_beside(refused) as (rig, refusing, asked):
        await until(lambda: len(refusing.calls) >= 2)
        rig.gateway.backends.drain("b2", draining=False)
        reply = await asked
        assert not errors(reply)
        assert tokens(reply) == TOKENS


async def say_later(reader, writer):
    """What a router says that has asked all of its engines."""
    writer.write(b"HTTP/1.1 503 X\r\nretry-after: 60\r\ncontent-length: 0\r\n\r\n")
    return True


@pytest.mark.parametrize("refused", [answer({"error": {}}, status=404), say_later], ids=["not found", "later"])
async def test_a_stream_that_backends_answer_with_errors_for_too_long_ends_once(refused):
    loop = asyncio.get_running_loop()
    async with cut_beside(refused, queue={"backend_wait_s_max": 0.8}) as (rig, refusing, asked):
        began = loop.time()
        reply = await asked
        assert loop.time() - began < 10.0, "a minute, where it waits for as long as the backend asks it to"
        assert len(errors(reply)) == 1
        assert len(refusing.calls) >= 2
        await until(rig.idle)


ENGINE_GONE = {"error": {"message": "EngineCore encountered an issue. See stack trace (above).", "code": 500}}


@pytest.mark.jumping(False)  # polls are answered between the tries
@pytest.mark.parametrize("refused", [answer(ENGINE_GONE, status=500), hang_up], ids=["engine gone", "closes"])
async def test_a_backend_that_is_polled_well_and_loses_a_stream_again_and_again_costs_it_one_engine(refused):
    """Of the three that it may lose."""
    async with cut_beside(refused) as (rig, refusing, asked):
        await until(lambda: len(refusing.calls) >= ENGINES_MAX)
        rig.gateway.backends.drain("b2", draining=False)
        reply = await asked
        assert not errors(reply)
        assert tokens(reply) == TOKENS


async def test_engines_that_were_gone_before_a_stream_came_are_none_that_it_lost():
    gone, slow = answer(ENGINE_GONE, status=500), {**SLOW, "cut_stream_after_tokens": CUT_AFTER}
    async with (
        engine(**slow) as bad,
        scripted(gone) as first,
        scripted(gone) as second,
        engine() as good,
        gateway(bad, vllm_at(1, first), vllm_at(2, second), good) as rig,
    ):
        for backend_id in ("b1", "b2", "b3"):
            rig.gateway.backends.drain(backend_id, draining=True)
        asked = asyncio.create_task(rig.post(streamed()))
        await until(lambda: tokens_emitted(bad))
        for backend_id, drains in (("b1", False), ("b2", False), ("b0", True)):
            rig.gateway.backends.drain(backend_id, draining=drains)
        await until(lambda: first.calls and second.calls)
        rig.gateway.backends.drain("b3", draining=False)
        reply = await asked
        assert not errors(reply)
        assert tokens(reply) == TOKENS
