"""The live set, asking scripted servers on this machine."""

import asyncio
import json
import logging
import random
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from listening import listening

from backends import health
from backends.health import FAILURES_MAX, Evidence, HealthState
from backends.metrics import SCRAPE_BYTES_MAX
from backends.poll import PollTimes
from backends.poll_loop import PollLoop
from backends.pool import BackendPool, BackendSpec
from policies.step_time import StepTime, StepTimeModel
from policies.types import BackendLoad

SCRAPE = (Path(__file__).parent / "data" / "vllm_0.32_metrics.txt").read_text()
FAST = PollTimes(idle_s=0.02, busy_s=0.02, models_s=0.05, timeout_s=0.3, start_s=1.0)
PATIENT = PollTimes(idle_s=0.02, busy_s=0.02, models_s=0.05, timeout_s=30.0, start_s=30.0)
RARE = PollTimes(idle_s=4.0, busy_s=0.02, models_s=60.0, timeout_s=0.3, start_s=1.0)
SLOW = PollTimes(idle_s=60.0, busy_s=60.0, models_s=60.0, timeout_s=0.3, start_s=1.0)


class Server:
    """A backend whose answers are set by the test: path -> (status, body), or a delay in seconds before any answer."""

    def __init__(self, model="tiny", scrape=SCRAPE):
        self.answers = {
            "/health": (200, ""),
            "/metrics": (200, scrape),
            "/v1/models": (200, f'{{"object":"list","data":[{{"id":"{model}","parent":null,"max_model_len":64}}]}}'),
        }
        self.asked = []
        self.delay_s = 0.0

    async def __call__(self, request):
        self.asked.append(request)
        await asyncio.sleep(self.delay_s)
        status, body = self.answers.get(request.path, (404, ""))
        return web.Response(status=status, text=body, headers={"Location": "/elsewhere"} if status == 302 else None)


class Listener:
    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1


@asynccontextmanager
async def serving(*servers):
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(listening(server)) for server in servers]


def report(pool, backend_id, evidence, at):
    """What was sent went so, at once."""
    pool.report(backend_id, evidence, sent_at=at, now=at)


@asynccontextmanager
async def watching(specs, *, times=FAST, on_change=lambda: None):
    pool = BackendPool(
        specs,
        on_change=on_change,
        on_load=lambda _: on_change(),
        polls=PollLoop(times, clock=asyncio.get_running_loop().time, rng=random.Random(1)),
    )
    await pool.polls.start()
    try:
        yield pool
    finally:
        await pool.polls.stop()


async def until(condition, timeout_s=30.0):
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - a condition on the outside of what is tested
            await asyncio.sleep(0.005)


async def test_one_round_gives_the_load_the_models_and_the_pool():
    async with serving(Server()) as (url,), watching([BackendSpec("a", url)], times=SLOW) as pool:
        ((load,),) = pool.loads().values()
        assert load.measured_at is not None
        assert load == BackendLoad(
            backend_id="a",
            kv_tokens_max=131072,
            kv_block_tokens=128,
            requests_running=3,
            requests_waiting=0,
            requests_waiting_for_room=0,
            kv_used_ratio=0.014662756598240456,
            preemptions_total=0,
            measured_at=load.measured_at,
        )
        assert [card.id for card in pool.catalog.models()] == ["tiny"]
        assert pool.catalog.model("tiny").max_model_len == 64
        assert (pool.catalog.pool_of_model("tiny"), pool.catalog.pool_of_model("other")) == ("tiny", None)
        assert pool.catalog.undiscovered() == []
        assert pool["a"].metrics.generation_tokens_total == 931


async def test_backends_are_asked_with_their_own_credentials():
    server = Server()
    async with serving(server) as (url,), watching([BackendSpec("a", url, {"Authorization": "Bearer s3"})], times=SLOW):
        assert [request.path for request in server.asked] == [
            "/health",
            "/metrics",
            "/fairlead/steps",
            "/v1/models",
            "/tokenize",
        ]
        assert {request.headers["Authorization"] for request in server.asked} == {"Bearer s3"}


