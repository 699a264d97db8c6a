"""A backend process that is stopped (SIGSTOP) is given up in time with 504, its slot is free, and it gets no calls."""

import asyncio
import os
import signal

from gateway_process import serving
from gateway_rig import call, fall_silent, gateway, scripted

from tests.calm.rig import Watch

SILENCE_S_MAX = 2.0
WITHIN_S = 0.5
CALLS_MAX = 5  # until it gets no more


async def test_a_stopped_process(tmp_path, figure):
    model = {"engine": {"model": "tiny"}}
    async with serving(tmp_path, settings=model) as frozen:
        entry = {"name": "b0", "url": frozen.url, "requests_running_max": 8}
        limits, health = {"answer_silence_s_max": SILENCE_S_MAX}, {"idle_s": 0.2, "busy_s": 0.2, "timeout_s": 0.5}
        async with gateway(entry, limits=limits, health=health, queue={"backend_wait_s_max": 0}) as rig:
            assert (await rig.post()).status == 200
            os.kill(frozen.pid, signal.SIGSTOP)
            try:
                watch = Watch()
                reply = await rig.post(call(stream=True))
                silent_s = watch.s
                sent = 1
                assert reply.status == 504
                assert reply.error["reason"] == "backend_timeout"
                assert not rig.snapshot().in_flight_requests, "its slot is free"
                while rig.gateway.backends.states()["b0"] != "down":
                    sent += 1
                    assert (await rig.post(call(stream=True))).status in (503, 504)
                    assert sent <= CALLS_MAX
                watch = Watch()
                assert (await rig.post()).status == 503
                told_s = watch.s
            finally:
                os.kill(frozen.pid, signal.SIGCONT)
            async with asyncio.timeout(30):  # on a busy machine it may miss a health check again
                while (await rig.post()).status != 200:  # noqa: ASYNC110 - it serves again
                    await asyncio.sleep(0.1)
    figure(16, "time until the 504", silent_s, "s", target=f"{SILENCE_S_MAX} ± {WITHIN_S}")
    figure(16, "calls to the silent backend, until it is down", sent, target="<= 5")
    figure(16, "time until the 503 after that", 1e3 * told_s, "ms")
    assert abs(silent_s - SILENCE_S_MAX) <= WITHIN_S


async def test_one_that_only_answers_polls_is_ejected_where_there_is_another(figure):
    limits = {"answer_silence_s_max": 0.5}
    async with scripted(fall_silent) as silent, scripted() as well, gateway(silent, well, limits=limits) as rig:
        while rig.gateway.backends.states()["b0"] == "healthy":
            replies = await asyncio.gather(rig.post(), rig.post())
            assert {reply.status for reply in replies} <= {200, 504}
        figure(16, "calls to the silent backend, until it is ejected", len(silent.calls), target="<= 5")
        assert len(silent.calls) <= CALLS_MAX
        assert {(await rig.post()).status for _ in range(10)} == {200}
