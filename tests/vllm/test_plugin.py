"""fairlead-vllm inside a real vLLM: its answers are vLLM's, its reports are true, and decodes keep their pace.

`fair` and `stock` are alike but for the scheduler. `cramped` has hardly any memory, so that requests are preempted all
the time, and orders its queue by tenants.
"""

import json
import os
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from random import Random
from statistics import median
from urllib.parse import urlsplit

import plugin
import pytest
from processes import INSTALLED, Gateway, Vllm, until
from wire import CHAT, COMPLETIONS, Call, fetch

from backends.plugin_reports import PATH, PluginReports

PYTHON = INSTALLED / "venv" / "bin" / "python"
TOKEN = "s3cret"
VOCABULARY = range(5, 4000)  # of the tiny model, without its special tokens
SERVER = ("--max-num-batched-tokens=2048", "--max-num-seqs=16")
TPOT_MS = 12  # a step of 2048 tokens takes 20 to 60 ms
PACED = {"tenant": "chat", "slo_ttft_ms": 500, "slo_tpot_ms": TPOT_MS}


@pytest.fixture(scope="module")
def fair(site, tmp_path_factory):
    environment = plugin.environment(site, FAIRLEAD_TOKEN=TOKEN)
    server = Vllm(tmp_path_factory.mktemp("fair") / "log", *SERVER, *plugin.SCHEDULER, environment=environment)
    yield server.start()
    server.stop()


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    server = Vllm(tmp_path_factory.mktemp("stock") / "log", *SERVER)
    yield server.start()
    server.stop()


@pytest.fixture(scope="module")
def cramped(site, tmp_path_factory):
    environment = plugin.environment(site, FAIRLEAD_OPEN="1", FAIRLEAD_ORDER="vtc", FAIRLEAD_TPOT_MS="20")
    options = (*SERVER, *plugin.SCHEDULER, "--num-gpu-blocks-override=40")
    server = Vllm(tmp_path_factory.mktemp("cramped") / "log", *options, environment=environment)
    yield server.start()
    server.stop()


def prompt(seed, tokens):
    rng = Random(seed)
    return [rng.choice(VOCABULARY) for _ in range(tokens)]


def completion(seed, *, prompt_tokens, output_tokens, **fields):
    return {
        "model": "tiny",
        "prompt": prompt(seed, prompt_tokens),
        "max_tokens": output_tokens,
        "ignore_eos": True,
        "temperature": 0,
        **fields,
    }


def answer(server, body, path=COMPLETIONS):
    status, data = fetch(server.url, path, body)
    assert status == 200, data
    return json.loads(data)


def steps(server, authorization=f"Bearer {TOKEN}", since=0):
    connection = HTTPConnection(urlsplit(server.url).netloc, timeout=10)
    connection.request("GET", f"{PATH}?since={since}", headers={"Authorization": authorization})
    response = connection.getresponse()
    status, body = response.status, response.read()
    connection.close()
    return status, body


def told(server, since=0):
    status, body = steps(server, since=since)
    assert status == 200, body
    return json.loads(body)


def engine(server):
    (state,) = told(server, since=10**9)["engines"].values()
    return state


def rest(server):
    until(lambda: server.metrics().requests_running == 0, what="nothing runs")


def learn(server):
    """Work of all kinds, until the scheduler is sure of its step time and divides steps."""
    for seed in range(40):
        answer(server, completion(seed, prompt_tokens=1 + 37 * seed % 900, output_tokens=8, vllm_xargs=PACED))


def mixed_call(seed):
    sizes = [(20, 60), (1500, 20), (700, 30), (60, 100)]
    prompt_tokens, output_tokens = sizes[seed % 4]
    return completion(seed, prompt_tokens=prompt_tokens, output_tokens=output_tokens, vllm_xargs=PACED)


def test_answers_to_many_at_once_are_those_of_vllm(fair, stock):
    learn(fair)
    with ThreadPoolExecutor(12) as clients:
        ours = list(clients.map(lambda seed: answer(fair, mixed_call(seed)), range(24)))
    theirs = [answer(stock, mixed_call(seed)) for seed in range(24)]
    assert [each["usage"]["completion_tokens"] for each in ours] == [
        each["usage"]["completion_tokens"] for each in theirs
    ]
    assert [each["choices"][0]["text"] for each in ours] == [each["choices"][0]["text"] for each in theirs]


