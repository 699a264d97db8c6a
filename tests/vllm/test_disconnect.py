"""Clients that leave: nothing of theirs goes on, wherever it was."""

import time

from processes import until
from wire import CHAT, COMPLETIONS, Call

# runs for seconds, so that what ends early was ended
LONG = {"model": "tiny", "prompt": "Once", "max_tokens": 4000, "ignore_eos": True}
NOTICED_S = 5.0


def generated_since(vllm, before):
    return vllm.metrics().generation_tokens_total - before.generation_tokens_total


def assert_all_quiet(vllm, gateway):
    until(lambda: vllm.metrics().requests_running == 0, timeout_s=NOTICED_S, what="vLLM runs nothing")
    until(lambda: gateway.in_flight() == 0, timeout_s=NOTICED_S, what="nothing is in flight")
    assert gateway.queued() == 0
    metrics = vllm.metrics()
    assert (metrics.requests_waiting, metrics.kv_used_ratio) == (0, 0.0)


def test_a_client_that_leaves_in_the_middle_of_its_stream_stops_the_engine(vllm, gateway):
    before = vllm.metrics()
    with Call(gateway.url, COMPLETIONS, {**LONG, "stream": True}) as call:
        events = call.events()
        for _ in range(20):
            next(events)
        assert gateway.in_flight() == 1
    assert_all_quiet(vllm, gateway)
    assert 20 <= generated_since(vllm, before) < LONG["max_tokens"]


def test_clients_that_leave_while_they_wait_for_a_whole_answer_stop_the_engine(vllm, gateway):
    before = vllm.metrics()
    calls = [
        Call(gateway.url, path, {**LONG, "messages": [{"role": "user", "content": "Hello"}]})
        for path in (CHAT, COMPLETIONS)
    ]
    until(lambda: vllm.metrics().requests_running == 2)
    assert gateway.in_flight() == 2
    for call in calls:
        call.close()
    assert_all_quiet(vllm, gateway)
    assert generated_since(vllm, before) < 2 * LONG["max_tokens"]


def test_a_client_that_leaves_the_gateways_queue_was_never_seen_by_the_engine(vllm, narrow_gateway):
    gateway, before = narrow_gateway, vllm.metrics()
    with Call(gateway.url, COMPLETIONS, {**LONG, "stream": True}) as running:
        next(running.events())
        for stream in (True, False):
            with Call(gateway.url, COMPLETIONS, {**LONG, "prompt": "Twice upon a time", "stream": stream}):
                until(lambda: gateway.queued() == 1)
                assert gateway.in_flight() == 1
            until(lambda: gateway.queued() == 0, timeout_s=NOTICED_S)
        assert gateway.in_flight() == 1
    assert_all_quiet(vllm, gateway)
    after = vllm.metrics()
    assert after.prompt_tokens_total - before.prompt_tokens_total < 5, "the prompt of the first alone"


def test_a_client_that_leaves_before_its_first_token_leaves_the_engines_queue(small, small_gateway):
    """Two run on the two seats; the third is dispatched and waits inside vLLM."""
    gateway, calls = small_gateway, []
    for _ in range(3):
        calls.append(Call(gateway.url, COMPLETIONS, {**LONG, "stream": True}))
        time.sleep(0.05)
    until(lambda: (m := small.metrics()).requests_running == 2 and m.requests_waiting == 1)
    assert gateway.in_flight() == 3
    calls[2].close()
    until(lambda: small.metrics().requests_waiting == 0 and gateway.in_flight() == 2, timeout_s=NOTICED_S)
    assert small.metrics().requests_running == 2, "the others go on"
    for call in calls[:2]:
        call.close()
    assert_all_quiet(small, gateway)


def test_a_connection_that_is_reset_is_a_client_that_left(vllm, gateway):
    before = vllm.metrics()
    call = Call(gateway.url, COMPLETIONS, {**LONG, "stream": True})
    next(call.events())
    call.reset()
    assert_all_quiet(vllm, gateway)
    assert generated_since(vllm, before) < LONG["max_tokens"]


def test_a_client_that_sends_the_half_of_a_body_and_leaves_costs_nothing(vllm, gateway):
    before = vllm.metrics()
    with Call(gateway.url, COMPLETIONS, b'{"model": "tiny", "prompt": "', content_length=1000):
        time.sleep(0.2)
        assert gateway.in_flight() == gateway.queued() == 0
    assert_all_quiet(vllm, gateway)
    assert generated_since(vllm, before) == 0
