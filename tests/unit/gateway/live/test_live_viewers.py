"""Viewers of the live document, over real sockets: one document for all, none without them, little for the silent."""

import asyncio
import contextlib
import gc
import json
import socket
import tracemalloc
import zlib

import aiohttp
import pytest
from aiohttp import web
from listening import listening
from msgspec import Struct
from yarl import URL

from gateway.live.group_part import GroupPart
from gateway.live.stream import audience, feed
from gateway.live.stream.audience import BEHIND_MAX
from gateway.live.stream.events import GZIP_HEAD, encode
from gateway.live.stream.feed import LiveViewers, TooManyViewers
from gateway.store.base import StoreUnavailable

EVERY_S = 0.02


class Row(Struct):
    group: str
    now: float
    queued: int = 0
    in_flight: int = 1
    oldest_wait_s: float | None = None


class Pool(Struct):
    tenants: dict
    groups: dict = {}
    policy: str = "vtc"


class Document(Struct):
    at: float
    pools: dict


class Source:
    """Makes a document of so many tenants; all of them change each time."""

    def __init__(self, tenants=3, *, text="x"):
        self.tenants, self.text = tenants, text
        self.made = 0
        self.fails = None

    async def __call__(self):
        if self.fails is not None:
            raise self.fails
        self.made += 1
        tenants = {
            f"t{number}": {"text": f"{self.made}{self.text}", "made": self.made} for number in range(self.tenants)
        }
        return Document(float(self.made), {"p": Pool(tenants)})


@contextlib.asynccontextmanager
async def served(source, *, every_s=EVERY_S, is_allowed=lambda: True, part=lambda _request: None):
    viewers = LiveViewers(source, every_s=every_s)

    async def handle(request):
        try:
            return await viewers.stream(request, {}, is_allowed, part(request))
        except TooManyViewers:
            return web.Response(status=429)

    async with listening(handle) as url:
        async with aiohttp.ClientSession() as session:
            yield viewers, URL(url).port, lambda **headers: session.get(url, headers=headers)
        await viewers.stop()


async def events(response, count):
    text = b""
    async with asyncio.timeout(20):
        while text.count(b"\n\n") < count:
            piece = await response.content.readany()
            assert piece, "the stream has ended"
            text += piece
    return [parsed(block) for block in text.split(b"\n\n")[:count]]


def parsed(block):
    return dict(line.split(": ", 1) for line in block.decode().split("\n"))


async def read_on(response, found, is_enough):
    """Add events to those found until they are enough."""
    text = b""
    async with asyncio.timeout(20):
        while not is_enough():
            *blocks, text = (text + await response.content.readany()).split(b"\n\n")
            found += map(parsed, blocks)


async def kinds(response, count):
    """What the next events are, of which nothing is kept."""
    found, text = [], b""
    async with asyncio.timeout(20):
        while len(found) < count:
            *blocks, text = (text + await response.content.readany()).split(b"\n\n")
            found += [line[7:] for block in blocks for line in block.split(b"\n") if line.startswith(b"event: ")]
    return found


async def until(condition, timeout_s=20.0):
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - what it waits for has no event
            await asyncio.sleep(0.005)


async def test_nothing_is_made_without_a_viewer_and_no_more_when_the_last_has_left():
    source = Source()
    async with served(source) as (viewers, _, get):
        await asyncio.sleep(10 * EVERY_S)
        assert source.made == 0
        async with get() as response:
            await events(response, 3)
        await until(lambda: not viewers.viewers)
        await asyncio.sleep(3 * EVERY_S)
        made = source.made
        await asyncio.sleep(10 * EVERY_S)
        assert source.made == made
        async with get() as response:
            (first,) = await events(response, 1)
            assert first["event"] == "state"
            assert json.loads(first["data"])["pools"]["p"]["tenants"]["t0"]["made"] > made


async def test_all_viewers_share_each_document_and_get_the_same_events():
    source = Source()
    async with served(source) as (_, _, get), contextlib.AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(get()) for _ in range(10)]
        read = [[] for _ in streams]

        def patches():
            return [{each["id"]: each["data"] for each in viewer if each["event"] == "patch"} for viewer in read]

        def shared():
            return set.intersection(*(set(each) for each in patches()))

        await asyncio.gather(
            *(read_on(each, found, lambda: len(shared()) >= 5) for each, found in zip(streams, read, strict=True))
        )
        assert source.made < 3 * max(map(len, read)), "ten viewers cost as many documents as one"
    assert all(len({each[number] for each in patches()}) == 1 for number in shared())
    for viewer in read:
        assert [each["event"] for each in viewer] == ["state", *["patch"] * (len(viewer) - 1)]
        assert [int(each["id"]) for each in viewer] == sorted({int(each["id"]) for each in viewer})


async def test_compressed_events_are_one_gzip_stream_whenever_a_viewer_begins():
    source = Source(tenants=100, text="y" * 2000)
    async with served(source) as (_, port, get), get() as response:
        await events(response, 4)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.0\r\naccept-encoding: gzip\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        inflater, text = zlib.decompressobj(16 + zlib.MAX_WBITS), b""
        async with asyncio.timeout(20):
            while text.count(b"\n\n") < 3:
                text += inflater.decompress(await reader.read(1 << 16))
        writer.close()
    blocks = text.split(b"\n\n")
    assert blocks[0].startswith(b"event: state\n")
    assert blocks[1].startswith(b"event: patch\n")
    assert json.loads(blocks[0].split(b"data: ", 1)[1])["pools"]["p"]["tenants"].keys() == {f"t{n}" for n in range(100)}


