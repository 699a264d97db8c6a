"""ClientConnection on a transport that only notes: raw bytes in, answers out, whatever comes in one read.

The table says what each request gets, and whether its connection goes on. Most of it was recorded from aiohttp's
server, which stood here before. What integration/gateway/test_gateway_smuggling.py asks of the whole gateway is not
repeated.
"""

import asyncio
import errno
import gc
import re
import socket
from math import inf
from random import Random
from unittest.mock import Mock

import pytest
from aiohttp import http_exceptions, web
from aiohttp.http_parser import HttpRequestParser

from gateway.api.endpoints import CHAT, LIVEZ
from gateway.api.errors import ProblemError
from gateway.http import connection as connection_module
from gateway.http import server as server_module
from gateway.http.connection import WAITING_BYTES_MAX, ClientConnection
from gateway.http.cors import Cors
from gateway.http.request import UNREAD_BYTES_MAX
from gateway.http.request_ids import RequestIds
from gateway.http.request_reader import (
    HEAD_BYTES_MAX,
    HEADERS_MAX,
    LINE_BYTES_MAX,
    PARSED_BYTES_MAX,
    PIPELINED_MAX,
    RequestReader,
)
from gateway.http.response import PIECE_BYTES, Response
from gateway.http.server import GatewayServer
from tests.examples import examples

BODY_MAX = 1 << 20
PROBE = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


class Transport:
    """Notes what is written, and that reading pauses. `pace`: the write buffer is full until it is drained by hand."""

    def __init__(self):
        self.written, self.is_paused, self.has_eof, self._is_closing = b"", False, False, False
        self.buffered = 0
        self.pieces = []  # lengths of writes

    def write(self, data):
        assert not self.has_eof, "nothing is written behind the end"
        self.written += data
        self.pieces.append(len(data))

    def close(self):
        self._is_closing = True

    abort = close

    def is_closing(self):
        return self._is_closing

    def can_write_eof(self):
        return True

    def write_eof(self):
        self.has_eof = True

    def pause_reading(self):
        assert not self.is_paused
        self.is_paused = True

    def resume_reading(self):
        assert self.is_paused
        self.is_paused = False

    def get_write_buffer_size(self):
        return self.buffered

    def set_write_buffer_limits(self, high):
        assert high == WAITING_BYTES_MAX

    def get_extra_info(self, name):
        return ("192.0.2.1", 1) if name == "peername" else None

    @property
    def is_over(self):
        return self._is_closing or self.has_eof


class House:
    """A server of two paths: one answers at once, the other says what it has read. `requests` are those it has seen."""

    def __init__(self, **options):
        self.requests = []
        self.started = self.cancelled = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.server = GatewayServer(
            {LIVEZ: self.live, CHAT: self.echo},
            names=RequestIds(),
            cors=Cors(()),
            **{"body_bytes_max": BODY_MAX, **options},
        )

    def connect(self):
        connection, transport = self.server(), Transport()
        connection.connection_made(transport)
        return connection, transport

    async def live(self, request):
        body = await self._read(request)
        return Response(400 if body is None else 200)

    async def echo(self, request):
        self.started += 1
        try:
            await self.gate.wait()
            body = await self._read(request)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return Response(400) if body is None else Response(200, {"content-type": "text/plain"}, body)

    async def _read(self, request):
        try:
            body = request.body_at_hand()
            body = bytes(await request.read_body(lambda _bytes: None)) if body is None else body
        except ProblemError:
            return None
        self.requests.append((request.method, request.target, body))
        return body


async def turns(number=12):
    for _ in range(number):
        await asyncio.sleep(0)


async def fed(connection, transport, data, sizes):
    """Feed the data in reads of these sizes, as a transport does: none while reading is paused."""
    at = 0
    for size in sizes:
        for _ in range(1000):
            if not transport.is_paused:
                break
            await asyncio.sleep(0)
        if transport.is_closing() or at >= len(data):
            break
        connection.data_received(data[at : at + size])
        at += size
        await asyncio.sleep(0)


def answers(written):
    """The status and the body of each answer. It fails where what was written is not HTTP."""
    found, rest = [], written
    while rest:
        head, end, rest = rest.partition(b"\r\n\r\n")
        assert end, head
        status = re.match(rb"HTTP/1\.[01] (\d\d\d) [A-Za-z -]*\r\n", head + b"\r\n")
        assert status, head
        if status[1] == b"100":
            found.append((100, b""))
            continue
        length = int(re.search(rb"\r\ncontent-length: (\d+)", head)[1])
        assert len(rest) >= length
        found.append((int(status[1]), rest[:length]))
        rest = rest[length:]
    return found


