"""A Cutter stands between the gateway and one backend, and breaks streams where it is told to.

It passes bytes on, counts the tokens of each stream, and closes the connections of both sides after the wanted token:
to the gateway that is a backend that died at this token, and to the backend a client that left. One request may be cut
several times, at the backend that has it then.

It may also hold a stream there and pass nothing on, until the gateway leaves, because it takes the slot back, or until
the test releases all that is held.
"""

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from urllib.parse import urlsplit

REQUEST_ID = re.compile(rb"\r\nx-request-id: ([^\r]+)\r\n")
TOKENS = re.compile(rb'"token_ids":\[([\d,]*)\]')
READ_BYTES = 1 << 16
END = b"\n\n"
LAST_CHUNK = b"0\r\n\r\n"
HELD_S = 0.005


class Plan:
    """Where streams are cut: by request id, the numbers of tokens after which each part ends. Shared by cutters.

    `ends_with`: the last bytes of a stream that is cut. `made` counts cuts, `held` what is held now, `left` what the
    gateway has left while it was held, and `asked` the calls that backends were sent.
    """

    def __init__(self) -> None:
        self._cuts: dict[str, list[int]] = {}
        self._holds: dict[str, int] = {}
        self.made = self.held = self.left = self.asked = 0
        self.ends_with = b""

    def cut(self, request_id: str, after: Sequence[int]) -> None:
        self._cuts[request_id] = list(after)

    def hold(self, request_id: str, after: int) -> None:
        """Hold it after so many tokens, once."""
        self._holds[request_id] = after

    def release(self) -> None:
        """Hold nothing any more."""
        self._holds.clear()

    def next(self, request_id: str) -> int | None:
        cuts = self._cuts.get(request_id)
        return cuts.pop(0) if cuts else None

    def holds(self, request_id: str, tokens: int) -> bool:
        return tokens > self._holds.get(request_id, tokens)

    def was_left(self, request_id: str) -> None:
        if self._holds.pop(request_id, None) is not None:
            self.left += 1


class Cutter:
    """Listens on a port of its own, on a loop of its own."""

    def __init__(self, backend_url: str, plan: Plan) -> None:
        self._backend = urlsplit(backend_url)
        self._plan = plan
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""

    def start(self) -> "Cutter":
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result()
        host, port = self._server.sockets[0].getsockname()
        self.url = f"http://{host}:{port}"
        return self

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self) -> asyncio.Server:
        return await asyncio.start_server(self._connected, "127.0.0.1", 0)

    async def _connected(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            backend, to_backend = await asyncio.open_connection(self._backend.hostname, self._backend.port)
        except OSError:
            to_client.close()
            return
        cut = _Cut(self._plan)
        up = asyncio.ensure_future(_pass(client, to_backend, cut.asked))
        down = asyncio.ensure_future(_pass(backend, to_client, cut.answered, cut.held))
        try:
            await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (up, down):
                each.cancel()
            await asyncio.gather(up, down, return_exceptions=True)
            for writer in (to_client, to_backend):
                writer.close()
                with suppress(ConnectionError):
                    await writer.wait_closed()


class _Cut:
    """The streams of one connection, one after the other."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._request_id = ""
        self._after: int | None = None
        self._tokens = 0
        self._kept = b""
        self._is_stream = False

    def asked(self, data: bytes) -> tuple[bytes, bool]:
        found = REQUEST_ID.search(data)
        if found is not None and b"/completions " in data[:64]:
            self._plan.asked += 1
            self._is_stream = b'"stream":true' in data.replace(b": ", b":")
            self._request_id = found[1].decode()
            self._after, self._tokens, self._kept = self._plan.next(self._request_id), 0, b""
        return data, True

    def answered(self, data: bytes) -> tuple[bytes, bool]:
        """What of the data is passed on, and whether the connection stays open."""
        if not self._is_stream:
            self._plan.made += self._after is not None
            return (data, True) if self._after is None else (b"", False)
        data, self._kept, passed = self._kept + data, b"", b""
        while (end := data.find(END)) >= 0:
            event, rest = data[: end + len(END)], data[end + len(END) :]
            tokens = sum(ids.count(b",") + 1 for ids in TOKENS.findall(event) if ids)
            if self._plan.holds(self._request_id, self._tokens + tokens):
                break
            if self._after is not None and self._tokens + tokens > self._after:
                self._plan.made += 1
                return passed + self._plan.ends_with, False
            self._tokens += tokens
            passed, data = passed + event, rest
        if END not in data and data.endswith(LAST_CHUNK):
            return passed + data, True
        self._kept = data
        return passed, True

    async def held(self) -> bytes:
        """Wait while the stream is held. Return what was kept of it; cancelled when the gateway leaves."""
        if not self._kept or not self._is_held():
            return b""
        self._plan.held += 1
        try:
            while self._is_held():  # noqa: ASYNC110 - the plan belongs to another thread
                await asyncio.sleep(HELD_S)
        except asyncio.CancelledError:
            self._plan.was_left(self._request_id)
            raise
        finally:
            self._plan.held -= 1
        return self.answered(b"")[0]

    def _is_held(self) -> bool:
        event = self._kept[: self._kept.find(END)]
        tokens = sum(ids.count(b",") + 1 for ids in TOKENS.findall(event) if ids)
        return END in self._kept and self._plan.holds(self._request_id, self._tokens + tokens)


async def _nothing() -> bytes:
    return b""


async def _pass(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    change: Callable[[bytes], tuple[bytes, bool]],
    wait: Callable[[], Awaitable[bytes]] = _nothing,
) -> None:
    while data := await reader.read(READ_BYTES):
        data, goes_on = change(data)
        writer.write(data)
        await writer.drain()
        writer.write(await wait())
        if not goes_on:
            return
