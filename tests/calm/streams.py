"""Many streams and calls at once, with raw connections: this process is the backend and all clients.

Each event says which it is, and its backend notes when it was sent, so that a client knows what it should have got, and
how late each event came. The clock is not the loop's, which uvloop rounds to milliseconds.
"""

import asyncio
import json
import time
from collections import defaultdict

from gateway_rig import CHAT, MODEL, answer, scripted

STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class NumberedStreams:
    """What a backend has sent: events and their times by the number of their stream."""

    def __init__(self, *, events, pause_s):
        self.sent = defaultdict(list)
        self.sent_at = defaultdict(list)
        self.backend = None
        self._events, self._pause_s = events, pause_s

    async def chat(self, reader, writer):
        asked = json.loads(self.backend.calls[-1].body)
        self.backend.calls.clear()
        if not asked.get("stream"):
            return await answer()(reader, writer)
        number = int(asked["messages"][0]["content"])
        writer.write(STREAM_HEAD)
        for index in range(self._events):
            delta = {"index": 0, "delta": {"content": f"{number}.{index} "}, "finish_reason": None}
            self._send(writer, number, json.dumps({"id": "x", "model": MODEL, "choices": [delta]}), time.monotonic())
            await asyncio.sleep(self._pause_s)
        self._send(writer, number, "[DONE]", time.monotonic())
        writer.write(b"0\r\n\r\n")
        return True

    def _send(self, writer, number, payload, now):
        event = f"data: {payload}\n\n".encode()
        self.sent[number].append(event)
        self.sent_at[number].append(now)
        writer.write(b"%x\r\n%b\r\n" % (len(event), event))


class StreamClient(asyncio.Protocol):
    """One stream, asked for by HTTP/1.0, so that its body has no framing."""

    def __init__(self, number):
        self.number, self.data, self.events_at = number, b"", []
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport
        body = json.dumps(
            {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": str(self.number)}]}
        ).encode()
        head = (
            f"POST {CHAT} HTTP/1.0\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        transport.write(head.encode() + body)

    def data_received(self, data):
        self.data += data
        self.events_at += [time.monotonic()] * data.count(b"\n\n")
        if b"[DONE]\n\n" in self.data[-64:]:
            self._end()

    def connection_lost(self, exc):
        self._end()

    def _end(self):
        if not self.ended.done():
            self.ended.set_result(None)

    @property
    def body(self):
        return self.data.partition(b"\r\n\r\n")[2]


async def run_streams(port, streams, number):
    """So many streams at once from this port, begun within a pause. Returns their clients, and all delays of events."""
    loop, clients = asyncio.get_running_loop(), []
    for each in range(number):
        _, client = await loop.create_connection(lambda each=each: StreamClient(each), "127.0.0.1", port)
        clients.append(client)
        await asyncio.sleep(0)
    async with asyncio.timeout(120):
        await asyncio.gather(*(client.ended for client in clients))
    delays = [
        got - sent
        for client in clients
        for got, sent in zip(client.events_at, streams.sent_at[client.number], strict=False)
    ]
    for client in clients:
        client.transport.abort()
    return clients, delays


def numbered(*, events, pause_s):
    """A NumberedStreams and the context that serves it as a backend."""
    streams = NumberedStreams(events=events, pause_s=pause_s)
    return streams, scripted(streams.chat)


class CallClient(asyncio.Protocol):
    """A kept connection that makes one whole call at a time."""

    def __init__(self, request):
        self._request, self._data, self._answered = request, b"", None

    def connection_made(self, transport):
        self.transport = transport

    def ask(self):
        """A future of the status; None where the connection was lost."""
        self._answered = asyncio.get_running_loop().create_future()
        self.transport.write(self._request)
        return self._answered

    def data_received(self, data):
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        if end:
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            if len(body) >= length:
                self._data = b""
                self._tell(int(head.split(b" ", 2)[1]))

    def connection_lost(self, exc):
        self._tell(None)

    def _tell(self, status):
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(status)


def port_of(url):
    return int(url.rsplit(":", 1)[1])
