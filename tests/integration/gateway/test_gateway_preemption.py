"""A seat that is taken back from a tenant far ahead, through the whole gateway: only the time shows it."""

import asyncio

import pytest
from gateway_rig import answer, call, fall_silent, gateway, scripted, stream, until

pytestmark = pytest.mark.jumping

TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}],"usage":{"prompt_tokens":5,"total_tokens":%d,"completion_tokens":%d}}\n\n'  # noqa: E501
DONE = b"data: [DONE]\n\n"
CHARGE = 9 + 2 * 3  # of a scripted answer that is whole
STREAM_CHARGE = 5 + 2 * 2
AHEAD, BEHIND = ({"Authorization": f"Bearer {name}"} for name in ("ahead", "behind"))
PREEMPTS = {"fairness": "lcf", "prediction": "none", "preempt_service": 5.0, "share_ratio_max": 1.0}


def streamed(pause_s=0.0):
    return stream(TOKEN % (6, 1), TOKEN % (7, 2), DONE, pause_s=pause_s)


async def send_a_head_and_fall_silent(reader, writer):
    """As vLLM does: the head of a stream comes at once, its first token after the prefill."""
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    await reader.read()
    return False


def one_slot(backend):
    return {"name": "gpu", "url": backend.url, "requests_running_max": 1}


def services(rig):
    return sorted(tenant.service for tenant in rig.snapshot().tenants.values())


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_call_that_was_answered_nothing_waits_while_one_far_behind_is_served_and_is_charged_once(is_stream):
    silent, last = (send_a_head_and_fall_silent, streamed()) if is_stream else (fall_silent, answer())
    async with (
        scripted(None, answer(), silent, answer(), last) as backend,
        gateway(one_slot(backend), scheduling=PREEMPTS) as rig,
    ):
        assert (await rig.post(call(), headers=AHEAD)).status == 200
        first = asyncio.create_task(rig.post(call(stream=is_stream), headers=AHEAD))
        await until(lambda: len(backend.calls) == 2)
        assert (await rig.post(call(), headers=BEHIND)).status == 200
        reply = await first
        assert reply.status == 200
        assert len(backend.calls) == 4
        assert backend.calls[1].body == backend.calls[3].body
        if is_stream:
            assert reply.events[-1] == "[DONE]"
        await until(rig.idle)
        assert services(rig) == [CHARGE, CHARGE + (STREAM_CHARGE if is_stream else CHARGE)]


async def test_a_stream_of_which_something_has_passed_keeps_its_seat():
    async with (
        scripted(None, answer(), streamed(pause_s=0.2), answer()) as backend,
        gateway(one_slot(backend), scheduling=PREEMPTS) as rig,
    ):
        assert (await rig.post(call(), headers=AHEAD)).status == 200
        first = asyncio.create_task(rig.post(call(stream=True), headers=AHEAD))
        await until(lambda: any(tenant.service > CHARGE + 2 for tenant in rig.snapshot().tenants.values()))
        second = asyncio.create_task(rig.post(call(), headers=BEHIND))
        assert (await first).events[-1] == "[DONE]"
        assert (await second).status == 200
        assert len(backend.calls) == 3


async def test_a_stream_that_breaks_before_its_first_token_is_sent_again_as_it_is_without_preemption():
    async def head_and_hang_up(reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        return False

    for scheduling in ({}, PREEMPTS):
        async with (
            scripted(None, head_and_hang_up) as backend,
            gateway(one_slot(backend), scheduling=scheduling) as rig,
        ):
            reply = await rig.post(call(stream=True), headers=AHEAD)
            assert reply.json["usage"]["completion_tokens"] == 3
            assert len(backend.calls) == 2
            await until(rig.idle)
            assert services(rig) == [9 + 2 * 3]
