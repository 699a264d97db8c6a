"""A vLLM whose scheduler is the plugin's is told whose a call is and when it is due; others are told nothing."""

import json

import pytest
from gateway_rig import MODEL, answer, call, gateway, scripted, whole

TIERS = {"tiers": {"default": {"weight": 3, "priority": 2, "envelope": {"ttft_ms": 400, "tpot_ms": 30}}}}
STATE = {"pab_tokens": 50_000.0, "dispatches": {}, "step_tokens_max": 512, "requests_running_max": 16}
ANSWER = {"model": MODEL, "choices": [], "usage": {"prompt_tokens": 9, "total_tokens": 12, "completion_tokens": 3}}


def with_plugin(backend, engines):
    """Have a scripted backend answer as the plugin does."""
    reports = {"version": 1, "epoch": "e", "next": 0, "steps": [], "engines": engines}
    others = backend._poll
    backend._poll = lambda target: whole(reports) if target.startswith("/fairlead/steps") else others(target)


def entry(backend):
    return {"name": "b0", "url": backend.url, "kind": "vllm"}


def told(backend):
    return json.loads(backend.calls[-1].body).get("vllm_xargs")


async def test_a_call_carries_its_tenant_its_tier_and_what_its_targets_leave():
    async with scripted(answer(ANSWER)) as backend:
        with_plugin(backend, {"0": STATE})
        async with gateway(entry(backend), **TIERS) as rig:
            for number in (1, 2):
                assert (
                    await rig.post(call(vllm_xargs={"mine": 5, "tenant": "another", "slo_ttft_ms": 1}))
                ).status == 200
                arguments = told(backend)
                assert 0 < arguments.pop("slo_ttft_ms") <= 400
                assert arguments.pop("fairlead_dispatch") == [rig.gateway.backends["b0"].plugin_name, number]
                assert arguments.pop("tenant") != "another"
                assert arguments == {
                    "mine": 5,
                    "tier": "default",
                    "fairlead_weights": [1.0, 3.0],
                    "fairlead_ttft_ms": 400.0,
                    "slo_tpot_ms": 30.0,
                }


@pytest.mark.parametrize("engines", [None, {}], ids=["without the plugin", "with another scheduler"])
async def test_a_backend_that_does_not_listen_is_told_nothing(engines):
    async with scripted(answer(ANSWER)) as backend:
        if engines is not None:
            with_plugin(backend, engines)
        async with gateway(entry(backend), **TIERS) as rig:
            assert (await rig.post(call())).status == 200
            assert told(backend) is None


@pytest.mark.parametrize(
    ("said", "configured", "is_told"),
    [
        ("priority", {}, True),
        ("fcfs", {}, False),
        (None, {}, False),
        ("priority", {"scheduling_policy": "fcfs"}, False),
    ],
)
async def test_an_engine_is_told_priorities_where_its_plugin_says_that_it_reads_them(said, configured, is_told):
    async with scripted(answer(ANSWER)) as backend:
        with_plugin(backend, {"0": {**STATE, "scheduling_policy": said}})
        async with gateway({**entry(backend), **configured}, **TIERS) as rig:
            assert (await rig.post(call(), headers={"X-Vllm-Priority": "-5"})).status == 200
            priority = int(backend.calls[-1].headers["x-vllm-priority"])
            assert (priority < 0) if is_told else (priority == 0)
