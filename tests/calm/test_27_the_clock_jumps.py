"""The wall clock jumps by an hour forth and back: no call fails, none that waits times out, and no wait is negative."""

import asyncio
from pathlib import Path

import pytest
from gateway_process import serving
from gateway_rig import CHAT, call, engine
from preloading import compile_shim

SHIM = Path(__file__).with_name("jumping_clock.c")
HOUR_S = 3600
WAIT_S_MAX = 60.0
PHASE_S = 1.5


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    return compile_shim(SHIM, tmp_path_factory.mktemp("shim"))


async def gateway_time(process, name):
    """The wall clock of the gateway, as its audit log has it."""
    status, _ = await process.admin("POST", "/admin/v1/tenants", {"id": name})
    assert status == 201
    _, log = await process.admin("GET", "/admin/v1/audit?limit=1")
    return log["items"][0]["at"]


async def test_an_hour_forth_and_back(tmp_path, shim, figure):
    clock = tmp_path / "clock"
    clock.write_text("0")
    settings = {"listen": {"port": 0, "show_queue_ms": True}, "queue": {"wait_s_max": WAIT_S_MAX}}
    environment = {"LD_PRELOAD": str(shim), "JUMPING_CLOCK": str(clock)}
    statuses, waits_ms, stopping = [], [], False
    async with engine(speed=0.2) as server:
        entry = {"name": "b0", "url": server.url, "requests_running_max": 2}
        async with serving(tmp_path, entry, environment=environment, settings=settings) as process:

            async def client(number):
                headers = {"Authorization": f"Bearer t{number}"}
                while not stopping:
                    body = call(max_tokens=16, stream=number % 2 == 0)
                    async with process.session.post(process.url + CHAT, json=body, headers=headers) as response:
                        await response.read()
                        statuses.append(response.status)
                        waits_ms.append(float(response.headers["x-fairlead-queue-ms"]))

            clients = [asyncio.create_task(client(number)) for number in range(12)]
            times = []
            for number, jump in enumerate((0, HOUR_S, -HOUR_S, 0)):
                clock.write_text(str(jump))
                times.append(await gateway_time(process, f"made-{number}"))
                await asyncio.sleep(PHASE_S)
            stopping = True
            await asyncio.gather(*clients)
    assert times[1] - times[0] == pytest.approx(HOUR_S, abs=60), "the clock does jump"
    assert times[2] - times[1] == pytest.approx(-2 * HOUR_S, abs=60)
    figure(27, f"errors in {len(statuses)} calls", len(statuses) - statuses.count(200), target="0")
    figure(27, "shortest wait", min(waits_ms), "ms", target=">= 0")
    figure(27, "longest wait", max(waits_ms), "ms", target=f"< {1000 * WAIT_S_MAX:.0f}")
    assert set(statuses) == {200}
    assert min(waits_ms) >= 0
    assert max(waits_ms) < 1000 * WAIT_S_MAX
