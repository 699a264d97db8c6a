"""How many connections a port accepts in a turn of the event loop, and what becomes of those that leave meanwhile."""

import asyncio
import socket
from contextlib import ExitStack

import uvloop
from aiohttp import web

from gateway.ports.listener import ACCEPTS_MAX, HANDSHAKE_S_MAX, LOOK_AGAIN_S, Listener

WAITING = 3 * ACCEPTS_MAX


class CountedServer(web.Server):
    """Counts the connections that were accepted."""

    accepted = 0

    def __call__(self):
        self.accepted += 1
        return super().__call__()


async def answer(_request):
    return web.Response(text="well")


async def served(check):
    """Run `check` on a server that listens, and on its port."""
    server = CountedServer(answer)
    listener = Listener(server, ("127.0.0.1", 0), None, stop_s_max=1.0)
    url = await listener.start()
    try:
        await check(server, int(url.rsplit(":", 1)[1]))
    finally:
        await listener.stop()


def connected(stack, port):
    """Connections that the kernel has made, and the server has not accepted: nothing here lets the loop run."""
    address = ("127.0.0.1", port)
    return [stack.enter_context(socket.create_connection(address)) for _ in range(WAITING)]


async def turns_until(condition):
    turns = 0
    while not condition():
        turns += 1
        assert turns < 10 * WAITING
        await asyncio.sleep(0)
    return turns


def test_connections_that_wait_are_accepted_in_a_few_turns_of_the_loop():
    async def check(server, port):
        with ExitStack() as stack:
            connected(stack, port)
            assert server.accepted == 0
            turns = await turns_until(lambda: server.accepted == WAITING)
            assert turns < WAITING / 8  # uvloop itself accepts one in a turn

    uvloop.run(served(check))


def test_no_turn_accepts_more_than_its_share():
    async def check(server, port):
        with ExitStack() as stack:
            connected(stack, port)
            most = 0
            while server.accepted < WAITING:
                before = server.accepted
                await asyncio.sleep(0)
                most = max(most, server.accepted - before)
            assert most <= 2 * ACCEPTS_MAX  # those accepted in one turn connect in that turn or the next

    uvloop.run(served(check))


def test_idle_connections_are_closed_at_each_look_while_descriptors_are_short():
    async def run():
        asked = asyncio.Queue()
        listener = Listener(
            CountedServer(answer), ("127.0.0.1", 0), None, stop_s_max=1.0, descriptors_ratio_max=0.0,
            close_idle=lambda *of: asked.put_nowait(of),
        )  # fmt: skip
        port = int((await listener.start()).rsplit(":", 1)[1])
        with socket.create_connection(("127.0.0.1", port)):
            async with asyncio.timeout(15):
                for _ in range(2):
                    assert await asked.get() == (ACCEPTS_MAX, LOOK_AGAIN_S, HANDSHAKE_S_MAX)
        await listener.stop()

    uvloop.run(run())


def test_connections_that_were_accepted_together_are_answered_and_those_that_left_are_forgotten():
    async def check(server, port):
        with ExitStack() as stack:
            connections = connected(stack, port)
            gone, stays = connections[::2], connections[1::2]
            for connection in gone:
                connection.close()
            for connection in stays:
                connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                connection.setblocking(False)
            loop = asyncio.get_running_loop()
            for connection in stays:
                async with asyncio.timeout(15):
                    assert (await loop.sock_recv(connection, 4096)).startswith(b"HTTP/1.1 200")
            await turns_until(lambda: not server.connections)

    uvloop.run(served(check))
