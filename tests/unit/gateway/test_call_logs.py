"""The logs of calls end at once, whoever reads them, and what they have lost is counted."""

import asyncio
import os
import time

from gateway.app import CallLogs
from gateway.config import Config
from gateway.observability import batches
from gateway.observability.metrics.instruments import LINES_LOST


def make_logs(folder):
    return CallLogs(
        Config.model_validate(
            {name: {"enabled": True, "path": str(folder / name)} for name in ("access_log", "trace_log")}
        ),
        writes_lines=False,
    )


async def test_lost_lines_of_the_gateways_own_log_are_counted_too(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.app.lines_lost", lambda: 3)
    logs = make_logs(tmp_path)
    assert logs.lost()[LINES_LOST] == {("access",): 0, ("trace",): 0, ("gateway",): 3}
    await logs.close()


async def test_logs_that_nobody_reads_end_at_the_same_time_and_off_the_loop(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(batches, "CLOSE_S_MAX", 1.0)
    for name in ("access_log", "trace_log"):
        os.mkfifo(tmp_path / name)
    readers = [os.open(tmp_path / name, os.O_RDONLY | os.O_NONBLOCK) for name in ("access_log", "trace_log")]
    logs = make_logs(tmp_path)
    for log in (logs._access, logs._trace):
        for _ in range(100):
            log.write({"text": "x" * 4096})  # more than a pipe holds
    began, ticks = time.monotonic(), 0
    closing = asyncio.ensure_future(logs.close())
    while not closing.done():
        await asyncio.sleep(0.05)
        ticks += 1
    took_s = time.monotonic() - began
    for reader in readers:
        os.close(reader)  # lets go what may still write
    assert ticks > 3
    assert took_s < 1.8
    assert sorted(each.message for each in caplog.records) == [
        f"up to 100 lines are lost: the log to {tmp_path}/{name} is not read" for name in ("access_log", "trace_log")
    ]
