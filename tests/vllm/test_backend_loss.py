"""A vLLM that is busy, loses its engine, is killed, and comes back."""

import json
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from processes import until
from wire import COMPLETIONS, Call, fetch

LONG = {"model": "tiny", "prompt": "Once", "max_tokens": 4000, "ignore_eos": True, "stream": True}
SHORT = {"model": "tiny", "prompt": "Once", "max_tokens": 4}


def backend(gateway):
    (view,) = gateway.state()["backends"].values()
    return view


def test_what_a_busy_vllm_does_not_admit_is_asked_again_and_all_are_served(small, small_gateway):
    body = {**SHORT, "max_tokens": 200, "ignore_eos": True}
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


@pytest.mark.parametrize("how", ["kill_engine", "kill"])
def test_a_stream_whose_engine_dies_ends_with_an_error_and_never_with_done(small, small_gateway, how):
    until(lambda: backend(small_gateway)["available"], timeout_s=30.0)
    with Call(small_gateway.url, COMPLETIONS, LONG) as call:
        events = call.events()
        for _ in range(20):
            next(events)
        getattr(small, how)()
        *_, last = events
    error = json.loads(last)["error"]
    assert error.keys() >= {"message", "type", "param", "code"}
    until(lambda: small_gateway.in_flight() == 0)
    small.wait_dead()
    until(lambda: not backend(small_gateway)["available"], timeout_s=10.0, what="the backend is seen to be down")
    status, answer = fetch(small_gateway.url, COMPLETIONS, SHORT)
    assert status == 503
    assert "error" in json.loads(answer)


def test_the_official_client_raises_when_the_engine_dies(small, small_gateway):
    until(lambda: backend(small_gateway)["available"], timeout_s=30.0)
    with openai.OpenAI(base_url=f"{small_gateway.url}/v1", api_key="sk-test", max_retries=0) as client:
        stream = client.completions.create(
            model="tiny", prompt="Once", max_tokens=4000, stream=True, extra_body={"ignore_eos": True}
        )
        for _ in range(20):
            next(stream)
        small.kill_engine()
        with pytest.raises(openai.APIError):
            list(stream)
    small.wait_dead()


def test_a_whole_answer_whose_engine_dies_is_an_error(small, small_gateway):
    until(lambda: backend(small_gateway)["available"], timeout_s=30.0)
    with Call(small_gateway.url, COMPLETIONS, {**LONG, "stream": False}) as call:
        until(lambda: small.metrics().requests_running == 1)
        small.kill_engine()
        assert call.response.status >= 500
        assert "error" in json.loads(call.response.read())
    small.wait_dead()
    until(lambda: small_gateway.in_flight() == 0)


def test_a_backend_that_comes_back_is_used_again(small, small_gateway):
    """`small` was started again on the port where the gateway last saw it die."""
    until(lambda: fetch(small_gateway.url, COMPLETIONS, SHORT)[0] == 200, timeout_s=30.0, pause_s=0.2)
    assert backend(small_gateway)["available"]
