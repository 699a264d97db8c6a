"""Transport: messages leave at once where the peer reads, and in order where it does not."""

import asyncio

from gateway.shared_order.transport import OrderConnection


class WebSocketStub:
    """Records what is sent. While `reads` is not set, each send waits for it, as a full buffer makes it wait."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.reads = asyncio.Event()
        self.reads.set()

    async def send_bytes(self, body: bytes) -> None:
        self.sent.append(body)
        await self.reads.wait()

    async def close(self) -> None:
        """Nothing is open."""


async def make_connection(now: list[float]) -> tuple[WebSocketStub, OrderConnection]:
    websocket = WebSocketStub()
    connection = OrderConnection(websocket, "w1", lambda: now[0])  # type: ignore[arg-type]
    await asyncio.sleep(0)  # its writer begins
    return websocket, connection


async def test_a_message_has_left_when_send_returns():
    websocket, connection = await make_connection([0.0])
    connection.send(b"one")
    connection.send(b"two")
    assert websocket.sent == [b"one", b"two"]
    assert connection.unsent(1.0) == (0, 0.0)
    connection.close()


async def test_what_the_peer_does_not_read_waits_in_order_and_is_counted():
    now = [10.0]
    websocket, connection = await make_connection(now)
    websocket.reads.clear()
    for body in (b"one", b"two", b"three"):
        connection.send(body)
        now[0] += 1.0
    await asyncio.sleep(0)
    assert websocket.sent == [b"one"]
    assert connection.unsent(15.0) == (11, 5.0)
    websocket.reads.set()
    await asyncio.sleep(0.01)
    connection.send(b"four")
    assert websocket.sent == [b"one", b"two", b"three", b"four"]
    assert connection.unsent(15.0) == (0, 0.0)
    connection.close()