async def test_a_vllm_with_the_plugin_is_known_to_batch_fairly_until_it_says_no_more():
    server = Server()
    state = {"pab_tokens": -3.5, "dispatches": {}, "step_tokens_max": 512, "requests_running_max": 16}
    steps = {"version": 1, "epoch": "e", "next": 7, "steps": [[6, 0, 8, 80, 2, 900]], "engines": {"0": state}}
    server.answers["/fairlead/steps"] = (200, json.dumps(steps))
    async with serving(server) as (url,), watching([BackendSpec("a", url)]) as pool:
        ((load,),) = pool.loads().values()
        assert (load.batching, load.pab_tokens, load.pab_dispatches) == ("fair", -3.5, {})
        assert (load.step_tokens_max, load.requests_running_max) == (512, 16)
        assert pool["a"].plugin_name is not None
        await until(lambda: any(request.query_string == "since=7" for request in server.asked))
        server.answers["/fairlead/steps"] = (401, "")
        await until(lambda: pool["a"].plugin_name is None)
        await until(lambda: next(iter(pool.loads().values()))[0].batching == "vllm")
        ((load,),) = pool.loads().values()
        assert load.pab_tokens is None
        asked = sum(request.path == "/fairlead/steps" for request in server.asked)
        metrics = sum(request.path == "/metrics" for request in server.asked)
        await until(lambda: sum(request.path == "/metrics" for request in server.asked) > metrics + 2)
        assert sum(request.path == "/fairlead/steps" for request in server.asked) == asked


def test_credentials_are_not_shown():
    assert "s3" not in repr(BackendSpec("a", "http://x", {"Authorization": "Bearer s3"}))


async def test_backends_of_one_model_are_one_pool_in_the_configured_order():
    async with serving(Server(), Server("other"), Server()) as urls:
        specs = [BackendSpec(name, url) for name, url in zip("cab", urls, strict=True)]
        async with watching(specs, times=SLOW) as pool:
            loads = {name: [load.backend_id for load in loads] for name, loads in pool.loads().items()}
            assert loads == {"tiny": ["c", "b"], "other": ["a"]}


async def test_configured_sizes_and_pools_go_before_what_is_read():
    spec = {"pool": "big", "requests_running_max": 7, "kv_tokens_max": 500}
    async with serving(Server()) as (url,), watching([BackendSpec("a", url, **spec)], times=SLOW) as pool:
        (load,) = pool.loads()["big"]
        assert (load.requests_running_max, load.kv_tokens_max) == (7, 500)
        assert pool.catalog.pool_of_model("tiny") == "big"


async def test_a_backend_that_is_down_at_the_start_is_kept_and_found_later(caplog):
    caplog.set_level(logging.INFO)
    server = Server()
    server.answers["/health"] = (503, "")
    listener = Listener()
    async with (
        serving(server) as (url,),
        watching([BackendSpec("a", url), BackendSpec("gone", "http://127.0.0.1:9")], on_change=listener) as pool,
    ):
        assert pool.catalog.undiscovered() == ["a", "gone"]
        await until(lambda: pool.states() == {"a": HealthState.DOWN, "gone": HealthState.DOWN})
        assert pool.catalog.pool_of_model("tiny") is None
        server.answers["/health"] = (200, "")
        before = listener.calls
        await until(lambda: pool.catalog.pool_of_model("tiny") and pool.loads()["tiny"][0].available)
        assert listener.calls > before
        assert pool.catalog.undiscovered() == ["gone"]
    assert "a: down" in caplog.text


async def test_start_does_not_wait_for_a_frozen_backend_longer_than_it_may():
    frozen = Server()
    frozen.delay_s = 1.0
    times = PollTimes(timeout_s=5.0, start_s=0.1)
    async with serving(frozen) as (url,):
        began = asyncio.get_running_loop().time()
        async with watching([BackendSpec("a", url)], times=times):
            assert asyncio.get_running_loop().time() - began < 0.5


async def test_a_frozen_backend_is_down_after_its_time_limits():
    server = Server()
    async with serving(server) as (url,), watching([BackendSpec("a", url)]) as pool:
        server.delay_s = 0.5
        await until(lambda: pool.states()["a"] is HealthState.DOWN)
        assert pool.loads()["tiny"] == (BackendLoad("a", available=False, kv_tokens_max=131072, kv_block_tokens=128),)


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models"])
async def test_a_redirect_is_not_followed(path):
    server = Server()
    server.answers |= {path: (302, ""), "/elsewhere": (200, server.answers[path][1])}
    async with serving(server) as (url,), watching([BackendSpec("a", url)]) as pool:
        await until(lambda: [request.path for request in server.asked].count(path) > 1)
        await until(lambda: pool.states()["a"] is (HealthState.DOWN if path == "/health" else HealthState.HEALTHY))
        assert "/elsewhere" not in {request.path for request in server.asked}


