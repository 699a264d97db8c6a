"""A vLLM that is busy, loses its engine, is killed, and comes back."""

import json
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from processes import until
from wire import COMPLETIONS, Call, fetch

NO_END = {"ignore_eos": True}
LONG = {"model": "tiny", "prompt": "Once", "max_tokens": 4000, "stream": True, **NO_END}
SHORT = {"model": "tiny", "prompt": "Once", "max_tokens": 4}


def backend(gateway):
    (view,) = gateway.state()["backends"].values()
    return view


def test_what_a_busy_vllm_does_not_admit_is_asked_again_and_all_are_served(small, small_gateway):
    body = {**SHORT, "max_tokens": 200, **NO_END}
    until(lambda: backend(small_gateway)["available"])
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: fetch(small_gateway.url, COMPLETIONS, body), range(16)))
    assert [status for status, _ in answers] == [200] * 16
    assert all(json.loads(answer)["usage"]["completion_tokens"] == 200 for _, answer in answers)
    rejections = [
        float(line.split()[-1])
        for line in small.text("/metrics").splitlines()
        if line.startswith("vllm:admission_rejections_total")
    ]
    assert sum(rejections) > 0, "vLLM was never busy: this test has shown nothing"
    assert backend(small_gateway)["available"], "busy is not ill"
    until(lambda: small_gateway.in_flight() == 0)


def test_when_the_engine_dies_no_client_is_told_that_the_answer_is_complete(small, small_gateway):
    """A raw stream, a stream of the official client, and a whole answer that waits inside vLLM."""
    until(lambda: backend(small_gateway)["available"])
    url = small_gateway.url
    with (
        Call(url, COMPLETIONS, LONG) as raw,
        openai.OpenAI(base_url=f"{url}/v1", api_key="sk-test", max_retries=0) as client,
    ):
        events = raw.events()
        stream = client.completions.create(**{k: v for k, v in LONG.items() if k != "ignore_eos"}, extra_body=NO_END)
        for _ in range(20):
            next(events)
            next(stream)
        with Call(url, COMPLETIONS, {**LONG, "stream": False}) as whole:
            until(lambda: small.metrics().requests_waiting == 1)
            small.kill_engine()
            assert_ends_with_an_error(events)
            with pytest.raises(openai.APIError):
                list(stream)
            assert whole.response.status >= 500
            assert "error" in json.loads(whole.response.read())
    small.wait_dead()
    assert_known_to_be_down(small_gateway)


def test_a_vllm_that_comes_back_is_used_again_and_its_cut_connection_is_an_error(small, small_gateway):
    """`small` was started again on the port where the gateway saw it die; this time all of it dies at once."""
    until(lambda: fetch(small_gateway.url, COMPLETIONS, SHORT)[0] == 200, timeout_s=30.0, pause_s=0.2)
    assert backend(small_gateway)["available"]
    with Call(small_gateway.url, COMPLETIONS, LONG) as raw:
        events = raw.events()
        for _ in range(20):
            next(events)
        small.kill()
        assert_ends_with_an_error(events)
    assert_known_to_be_down(small_gateway)


def assert_ends_with_an_error(events):
    *_, last = events
    assert last != "[DONE]"
    assert json.loads(last)["error"].keys() >= {"message", "type", "param", "code"}


def assert_known_to_be_down(gateway):
    until(lambda: gateway.in_flight() == 0)
    until(lambda: not backend(gateway)["available"], what="the backend is seen to be down")
    status, answer = fetch(gateway.url, COMPLETIONS, SHORT)
    assert status == 503
    assert "error" in json.loads(answer)