async def play(data, sizes=None, **options):
    """The answers to these bytes; whether the connection goes on; and the requests that handlers have seen."""
    house = House(**options)
    connection, transport = house.connect()
    await fed(connection, transport, data, sizes or [len(data)])
    await turns(80 if data.count(b"HTTP/1.") > 3 else 12)
    found = answers(transport.written)
    is_kept = not transport.is_over
    if is_kept:
        seen, before = len(house.requests), len(found)
        connection.data_received(PROBE)
        await turns()
        after = answers(transport.written)[before:]
        is_kept = [status for status, _ in after] == [200]
        del house.requests[seen:]
    connection.connection_lost(None)
    await turns()
    assert not house.server.connections
    return found, is_kept, house.requests


def get(*fields, line="GET /livez HTTP/1.1", host="Host: x", body=b""):
    lines = [line, *([] if host is None else [host]), *fields]
    return b"\r\n".join(each if isinstance(each, bytes) else each.encode() for each in lines) + b"\r\n\r\n" + body


def post(*fields, body=b"abc", line="POST /v1/chat/completions HTTP/1.1"):
    return get(f"Content-Length: {len(body)}", *fields, line=line, body=body)


KEPT, CLOSED = True, False
OK, REFUSED, TOO_LARGE = ([200], KEPT), ([400], CLOSED), ([431], CLOSED)
CHUNKS = b"3\r\nabc\r\n0\r\n\r\n"
METHODS = {
    **{method: ([405], KEPT) for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "M-SEARCH")},
    "GET": OK,
    "CONNECT": ([405], CLOSED),
    **dict.fromkeys(("FOO", "G", "get", "Get", "GETX", "GET(", "PRI", "DESCRIBE", "A" * 300, ""), REFUSED),
}
VERSIONS = {
    "HTTP/1.1": OK,
    "HTTP/1.0": ([200], CLOSED),
    **dict.fromkeys(
        (
            "HTTP/1.1 ", "HTTP/1.1\t", "HTTP/01.1", "HTTP/1.", "HTTP/1", "HTTP/.1", "HTTP/0.9", "HTTP/1.2", "HTTP/2.0",
            "HTTP/3.0", "ICE/1.0", "HTTPS/1.1", "HTTP/1.1x", "HTTP /1.1", "HTTP/ 1.1", "HTTP/1.1\0", "HTTP/1,1", "",
            "HTTP/-1.1", "HTTP/1.10",
        ),
        REFUSED,
    ),
}  # fmt: skip
TARGETS = {
    **dict.fromkeys(
        ("/livez?x", "/livez?", "/%6civez", "/%6Civez", "http://x/livez", "HTTP://X/livez?y", '/livez?a"b<>{}|^`\\'),
        OK,
    ),
    **dict.fromkeys(("/livez/", "/livez//", "/livez%2f", "/livez/?a=b"), ([307], KEPT)),
    **dict.fromkeys(
        (
            "/LIVEZ", "//livez", "/./livez", "/a/../livez", "/livez;a", "/livez%00", "/livez%0a", "/livez%",
            "/livez%zz", "/%2flivez", "/livez%20", "/livez%3fx", "/livez%23x", "//x/livez", "/", "/?", "/%", "http://x",
            "http://x?y",
        ),
        ([404], KEPT),
    ),
    **dict.fromkeys(
        (
            "http:/livez", "http:livez", "http:///livez", "http://", "://x/livez", "http://x:80/livez", "http://y/livez",
            "http://u@x/livez", "http://x/livez#f", "/livez#f", "/#", "x/livez", "?livez", "livez", "*", "/liv\x7fez",
            "/livez?\x7f", "/livez?\u00e9", "/livez?a b", "/livez\x01", "/livez\tx", "/livez\rx", "/livez\nx",
        ),
        REFUSED,
    ),
}  # fmt: skip
HOSTS = {
    **dict.fromkeys(("x", "", " ", "\tx\t", "[::1]", "x:80", "x%41", "x_y", "x;y", "x,y", "a" * 3000), OK),
    **dict.fromkeys(
        (
            "x y", "u@x", "x/", "x\\", "x#", "x?y", '"x"', "<x>", "x|y", "\u00e9", "x\x7f", "x\r\nHost: x",
            "x\r\nhost: y",
        ),
        REFUSED,
    ),
}  # fmt: skip
CONNECTIONS = {
    **dict.fromkeys(("keep-alive", "x", "closed", "close;q=1", "", "upgrade"), OK),
    **dict.fromkeys(
        (
            "close", "CLOSE", " close ", "te, close", "close, keep-alive", "keep-alive, close",
            "keep-alive\r\nConnection: close", "close\r\nConnection: keep-alive",
        ),
        ([200], CLOSED),
    ),
}  # fmt: skip
FIELDS = {
    **dict.fromkeys(
        (
            "X-A: a\tb", "X-A:", "X-A:    ", "X-A:b", "X-A:   b   ", "X-A:\t\tb\t\t", "X_A: b", "!#$%&'*+-.^_`|~0: b",
            "X-A: b:c", "X-A: \u2028", b"X-A: \x80\xff", "TE: trailers", "Content-Length: 0", "Content-Length: 00",
            "Expect: 100-continue", "Upgrade: websocket", "Cookie: a\r\nCookie: b",
        ),
        OK,
    ),
    **dict.fromkeys(
        (
            "X-A: a\x7fb", "X-A: a\x1bb", "X-A: a\0b", "X/A: b", 'X"A: b', "X,A: b", "X;A: b", "X@A: b", "X{A: b",
            "X=A: b", "X\x7fA: b", "X\tA: b", "X A: b", " X-A: b", ":", ":b", b"\xef\xbb\xbfX-A: b", "X-A\n: b",
            "X-A: a\rb", "X-A: b\r\r", "X-A: a\x0bb", "X-A: a\x0cb", "X-A: a\r\n b", "Host : x", "Content-Length: -0",
            "Transfer-Encoding:", "Transfer-Encoding: ,", "Transfer-Encoding: chunked,", "Transfer-Encoding: chunked\t",
            "Transfer-Encoding: chunked foo", "Transfer-Encoding: identity", "Content-Type: a\r\nContent-Type: a",
            "User-Agent: a\r\nuser-agent: b", "Content-Length: 0\r\nContent-Length: 0",
        ),
        REFUSED,
    ),
}  # fmt: skip
HEADS = {
    "no Host": (get(host=None), REFUSED),
    "no Host in HTTP/1.0": (get(host=None, line="GET /livez HTTP/1.0"), ([200], CLOSED)),
    "HTTP/1.0 kept": (get("Connection: keep-alive", line="GET /livez HTTP/1.0"), OK),
    "chunks in HTTP/1.0": (
        get("Transfer-Encoding: chunked", line="POST /nowhere HTTP/1.0", body=CHUNKS), REFUSED,
    ),
    "as many fields as may be": (get(*(f"X-{each}: 1" for each in range(HEADERS_MAX - 1))), OK),
    "one too many": (get(*(f"X-{each}: 1" for each in range(HEADERS_MAX))), TOO_LARGE),
    "one too many of one name": (get(*["X: 1"] * HEADERS_MAX), TOO_LARGE),
    "a line as long as may be": (get("X-A: " + "a" * (LINE_BYTES_MAX - 3)), OK),
    "a longer line": (get("X-A: " + "a" * LINE_BYTES_MAX), TOO_LARGE),
    "a long name": (get("a" * LINE_BYTES_MAX + ": b"), TOO_LARGE),
    "a target as long as may be": (get(line=f"GET /livez?{'a' * (LINE_BYTES_MAX - 7)} HTTP/1.1"), OK),
    "a longer target": (get(line=f"GET /livez?{'a' * (LINE_BYTES_MAX - 6)} HTTP/1.1"), TOO_LARGE),
    "8 long lines": (get(*(f"X-{each}: " + "a" * 8000 for each in range(8))), OK),
    "9 long lines": (get(*(f"X-{each}: " + "a" * 8000 for each in range(9))), TOO_LARGE),
    "an endless head": (PROBE[:-2] + b"X: " + b"a" * 200 + b"\r\n" * 1 + b"X: a\r\n" * 20_000, TOO_LARGE),
    "an endless target": (b"GET /" + b"a" * 200_000, TOO_LARGE),
    "an endless name": (PROBE[:-2] + b"a" * 200_000, TOO_LARGE),
    "an endless value": (PROBE[:-2] + b"X: " + b"a" * 200_000, TOO_LARGE),
    "endless spaces": (PROBE[:-2] + b"X: " + b" " * 200_000, TOO_LARGE),
    "an endless method": (b"A" * 100_000, REFUSED),
    "an endless trailer": (
        get("Transfer-Encoding: chunked", line="POST /v1/chat/completions HTTP/1.1", body=b"0\r\n" + b"X: a\r\n" * 300),
        REFUSED,
    ),
    "an endless line of a trailer": (
        get("Transfer-Encoding: chunked", line="POST /v1/chat/completions HTTP/1.1", body=b"0\r\nX: " + b"a" * 100_000),
        REFUSED,
    ),
    "an endless extension": (
        get("Transfer-Encoding: chunked", line="POST /v1/chat/completions HTTP/1.1", body=b"5;" + b"a" * 100_000),
        REFUSED,
    ),
    "a coding with a tab, at no endpoint": (
        get("Transfer-Encoding: chunked\t", line="POST /nowhere HTTP/1.1", body=CHUNKS), REFUSED,
    ),
    "a trailer, and one behind": (
        get(
            "Transfer-Encoding: chunked", line="POST /v1/chat/completions HTTP/1.1",
            body=CHUNKS[:-2] + b"X-A: b\r\n\r\n" + PROBE,
        ),
        ([200], CLOSED),
    ),
    "two spaces in the line": (get(line="GET  /livez  HTTP/1.1"), OK),
    "a tab in the line": (get(line="GET\t/livez HTTP/1.1"), REFUSED),
    "three words in the line": (get(line="GET /a /livez HTTP/1.1"), REFUSED),
    "empty lines before it": (b"\r\n" * 50 + PROBE, OK),
    "a NUL before it": (b"\0" + PROBE, REFUSED),
    "three": (PROBE * 3, ([200, 200, 200], KEPT)),
    "two, and the first is the last": (get("Connection: close") + PROBE, ([200], CLOSED)),
    "two of HTTP/1.0": (get(line="GET /livez HTTP/1.0") * 2, ([200], CLOSED)),
    "one, and garbage": (PROBE + b"\0\1\r\n\r\n", ([200, 400], CLOSED)),
    "answered before its body": (post(line="POST /nowhere HTTP/1.1")[:-1], ([404], CLOSED)),
    "answered with its body": (post(line="POST /nowhere HTTP/1.1"), ([404], KEPT)),
    "a body": (post(), OK),
    "chunks": (get("Transfer-Encoding: chunked", line="POST /v1/chat/completions HTTP/1.1", body=CHUNKS), OK),
    "half a body, with its answer asked for": (
        post("Expect: 100-continue")[:-3], ([100], CLOSED),
    ),
    "a preflight of no allowed origin": (
        get("Origin: http://a", "Access-Control-Request-Method: POST", line="OPTIONS /livez HTTP/1.1"), ([400], KEPT),
    ),
    "OPTIONS *": (get(line="OPTIONS * HTTP/1.1"), ([404], KEPT)),
    "OPTIONS *, then GET *": (get(line="OPTIONS * HTTP/1.1") + get(line="GET * HTTP/1.1"), ([404, 400], CLOSED)),
    "a target of one Host, then of another": (
        get(line="GET http://x/livez HTTP/1.1") + get(line="GET http://x/livez HTTP/1.1", host="Host: y"),
        ([200, 400], CLOSED),
    ),
    "CONNECT of a path that was asked for": (PROBE + get(line="CONNECT /livez HTTP/1.1") + PROBE, ([200, 405], CLOSED)),
    "an offer of h2c, and one behind": (get("Connection: Upgrade", "Upgrade: h2c") + PROBE, ([200, 200], KEPT)),
    "an offer of h2c with a body that looks like a request": (
        post("Connection: Upgrade", "Upgrade: h2c", body=PROBE) + PROBE, ([200, 200], KEPT),
    ),
    "an offer of h2c with chunks": (
        get(
            "Connection: Upgrade", "Upgrade: H2C", "Transfer-Encoding: chunked",
            line="POST /v1/chat/completions HTTP/1.1", body=CHUNKS + PROBE,
        ),
        ([200, 200], KEPT),
    ),
    "another offer": (get("Connection: Upgrade", "Upgrade: websocket") + PROBE, ([200], CLOSED)),
    "another offer with a body": (
        post("Connection: Upgrade", "Upgrade: h2c, x", body=PROBE) + PROBE, ([200], CLOSED),
    ),
}  # fmt: skip
TABLE = {
    **{f"method {each!r:.20}": (get(line=f"{each} /livez HTTP/1.1"), result) for each, result in METHODS.items()},
    **{f"version {each!r}": (get(line=f"GET /livez {each}"), result) for each, result in VERSIONS.items()},
    **{f"target {each!r}": (get(line=f"GET {each} HTTP/1.1"), result) for each, result in TARGETS.items()},
    **{f"Host {each!r:.20}": (get(host=f"Host: {each}"), result) for each, result in HOSTS.items()},
    **{f"Connection {each!r}": (get(f"Connection: {each}"), result) for each, result in CONNECTIONS.items()},
    **{f"field {each!r}": (get("X-Z: 1", each, "X-Y: 2"), result) for each, result in FIELDS.items()},
    **HEADS,
}