async def test_a_backend_without_metrics_is_served_without_measurements():
    server = Server()
    server.answers["/metrics"] = (404, "no")
    async with serving(server) as (url,), watching([BackendSpec("a", url)], times=SLOW) as pool:
        assert pool.loads() == {"tiny": (BackendLoad("a"),)}


async def test_measurements_go_with_the_scrape_and_sizes_stay():
    server = Server()
    async with serving(server) as (url,), watching([BackendSpec("a", url)]) as pool:
        server.answers["/metrics"] = (500, "")
        await until(lambda: pool.loads()["tiny"][0].requests_running is None)
        assert pool.loads()["tiny"] == (BackendLoad("a", kv_tokens_max=131072, kv_block_tokens=128),)


async def test_an_answer_over_the_size_limit_is_no_answer():
    server = Server(scrape=SCRAPE + "#" * SCRAPE_BYTES_MAX)
    async with serving(server) as (url,), watching([BackendSpec("a", url)], times=SLOW) as pool:
        assert pool.loads() == {"tiny": (BackendLoad("a"),)}


@pytest.mark.parametrize("body", ["", "[", "[]", '{"data": 1}', "[" * 100_000, "\x00"])
async def test_a_backend_whose_models_make_no_sense_is_well_but_unknown(body, caplog):
    server = Server()
    server.answers["/v1/models"] = (200, body)
    async with serving(server) as (url,), watching([BackendSpec("a", url)]) as pool:
        await until(lambda: len(server.asked) > 12)
        assert pool.states() == {"a": HealthState.HEALTHY}
        assert pool.catalog.undiscovered() == ["a"]
        assert caplog.text.count("its models are not known") == 1, "asked again, but said once"


async def test_news_in_the_models_reaches_the_listener():
    server, listener = Server(), Listener()
    async with serving(server) as (url,), watching([BackendSpec("a", url)], on_change=listener) as pool:
        before = listener.calls
        server.answers["/v1/models"] = (200, '{"data":[{"id":"tiny"},{"id":"sql","parent":"tiny"}]}')
        await until(lambda: pool.catalog.pool_of_model("sql") == "tiny")
        assert listener.calls > before


async def test_a_pool_that_lost_its_last_backend_hears_of_it():
    server, listener = Server(), Listener()
    async with serving(server) as (url,), watching([BackendSpec("a", url)], on_change=listener) as pool:
        before = listener.calls
        server.answers["/v1/models"] = Server("other").answers["/v1/models"]
        await until(lambda: pool.catalog.pool_of_model("other"))
        assert listener.calls > before
        assert {name: len(loads) for name, loads in pool.loads().items()} == {"tiny": 0, "other": 1}
        assert pool.catalog.pool_of_model("tiny") is None


async def test_the_listener_hears_of_every_measurement_and_otherwise_only_news():
    listener = Listener()
    server = Server()
    server.answers["/metrics"] = (404, "")
    async with serving(server) as (url,), watching([BackendSpec("a", url)], on_change=listener) as pool:
        before = listener.calls
        await until(lambda: len(server.asked) > 12)
        assert listener.calls == before
        server.answers["/metrics"] = (200, SCRAPE)
        await until(lambda: listener.calls > before + 2)
        first = pool.loads()["tiny"][0].measured_at
        await until(lambda: pool.loads()["tiny"][0].measured_at > first)


async def test_an_ejection_and_the_return_are_told_at_once():
    listener = Listener()
    async with serving(Server(), Server()) as urls:
        specs = [BackendSpec(name, url) for name, url in zip("ab", urls, strict=True)]
        async with watching(specs, times=SLOW, on_change=listener) as pool:
            before = listener.calls
            for second in range(FAILURES_MAX):
                assert listener.calls == before
                report(pool, "b", Evidence.BROKEN, float(second))
            assert listener.calls == before + 1
            assert [load.available for load in pool.loads()["tiny"]] == [True, False]


async def test_since_when_a_backend_is_lost_stays_until_it_is_back():
    server = Server()
    async with serving(server) as (url,), watching([BackendSpec("a", url)]) as pool:
        now = asyncio.get_running_loop().time
        backend = pool["a"]
        assert backend.unavailable_at is None
        server.answers["/health"] = (503, "")
        before = now()
        await until(lambda: backend.health.state is HealthState.DOWN)
        lost_at = backend.unavailable_at
        assert before <= lost_at <= now()
        asked = len(server.asked)
        await until(lambda: len(server.asked) > asked + 2)
        assert backend.unavailable_at == lost_at
        server.answers["/health"] = (200, "")
        await until(lambda: backend.health.available)
        assert backend.unavailable_at is None


