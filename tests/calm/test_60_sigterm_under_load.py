"""SIGTERM under load: not ready at once, short calls are served, streams finish, and the process exits with 0."""

import asyncio
import signal

from gateway_process import serving
from gateway_rig import call, engine, running, until

from tests.calm.rig import Watch

STREAMS, ASKERS = 50, 8
LAME_S, DRAIN_S = 2.0, 30.0


async def test_no_short_call_fails_and_every_stream_ends_whole(tmp_path, figure):
    settings = {"shutdown": {"lame_duck_s": LAME_S, "drain_s": DRAIN_S}, "access_log": {"enabled": False}}
    async with (
        engine(speed=0.2, requests_running_max=128) as server,
        serving(tmp_path, server, settings=settings) as process,
    ):
        statuses, closes, stop = [], [], asyncio.Event()

        async def ask_on():
            while not stop.is_set():
                async with process.session.post(
                    f"{process.url}/v1/chat/completions", json=call(max_tokens=2)
                ) as answer:
                    await answer.read()
                    statuses.append(answer.status)
                    closes.append(answer.headers.get("Connection") == "close")

        async def stream():
            async with process.session.post(
                f"{process.url}/v1/chat/completions", json=call(max_tokens=300, stream=True)
            ) as answer:
                return (await answer.read()).endswith(b"data: [DONE]\n\n")

        streams = [asyncio.create_task(stream()) for _ in range(STREAMS)]
        await until(lambda: running(server) >= STREAMS)
        askers = [asyncio.create_task(ask_on()) for _ in range(ASKERS)]
        await until(lambda: len(statuses) > 50)
        watch = Watch()
        process._process.send_signal(signal.SIGTERM)
        while True:
            async with process.session.get(f"{process.url}/readyz") as answer:
                if answer.status == 503:
                    break
        not_ready_s, served = watch.s, len(statuses)
        await asyncio.sleep(LAME_S / 2)
        stop.set()
        await asyncio.gather(*askers)
        whole = await asyncio.gather(*streams)
        code = await asyncio.wait_for(process._process.wait(), LAME_S + DRAIN_S + 2)
        figure(60, "short calls that failed", len(statuses) - statuses.count(200), f"of {len(statuses)}", target="0")
        figure(60, "streams that ended whole", sum(whole), f"of {STREAMS}", target=f"{STREAMS}")
        figure(60, "time until /readyz fails", not_ready_s * 1000, "ms", target="at once")
        figure(60, "time until the exit", watch.s, "s", target=f"<= {LAME_S + DRAIN_S + 2:g}")
        assert set(statuses) == {200}
        assert len(statuses) > served, "calls are served during the lame-duck time"
        assert closes[-1], "and told to connect elsewhere"
        assert all(whole)
        assert code == 0
