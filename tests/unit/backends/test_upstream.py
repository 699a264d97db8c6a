"""Connections to a backend that answers well, badly, late, in pieces, or not at all; on both event loops."""

import asyncio
import inspect
import socket
import ssl

import pytest
import uvloop

from backends import connection, upstream
from backends.upstream import (
    ConnectFailed,
    ConnectionLimits,
    Upstream,
    UpstreamAway,
    UpstreamClosed,
    UpstreamProtocolError,
    UpstreamSilent,
)

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nX-Name: value\r\n\r\n"
BODY_MAX = 1 << 20


LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def on_both_loops(test):
    """Run a test on the loop we serve with and on the one others debug with."""
    signature = inspect.signature(test)
    loop = inspect.Parameter("loop", inspect.Parameter.KEYWORD_ONLY)

    def run(*, loop, **arguments):
        with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
            runner.run(test(**arguments))

    run.__name__, run.__module__ = test.__name__, test.__module__
    run.pytestmark = getattr(test, "pytestmark", [])
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), loop])
    return pytest.mark.parametrize("loop", LOOPS)(run)


class Backend:
    """A scripted server: `answer(reader, writer, n)` is called for the n-th connection."""

    def __init__(self, answer):
        self._answer = answer
        self.connections = 0
        self.requests = []
        self.closed = asyncio.Event()
        self._tasks = set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader, writer):
        task = asyncio.current_task()
        self._tasks.add(task)
        self.connections += 1
        try:
            await self._answer(self, reader, writer, self.connections)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.closed.set()
            self._tasks.discard(task)
            writer.close()

    async def request(self, reader):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
        self.requests.append((head, await reader.readexactly(length)))


def always(*pieces, close=False, pause_s=0.0):
    """Answer every request with these bytes, one write each."""

    async def answer(backend, reader, writer, _n):
        while True:
            await backend.request(reader)
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause_s)
            if close:
                return

    return answer


async def never(backend, reader, _writer, _n):
    await backend.request(reader)
    await reader.read()


def make_upstream(url, **options):
    limits = {"connect_timeout_s": 2.0, "idle_s_max": 5.0, "idle_connections_max": 8, "silence_s_max": 60.0}
    limits |= {name: options.pop(name) for name in ConnectionLimits._fields if name in options}
    return Upstream(url, ConnectionLimits(**limits), **options)


async def get(up, target="/v1/models", **options):
    async with await up.open("GET", target, options.get("headers", {}), options.get("body", b"")) as exchange:
        return exchange.status, await exchange.read(options.get("bytes_max", BODY_MAX))


async def fetch(*pieces, pause_s=0.0, close=False):
    async with Backend(always(*pieces, pause_s=pause_s, close=close)) as backend:
        up = make_upstream(backend.url)
        try:
            result = await get(up)
            return result, up.idle_connections
        finally:
            await up.aclose()


async def settle(condition):
    async with asyncio.timeout(2):
        while not condition():  # noqa: ASYNC110 - of state that sets no event
            await asyncio.sleep(0.002)


@on_both_loops
async def test_a_request_is_one_head_and_its_body():
    async with Backend(always(OK)) as backend:
        up = make_upstream(backend.url + "/base")
        headers = {"content-type": "application/json", "x-name": "caf\xe9"}
        async with await up.open("POST", "/v1/x?a=b", headers, b"{}") as exchange:
            assert (exchange.status, exchange.headers) == (200, {"content-length": "2"})
            assert await exchange.read(BODY_MAX) == b"ok"
        head, body = backend.requests[0]
        host = backend.url.removeprefix("http://").encode()
        lines = [b"POST /base/v1/x?a=b HTTP/1.1", b"host: " + host, b"content-length: 2"]
        assert head.split(b"\r\n")[:3] == lines
        assert b"content-type: application/json\r\nx-name: caf\xc3\xa9\r\n" in head
        assert body == b"{}"
        await up.aclose()


