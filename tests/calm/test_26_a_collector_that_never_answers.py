"""A collector of traces takes connections and never answers: calls go on, memory stays, and the end is not late."""

import asyncio
import signal
import socket

import pytest
from gateway_process import serving
from gateway_rig import answer, scripted

from tests.calm.rig import MIB, Watch, rss_bytes

CALLS = 3_000
AT_ONCE = 20
RISE_MAX = 20 * MIB
END_S_MAX = 5.0


@pytest.mark.alone
async def test_calls_memory_and_end(tmp_path, figure, monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")
    with socket.create_server(("127.0.0.1", 0)) as hole:
        tracing = {"endpoint": f"http://127.0.0.1:{hole.getsockname()[1]}"}
        async with scripted(answer()) as backend, serving(tmp_path, backend, settings={"tracing": tracing}) as process:

            async def many(count):
                statuses = []
                for _ in range(0, count, AT_ONCE):
                    statuses += await asyncio.gather(*(process.ask("alice") for _ in range(AT_ONCE)))
                return statuses

            await many(200)
            before = rss_bytes(process.pid)
            statuses = await many(CALLS)
            rise = rss_bytes(process.pid) - before
            _, page = await process.admin("GET", "/metrics")
            lost = next(line for line in page.splitlines() if line.startswith("fairlead_trace_spans_lost_total"))
            watch = Watch()
            await process.end(signal.SIGTERM)
            end_s = watch.s
    figure(26, f"errors in {CALLS:,} calls", CALLS - statuses.count(200), target="0")
    figure(26, "spans lost and counted", float(lost.split()[-1]))
    figure(26, "rise of RSS", rise / MIB, "MB", target="<= 20")
    figure(26, "time until the gateway has ended", end_s, "s", target="<= 5")
    assert set(statuses) == {200}
    assert rise <= RISE_MAX
    assert end_s <= END_S_MAX
