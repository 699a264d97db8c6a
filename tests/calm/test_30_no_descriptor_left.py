"""Without free file descriptors accepting pauses without a busy loop, what is accepted is served, and it recovers."""

import asyncio
import contextlib
import resource

from gateway_process import serving
from gateway_rig import call, engine, http, until

from tests.calm.rig import cpu_s, descriptors

DESCRIPTORS = 64
CONNECTIONS = 150
WATCHED_S = 2.0
SERVED_S_MAX = 15.0  # half of what an idle connection is kept otherwise


async def test_more_clients_than_descriptors(tmp_path, figure):
    async with engine() as server, serving(tmp_path, server) as process, contextlib.AsyncExitStack() as stack:
        assert await process.ask("alice") == 200
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        port = int(process.url.rsplit(":", 1)[1])
        clients = []
        for _ in range(CONNECTIONS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.transport.abort)
            clients.append((reader, writer))
        await until(lambda: descriptors(process.pid) >= 0.7 * DESCRIPTORS)
        before = cpu_s(process.pid)
        await asyncio.sleep(WATCHED_S)
        busy = (cpu_s(process.pid) - before) / WATCHED_S
        used = descriptors(process.pid)
        figure(30, "CPU while accepting pauses", 100 * busy, "%", target="<= 20")
        figure(30, "descriptors in use, of 64", used, target="< 64")
        assert busy <= 0.2
        assert used < DESCRIPTORS, "some are left to reach backends"
        assert not any(reader.at_eof() for reader, _ in clients), "no client was turned away"
        assert await is_served(*clients[0]), "an accepted client is served"
        late = asyncio.create_task(is_served(*clients[-1]))
        await asyncio.sleep(0.3)
        assert not late.done()
        for _, writer in clients[1:-1]:
            writer.transport.abort()
        assert await asyncio.wait_for(late, 15), "a client that waited is served when others have left"
        assert await process.ask("bob") == 200
        said = await process.end(15)
        assert "file descriptors are short" in said
        assert "unreachable" not in said


async def test_clients_that_idle_make_room_for_those_that_wait(tmp_path):
    async with engine() as server, serving(tmp_path, server) as process, contextlib.AsyncExitStack() as stack:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        port = int(process.url.rsplit(":", 1)[1])

        async def serve_and_stay():
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.transport.abort)
            return await is_served(reader, writer)

        served = [asyncio.create_task(serve_and_stay()) for _ in range(CONNECTIONS)]
        done, waiting = await asyncio.wait(served, timeout=SERVED_S_MAX)
        for task in waiting:
            task.cancel()
        assert not waiting, f"{len(waiting)} clients wait for connections that idle"
        assert all(task.result() for task in done)


async def test_clients_that_never_send_anything_make_room_for_one_that_waits(tmp_path):
    async with engine() as server, serving(tmp_path, server) as process, contextlib.AsyncExitStack() as stack:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        port = int(process.url.rsplit(":", 1)[1])
        for _ in range(DESCRIPTORS):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.transport.abort)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        stack.callback(writer.transport.abort)
        assert await asyncio.wait_for(is_served(reader, writer), SERVED_S_MAX)


async def is_served(reader, writer):
    writer.write(http(call()))
    return b" 200 " in await reader.readline()