@on_both_loops
@pytest.mark.parametrize(
    ("response", "body"),
    [
        (OK, b"ok"),
        (CHUNKED + b"2\r\nok\r\n3;ext=1\r\nay!\r\n0\r\n\r\n", b"okay!"),
        (CHUNKED + b"2\r\nok\r\n0\r\nx-trailer: 1\r\n\r\n", b"ok"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK, b"ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b""),
    ],
    ids=["length", "chunked", "trailer", "1xx", "204", "empty"],
)
async def test_every_framing_is_read_whole_or_byte_by_byte_and_the_connection_kept(response, body):
    for pieces in ([response], [response[i : i + 1] for i in range(len(response))]):
        (_, received), idle = await fetch(*pieces)
        assert received == body
        assert idle == 1


@on_both_loops
async def test_a_body_without_framing_ends_with_the_connection():
    (status, body), idle = await fetch(b"HTTP/1.1 200 OK\r\nserver: x\r\n\r\nall", b" of it", close=True, pause_s=0.01)
    assert (status, body, idle) == (200, b"all of it", 0)


@on_both_loops
async def test_connection_close_is_not_pooled():
    response = OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    assert await fetch(response) == ((200, b"ok"), 0)


@on_both_loops
async def test_header_names_are_lower_case_and_trailers_are_left_out():
    async with Backend(always(CHUNKED + b"0\r\nx-trailer: 1\r\n\r\n")) as backend:
        up = make_upstream(backend.url)
        async with await up.open("GET", "/") as exchange:
            await exchange.read(BODY_MAX)
            assert exchange.headers == {"transfer-encoding": "chunked", "x-name": "value"}
        await up.aclose()


@on_both_loops
async def test_the_connection_used_last_is_used_next():
    async with Backend(always(OK)) as backend:
        up = make_upstream(backend.url)
        first, second = await up.open("GET", "/"), await up.open("GET", "/")
        for exchange in (first, second):
            await exchange.read(BODY_MAX)
            exchange.release()
        assert (up.idle_connections, backend.connections) == (2, 2)
        hot = up._idle[-1]
        await get(up)
        assert up._idle[-1] is hot
        assert backend.connections == 2
        await up.aclose()
        assert up.open_connections == 0


@on_both_loops
async def test_the_pool_is_bounded_in_number_and_age():
    async with Backend(always(OK)) as backend:
        up = make_upstream(backend.url, idle_connections_max=1, idle_s_max=0.05)
        exchanges = [await up.open("GET", "/") for _ in range(3)]
        for exchange in exchanges:
            await exchange.read(BODY_MAX)
            exchange.release()
        assert up.idle_connections == 1
        await settle(lambda: up.open_connections == 0)
        assert up.idle_connections == 0
        await up.aclose()


@on_both_loops
async def test_a_pooled_connection_that_the_backend_closed_is_left_out():
    async with Backend(always(OK, close=True)) as backend:
        up = make_upstream(backend.url)
        await get(up)
        await settle(lambda: up.open_connections == 0)
        assert await get(up) == (200, b"ok")
        assert backend.connections == 2
        await up.aclose()


async def closes_on_second_request(backend, reader, writer, n):
    await backend.request(reader)
    writer.write(OK)
    if n == 1:
        await backend.request(reader)
        return
    await reader.read()


@on_both_loops
async def test_a_pooled_connection_closed_under_the_request_is_retried_once():
    async with Backend(closes_on_second_request) as backend:
        up = make_upstream(backend.url)
        assert await get(up) == (200, b"ok")
        assert await get(up) == (200, b"ok")
        assert (backend.connections, len(backend.requests)) == (2, 3)
        await up.aclose()


@on_both_loops
async def test_a_request_says_once_that_it_has_a_connection_and_before_it_is_answered():
    said = []
    async with Backend(closes_on_second_request) as backend:
        up = make_upstream(backend.url)
        for number in range(2):  # on a new connection, and on a pooled one that is closed
            async with await up.open("GET", "/", on_sent=lambda: said.append(len(backend.requests))) as exchange:
                await exchange.read(BODY_MAX)
            assert said == list(range(number + 1))
        await up.aclose()
    with pytest.raises(ConnectFailed):
        await up.open("GET", "/", on_sent=lambda: said.append(None))
    assert None not in said


@on_both_loops
async def test_a_new_connection_closed_under_the_request_is_not_retried():
    async def answer(backend, reader, _writer, _n):
        await backend.request(reader)

    async with Backend(answer) as backend:
        up = make_upstream(backend.url)
        with pytest.raises(UpstreamClosed) as caught:
            await get(up)
        assert caught.value.bytes_received == 0
        assert backend.connections == 1
        await up.aclose()


@on_both_loops
async def test_a_pooled_connection_that_answered_a_byte_is_not_retried():
    async def answer(backend, reader, writer, n):
        await backend.request(reader)
        writer.write(OK)
        if n == 1:
            await backend.request(reader)
            writer.write(b"H")
            return
        await reader.read()

    async with Backend(answer) as backend:
        up = make_upstream(backend.url)
        await get(up)
        with pytest.raises(UpstreamClosed):
            await get(up)
        assert backend.connections == 1
        await up.aclose()


@on_both_loops
async def test_closing_waits_until_every_connection_is_gone():
    async def answer(backend, reader, writer, n):
        await backend.request(reader)
        writer.write(OK if n == 1 else CHUNKED)
        await reader.read()

    async with Backend(answer) as backend:
        up = make_upstream(backend.url)
        first = await up.open("GET", "/")
        async with await up.open("GET", "/"):
            first.release()
            assert (up.open_connections, up.idle_connections) == (2, 1)
            await up.aclose()
            assert up.open_connections == 0


@on_both_loops
async def test_a_body_that_is_cut_is_told_from_one_that_ended():
    for response in (CHUNKED + b"5\r\nfirst\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nfirst"):
        async with Backend(always(response, close=True, pause_s=0.01)) as backend:
            up = make_upstream(backend.url)
            pieces = []
            async with await up.open("GET", "/") as exchange:
                with pytest.raises(UpstreamClosed) as caught:
                    await exchange.stream(pieces.append)
            assert pieces == [b"first"]
            assert caught.value.bytes_received
            await settle(lambda up=up: up.open_connections == 0)
            await up.aclose()


@on_both_loops
@pytest.mark.parametrize(
    "response",
    [b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", b"\x16\x03\x01\x00"],
)
async def test_what_is_not_http_is_a_protocol_error(response):
    with pytest.raises(UpstreamProtocolError):
        await fetch(response)


@on_both_loops
async def test_a_malformed_chunk_fails_the_stream_after_what_was_good():
    async with Backend(always(CHUNKED, b"2\r\nok\r\nzz\r\n", pause_s=0.01)) as backend:
        up = make_upstream(backend.url)
        pieces = []
        async with await up.open("GET", "/") as exchange:
            with pytest.raises(UpstreamProtocolError):
                await exchange.stream(pieces.append)
        assert pieces == [b"ok"]
        assert up.idle_connections == 0
        await up.aclose()


@on_both_loops
async def test_a_head_without_end_is_refused():
    line = b"x-filler: " + b"y" * 1000 + b"\r\n"
    with pytest.raises(UpstreamProtocolError):
        await fetch(b"HTTP/1.1 200 OK\r\n", *[line] * 80)


@on_both_loops
async def test_bytes_after_the_response_are_not_the_next_one():
    (status, body), idle = await fetch(OK + b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil")
    assert (status, body, idle) == (200, b"ok", 0)


@on_both_loops
async def test_bytes_on_an_idle_connection_close_it():
    async with Backend(always(OK, OK, pause_s=0.02)) as backend:
        up = make_upstream(backend.url)
        assert await get(up) == (200, b"ok")
        await settle(lambda: up.open_connections == 0)
        await up.aclose()


@on_both_loops
async def test_a_body_over_the_limit_is_refused():
    async with Backend(always(OK)) as backend:
        up = make_upstream(backend.url)
        assert await get(up, bytes_max=2) == (200, b"ok")
        with pytest.raises(UpstreamProtocolError):
            await get(up, bytes_max=1)
        await up.aclose()


@on_both_loops
async def test_a_refused_connection_says_that_nothing_was_sent():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        up = make_upstream(f"http://127.0.0.1:{sock.getsockname()[1]}")
        with pytest.raises(ConnectFailed):
            await get(up)


@on_both_loops
async def test_an_unknown_name_is_a_failed_connection():
    for host in ("no-such-host.invalid", "a" * 70 + ".invalid"):
        with pytest.raises(ConnectFailed):
            await get(make_upstream(f"http://{host}:1"))


@on_both_loops
async def test_a_connection_that_takes_too_long_has_failed():
    with socket.socket() as sock:  # its backlog is full: further SYNs are not answered
        sock.bind(("127.0.0.1", 0))
        sock.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(sock.getsockname())
        with pytest.raises(ConnectFailed):
            await get(make_upstream(f"http://127.0.0.1:{sock.getsockname()[1]}", connect_timeout_s=0.1))
        for filler in fillers:
            filler.close()


@on_both_loops
async def test_no_tls_at_the_other_end_is_a_failed_connection():
    async with Backend(always(OK)) as backend:
        up = make_upstream(backend.url.replace("http:", "https:"), connect_timeout_s=0.2)
        with pytest.raises(ConnectFailed):
            await get(up)
        await up.aclose()


@on_both_loops
async def test_a_context_given_for_https_is_used():
    context = ssl.create_default_context()
    assert make_upstream("https://127.0.0.1:1", ssl_context=context)._ssl is context
    assert make_upstream("http://127.0.0.1:1", ssl_context=context)._ssl is None


@on_both_loops
@pytest.mark.parametrize("how", ["cancel", "release"])
async def test_leaving_aborts_at_the_backend_at_once(how):
    async with Backend(never if how == "cancel" else always(CHUNKED + b"2\r\nok\r\n")) as backend:
        up = make_upstream(backend.url)
        if how == "cancel":  # before the head came
            task = asyncio.create_task(up.open("GET", "/"))
            await settle(lambda: backend.requests)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            exchange = await up.open("GET", "/")
            exchange.release()
            exchange.release()
        async with asyncio.timeout(1):
            await backend.closed.wait()
        assert up.idle_connections == 0
        await settle(lambda: up.open_connections == 0)
        await up.aclose()


@on_both_loops
async def test_a_release_wakes_what_is_streaming():
    async with Backend(always(CHUNKED + b"2\r\nok\r\n")) as backend:
        up = make_upstream(backend.url)
        exchange = await up.open("GET", "/")
        with pytest.raises(UpstreamClosed):
            await exchange.stream(lambda _: exchange.release())
        with pytest.raises(RuntimeError):
            await exchange.read(1)
        await up.aclose()


@on_both_loops
@pytest.mark.parametrize("pieces", [[CHUNKED + b"2\r\nok\r\n0\r\n\r\n"], [CHUNKED, b"2\r\nok\r\n"]])
async def test_what_the_callback_raises_is_raised_where_the_body_is_awaited(pieces):
    def broken(_):
        raise ZeroDivisionError

    async with Backend(always(*pieces, pause_s=0.01)) as backend:
        up = make_upstream(backend.url)
        async with await up.open("GET", "/") as exchange:
            with pytest.raises(ZeroDivisionError):
                await exchange.stream(broken)
        await up.aclose()


@on_both_loops
async def test_what_the_callback_raises_of_the_last_piece_is_raised_too():
    async with Backend(always(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab", b"cd", pause_s=0.05)) as backend:
        up = make_upstream(backend.url)
        with pytest.raises(UpstreamProtocolError, match="more than 3"):
            await get(up, bytes_max=3)
        assert await get(up) == (200, b"abcd")
        assert backend.connections == 2, "what failed is not used again"
        await up.aclose()


@on_both_loops
async def test_chunks_of_one_read_are_one_piece():
    async with Backend(always(CHUNKED, b"2\r\nok\r\n2\r\nay\r\n0\r\n\r\n", pause_s=0.02)) as backend:
        up = make_upstream(backend.url)
        pieces = []
        async with await up.open("GET", "/") as exchange:
            await exchange.stream(pieces.append)
        assert pieces == [b"okay"]
        await up.aclose()


async def flood(backend, reader, writer, _n):
    await backend.request(reader)
    writer.write(CHUNKED)
    for _ in range(200):
        writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
        await writer.drain()
        backend.sent = getattr(backend, "sent", 0) + 65536
    writer.write(b"0\r\n\r\n")
    await reader.read()


@on_both_loops
async def test_a_paused_exchange_stops_the_backend_and_is_not_pooled_paused():
    async with Backend(flood) as backend:
        up = make_upstream(backend.url)
        received = 0

        def count(data):
            nonlocal received
            received += len(data)
            if received == len(data):
                exchange.pause()

        async with await up.open("GET", "/") as exchange:
            streaming = asyncio.create_task(exchange.stream(count))
            await settle(lambda: received)
            await asyncio.sleep(0.1)
            before = received
            await asyncio.sleep(0.05)
            assert received == before < 200 * 65536
            exchange.resume()
            await streaming
            assert received == 200 * 65536
            exchange.pause()
        assert up.idle_connections == 1
        assert up._idle[0].transport.is_reading()
        await up.aclose()


@on_both_loops
async def test_a_body_that_is_not_read_yet_is_bounded():
    async with Backend(flood) as backend:
        up = make_upstream(backend.url)
        exchange = await up.open("GET", "/")
        await asyncio.sleep(0.1)
        held = sum(map(len, exchange._connection._pieces))
        assert held <= 2 * connection.HELD_BYTES_MAX + 65536
        assert len(await exchange.read(200 * 65536)) == 200 * 65536
        exchange.release()
        await up.aclose()


@on_both_loops
@pytest.mark.parametrize(
    ("target", "headers"),
    [
        ("/", {"x-a": "b\r\nx-evil: 1"}),
        ("/", {"x-a": "b\nc"}),
        ("/", {"x-a": "b\rc"}),
        ("/", {"x-a": "b\0c"}),
        ("/", {"x-a\r\nx-b": "c"}),
        ("/ HTTP/1.1\r\nx: y", {}),
        ("/a b", {}),
        ("/", {"Content-Length": "7"}),
        ("/", {"transfer-encoding": "chunked"}),
        ("/", {"host": "elsewhere"}),
    ],
)
async def test_a_request_that_would_be_read_otherwise_is_not_sent(target, headers):
    async with Backend(always(OK)) as backend:
        with pytest.raises(ValueError, match=r"line break|space|is set here"):
            await get(make_upstream(backend.url), target, headers=headers)
        assert backend.connections == 0


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://u:p@x", "http://x/?q=1", "x:80"])
def test_what_is_not_the_url_of_a_backend_is_refused(url):
    with pytest.raises(ValueError, match="URL"):
        make_upstream(url)


@on_both_loops
async def test_small_writes_are_not_delayed_and_silent_peers_are_probed():
    async with Backend(always(OK)) as backend:
        up = make_upstream(backend.url)
        await get(up)
        sock = up._idle[0].transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        await up.aclose()


@on_both_loops
async def test_closing_aborts_what_is_under_way():
    async with Backend(never) as backend:
        up = make_upstream(backend.url)
        task = asyncio.create_task(up.open("GET", "/"))
        await settle(lambda: backend.requests)
        await up.aclose()
        with pytest.raises(UpstreamClosed):
            await task
        with pytest.raises(ConnectFailed):
            await up.open("GET", "/")
        await settle(lambda: up.open_connections == 0)


@on_both_loops
async def test_a_response_of_which_nothing_comes_for_too_long_has_failed():
    async def silent(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n12345")
        await reader.read()  # until we have given up
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    up = make_upstream(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", silence_s_max=0.2)
    async with server, asyncio.timeout(3):
        async with await up.open("GET", "/") as exchange:
            with pytest.raises(UpstreamSilent):
                await exchange.read(BODY_MAX)
        await up.aclose()


@pytest.fixture
def soon(monkeypatch):
    """A backend that is away is left soon."""
    monkeypatch.setattr(upstream, "AWAY_CHECK_S", 0.02)
    monkeypatch.setattr(upstream, "AWAY_SILENCE_S", 0.1)


@on_both_loops
async def test_what_a_backend_has_not_answered_is_left_when_it_is_away(soon):
    async with Backend(always()) as backend, asyncio.timeout(3):
        up = make_upstream(backend.url, is_away=lambda: bool(backend.requests))
        with pytest.raises(UpstreamAway):
            await up.open("GET", "/")
        await up.aclose()


@pytest.mark.parametrize(("silence_s", "ending"), [(60, UpstreamAway), (None, None)], ids=["can", "cannot"])
@on_both_loops
async def test_a_response_is_left_in_the_middle_if_it_can_go_on_elsewhere(soon, silence_s, ending):
    async with Backend(always(CHUNKED + b"1\r\na\r\n", b"0\r\n\r\n", pause_s=0.4)) as backend:
        up, body = make_upstream(backend.url, is_away=lambda: True), []
        async with await up.open("GET", "/") as exchange:
            if silence_s is not None:
                exchange.limit_silence(silence_s)
            if ending is None:
                await exchange.stream(body.append)
            else:
                with pytest.raises(ending):
                    await exchange.stream(body.append)
        assert body == [b"a"]
        await up.aclose()


@on_both_loops
async def test_a_response_that_still_comes_is_not_left(soon):
    pieces = [CHUNKED, *[b"1\r\na\r\n"] * 10, b"0\r\n\r\n"]
    async with Backend(always(*pieces, pause_s=0.03)) as backend:
        up, body = make_upstream(backend.url, is_away=lambda: True), []
        async with await up.open("GET", "/") as exchange:
            exchange.limit_silence(60)
            await exchange.stream(body.append)
        assert b"".join(body) == b"a" * 10
        await up.aclose()


@on_both_loops
async def test_a_request_on_an_open_connection_that_ends_the_backend_was_not_refused():
    """It was sent: what could not be sent anywhere is another thing."""
    async with Backend(closes_on_second_request) as backend:
        up = make_upstream(backend.url)
        await get(up)
        backend._server.close()
        with pytest.raises(UpstreamClosed):
            await up.open("GET", "/")
        await up.aclose()


@on_both_loops
async def test_a_response_that_comes_slowly_is_not_silent():
    async with Backend(always(*(bytes([byte]) for byte in OK), pause_s=0.02)) as backend:
        up = make_upstream(backend.url, silence_s_max=0.2)
        assert await get(up) == (200, b"ok")
        await up.aclose()


class FloodedTransport(asyncio.Transport):
    """The transport of a socket that always has bytes, as libuv reads it: until reading is paused."""

    PIECE = bytes(1 << 18)

    def __init__(self):
        super().__init__()
        self.is_reading_now = True

    def read(self, protocol, pieces):
        while pieces and self.is_reading_now:
            protocol.data_received(self.PIECE)
            pieces -= 1
        return pieces

    def writelines(self, _data):
        """Its request is of no interest."""

    def pause_reading(self):
        self.is_reading_now = False

    def resume_reading(self):
        self.is_reading_now = True

    def is_closing(self):
        return False

    def abort(self):
        pass


class NoTransport:
    def give_back(self, _):
        pass


async def test_a_long_answer_lets_other_sockets_have_their_turn():
    transport, pieces, worst = FloodedTransport(), 64, 0
    one = connection.Connection(NoTransport(), asyncio.get_running_loop())
    one.connection_made(transport)
    exchange = one.begin(())
    length = pieces * len(transport.PIECE)
    one.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % length)
    reading = asyncio.ensure_future(exchange.read(length))
    while pieces:
        await asyncio.sleep(0)
        left = transport.read(one, pieces)
        worst, pieces = max(worst, pieces - left), left
    assert len(await reading) == length
    assert worst * len(transport.PIECE) == connection.TURN_BYTES_MAX
    exchange.release()
    await asyncio.sleep(0)
    assert transport.is_reading_now  # for the next exchange


async def test_an_exchange_that_is_paused_is_not_resumed_by_its_next_turn():
    transport = FloodedTransport()
    one = connection.Connection(NoTransport(), asyncio.get_running_loop())
    one.connection_made(transport)
    exchange = one.begin(())
    one.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (1 << 24))
    got = []
    reading = asyncio.ensure_future(exchange.read(1 << 24, lambda bytes_: (got.append(bytes_), exchange.pause())))
    await asyncio.sleep(0)
    for _ in range(8):
        one.data_received(transport.PIECE)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not transport.is_reading_now
    exchange.resume()
    assert transport.is_reading_now
    reading.cancel()