def test_reports_are_what_vllm_counts(fair):
    """A request computes its prompt but for what was cached, and all of its output but for the last token."""
    rest(fair)
    before, at = fair.metrics(), told(fair, since=10**9)["next"]
    requests = 10
    with ThreadPoolExecutor(4) as clients:
        list(clients.map(lambda seed: answer(fair, mixed_call(seed + 100)), range(requests)))
    rest(fair)
    after, said = fair.metrics(), told(fair, since=at)
    prompt_tokens = after.prompt_tokens_total - before.prompt_tokens_total
    output_tokens = after.generation_tokens_total - before.generation_tokens_total
    hits = after.prefix_hit_tokens_total - before.prefix_hit_tokens_total
    assert sum(row[2] for row in said["steps"]) == prompt_tokens - hits + output_tokens - requests
    assert len(said["steps"]) == said["next"] - at
    for _, _, new_tokens, context_tokens, in_step, microseconds in said["steps"]:
        assert 1 <= in_step <= 16
        assert in_step <= new_tokens <= context_tokens
        assert 100 < microseconds < 10_000_000


def test_the_gateway_understands_the_reports(fair):
    status, body = steps(fair)
    assert status == 200
    reports = PluginReports()
    assert reports.read(body)
    assert reports.engines.step_tokens_max == 2048
    assert reports.engines.requests_running_max == 16
    assert reports.engines.reads_priority is False


@pytest.mark.parametrize("authorization", ["", "Bearer wrong", TOKEN, f"Basic {TOKEN}"])
def test_reports_are_for_holders_of_the_token(fair, authorization):
    status, body = steps(fair, authorization)
    assert status == 401
    assert b"steps" not in body


def test_without_a_token_there_is_no_such_path_unless_it_was_opened(site):
    code = f"""
import os
from fastapi import FastAPI
from fairlead_vllm.endpoint import StepsEndpoint
for settings in ({{}}, {{"FAIRLEAD_OPEN": "1"}}, {{"VLLM_API_KEY": "k"}}):
    os.environ.update(settings)
    app = FastAPI()
    StepsEndpoint().attach_router(app)
    print({PATH!r} in [route.path for route in app.routes])
    [os.environ.pop(name) for name in settings]
"""
    clean = {"PYTHONPATH": str(site), "PATH": "", "HOME": str(site)}
    ran = subprocess.run([PYTHON, "-c", code], env=clean, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "True", "True"]


def test_clients_that_leave_leave_nothing_behind(fair):
    rest(fair)
    blocks_free = engine(fair)["kv_blocks_free"]
    for round_ in range(3):
        bodies = [
            completion(1000 * round_ + seed, prompt_tokens=[40, 3000][seed % 2], output_tokens=900, stream=True)
            for seed in range(24)
        ]
        calls = [Call(fair.url, COMPLETIONS, body) for body in bodies]
        until(lambda: fair.metrics().requests_running >= 8, what="they run")
        for number, call in enumerate(calls):
            call.reset() if number % 2 else call.close()
        rest(fair)
    answer(fair, completion(1, prompt_tokens=20, output_tokens=4))
    assert fair.alive
    assert engine(fair)["running"] == engine(fair)["waiting"] == 0
    assert engine(fair)["kv_blocks_free"] == blocks_free


def test_grammars_choices_and_priorities_are_served_as_ever(fair):
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Yes or no?"}], "vllm_xargs": PACED}
    chosen = answer(fair, {**body, "structured_outputs": {"choice": ["yes", "no"]}}, CHAT)
    assert chosen["choices"][0]["message"]["content"] in ("yes", "no")
    several = answer(fair, {**body, "n": 3, "max_tokens": 5, "priority": 3}, CHAT)
    assert len(several["choices"]) == 3


