"""1,000 clients disconnect while they wait: none is forwarded, nothing is left of them."""

import asyncio
import gc

from gateway_rig import call, fall_silent, gateway, http, scripted, until

from tests.calm.rig import Watch, own_s

CLIENTS = 1_000
WITHIN_S = 0.3


async def test_a_thousand_leave_nothing(figure):
    async with scripted(fall_silent) as server:
        entry = {"name": "b0", "url": server.url, "requests_running_max": 1}
        async with gateway(entry) as rig:
            holder = asyncio.create_task(rig.post(call(max_tokens=4000)))
            await until(lambda: rig.snapshot().in_flight_requests == 1)
            tasks = len(asyncio.all_tasks())
            writers = []
            for number in range(CLIENTS):
                _, writer = await asyncio.open_connection("127.0.0.1", rig.port)
                writer.write(http(call(), f"Authorization: Bearer t{number % 50}"))
                writers.append(writer)
            await until(lambda: rig.snapshot().queued_requests == CLIENTS)
            watch = Watch(own_s)
            writers[0].transport.abort()
            await until(lambda: rig.snapshot().queued_requests < CLIENTS)
            one_s = watch.s
            for writer in writers:
                writer.transport.abort()
            await until(lambda: rig.snapshot().queued_requests == 0)
            all_s = watch.s
            assert rig.snapshot().in_flight_requests == 1
            holder.cancel()
            await asyncio.gather(holder, return_exceptions=True)
            await until(rig.idle)
            await until(lambda: not rig.gateway._handlers.server.connections)
            writers.clear()
            gc.collect()
            await until(lambda: len(asyncio.all_tasks()) <= tasks)
            figure(21, "time until one client has left the queue", 1e3 * one_s, "ms", target="<= 300")
            figure(21, "time until 1,000 clients have left it", 1e3 * all_s, "ms")
            figure(21, "additional tasks", len(asyncio.all_tasks()) - tasks, target="<= 0")
            assert one_s <= WITHIN_S
            assert len(server.calls) == 1, "none was forwarded"
