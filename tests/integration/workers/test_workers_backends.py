"""Engines behind several workers end without notice, under load: no stream of any worker breaks."""

import asyncio

import pytest
from engine_process import engines
from gateway_rig import PATIENCE_S
from streaming_load import STREAMS, Load, due
from workers_rig import workers

ENGINES = 2
SPEED = 0.05  # 20 ms a token, so that a stream takes 1.2 s


async def until_busy(gateway, backend_id):
    """Until the gateway runs enough there that to end it matters."""
    async with asyncio.timeout(4 * PATIENCE_S):
        while True:
            running = await gateway.process.metric("fairlead_backend_in_flight_requests")
            if any(count >= STREAMS / ENGINES / 2 for labels, count in running.items() if f'"{backend_id}"' in labels):
                return
            await asyncio.sleep(0.05)


@pytest.mark.long  # tests/integration/gateway/test_gateway_backend_restarts.py ends engines of one process
async def test_engines_that_are_killed_break_no_stream_of_any_worker(tmp_path):
    async with engines(*["127.0.0.1"] * ENGINES, speed=SPEED) as servers, workers(tmp_path, *servers) as gateway:
        async with Load(gateway.url, gateway.process.session) as load:
            for number, server in enumerate(servers):
                await until_busy(gateway, f"b{number}")
                await server.kill()
                await server.start()
            await until_busy(gateway, f"b{ENGINES - 1}")
        failed = await gateway.process.metric("fairlead_pool_interruptions_total")
        assert sum(count for labels, count in failed.items() if "failed" in labels) >= ENGINES
        assert len(load.replies) > STREAMS
        async with asyncio.timeout(PATIENCE_S):  # the page may be older than the last stream
            while sum((await gateway.services()).values()) < due(load.replies):  # noqa: ASYNC110 - it is a process
                await asyncio.sleep(0.1)
        assert sum((await gateway.services()).values()) == due(load.replies)