def split(data, rng):
    """Sizes of reads: a byte at a time, or few, or what a small buffer holds."""
    most = rng.choice([1, 2, 7, 40, 500, 5000]) if len(data) < 3000 else rng.choice([700, 5000, 70_000])
    sizes = []
    while sum(sizes) < len(data):
        sizes.append(rng.randint(1, most))
    return sizes


async def test_every_request_gets_what_the_table_says():
    results = {}
    for name, (data, _expected) in TABLE.items():
        found, is_kept, _ = await play(data)
        results[name] = ([status for status, _ in found], is_kept)
    assert results == {name: expected for name, (_data, expected) in TABLE.items()}


@pytest.mark.drawn
@pytest.mark.parametrize("seed", range(examples(12)))
async def test_it_does_not_matter_what_comes_in_one_read(seed):
    rng = Random(seed)
    for name, (data, expected) in TABLE.items():
        found, is_kept, _ = await play(data, split(data, rng))
        is_early = name == "answered with its body"  # which may come behind its answer
        assert ([status for status, _ in found], is_kept or is_early) == expected, name


def mutated(data, rng, changes_max=4):
    data = bytearray(data)
    for _ in range(rng.randint(1, changes_max)):
        at = rng.randrange(len(data))
        match rng.randrange(4):
            case 0:
                data[at] = rng.randrange(256)
            case 1:
                data.insert(at, rng.choice(b"\r\n\t \0:;,/0aX"))
            case 2:
                del data[at]
            case _:
                piece = bytes(data[at : at + rng.randint(1, 30)])
                other = rng.randrange(len(data))
                data[other:other] = piece
    return bytes(data)


