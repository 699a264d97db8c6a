"""Backends that lie about themselves: what they say is ignored or believed too much, and no call waits for ever."""

import asyncio
import json
import logging

import pytest
from gateway_rig import answer, call, gateway, scripted, stream, until

CALLS = 6
ENVELOPE = {"ttft_ms": 200, "tpot_ms": 20}
PROMISED = {"tiers": {"default": {"envelope": ENVELOPE}}}


def gauges(*, running=0, waiting=0, kv_ratio=0.0, steps=0, tokens=0, generated=0, preemptions=0):
    return f"""
vllm:num_requests_running{{engine="0"}} {running}
vllm:num_requests_waiting{{engine="0"}} {waiting}
vllm:kv_cache_usage_perc{{engine="0"}} {kv_ratio}
vllm:num_preemptions_total{{engine="0"}} {preemptions}
vllm:iteration_tokens_total_count{{engine="0"}} {steps}
vllm:iteration_tokens_total_sum{{engine="0"}} {tokens}
vllm:generation_tokens_total{{engine="0"}} {generated}
vllm:cache_config_info{{block_size="16",num_gpu_blocks="1000",enable_prefix_caching="True",engine="0"}} 1
""".encode()


LIES = {
    "it is full for ever": lambda _: gauges(running=10**9, waiting=10**9, kv_ratio=1.0),
    "it is less than empty": lambda _: gauges(running=-5, kv_ratio=-3.0),
    "its steps take no time": lambda n: gauges(running=3, steps=10**12 * n, tokens=10**13 * n, generated=10**12 * n),
    "its steps take all the time there is": lambda n: gauges(running=3, steps=n, tokens=n, generated=n),
    "its counters run backwards": lambda n: gauges(running=3, steps=10**6 - n, tokens=10**6 - n, preemptions=n),
    "numbers that are none": lambda n: gauges(running="NaN", kv_ratio="+Inf", steps="-Inf", preemptions=n),
    "no text at all": lambda _: b"\xff\xfe" * 5000,
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
@pytest.mark.parametrize("config", [{}, PROMISED], ids=["without targets", "with targets"])
async def test_no_call_is_stuck_behind_a_backend_that_lies_in_its_metrics(lie, config, caplog):
    async with scripted(answer()) as backend:
        others, told = backend._poll, []

        def poll(target):
            if target != "/metrics":
                return others(target)
            told.append(body := lie(len(told) + 1))
            return b"HTTP/1.1 200 X\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)

        backend._poll = poll
        async with gateway(backend, health={"idle_s": 0.02, "busy_s": 0.02}, **config) as rig:
            await until(lambda: len(told) > 20)
            replies = await asyncio.gather(*(rig.post() for _ in range(CALLS)))
            assert {reply.status for reply in replies} == {200}
            step_time = rig.snapshot().backends["b0"].step_time
            assert step_time is None or not step_time.is_sure
            await until(rig.idle)
    complaints = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(complaints) <= 2, [record.getMessage() for record in complaints]


ABSURD = {"prompt_tokens": 10**18, "completion_tokens": 10**18, "total_tokens": 2 * 10**18}
CONTEXT_TOKENS = 4096  # of a scripted backend


def absurd_stream():
    event = {"choices": [{"index": 0, "delta": {"content": "one"}}], "usage": ABSURD}
    return stream(b"data: %b\n\n" % json.dumps(event).encode(), b"data: [DONE]\n\n")


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
async def test_usage_beyond_what_a_call_can_use_is_charged_as_its_most_and_told_of_the_backend(is_stream, caplog):
    absurd = absurd_stream() if is_stream else answer({"choices": [], "usage": ABSURD})
    async with scripted(answer(), absurd, absurd) as backend, gateway(backend) as rig:
        for _ in range(2):
            assert (await rig.post(call(max_tokens=7, stream=is_stream))).status == 200
        await until(rig.idle)
        assert rig.service() == 2 * (CONTEXT_TOKENS + 2 * 7)
        assert (await rig.post()).status == 200
        metrics = (await rig.gateway.metrics.exposition()).decode()
        assert 'fairlead_backend_usage_overstated_total{backend="b0"} 2.0' in metrics
        assert rig.service() == 2 * (CONTEXT_TOKENS + 2 * 7) + 9 + 2 * 3
    assert sum("reported more usage" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize(
    ("fields", "prompt_tokens", "output_tokens"),
    [
        ({"prompt": ["one"] * 3, "max_tokens": 4}, 3 * CONTEXT_TOKENS, 3 * 4),
        ({"prompt": "one", "n": 3, "max_tokens": 2048}, CONTEXT_TOKENS, 3 * 2048),
        ({"prompt": ["one"] * 2, "n": 2, "max_tokens": 4}, 2 * CONTEXT_TOKENS, 2 * 2 * 4),
    ],
    ids=["prompts", "choices", "choices of prompts"],
)
async def test_a_call_of_several_prompts_or_choices_can_use_a_context_for_each(fields, prompt_tokens, output_tokens):
    """So an honest backend is believed."""
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": output_tokens}
    async with scripted(answer({"choices": [], "usage": usage})) as backend, gateway(backend) as rig:
        assert (await rig.post({"model": "tiny", **fields}, path="/v1/completions")).status == 200
        await until(rig.idle)
        assert rig.service() == prompt_tokens + 2 * output_tokens
        metrics = (await rig.gateway.metrics.exposition()).decode()
        assert 'fairlead_backend_usage_overstated_total{backend="b0"}' not in metrics
