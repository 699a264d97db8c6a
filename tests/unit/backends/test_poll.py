"""Polls over connections that stay open, of backends that come and go."""

import asyncio

import pytest

from backends.poll import Poller
from backends.spec import BackendSpec


@pytest.fixture
async def poller():
    poller = Poller(timeout_s=5.0)
    poller.start()
    yield poller
    await poller.stop()


@pytest.fixture
async def ports():
    """Servers that close the connection after each answer, and one that keeps it."""
    opened = []

    def serve(closes):
        async def answer(reader, writer):
            opened.append(closes)
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n" + b"connection: close\r\n" * closes + b"\r\nok"
                )
                if closes:
                    writer.close()
                    return

        async def quietly(reader, writer):
            try:
                await answer(reader, writer)
            except asyncio.IncompleteReadError:
                writer.close()

        return quietly

    servers = [await asyncio.start_server(serve(closes), "127.0.0.1", 0) for closes in [False] + [True] * 8]
    yield [each.sockets[0].getsockname()[1] for each in servers], opened
    for each in servers:
        each.close()


def of(port: int) -> BackendSpec:
    return BackendSpec(f"e{port}", f"http://127.0.0.1:{port}")


async def test_backends_that_are_gone_are_forgotten_and_what_is_open_is_used_again(poller, ports):
    (kept, *gone), opened = ports
    for port in (kept, *gone, kept):
        assert await poller.get(of(port), "/metrics", bytes_max=9) == b"ok"
    assert opened.count(False) == 1, "one connection serves both polls"
    assert len(poller._upstreams) < len(gone), "the one that is open, and those whose end was not seen yet"