SHORT = [data for data, _ in TABLE.values() if len(data) < 1000]
TAKEN = [data for data, expected in TABLE.values() if len(data) < 1000 and expected == OK]


@pytest.mark.drawn
@pytest.mark.parametrize("seed", range(examples(12)))
async def test_bytes_that_were_changed_raise_nothing_and_are_read_in_one_way(seed):
    rng, failures = Random(seed), []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(context))
    for _ in range(250):
        data = mutated(rng.choice(SHORT) + (rng.choice(SHORT) if rng.random() < 0.3 else b""), rng)
        at_once, in_pieces = await play(data), await play(data, split(data, rng))
        assert until_early(at_once) == until_early(in_pieces), data
    assert failures == []


def until_early(played):
    """What came of the bytes, up to an answer that did not wait for the body: then it depends on what had come, as does
    whether a body has to be asked for.
    """
    found, is_kept, seen = played
    found = [each for each in found if each[0] != 100]
    early = next((at for at, (status, _) in enumerate(found) if status in (307, 404, 405)), None)
    return (found, is_kept, seen) if early is None else (found[: early + 1], None, seen[:early])


async def read_by_aiohttp(data):
    """The method and body of each request in these bytes; None where aiohttp refuses any of them."""
    loop = asyncio.get_running_loop()
    protocol = web.Server(lambda _request: None)()
    parser = HttpRequestParser(
        protocol, loop, 1 << 16, max_line_size=LINE_BYTES_MAX, max_field_size=LINE_BYTES_MAX, max_headers=HEADERS_MAX,
        auto_decompress=False,
    )  # fmt: skip
    try:
        messages, _, _ = parser.feed_data(data)
        found = []
        for message, payload in messages:
            found.append((message.method, bytes(await payload.read()) if payload.is_eof() else None))
    except (http_exceptions.HttpProcessingError, web.RequestPayloadError):
        return None
    return found


