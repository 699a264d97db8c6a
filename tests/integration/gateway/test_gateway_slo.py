"""What was promised, through the whole gateway: judged, told, and handed on to the engine."""

import asyncio
import json
import time

import pytest
from gateway_rig import SLOW, answer, call, engine, fall_silent, gateway, scripted, stream, until

from policies.types import Attainment

pytestmark = pytest.mark.jumping

TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}],"usage":{"prompt_tokens":5,"total_tokens":%d,"completion_tokens":%d}}\n\n'  # noqa: E501
DONE = b"data: [DONE]\n\n"
GENEROUS = {"envelope": {"ttft_ms": 5000, "tpot_ms": 1000}}


def promised(**tier):
    return {"tiers": {"gold": tier}, "tenants": {"anonymous": {"tier": "gold"}}}


def streamed(*, tokens=3, pause_s=0.0):
    return stream(*[TOKEN % (5 + n, n) for n in range(1, tokens + 1)], DONE, pause_s=pause_s)


def attainment(rig):
    snapshot = rig.snapshot()
    assert snapshot.tenants["anonymous"].attainment == snapshot.attainment["gold"]
    return snapshot.attainment["gold"]


def logged(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("is_stream", [True, False])
async def test_an_answer_in_time_is_counted_token_by_token(is_stream):
    async with (
        scripted(streamed() if is_stream else answer()) as backend,
        gateway(backend, **promised(**GENEROUS)) as rig,
    ):
        assert (await rig.post(call(stream=is_stream))).status == 200
        await until(rig.idle)
        assert attainment(rig) == Attainment(1, 1, 1, 1, 1, tokens=3, tokens_in_time=3)


async def test_a_late_answer_keeps_some_targets_and_some_tokens_and_the_access_line_says_which(tmp_path):
    log = tmp_path / "access.log"
    async with (
        scripted(streamed(pause_s=0.15), streamed(pause_s=0.15)) as backend,
        gateway(
            backend,
            access_log={"path": str(log)},
            **promised(envelope={"ttft_ms": 5000, "tpot_ms": 50}),
        ) as rig,
    ):
        await rig.post(call(stream=True))
        # The first token is due at once, and each that follows after 50 ms: none is in time.
        await rig.post(call(stream=True), headers={"x-llm-d-slo-ttft-ms": "1"})
        await until(rig.idle)
        counted = attainment(rig)
    assert counted == Attainment(
        requests=2, ttft_met=counted.ttft_met, tpot_met=0, tpot_envelope_met=1, met=1, tokens=6,
        tokens_in_time=counted.tokens_in_time,
    )  # fmt: skip
    assert counted.tokens_in_time < 6
    early, late = logged(log)
    assert (early["ttft_met"], early["tpot_met"], early["envelope_met"], early["tokens_in_time"]) == (
        True,
        False,
        True,
        3,
    )
    assert (late["tpot_met"], late["envelope_met"]) == (False, False)
    assert late["tokens_in_time"] == counted.tokens_in_time - 3


async def test_what_was_promised_nothing_is_not_judged(tmp_path):
    log = tmp_path / "access.log"
    async with scripted(streamed()) as backend, gateway(backend, access_log={"path": str(log)}) as rig:
        await rig.post(call(stream=True), headers={"x-llm-d-slo-ttft-ms": "1"})
        await until(rig.idle)
        assert rig.tenant().attainment == Attainment()
    (line,) = logged(log)
    assert [line[name] for name in ("ttft_met", "tpot_met", "envelope_met", "tokens_in_time")] == [None] * 4


async def test_slack_is_shown_while_a_request_runs_and_while_one_waits():
    async with (
        engine(**SLOW) as server,
        gateway({"name": "gpu", "url": server.url, "requests_running_max": 1}, **promised(**GENEROUS)) as rig,
    ):
        posts = [asyncio.create_task(rig.post(call(stream=True, max_tokens=30))) for _ in range(2)]
        await until(lambda: rig.snapshot().queued_requests == 1 and rig.snapshot().requests)
        await until(lambda: any(view.output_tokens > 3 for view in rig.snapshot().requests.values()))
        running, waiting = sorted(rig.snapshot().requests.values(), key=lambda view: view.backend_id is None)
        assert (running.backend_id, waiting.backend_id, waiting.output_tokens) == ("gpu", None, 0)
        assert running.slack_s > 5 > waiting.slack_s, "a second more with every token"
        assert rig.snapshot().tiers["gold"].slack_s_min == pytest.approx(waiting.slack_s, abs=1.0)
        await asyncio.gather(*posts)


async def test_an_engine_that_orders_its_queue_is_told_how_urgent_each_call_is():
    async with (
        scripted(answer()) as told,
        gateway(
            {"name": "gpu", "url": told.url, "scheduling_policy": "priority"},
            **promised(priority=2, **GENEROUS),
        ) as rig,
    ):
        for ttft_ms in ("4000", "20", "9000"):
            reply = await rig.post(
                call(priority=-99), headers={"x-slo-ttft-ms": ttft_ms, "X-Vllm-Priority": "-1000000000000000"}
            )
            assert reply.status == 200
        middle, first, last = (int(asked.headers["x-vllm-priority"]) for asked in told.calls)
        assert first < middle < last < 0
        assert all(b"priority" not in asked.body for asked in told.calls)


async def test_an_engine_that_does_not_is_told_nothing():
    async with scripted(answer()) as backend, gateway(backend, **promised(priority=2, **GENEROUS)) as rig:
        await rig.post(call(), headers={"X-Vllm-Priority": "-5"})
        assert backend.calls[0].headers["x-vllm-priority"] == "0"


CHAT, BATCH = ({"x-tenant-id": name} for name in ("chat", "batch"))


def two_tiers(backend, *, chat, batch, **config):
    """One seat; tenants `chat` and `batch`, each in a tier of its own with these settings."""
    return gateway(
        {"name": "gpu", "url": backend.url, "requests_running_max": 1},
        tiers={"chat": chat, "batch": batch},
        tenants={"chat": {"tier": "chat"}, "batch": {"tier": "batch"}},
        auth={"trusted_proxies": ["127.0.0.0/8"]},
        **config,
    )


async def test_what_waits_until_its_first_token_is_late_is_refused_where_its_tier_says_so_and_costs_nothing(tmp_path):
    log = tmp_path / "access.log"
    async with (
        scripted(streamed(pause_s=0.3)) as backend,
        two_tiers(
            backend,
            chat={"envelope": {"ttft_ms": 100}, "on_miss": "reject"},
            batch={"envelope": {"ttft_ms": 100}},
            access_log={"path": str(log)},
        ) as rig,
    ):
        first = asyncio.create_task(rig.post(call(stream=True), headers=BATCH))
        await until(lambda: len(backend.calls) == 1)
        waits = asyncio.create_task(rig.post(call(stream=True), headers=BATCH))
        refused = await rig.post(call(stream=True), headers=CHAT)
        assert (refused.status, refused.error["reason"]) == (429, "rate_limit_exceeded")
        assert refused.headers["x-llm-d-request-dropped-reason"] == "rejected-saturated"
        assert int(refused.headers["retry-after"]) >= 1
        assert [(await task).status for task in (first, waits)] == [200, 200]
        await until(rig.idle)
        snapshot = rig.snapshot()
        assert (snapshot.attainment["chat"], snapshot.tiers["chat"].service) == (Attainment(refused=1), 0.0)
    assert [line["reason"] for line in logged(log) if line["status"] == 429] == ["slo_unreachable"]


async def test_a_full_queue_makes_room_for_a_tier_of_higher_priority_and_what_runs_goes_on():
    async with (
        scripted(streamed(pause_s=0.2)) as backend,
        two_tiers(
            backend,
            chat={},
            batch={"priority": -1},
            queue={"requests_max": 1, "tenant_requests_max": 1},
        ) as rig,
    ):
        runs = asyncio.create_task(rig.post(call(stream=True), headers=BATCH))
        await until(lambda: len(backend.calls) == 1)
        shed = asyncio.create_task(rig.post(call(stream=True), headers=BATCH))
        await until(lambda: rig.snapshot().queued_requests == 1)
        assert (await rig.post(call(stream=True), headers=CHAT)).status == 200
        assert (await runs).events[-1] == "[DONE]"
        assert (await shed).status == 429
        assert (await shed).headers["x-llm-d-request-dropped-reason"] == "evicted-priority"


async def test_a_request_that_would_miss_its_first_token_gets_the_slot_of_a_preemptible_tier_and_all_are_charged_once():
    async with (
        scripted(answer(), fall_silent) as backend,
        two_tiers(
            backend,
            chat={"envelope": {"ttft_ms": 400}, "weight": 4},
            batch={"preemptible": True},
        ) as rig,
    ):
        batch = asyncio.create_task(rig.post(call(), headers=BATCH))
        await until(lambda: len(backend.calls) == 1)
        assert (await rig.post(call(), headers=CHAT)).status == 200
        assert (await batch).status == 200
        await until(rig.idle)
        assert len(backend.calls) == 3
        services = {tier_id: view.service for tier_id, view in rig.snapshot().tiers.items()}
        assert services["chat"] == services["batch"] == 9 + 2 * 3
        assert rig.snapshot().attainment["chat"].met == 1


KNOWN = {"base_ms": 19, "token_us": 180, "context_token_ns": 1, "request_us": 700}  # of an engine that is SLOW


async def test_with_a_known_step_time_what_cannot_be_in_time_is_refused_long_before_it_is_late():
    async with (
        engine(**SLOW) as server,
        gateway(
            {"name": "gpu", "url": server.url, "requests_running_max": 1, "step_time": KNOWN},
            tiers={"chat": {"envelope": {"ttft_ms": 1000}, "on_miss": "reject"}, "batch": {"priority": -1}},
            tenants={"chat": {"tier": "chat"}, "batch": {"tier": "batch"}},
            auth={"trusted_proxies": ["127.0.0.0/8"]},
        ) as rig,
    ):
        batch = asyncio.create_task(rig.post(call(max_tokens=200), headers=BATCH))
        await until(lambda: rig.snapshot().in_flight_requests == 1)
        began_at = time.monotonic()
        refused = await rig.post(call(stream=True), headers=CHAT)
        assert time.monotonic() - began_at < 0.8
        assert refused.status == 429
        # 200 tokens of 20 ms, a quarter less, and a second of which it may wait.
        assert int(refused.headers["retry-after"]) in (2, 3)
        shed = await rig.post(call(), headers=BATCH)
        assert shed.headers["x-llm-d-request-dropped-reason"] == "evicted-priority"
        batch.cancel()
        await until(rig.idle)
        assert (await rig.post(call(stream=True), headers=CHAT)).status == 200
        assert rig.snapshot().attainment["chat"].refused == 1