async def test_every_event_inflates_by_itself():
    event = await encode("patch", 7, {"a": list(range(50_000))}, depth=0, deflates=True)
    for before in (b"", (await encode("state", 6, {"b": 1}, depth=0, deflates=True)).deflated):
        text = zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(GZIP_HEAD + before + event.deflated)
        assert text.endswith(event.plain)


async def test_a_viewer_that_does_not_read_is_dropped_with_bounded_memory_and_others_go_on():
    source = Source(tenants=50, text="z" * 20_000)  # a megabyte an event
    async with (
        served(source, every_s=0.1) as (viewers, port, get),
        contextlib.AsyncExitStack() as stack,
        get() as response,
    ):
        await events(response, 1)
        gc.collect()
        tracemalloc.start()
        for _ in range(5):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        await until(lambda: viewers.viewers == 6)
        reading = asyncio.create_task(kinds(response, 30))
        await until(lambda: viewers.viewers == 1, timeout_s=40.0)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (await reading).count(b"patch") >= 29
    event_bytes = 50 * 20_000
    # Shared: what waits, and the documents that are compared. Each: one event on its way, with its copies.
    assert most < (BEHIND_MAX + 2 + 5 * 3) * event_bytes


async def test_a_viewer_that_may_see_it_no_more_is_disconnected(monkeypatch):
    monkeypatch.setattr(audience, "ALLOWED_S", 0.05)
    allowed = [True]
    source = Source()
    async with served(source, every_s=30.0, is_allowed=lambda: allowed[0]) as (viewers, _, get), get() as response:
        await events(response, 1)
        allowed[0] = False
        await until(lambda: not viewers.viewers)
        with pytest.raises(aiohttp.ClientError):
            await asyncio.wait_for(response.content.read(), 10)


async def test_no_more_than_so_many_viewers_are_served(monkeypatch):
    monkeypatch.setattr(feed, "VIEWERS_MAX", 2)
    async with served(Source()) as (_, _, get), get() as one, get() as two:
        await events(one, 1)
        await events(two, 1)
        async with get() as three:
            assert three.status == 429


async def test_while_no_process_leads_viewers_keep_what_they_have_and_go_on_after():
    source = Source()
    async with served(source) as (viewers, _, get), get() as response:
        await events(response, 2)
        source.fails = StoreUnavailable("no process leads now")
        made = source.made
        await asyncio.sleep(10 * EVERY_S)
        assert viewers.viewers == 1
        source.fails = None
        await until(lambda: source.made > made)
        assert (await events(response, 1))[0]["event"] == "patch"


async def test_a_comment_is_sent_where_nothing_changes(monkeypatch):
    monkeypatch.setattr(audience, "COMMENT_S", 0.1)

    async def same():
        return Document(asyncio.get_running_loop().time(), {})

    async with served(same) as (_, _, get), get() as response:
        first = await events(response, 1)
        assert first[0]["event"] == "state"
        text = b""
        async with asyncio.timeout(20):
            while text.count(b"\n\n") < 2:
                text += await response.content.readany()
        assert text.startswith(b": nothing has changed\n\n")
        assert b"event" not in text


async def test_a_failure_drops_the_viewers_and_the_next_ones_are_served(caplog):
    source = Source()
    async with served(source) as (viewers, _, get):
        async with get() as response:
            await events(response, 1)
            source.fails = ValueError("a mistake")
            await until(lambda: not viewers.viewers)
        source.fails = None
        async with get() as response:
            assert (await events(response, 1))[0]["event"] == "state"
    assert "could not be made" in caplog.text


GROUPS = {"t0": "red", "t1": "blue", "t2": "red"}


async def grouped():
    """A document in which all rows differ each time."""
    now = asyncio.get_running_loop().time()
    tenants = {name: Row(group, now) for name, group in GROUPS.items()}
    return Document(now, {"p": Pool(tenants, {group: {"queued": 0} for group in GROUPS.values()})})


def by_header(request):
    group = request.headers.get("group")
    return None if group is None else GroupPart(group)


async def test_viewers_of_parts_take_no_room_from_other_parts_or_from_the_whole(monkeypatch):
    monkeypatch.setattr(feed, "PART_VIEWERS_MAX", 2)
    monkeypatch.setattr(feed, "VIEWERS_MAX", 3)
    async with served(grouped, part=by_header) as (_, _, get), contextlib.AsyncExitStack() as stack:
        found = []
        for group in ("red", "red", "red", "blue", "green", None, None, None, None):
            response = await stack.enter_async_context(get(**({"group": group} if group else {})))
            if response.status == 200:
                await events(response, 1)
            found.append(response.status)
    assert found == [200, 200, 429, 200, 429, 200, 200, 200, 429]


async def test_viewers_of_one_part_get_the_same_events_and_of_no_other_part():
    groups = ["red", "red", "blue", None]
    async with served(grouped, part=by_header) as (_, _, get), contextlib.AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(get(**({"group": each} if each else {}))) for each in groups]
        read = await asyncio.gather(*(events(each, 4) for each in streams))
        async with get(group="none") as response:
            (empty,) = await events(response, 1)
    assert json.loads(empty["data"])["pools"] == {}
    shared = [{each["id"]: each["data"] for each in viewer if each["event"] == "patch"} for viewer in read[:2]]
    assert all(shared[0][number] == shared[1][number] for number in shared[0].keys() & shared[1].keys())
    assert len(shared[0].keys() & shared[1].keys()) >= 2
    for group, viewer in zip(groups, read, strict=True):
        assert [each["event"] for each in viewer] == ["state"] + 3 * ["patch"]
        seen = {name for each in viewer for name in json.loads(each["data"])["pools"]["p"]["tenants"]}
        assert seen == {name for name, of in GROUPS.items() if group in (None, of)}