@pytest.mark.parametrize("seed", [0, *(pytest.param(each, marks=pytest.mark.long) for each in (1, 2, 3))])
async def test_no_request_is_taken_that_aiohttp_refuses_and_none_is_read_in_another_way(seed):
    rng, taken = Random(seed), 0
    for _ in range(600):
        data = mutated(rng.choice(TAKEN), rng, changes_max=1)
        found, _, seen = await play(data)
        if len(found) == len(seen) == 1 and found[0][0] == 200:
            theirs = await read_by_aiohttp(data)
            if theirs is None and (b"close" in data.lower() or b"HTTP/1.0" in data):
                continue  # aiohttp refuses a request that it has read for what follows the last one
            assert theirs is not None, data
            assert theirs[0] == (seen[0][0], seen[0][2]), data
            taken += 1
    assert taken > 50


async def test_a_pipeline_is_parsed_as_it_is_answered_and_reading_pauses_meanwhile():
    house = House()
    house.gate.clear()
    connection, transport = house.connect()
    connection.data_received(post() * 2000)
    await turns()
    assert transport.is_paused
    assert house.started == 1
    assert len(connection._waiting) < PIPELINED_MAX + PARSED_BYTES_MAX / len(post()) + 1
    house.gate.set()
    await turns(20_000)
    assert not transport.is_paused
    assert [status for status, _ in answers(transport.written)] == [200] * 2000
    connection.connection_lost(None)


