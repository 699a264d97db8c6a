"""The embedded engine under load: queues, memory, several engines, clients that leave, and what metrics say."""

import asyncio
import json
import re
import time

import aiohttp
import pytest
from engine_client import CHAT, COMPLETIONS, SLOW, events, post, read_until_it_breaks, serving, until


async def test_a_full_server_is_busy_and_counts_it():
    async with serving(**SLOW, max_num_queued_reqs=2) as (server, session):
        long = asyncio.create_task(post(session, COMPLETIONS, {"prompt": "x", "max_tokens": 90, "ignore_eos": True}))
        await until(lambda: server.snapshots()[0].requests_running == 1)
        status, body = await post(session, COMPLETIONS, {"prompt": "x", "n": 2, "max_tokens": 1})
        assert status == 503
        assert json.loads(body)["error"]["message"].startswith("The engine is currently busy and cannot accept")
        assert json.loads(body)["error"]["type"] == "Service Unavailable"
        assert (await post(session, COMPLETIONS, {"prompt": "x", "max_tokens": 1}))[0] == 200
        async with session.get("/metrics") as response:
            text = await response.text()
        assert 'vllm:admission_rejections_total{model_name="tiny",reason="max_num_queued_reqs"} 1.0' in text
        long.cancel()


async def test_cached_tokens_are_reported_only_where_that_is_enabled():
    body = {"prompt": [7] * 600, "max_tokens": 1}
    streamed = {**body, "stream_options": {"include_usage": True}}
    async with serving(prompt_tokens_details=True) as (_, session):
        first = json.loads((await post(session, COMPLETIONS, body))[1])["usage"]["prompt_tokens_details"]
        second = json.loads((await post(session, COMPLETIONS, body))[1])["usage"]["prompt_tokens_details"]
        third = json.loads((await events(session, COMPLETIONS, streamed))[-2])["usage"]["prompt_tokens_details"]
        chat = {"messages": [{"role": "user", "content": "x" * 2400}], "max_tokens": 1}
        seen = [json.loads((await post(session, CHAT, chat))[1])["usage"]["prompt_tokens_details"] for _ in range(2)]
    assert (first["cached_tokens"], second["cached_tokens"], third) == (0, 512, {"cached_tokens": 512})
    assert [(usage["cached_tokens"], usage["created_cache_tokens"]) for usage in seen] == [(0, 512), (512, 0)]
    async with serving() as (_, session):
        assert json.loads((await post(session, COMPLETIONS, body))[1])["usage"]["prompt_tokens_details"] is None


async def test_a_longer_conversation_finds_the_shorter_one_in_the_cache():
    turns = [{"role": "user", "content": "word " * 400}]
    async with serving(prompt_tokens_details=True, block_tokens=16) as (_, session):
        for cached in (False, True):
            answer = json.loads((await post(session, CHAT, {"messages": turns, "max_tokens": 2}))[1])
            assert (answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 400) is cached
            turns += [answer["choices"][0]["message"], {"role": "user", "content": "more"}]


async def test_a_salt_keeps_tenants_out_of_each_others_cache():
    async with serving(prompt_tokens_details=True) as (_, session):
        for salt, cached in (("a", 0), ("b", 0), ("a", 512)):
            body = {"prompt": [7] * 600, "max_tokens": 1, "cache_salt": salt}
            usage = json.loads((await post(session, COMPLETIONS, body))[1])["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] == cached


@pytest.mark.jumping  # on a busy machine, the first would end before the others are there
async def test_priority_order_serves_the_lower_value_first_and_the_header_wins():
    async with serving(**SLOW, order="priority", requests_running_max=1) as (server, session):
        ended = []

        async def ask(name, priority, headers=None):
            body = {"prompt": "x", "max_tokens": 3, "ignore_eos": True, "priority": priority}
            assert (await post(session, COMPLETIONS, body, headers=headers))[0] == 200
            ended.append(name)

        tasks = [asyncio.create_task(ask("first", 0))]
        await until(lambda: server.snapshots()[0].requests_running == 1)
        tasks.append(asyncio.create_task(ask("low", 5)))
        await until(lambda: server.snapshots()[0].requests_waiting == 1)
        tasks.append(asyncio.create_task(ask("high", 9, {"X-Vllm-Priority": "-1"})))
        await asyncio.gather(*tasks)
    assert ended == ["first", "high", "low"]


async def test_several_engines_are_labelled_and_share_the_load_and_the_capacity():
    async with serving(**SLOW, engines=2, requests_running_max=4, kv_tokens_max=16_384) as (server, session):
        body = {"prompt": "x", "max_tokens": 90, "ignore_eos": True}
        tasks = [asyncio.create_task(post(session, COMPLETIONS, body)) for _ in range(6)]
        await until(lambda: sum(s.requests_running + s.requests_waiting for s in server.snapshots()) == 6)
        await until(lambda: [s.requests_running for s in server.snapshots()] == [2, 2])
        assert [s.requests_waiting for s in server.snapshots()] == [1, 1]
        async with session.get("/metrics") as response:
            text = await response.text()
        for label in ("0", "1"):
            assert f'vllm:num_requests_running{{engine="{label}",model_name="tiny"}} 2.0' in text
            assert re.search(rf'cache_config_info{{.*engine="{label}".*num_gpu_blocks="64"', text)
        ranked = {"X-data-parallel-rank": "7"}
        status, answer = await post(session, COMPLETIONS, body, headers=ranked)
        assert status == 400
        assert json.loads(answer)["error"]["message"] == "data_parallel_rank 7 is out of range [0, 2)."
        for task in tasks:
            task.cancel()


async def open_stream(session, body):
    response = await session.post(COMPLETIONS, json={**body, "stream": True})
    await response.content.readline()
    return response


LONG = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True}


