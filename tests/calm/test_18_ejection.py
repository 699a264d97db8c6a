"""A backend that fails is ejected, tried with one request, and never more than half of a pool is ejected."""

import asyncio
from contextlib import AsyncExitStack
from itertools import pairwise

import pytest
from gateway_rig import answer, gateway, scripted, until

from backends import health

SCALE = 0.1  # of the times of an ejection, for a test of a few seconds


@pytest.fixture
def scaled(monkeypatch):
    assert health.EJECTED_S_MIN >= 10
    monkeypatch.setattr(health, "EJECTED_S_MIN", SCALE * health.EJECTED_S_MIN)


async def test_a_failing_backend_gets_one_request_a_probe_each_after_a_longer_time(scaled, figure):
    error = answer({"error": {"message": "no"}}, status=500)
    async with scripted(error) as bad, scripted() as good, gateway(bad, good) as rig:
        health_of = rig.gateway.backends["b0"].health
        pauses, probes, seen = [], [], 0
        for _ in range(3):
            await call_until(rig, lambda: health_of.state == "ejected")
            pauses.append(health_of.retry_at - asyncio.get_running_loop().time())
            if seen:
                probes.append(len(bad.calls) - seen)
            seen = len(bad.calls)
            await asyncio.gather(*(rig.post() for _ in range(8)))
            assert len(bad.calls) == seen, "an ejected backend gets nothing"
            await until(lambda: health_of.state == "trial")
        figure(18, "calls until the ejection", seen - sum(probes), target="few")
        figure(18, "most calls per probe", max(probes), target="<= 1")
        figure(18, "duration of the first ejection", pauses[0] / SCALE, "s", target=">= 10, then longer")
        assert max(probes) <= 1
        assert pauses[0] > 0.9 * health.EJECTED_S_MIN
        assert all(1.7 * before < after for before, after in pairwise(pauses))


async def call_until(rig, condition):
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.gather(*(rig.post() for _ in range(8)))


@pytest.mark.parametrize("number", [2, 4, 5])
async def test_where_all_fail_half_of_them_go_on_being_asked(scaled, number, figure):
    error = answer({"error": {"message": "no"}}, status=500)
    async with AsyncExitStack() as stack:
        backends = [await stack.enter_async_context(scripted(error)) for _ in range(number)]
        async with gateway(*backends) as rig:
            most, told = 0, rig.gateway.backends._on_load

            def count(backend_id):
                nonlocal most
                states = list(rig.gateway.backends.states().values())
                most = max(most, states.count("ejected"))
                told(backend_id)

            rig.gateway.backends._on_load = count
            for _ in range(20):
                replies = await asyncio.gather(*(rig.post() for _ in range(2 * number)))
                assert {reply.status for reply in replies} == {500}
            figure(18, f"backends ejected while all fail, {number}", most, target=f"<= {number // 2}")
            assert 0 < most <= number // 2
            assert (await rig.get("/readyz")).status == 200