async def test_a_pipeline_waits_while_its_client_does_not_read_the_answers():
    house = House()
    connection, transport = house.connect()
    connection.pause_writing()
    connection.data_received(post() * 200)
    await turns()
    assert (house.started, transport.is_paused) == (0, True)
    connection.resume_writing()
    await turns(2000)
    assert [status for status, _ in answers(transport.written)] == [200] * 200
    assert not transport.is_paused
    connection.connection_lost(None)


async def test_a_body_that_is_not_read_stops_its_client_and_goes_on_when_it_is():
    house = House(body_bytes_max=4 * UNREAD_BYTES_MAX)
    house.gate.clear()
    connection, transport = house.connect()
    body = b"a" * (4 * UNREAD_BYTES_MAX)
    data = post(body=body)
    half = UNREAD_BYTES_MAX + 1000
    connection.data_received(data[:half])
    await turns()
    assert transport.is_paused
    house.gate.set()
    await turns()
    assert not transport.is_paused
    connection.data_received(data[half:])
    await turns()
    assert answers(transport.written[-len(body) - 300 :][transport.written[-len(body) - 300 :].index(b"HTTP/1.1") :])
    assert house.requests == [("POST", CHAT.path, body)]
    connection.connection_lost(None)


@pytest.mark.parametrize(
    "last",
    [get("Connection: close"), get("Connection: Upgrade", "Upgrade: websocket"), get(line="GET /livez HTTP/1.0")],
)
async def test_nothing_behind_the_last_request_is_parsed(last):
    connection, _ = House().connect()
    connection.data_received(last + PROBE)
    connection.data_received(PROBE)
    assert connection._waiting == []
    connection.connection_lost(None)


async def test_a_lost_connection_is_freed_without_a_collection():
    house = House()
    gc.collect()
    gc.disable()
    try:
        connection, _ = house.connect()
        connection.data_received(PROBE)
        await turns()
        connection.connection_lost(None)
        del connection
        await turns()
        assert not any(isinstance(each, ClientConnection | RequestReader) for each in gc.get_objects())
    finally:
        gc.enable()


async def test_a_long_body_counts_as_no_head():
    house = House()
    connection, transport = house.connect()
    data = post(body=b"a" * 9 * HEAD_BYTES_MAX)
    await fed(connection, transport, data, [2 * HEAD_BYTES_MAX] * 5)
    await turns()
    assert [len(body) for _, _, body in house.requests] == [9 * HEAD_BYTES_MAX]
    connection.connection_lost(None)


@pytest.mark.parametrize("is_begun", [True, False])
async def test_a_client_that_leaves_has_its_handler_cancelled_and_leaves_nothing(is_begun, recwarn):
    house = House()
    house.gate.clear()
    connection, _ = house.connect()
    connection.data_received(post() * 3)
    if is_begun:
        await turns()
    connection.connection_lost(None)
    assert house.server.connections
    await turns()
    assert not house.server.connections
    assert house.cancelled == house.started == (1 if is_begun else 0)
    assert not [each for each in recwarn if "never awaited" in str(each.message)]