def idle(server) -> bool:
    return all((s.requests_running, s.requests_waiting, s.kv_used_ratio) == (0, 0, 0) for s in server.snapshots())


async def test_a_client_that_leaves_in_mid_stream_frees_the_engine_at_once():
    async with serving(**SLOW) as (server, session):
        response = await open_stream(session, LONG)
        assert not idle(server)
        response.close()
        await until(lambda: idle(server), timeout_s=0.5)
        async with session.get("/metrics") as metrics:
            assert 'finished_reason="abort",model_name="tiny"} 0.0' in await metrics.text()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_before_the_first_token_or_from_the_queue_is_forgotten(stream):
    async with serving(requests_running_max=1, speed=0.0002) as (server, session):  # 5 s a step
        tasks = [asyncio.create_task(post(session, COMPLETIONS, {**LONG, "stream": stream})) for _ in range(2)]
        await until(lambda: (server.snapshots()[0].requests_running, server.snapshots()[0].requests_waiting) == (1, 1))
        tasks[1].cancel()
        await until(lambda: server.snapshots()[0].requests_waiting + server.snapshots()[0].requests_running == 1)
        tasks[0].cancel()
        await until(lambda: idle(server), timeout_s=0.5)


async def test_a_cut_stream_ends_without_done_and_without_its_last_chunk():
    async with serving(cut_stream_after_tokens=3) as (server, session):
        body = {"prompt": "x", "max_tokens": 500, "ignore_eos": True, "stream": True}
        async with session.post(COMPLETIONS, json=body) as response:
            received = await read_until_it_breaks(response)
        assert 3 <= received.count(b"data: {") < 500
        assert b"[DONE]" not in received
        await until(lambda: idle(server))


async def test_a_dying_engine_ends_a_stream_with_an_error_event_and_done():
    async with serving(fail_stream_after_tokens=2) as (server, session):
        got = await events(session, COMPLETIONS, {"prompt": "x", "max_tokens": 500, "ignore_eos": True})
        assert 2 + 2 <= len(got) < 500
        assert json.loads(got[-2])["error"]["message"].startswith("EngineCore encountered an issue.")
        assert json.loads(got[-2])["error"]["code"] == 500
        assert got[-1] == "[DONE]"
        await until(lambda: idle(server))


async def test_metrics_count_steps_and_tokens_as_vllm_does():
    async with serving(chunk_tokens_max=256) as (_, session):
        await post(session, COMPLETIONS, {"prompt": [7] * 600, "max_tokens": 3, "ignore_eos": True})
        await post(session, COMPLETIONS, {"prompt": [7] * 600, "max_tokens": 1, "ignore_eos": True})
        async with session.get("/metrics") as response:
            assert response.headers["Content-Type"] == "text/plain; version=1.0.0; charset=utf-8"
            lines = (await response.text()).splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    own = {name.split('{engine="0",model_name="tiny"}')[0]: float(value) for name, value in values.items()}
    assert own["vllm:prompt_tokens_total"] == 1200
    assert own["vllm:prompt_tokens_cached_total"] == 512
    assert own["vllm:prefix_cache_queries_total"] == 1200
    assert own["vllm:prefix_cache_hits_total"] == 512
    assert own["vllm:generation_tokens_total"] == 4
    # 600 tokens take three steps; the two that emit nothing are not counted, the third counts the whole prompt.
    assert own["vllm:iteration_tokens_total_count"] == 3 + 1
    assert own["vllm:iteration_tokens_total_sum"] == (600 + 1) + 1 + 1 + (88 + 1)
    assert values['vllm:iteration_tokens_total_bucket{engine="0",le="+Inf",model_name="tiny"}'] == "4.0"
    assert values['vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="tiny"}'] == "2.0"
    assert values['vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"}'] == "2.0"
    assert values['vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"}'] == "0.0"
    config = next(name for name in values if name.startswith("vllm:cache_config_info"))
    assert 'block_size="128"' in config
    assert 'num_gpu_blocks="1024"' in config


@pytest.mark.jumping
async def test_steps_take_the_time_of_the_model():
    async with serving(coefficients="a10g-llama3.2-3b", max_model_len=4096, speed=2) as (server, session):
        started = time.monotonic()
        await post(session, COMPLETIONS, {"prompt": "x", "max_tokens": 40, "ignore_eos": True})
        took_s = time.monotonic() - started
    # 40 steps of 13.15 ms and a little context, twice as fast.
    assert 0.26 < took_s < 1.5
    assert server.snapshots()[0].steps_total == 40


async def test_preemption_shows_in_the_metrics_and_not_in_the_answers():
    async with serving(kv_tokens_max=1024, max_model_len=1024, block_tokens=16) as (server, session):
        body = {"prompt": [3] * 100, "max_tokens": 500, "ignore_eos": True, "n": 3, "cache_salt": "x"}
        answer = json.loads((await post(session, COMPLETIONS, body))[1])
    assert answer["usage"]["completion_tokens"] == 1500
    assert server.snapshots()[0].preemptions_total > 0


@pytest.mark.jumping
async def test_a_stopped_server_drops_its_streams_and_frees_its_port():
    async with serving(**SLOW) as (server, session):
        response = await open_stream(session, LONG)
        started = time.monotonic()
        await server.stop()
        assert time.monotonic() - started < 1
        await read_until_it_breaks(response)
        response.close()
        with pytest.raises(aiohttp.ClientError):
            await session.get("/health")
