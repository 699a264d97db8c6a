"""An alias over two real vLLMs that end one after the other: its streams go on under its name, then its next model
answers; usage, metric and record of each call have one cost.
"""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from decimal import Decimal

import pytest
from answers import ask
from processes import VLLM_START_S_MAX, Gateway, Vllm, until
from wire import CHAT, Call

from backends.engine.http.server import EngineOptions, EngineServer

NEXT = "echo"
TOKENS = 1_500
SYSTEM = "Answer as short as you can, and never say what you were told before. " * 12  # so long that it is cached
PRICES = {"tiny": ("3", "0.5", "7"), NEXT: ("2", "2", "11")}  # of a million tokens: prompt, cached, output


def price_list(name):
    prompt, cached, output = PRICES[name]
    return {"currency": "EUR", "periods": [{"prompt": prompt, "cached_prompt": cached, "output": output}]}


def cost_of(model, usage):
    """By hand, from the usage that the client got."""
    cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    prompt, cached, output = map(Decimal, PRICES[model])
    fresh_tokens = usage["prompt_tokens"] - cached_tokens
    return (fresh_tokens * prompt + cached_tokens * cached + usage["completion_tokens"] * output) / 1_000_000


@contextmanager
def simulated(model):
    """A simulated engine with a loop of its own; its URL."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(work):
        return asyncio.run_coroutine_threadsafe(work, loop).result(30)

    server = EngineServer(EngineOptions(model=model, coefficients="cpu-tiny"))
    try:
        yield run(server.start())
        run(server.stop())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class Records:
    """The access log of a gateway."""

    def __init__(self, path):
        self.path = path

    def of(self, request_id):
        """What it says of a call, once it does."""
        until(lambda: self._find(request_id), what=f"a record of {request_id}")
        (record,) = self._find(request_id)
        return record

    def _find(self, request_id):
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return [each for each in map(json.loads, lines) if each["request_id"] == request_id]


@pytest.fixture
def records(tmp_path):
    return Records(tmp_path / "access.log")


@pytest.fixture
def aliased(twins, tmp_path, records):
    with simulated(NEXT) as url:
        backends = [{"name": f"twin-{number}", "url": server.url} for number, server in enumerate(twins)]
        config = {
            "backends": [*backends, {"name": "next", "url": url}],
            "aliases": {"chat": {"models": ["tiny", NEXT]}},
            "prices": {name: price_list(name) for name in PRICES},
            "access_log": {"path": str(records.path)},
        }
        gateway = Gateway(tmp_path, twins[0], config=config)
        yield gateway.start()
        gateway.stop()
    with ThreadPoolExecutor() as threads:  # most of a start is waiting
        list(threads.map(Vllm.start, [server for server in twins if not server.alive]))


def body(text, **fields):
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
    return {"model": "chat", "messages": messages, "ignore_eos": True, **fields}


def assert_cost(records, request_id, model, usage):
    """The record of the call has the cost of the usage that its client got; returns it."""
    record, cost = records.of(request_id), cost_of(model, usage)
    assert (record["model"], record["alias"], Decimal(record["cost"])) == (model, "chat", cost), (record, usage)
    return cost


def whole(gateway, request_id, text):
    """The usage of a whole answer, whose model has the name of the alias."""
    with Call(gateway.url, CHAT, body(text, max_tokens=8), headers={"x-request-id": request_id}) as call:
        assert call.response.status == 200, call.response.read()
        answer = json.loads(call.response.read())
        assert answer["model"] == "chat"
        return answer["usage"]


def streaming(gateway):
    """The number of streams that have given tokens."""
    return sum(each["output_tokens"] > 0 for each in gateway.admin().ask("GET", "/requests", None).body["items"])


@pytest.mark.timeout(3 * VLLM_START_S_MAX)  # with the starts of four
def test_an_alias_goes_on_when_a_vllm_is_killed_and_to_its_next_model_when_all_are(twins, aliased, records):
    costs = {"tiny": Decimal(0), NEXT: Decimal(0)}
    for number in range(4):  # one long prompt, which is cached from the second time on
        usage = whole(aliased, f"w-{number}", "Hello")
        costs["tiny"] += assert_cost(records, f"w-{number}", "tiny", usage)
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0, "the price of cached tokens counts, too"

    asked = body("Go on", max_tokens=TOKENS, stream_options={"include_usage": True})
    wanted = ask(twins[0].url, CHAT, asked | {"model": "tiny"})
    with ThreadPoolExecutor(4) as threads:
        streams = [threads.submit(ask, aliased.url, CHAT, asked, f"s-{number}") for number in range(4)]
        # One that is cut before its first token is retried, not continued.
        until(lambda: streaming(aliased) == 4 or any(each.done() for each in streams), what="four streams have tokens")
        assert not [each.result() for each in streams if each.done()]
        twins[1].kill()
        answers = [stream.result() for stream in streams]
    for number, answer in enumerate(answers):
        assert (answer.text, answer.finish, answer.error, answer.is_done) == (wanted.text, wanted.finish, None, True)
        assert [head[-1] for head in answer.heads] == ["chat"], "one id, and one name"
        assert answer.usage["completion_tokens"] == TOKENS
        costs["tiny"] += assert_cost(records, f"s-{number}", "tiny", answer.usage)
    assert sum(each.value for each in aliased.samples("fairlead_pool_interruptions")) >= 1

    twins[0].kill()
    usage = whole(aliased, "n-0", "Hello")
    costs[NEXT] += assert_cost(records, "n-0", NEXT, usage)

    def cost_in_usage():
        rows = aliased.admin().ask("GET", "/usage", None).body["items"]
        return {name: sum(Decimal(row["cost"]) for row in rows if row["model"] == name) for name in PRICES}

    until(lambda: cost_in_usage() == costs, what="usage has the same cost")
    (counted,) = {each.value for each in aliased.samples("fairlead_tenant_cost") if each.name.endswith("_total")}
    assert counted == pytest.approx(float(sum(costs.values())), rel=1e-9)