@pytest.mark.parametrize("is_made", [False, True], ids=["failed at its TLS handshake", "ended"])
async def test_a_connection_leaves_no_reference_cycle(is_made):
    house = House()

    async def come_and_go() -> None:
        connection = house.server()
        if is_made:
            connection.connection_made(Transport())
            connection.data_received(PROBE)
            await turns()
            connection.connection_lost(None)
            await turns()

    await come_and_go()
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            await come_and_go()
        assert gc.collect() < 10, "of what 10 connections left"
    finally:
        gc.enable()


async def test_a_long_answer_is_sent_in_pieces_each_in_a_turn_of_its_own_and_after_the_one_before_was_read():
    house = House(body_bytes_max=1 << 30)
    connection, transport = house.connect()
    body = bytes(5 * PIECE_BYTES)
    connection.data_received(post(body=body))
    await turns()
    head, *pieces = transport.pieces
    assert head < 300
    assert pieces == [PIECE_BYTES] * 5
    transport.pieces.clear()
    connection.data_received(post(body=body))
    await asyncio.sleep(0)
    connection.pause_writing()
    await turns()
    assert len(transport.pieces) == 2
    for number in range(3, 7):
        connection.resume_writing()
        connection.pause_writing()
        await turns()
        assert len(transport.pieces) == number
    connection.resume_writing()
    connection.connection_lost(None)


async def test_a_turn_passes_between_the_pieces_of_a_client_that_reads_fast():
    house = House(body_bytes_max=1 << 30)
    connection, transport = house.connect()
    connection.data_received(post(body=bytes(9 * PIECE_BYTES)))
    most = 0
    while len(transport.pieces) < 10:
        before = len(transport.pieces)
        await asyncio.sleep(0)
        most = max(most, len(transport.pieces) - before)
    assert most <= 2  # the head, and the first piece
    connection.connection_lost(None)


async def test_a_client_that_takes_nothing_is_cut_and_one_that_takes_some_is_not(monkeypatch):
    monkeypatch.setattr(connection_module, "CLIENT_STALL_S_MAX", 0.05)
    house = House()
    connection, transport = house.connect()
    connection.pause_writing()
    await asyncio.sleep(0.03)
    connection.resume_writing()
    await asyncio.sleep(0.05)
    assert not transport.is_closing()
    connection.pause_writing()
    await asyncio.sleep(0.1)
    assert transport.is_closing()
    assert house.server.cuts == {"client_stalled": 1}
    assert connection.cut_reason == "client_stalled"
    connection.connection_lost(None)


async def test_idle_connections_and_slow_heads_are_closed_and_others_are_not(monkeypatch):
    monkeypatch.setattr(server_module, "KEEPALIVE_S", 0.2)
    house = House()
    house.gate.clear()
    (_, idle), (slow, slow_transport) = house.connect(), house.connect()
    (busy, busy_transport), (used, used_transport) = house.connect(), house.connect()
    slow.data_received(PROBE[:10])
    busy.data_received(post())
    for _ in range(3):
        await asyncio.sleep(0.1)
        used.data_received(PROBE)
        slow.data_received(b"a")
    await turns()
    assert [each.is_closing() for each in (idle, slow_transport, busy_transport, used_transport)] == [
        True, True, False, False,
    ]  # fmt: skip
    for connection in list(house.server.connections):
        connection.connection_lost(None)


async def test_what_makes_room_are_answered_connections_the_longest_idle_first():
    house = House()
    pairs = [house.connect() for _ in range(7)]
    (_, unread_transport), (half, _), (begun, _), (_new, _), *idle = pairs
    unread_transport.buffered = 1
    for connection, transport in (pairs[0], pairs[1], pairs[2], *idle):
        connection.data_received(PROBE)
        await turns()
        assert answers(transport.written) == [(200, b"")]
        await asyncio.sleep(0.002)
    half.data_received(PROBE[:10])
    house.gate.clear()
    begun.data_received(post(body=b"abc")[:-1])
    await turns()

    def closed():
        return [transport.is_closing() for _, transport in pairs]

    house.server.close_idle(9, 10.0, inf)
    assert closed() == [False] * 7
    house.server.close_idle(1, 0.0, inf)
    assert closed() == [False] * 4 + [True, False, False]
    house.server.close_idle(1, 0.0, inf)
    assert closed() == [False] * 4 + [True, True, False]
    house.server.close_idle(9, 0.0, inf)
    assert closed() == [False] * 4 + [True, True, True]
    for connection, _ in pairs:
        connection.connection_lost(None)


