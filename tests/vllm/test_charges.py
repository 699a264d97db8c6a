"""The gateway charges what vLLM counted, token by token."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from processes import until
from wire import CHAT, COMPLETIONS, Call, fetch

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
BATCH = "/v1/chat/completions/batch"

# the default price (policies/accounts/cost.py): tokens of the prompt, of it those in the prefix cache, and generated
PROMPT, CACHED, OUTPUT = 1.0, 0.1, 2.0

CALLS = {
    "a whole answer": [(CHAT, {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 30})],
    "a stream": [(CHAT, {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 30, "stream": True})],
    "a stream that shows usage": [
        (COMPLETIONS, {"prompt": "a b", "max_tokens": 30, "stream": True, "stream_options": {"include_usage": True}})
    ],
    "a stream of two choices": [(COMPLETIONS, {"prompt": [5, 6, 7], "max_tokens": 30, "n": 2, "stream": True})],
    "two whole choices": [(COMPLETIONS, {"prompt": [5, 6, 7, 8], "max_tokens": 30, "n": 2})],
    "a stream of three prompts": [(COMPLETIONS, {"prompt": ["a", "b b", "c c c"], "max_tokens": 30, "stream": True})],
    "token ids": [(COMPLETIONS, {"prompt": list(range(300, 600)), "max_tokens": 5, "stream": True})],
    "several tokens in an event": [
        (COMPLETIONS, {"prompt": "x", "max_tokens": 50, "stream": True, "stream_interval": 7})
    ],
    "a whole response": [(RESPONSES, {"input": "Hello", "max_output_tokens": 30})],
    "a streamed response": [(RESPONSES, {"input": "Hello there", "max_output_tokens": 30, "stream": True})],
    "a whole message": [(MESSAGES, {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 30})],
    "a streamed message": [
        (MESSAGES, {"messages": [{"role": "user", "content": "Hello you"}], "max_tokens": 30, "stream": True})
    ],
    "a batch of chats": [
        (BATCH, {"messages": [[{"role": "user", "content": word}] for word in "ab"], "max_tokens": 9})
    ],
    "a prompt that is cached the second time": [
        (COMPLETIONS, {"prompt": list(range(700, 1400)), "max_tokens": 3, "stream": stream}) for stream in (True, False)
    ],
    "a refused call": [(CHAT, {"messages": [{"role": "user", "content": "Hello"}], "temperature": -3})],
}


class Meter:
    """What vLLM counted and what the gateway charged since it was made."""

    def __init__(self, vllm, gateway):
        self._vllm, self._gateway = vllm, gateway
        self._before = vllm.metrics()
        self._service = gateway.service()

    def charged(self):
        return self._gateway.service() - self._service

    def generated(self):
        return self._vllm.metrics().generation_tokens_total - self._before.generation_tokens_total

    def counted(self):
        now, before = self._vllm.metrics(), self._before
        prompt = now.prompt_tokens_total - before.prompt_tokens_total
        cached = now.prefix_hit_tokens_total - before.prefix_hit_tokens_total
        return PROMPT * (prompt - cached) + CACHED * cached + OUTPUT * self.generated()


def counted_twice(body):
    """Tokens of a prompt with n choices are counted n times by vLLM's metrics, and once by the usage it answers."""
    return (body.get("n", 1) - 1) * len(body.get("prompt", ""))


def run(gateway, path, body):
    status, answer = fetch(gateway.url, path, {"model": "tiny", "ignore_eos": True, **body})
    assert status == (400 if "temperature" in body else 200), answer


@pytest.fixture
def meter(vllm, gateway):
    until(lambda: gateway.in_flight() == 0 and vllm.metrics().requests_running == 0)
    return Meter(vllm, gateway)


@pytest.mark.parametrize("name", CALLS)
def test_what_is_charged_is_what_vllm_counted(gateway, meter, name):
    for path, body in CALLS[name]:
        run(gateway, path, body)
    until(lambda: gateway.in_flight() == 0)
    expected = meter.counted() - PROMPT * sum(counted_twice(body) for _, body in CALLS[name])
    assert meter.charged() == pytest.approx(expected, abs=1e-6)


def test_what_is_charged_is_what_vllm_counted_for_many_calls_at_once(gateway, meter):
    calls = [call for calls in CALLS.values() for call in calls] * 3
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda call: run(gateway, *call), calls))
    until(lambda: gateway.in_flight() == 0)
    expected = meter.counted() - PROMPT * sum(counted_twice(body) for _, body in calls)
    assert meter.charged() == pytest.approx(expected, abs=1e-6)


def test_a_stream_is_charged_while_it_runs(gateway, meter):
    body = {"model": "tiny", "prompt": "go on", "max_tokens": 2000, "ignore_eos": True, "stream": True}
    with Call(gateway.url, COMPLETIONS, body) as call:
        events = call.events()
        for _ in range(200):
            next(events)
        assert gateway.in_flight() == 1
        assert meter.charged() >= OUTPUT * 200


def test_a_client_that_leaves_is_charged_what_the_gateway_received(vllm, gateway, meter):
    body = {"model": "tiny", "prompt": "go on", "max_tokens": 3500, "ignore_eos": True, "stream": True}
    with Call(gateway.url, COMPLETIONS, body) as call:
        events = call.events()
        for _ in range(100):
            next(events)
    until(lambda: gateway.in_flight() == 0 and vllm.metrics().requests_running == 0)
    assert OUTPUT * 100 <= meter.charged() <= meter.counted()
    assert meter.generated() < 3000, "vLLM went on although the client was gone"


LEFT = {
    "a whole answer": (CHAT, {"messages": [{"role": "user", "content": "go on"}]}),
    "four whole choices": (CHAT, {"messages": [{"role": "user", "content": "go on"}], "n": 4}),
    "a streamed message": (MESSAGES, {"messages": [{"role": "user", "content": "go on"}], "stream": True}),
}


@pytest.mark.parametrize("name", LEFT)
def test_an_answer_that_its_client_left_is_charged_what_was_decoded_within_a_tenth(vllm, gateway, meter, name):
    path, body = LEFT[name]
    least = 400 * body.get("n", 1)
    with Call(gateway.url, path, {"model": "tiny", "max_tokens": 3500, "ignore_eos": True, **body}) as call:
        if "stream" in body:
            next(call.events())
        until(lambda: meter.generated() > least)
    until(lambda: gateway.in_flight() == 0 and vllm.metrics().requests_running == 0)
    assert meter.generated() < 3500 * body.get("n", 1), "vLLM went on although the client was gone"
    assert meter.charged() == pytest.approx(OUTPUT * meter.generated(), rel=0.1)
