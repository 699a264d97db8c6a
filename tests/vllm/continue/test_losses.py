"""One of two real vLLMs is killed, stopped or drained under load: no call fails, and charges are what clients got."""

import json
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from answers import ask
from processes import Gateway, until
from wire import CHAT, COMPLETIONS, fetch

CALLS = 14
TOKENS = 400
PROMPT, CACHED, OUTPUT = 1.0, 0.1, 2.0  # the default price (policies/accounts/cost.py)
USAGE = {"stream_options": {"include_usage": True}}


def body_of(number):
    words = {"messages": [{"role": "user", "content": f"Say {number}"}]} if number % 2 else {"prompt": f"Once {number}"}
    return CHAT if number % 2 else COMPLETIONS, {**words, "max_tokens": TOKENS, "ignore_eos": True}


@pytest.fixture
def both(twins, tmp_path):
    """A gateway in front of both, without cutters; what was ended is started again after it, for the tests to come."""
    backends = [{"name": f"twin-{number}", "url": server.url} for number, server in enumerate(twins)]
    gateway = Gateway(tmp_path, twins[0], config={"backends": backends, "continuation": {"drain_s": 0.2}})
    yield gateway.start()
    gateway.stop()
    for server in twins:
        if not server.alive:
            server.start()


def drain(gateway, _server):
    answer = gateway.admin().ask("PATCH", "/backends/twin-1", {"draining": True})
    assert answer.status < 300, answer


def kill(_gateway, server):
    server.kill()


def terminate(_gateway, server):
    server._process.send_signal(signal.SIGTERM)
    server._process.wait(20)


def kill_engine(_gateway, server):
    server.kill_engine()
    server.wait_dead()


@pytest.mark.parametrize("end", [kill, terminate, kill_engine, drain], ids=lambda end: end.__name__)
def test_no_stream_breaks_when_one_of_two_backends_ends(twins, both, end):
    wanted = [ask(twins[0].url, *body_of(number)) for number in range(CALLS)]
    charged_before = both.service()
    with ThreadPoolExecutor(CALLS) as threads:
        answers = [threads.submit(ask, both.url, path, {**body, **USAGE}) for path, body in map(body_of, range(CALLS))]
        until(lambda: twins[1].metrics().requests_running > 2, what="both run some")
        time.sleep(0.1)
        end(both, twins[1])
        got = [answer.result() for answer in answers]
    assert [each.error for each in got] == [None] * CALLS
    assert [each.text for each in got] == [each.text for each in wanted]
    assert [each.finish for each in got] == [each.finish for each in wanted]
    usages = [each.usage for each in got]
    assert [usage["completion_tokens"] for usage in usages] == [TOKENS] * CALLS
    prompts = sum(usage["prompt_tokens"] for usage in usages)
    charged = both.service() - charged_before
    assert CACHED * prompts <= charged - OUTPUT * TOKENS * CALLS <= PROMPT * prompts + 1e-6


def test_no_whole_answer_is_lost_when_one_of_two_backends_is_killed(twins, both):
    def whole(number):
        path, body = body_of(number)
        status, answer = fetch(both.url, path, {"model": "tiny", "temperature": 0, **body})
        assert status == 200, answer
        (choice,) = json.loads(answer)["choices"]
        return choice.get("text") or choice["message"]["content"]

    wanted = [ask(twins[0].url, *body_of(number)).text for number in range(CALLS)]
    killer = threading.Timer(0.4, twins[1].kill)
    with ThreadPoolExecutor(CALLS) as threads:
        killer.start()
        assert list(threads.map(whole, range(CALLS))) == wanted
    killer.join()