async def test_what_makes_room_are_unused_connections_too_after_a_longer_time_the_oldest_first():
    house = House()
    pairs = [house.connect() for _ in range(4)]
    (half, _), (used, _), *_ = pairs
    half.data_received(PROBE[:1])
    used.data_received(PROBE)
    await turns()

    def closed():
        return [transport.is_closing() for _, transport in pairs]

    house.server.close_idle(9, 10.0, 10.0)
    assert closed() == [False] * 4
    house.server.close_idle(1, 10.0, 0.0)
    assert closed() == [False, False, True, False]
    house.server.close_idle(9, 10.0, 0.0)
    assert closed() == [False, False, True, True], "neither what has begun to send its head, nor what has sent one"
    for connection, _ in pairs:
        connection.connection_lost(None)


async def test_an_idle_connection_whose_next_request_has_come_unread_is_not_closed():
    house, loop = House(), asyncio.get_running_loop()
    client, accepted = socket.socketpair()
    with client:
        client.setblocking(False)
        await loop.connect_accepted_socket(house.server, accepted)
        async with asyncio.timeout(15):
            for _ in range(2):
                client.send(PROBE)
                house.server.close_idle(9, 0.0, inf)
                assert (await loop.sock_recv(client, 4096)).startswith(b"HTTP/1.1 200")
            house.server.close_idle(9, 0.0, inf)
            assert await loop.sock_recv(client, 4096) == b""


async def test_what_is_left_of_a_connection_is_dropped_for_a_while_after_its_last_answer(monkeypatch):
    monkeypatch.setattr(connection_module, "LINGER_S", 0.05)
    connection, transport = House().connect()
    connection.data_received(post(line="POST /nowhere HTTP/1.1", body=b"a" * 1000)[:-1])
    await turns()
    assert transport.has_eof
    connection.data_received(b"a" * 1000)
    assert not transport.is_closing()
    connection.connection_lost(None)


async def test_a_client_that_resets_the_connection_just_after_its_last_answer_fails_nothing(monkeypatch):
    """asyncio's own loop tells it to the one that says that nothing more comes."""
    connection, transport = House().connect()
    monkeypatch.setattr(transport, "write_eof", Mock(side_effect=OSError(errno.ENOTCONN, "not connected")))
    connection.data_received(get("Connection: close"))
    task = connection.task
    await turns()
    assert task.exception() is None
    assert transport.is_closing()
    connection.connection_lost(None)


async def test_a_slow_client_may_read_its_last_answer_while_it_reads(monkeypatch):
    monkeypatch.setattr(connection_module, "CLIENT_STALL_S_MAX", 0.02)
    connection, transport = House().connect()
    connection.data_received(get("Connection: close"))
    await turns()
    for left in (3, 2, 1):
        transport.buffered = left
        connection._end_lingering(left + 1)
        assert not transport.is_closing()
    connection._end_lingering(1)
    assert transport.is_closing()
    connection.connection_lost(None)


async def test_a_shutdown_answers_what_runs_closes_what_is_idle_and_ends_what_stays():
    house = House()
    house.gate.clear()
    (_, idle), (connection, transport), (_, _) = house.connect(), house.connect(), house.connect()
    connection.data_received(post() * 2)
    await turns()
    house.server.pre_shutdown()
    assert idle.is_closing()
    ending = asyncio.ensure_future(house.server.shutdown(5.0))
    await turns()
    assert not ending.done()
    house.gate.set()
    await ending
    assert answers(transport.written) == [(200, b"abc")]
    assert b"connection: close" in transport.written
    house.gate.clear()
    connection, transport = house.connect()
    connection.data_received(post())
    await turns()
    await house.server.shutdown(0.02)
    assert house.cancelled == 1
    assert transport.is_closing()


@pytest.mark.parametrize("error", [ZeroDivisionError, ConnectionRefusedError])
async def test_a_handler_that_fails_is_answered_and_logged(caplog, error):
    """Also by a connection of its own, while that of its client is there."""
    house = House()

    async def fail(_request):
        raise error

    house.server._handlers = {LIVEZ: fail}
    connection, transport = house.connect()
    connection.data_received(PROBE * 2)
    await turns()
    assert [status for status, _ in answers(transport.written)] == [500]
    assert transport.has_eof
    assert [record.message for record in caplog.records] == ["a handler failed"]
    connection.connection_lost(None)


def test_a_head_has_room_for_its_longest_line():
    assert LINE_BYTES_MAX < HEAD_BYTES_MAX