async def test_a_backend_on_trial_gets_one_request_while_others_are_well(monkeypatch):
    # Good polls would end the trial within 60 ms, which a loaded machine may not look at.
    monkeypatch.setattr(health, "TRIAL_POLLS", 1_000_000)
    monkeypatch.setattr(health, "EJECTED_S_MIN", 1.0)  # instead of 10
    listener = Listener()
    async with serving(Server(), Server()) as urls:
        specs = [BackendSpec(name, url) for name, url in zip("ab", urls, strict=True)]
        async with watching(specs, on_change=listener, times=PATIENT) as pool:
            now = asyncio.get_running_loop().time() - 0.5
            for number in range(FAILURES_MAX):
                report(pool, "b", Evidence.BROKEN, now + number / 1000)
            assert pool.states()["b"] is HealthState.EJECTED
            await until(lambda: [load.requests_running_max for load in pool.loads()["tiny"]] == [None, 1])
            assert pool.states()["b"] is HealthState.TRIAL
            before = listener.calls
            report(pool, "b", Evidence.SERVED, asyncio.get_running_loop().time())
            assert listener.calls > before  # of "a" too, where that was asked just now
            assert [load.requests_running_max for load in pool.loads()["tiny"]] == [None, None]


async def test_a_backend_that_is_lost_and_found_comes_and_goes_is_one_line_each_in_the_log(caplog):
    caplog.set_level(logging.INFO, "backends.pool")
    server = Server()
    async with serving(server) as (url,), watching([]) as pool:
        pool.add(BackendSpec("a", url))
        await until(lambda: "a: healthy, was unknown" in caplog.text)
        server.answers["/health"] = (503, "")
        await until(lambda: "a: down, was healthy" in caplog.text)
        server.answers["/health"] = (200, "")
        await until(lambda: "a: healthy, was trial" in caplog.text)
        pool.retire("a")
        await pool.forget("a")
    told = [record.getMessage().removeprefix("backend a: ").split(",")[0] for record in caplog.records]
    told = [line for line in told if not line.startswith("backend a serves")]
    assert told == ["new", "healthy", "down", "trial", "healthy", "leaves", "gone"]


async def test_the_last_backend_that_answers_stays_in_service():
    async with serving(Server(), Server("other")) as urls:
        specs = [BackendSpec(name, url) for name, url in zip("ab", urls, strict=True)]
        async with watching(specs, times=SLOW) as pool:
            now = asyncio.get_running_loop().time()
            for number in range(10 * FAILURES_MAX):
                report(pool, "a", Evidence.BROKEN, now + number)
            (load,) = pool.loads()["tiny"]
            assert load.available
            assert load.requests_running_max is None


async def test_a_busy_engine_is_not_ejected():
    async with serving(Server(), Server()) as urls:
        specs = [BackendSpec(name, url) for name, url in zip("ab", urls, strict=True)]
        async with watching(specs, times=SLOW) as pool:
            for _ in range(10 * FAILURES_MAX):
                report(pool, "b", Evidence.BUSY, 1.0)
            assert pool.states()["b"] is HealthState.HEALTHY


async def test_a_refused_connection_makes_the_next_poll_start_soon():
    server = Server()
    times = PollTimes(idle_s=1.0, busy_s=1.0, models_s=60.0)
    async with serving(server) as (url,), watching([BackendSpec("a", url)], times=times) as pool:
        asked = len(server.asked)
        report(pool, "a", Evidence.UNREACHABLE, 1.0)
        await until(lambda: len(server.asked) > asked, timeout_s=0.5)


async def test_stopping_leaves_no_task_and_no_connection():
    before = asyncio.all_tasks()
    async with serving(Server()) as (url,):
        during = asyncio.all_tasks()
        async with watching([BackendSpec("a", url), BackendSpec("b", "http://127.0.0.1:9")]):
            pass
        assert {t for t in asyncio.all_tasks() - during if "poll" in t.get_name()} == set()
    assert asyncio.all_tasks() == before


async def test_no_backends_is_no_error():
    async with watching([]) as pool:
        assert (pool.loads(), pool.catalog.models(), pool.catalog.undiscovered()) == ({}, [], [])


