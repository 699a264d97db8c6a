"""300 clients that send one byte after the other (slowhttptest), and good calls beside them."""

import asyncio
import contextlib

from tests.calm.rig import Watch, own_s

CLIENTS = 300
BYTE_EVERY_S = 0.25  # the loop of this test serves the gateway, too


class SlowClients:
    """Connections that send these bytes one at a time until the gateway closes them."""

    def __init__(self, port: int, data: bytes, *, at_once: int = 0) -> None:
        """`at_once`: so many bytes are sent at the start."""
        self._port, self._data, self._at_once = port, data, at_once
        self._sent = 0

    async def __aenter__(self):
        self._streams = [await asyncio.open_connection("127.0.0.1", self._port) for _ in range(CLIENTS)]
        self._tasks = [asyncio.create_task(self._send(writer)) for _, writer in self._streams]
        return self

    async def __aexit__(self, *_):
        for task in self._tasks:
            task.cancel()
        for _, writer in self._streams:
            writer.transport.abort()

    async def _send(self, writer):
        writer.write(self._data[: self._at_once])
        for number in range(self._at_once, len(self._data)):
            if writer.is_closing():
                return
            writer.write(self._data[number : number + 1])
            self._sent += 1
            await asyncio.sleep(BYTE_EVERY_S)

    async def until_all_send(self):
        while self._sent < 2 * CLIENTS:  # noqa: ASYNC110 - any of them may be the last
            await asyncio.sleep(0.01)

    async def time_of_a_good_call(self, rig):
        watch = Watch(own_s)
        assert (await rig.post()).status == 200
        return watch.s

    async def replies(self):
        """What each was sent before the gateway closed it."""
        return await asyncio.gather(*(self._all(reader) for reader, _ in self._streams))

    async def _all(self, reader):
        received = b""
        with contextlib.suppress(ConnectionError):  # it was still sending
            while data := await reader.read(1 << 16):
                received += data
        return received