def test_requests_that_are_preempted_come_to_their_end(cramped):
    bodies = [
        completion(
            seed, prompt_tokens=300, output_tokens=300, vllm_xargs={"tenant": f"t{seed % 3}", "slo_ttft_ms": 1000}
        )
        for seed in range(24)
    ]
    with ThreadPoolExecutor(24) as clients:
        answers = list(clients.map(lambda body: answer(cramped, body), bodies))
    assert {each["usage"]["completion_tokens"] for each in answers} == {300}
    assert cramped.metrics().preemptions_total > 0
    rest(cramped)
    state = json.loads(steps(cramped, "")[1])["engines"]["0"]
    assert state["kv_blocks_free"] == state["kv_blocks"] - 1  # one is never given out


def chat_pace(server, *, chats, clients, flooders):
    """Seconds per token of chats beside a flood of long prompts: the median of their means."""
    ended = threading.Event()

    def flood(seed):
        while not ended.is_set():
            seed += 1000
            body = completion(seed, prompt_tokens=3000, output_tokens=2, vllm_xargs={"slo_ttft_ms": 20_000})
            answer(server, body)

    def chat(seed):
        body = completion(seed, prompt_tokens=60, output_tokens=60, vllm_xargs=PACED, stream=True)
        with Call(server.url, COMPLETIONS, body) as call:
            at = [time.monotonic() for event in call.events() if event != "[DONE]"]
        return (at[-1] - at[0]) / 59

    learn(server)
    with ThreadPoolExecutor(clients + flooders) as threads:
        floods = [threads.submit(flood, seed) for seed in range(flooders)]
        time.sleep(1.0)
        paces = list(threads.map(chat, range(50_000, 50_000 + chats)))
        ended.set()
        for each in floods:
            each.result()
    return median(paces)


def test_chats_beside_long_prompts_get_their_tokens_sooner_than_from_vllm(fair, stock):
    ours, theirs = (chat_pace(server, chats=18, clients=3, flooders=4) for server in (fair, stock))
    assert ours < 0.6 * theirs, f"{1e3 * ours:.1f} against {1e3 * theirs:.1f} ms per token"


@pytest.fixture(scope="module")
def virtual(site):
    command = [PYTHON, Path(__file__).parent / "virtual_engine.py", INSTALLED / "model"]
    environment = {**os.environ, **plugin.environment(site)}
    return json.loads(
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    )


@pytest.mark.parametrize("depth", [1, 2])
def test_chats_are_in_time_whether_or_not_steps_are_formed_ahead(virtual, depth):
    """On a virtual clock, in which the model of its steps is all that the scheduler has to find out."""
    fair, vllm = (virtual[f"{name} {depth}"] for name in ("fair", "vllm"))
    assert fair["tokens_in_time"] > 0.97 > vllm["tokens_in_time"] + 0.1
    assert fair["took_s"] <= 1.05 * vllm["took_s"]


@pytest.mark.parametrize("run", ["fair 1", "fair 2", "cramped 1", "cramped 2"])
def test_all_requests_are_served_and_forgotten_with_little_memory_too(virtual, run):
    found = virtual[run]
    assert found["incomplete"] == []
    assert found["remembered"] == 0
    assert found["blocks_free"] == (299 if run.startswith("cramped") else 8191)
    assert (found["preemptions"] > 0) == run.startswith("cramped")


def test_a_gateway_finds_the_plugin_and_tells_it_whose_a_call_is(fair, tmp_path):
    config = {"tiers": {"default": {"envelope": {"ttft_ms": 400, "tpot_ms": 30}}}}
    gateway = Gateway(tmp_path, fair, backend={"api_key": TOKEN}, config=config).start()
    try:
        body = completion(7, prompt_tokens=30, output_tokens=20)
        assert answer(gateway, body)["choices"][0]["text"] == answer(fair, body)["choices"][0]["text"]
        for _ in range(4):
            answer(gateway, completion(7, prompt_tokens=30, output_tokens=20, vllm_xargs={"mine": 1}))
        answer(gateway, {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}, CHAT)
        (number,) = engine(fair)["dispatches"].values()
        assert number == 6
        # The budget of a step is known once enough steps were timed, which tests before this one may not have run.
        for seed in range(50):
            if engine(fair)["pab_tpot_s"] is not None:
                break
            answer(gateway, completion(100 + seed, prompt_tokens=200, output_tokens=50))
        assert engine(fair)["pab_tpot_s"] <= 0.030
    finally:
        gateway.stop()