STEP_COUNTERS = """
vllm:num_requests_running{{engine="0"}} {running}
vllm:num_requests_waiting{{engine="0"}} {waiting}
vllm:kv_cache_usage_perc{{engine="0"}} {used}
vllm:cache_config_info{{engine="0",block_size="16",num_gpu_blocks="1000"}} 1
vllm:generation_tokens_total{{engine="0"}} {generated}
vllm:iteration_tokens_total_count{{engine="0"}} {steps}
vllm:iteration_tokens_total_sum{{engine="0"}} {tokens}
"""


class SteppingServer(Server):
    """Says at every scrape that it has done steps meanwhile, each of 8 decodes and a prompt's piece."""

    async def __call__(self, request):
        if request.path == "/metrics":
            steps = 100 * len(self.asked)
            counters = {"steps": steps, "generated": 8 * steps, "tokens": (18 + len(self.asked) % 7) * steps}
            gauges = {"running": 8, "waiting": 0, "used": 0.1 + 0.01 * (len(self.asked) % 5)}
            self.answers["/metrics"] = 200, STEP_COUNTERS.format(**gauges, **counters)
        return await super().__call__(request)


async def test_a_backend_s_step_time_is_what_is_configured_and_then_what_is_learnt():
    start = StepTime(StepTimeModel(base_s=1.0, token_s=0.0), error_ratio=0.1, is_sure=True)
    async with serving(SteppingServer()) as (url,):
        spec = BackendSpec("a", url, step_time=start, step_tokens_max=512)
        async with watching([spec]) as pool:
            ((load,),) = pool.loads().values()
            assert (load.step_time, load.step_tokens_max) == (start, 512)
            await until(lambda: pool.loads()["tiny"][0].step_time.model.base_s < 0.01)


class FullServer(Server):
    """Its steps compute 600 tokens each; a request waits, and from the second scrape on not for a slot."""

    scrapes = 0

    async def __call__(self, request):
        if request.path == "/metrics":
            self.scrapes += 1
            counters = {"steps": 10 * self.scrapes, "generated": 80 * self.scrapes, "tokens": 6000 * self.scrapes}
            running = 12 if self.scrapes == 1 else 8
            self.answers["/metrics"] = 200, STEP_COUNTERS.format(used=0.1, running=running, waiting=3, **counters)
        return await super().__call__(request)


async def test_the_size_of_a_full_step_is_learnt_unless_it_is_configured():
    async with serving(FullServer(), FullServer()) as (url, other_url):
        specs = BackendSpec("learnt", url), BackendSpec("known", other_url, step_tokens_max=512)
        async with watching(specs) as pool:
            assert pool.loads()["tiny"][0].step_tokens_max is None
            await until(lambda: pool.loads()["tiny"][0].step_tokens_max == 600)
            await until(lambda: pool["known"].step_times.tokens_max == 600)
            assert pool.loads()["tiny"][1].step_tokens_max == 512


async def test_a_backend_that_does_not_count_its_steps_has_no_step_time():
    server = Server(scrape="sglang:num_running_reqs 3\n")
    async with serving(server) as (url,), watching([BackendSpec("a", url)]) as pool:
        await until(lambda: pool["a"].metrics.requests_running == 3)
        ((load,),) = pool.loads().values()
        assert load.step_time is None


async def test_a_backend_is_away_when_it_is_down_and_another_one_of_its_pool_can_take_what_it_runs():
    one, other = Server(), Server()
    async with (
        serving(one, other) as (one_url, other_url),
        watching([BackendSpec("a", one_url), BackendSpec("b", other_url)]) as pool,
    ):
        assert not pool.is_away("a")
        one.answers["/health"] = (503, "")
        await until(lambda: pool.states()["a"] is HealthState.DOWN)
        assert pool.is_away("a")
        assert not pool.is_away("b")
        pool.drain("b", draining=True)
        assert not pool.is_away("a")
        pool.retire("a")
        assert pool.is_away("a")
        assert not pool.is_away("gone")


async def test_a_backend_that_does_not_answer_is_asked_again_as_soon_as_a_busy_one():
    """Its streams wait for the news."""
    server = Server()
    async with serving(server) as (url,), watching([BackendSpec("a", url)], times=RARE) as pool:
        server.answers["/health"] = (503, "")
        pool["a"].ask_now.set()
        async with asyncio.timeout(5):
            await until(lambda: pool.states()["a"] is HealthState.DOWN)
