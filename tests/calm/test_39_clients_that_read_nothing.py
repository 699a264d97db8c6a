"""50 clients that read nothing of streams of 100 MB hold bounded memory: the gateway stops reading from the backend."""

import asyncio
import contextlib
import socket

from gateway_process import serving
from gateway_rig import call, http, scripted, until

from tests.calm.rig import MIB, rss_bytes

CLIENTS = 50
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"a" * 16_000 + b'"}}]}\n\n'
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
STREAM_BYTES = 100 * MIB


async def test_their_streams_stop_and_memory_is_bounded(tmp_path, figure):
    sent = [0]

    async def endless(reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(STREAM_BYTES // len(CHUNK)):
            writer.write(CHUNK)
            sent[0] += len(CHUNK)
            await writer.drain()
        return False

    async with scripted(endless) as backend, contextlib.AsyncExitStack() as stack:
        settings = {"access_log": {"enabled": False}}
        async with serving(tmp_path, backend, requests_running_max=CLIENTS, settings=settings) as process:
            before, port = rss_bytes(process.pid), int(process.url.rsplit(":", 1)[1])
            for _ in range(CLIENTS):
                made = stack.enter_context(socket.socket())
                made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                made.connect(("127.0.0.1", port))
                made.sendall(http(call(stream=True)))
            await until(lambda: len(backend.calls) == CLIENTS)
            last = -1
            while sent[0] != last:  # until no stream goes on
                last = sent[0]
                await asyncio.sleep(1.0)
            grown = rss_bytes(process.pid, "VmHWM") - before
            figure(39, "RSS rise", grown / MIB, "MiB", target="<= 64")
            figure(39, "sent by the backend of 5,000 MiB", sent[0] / MIB, "MiB")
            assert sent[0] < CLIENTS * STREAM_BYTES / 2, "the backend has to wait"
            assert grown <= 64 * MIB
