"""The relay between a scripted backend and raw clients, on the event loop it is served with."""

import asyncio
import functools
import json
import logging

import pytest
import uvloop
from gateway_rig import PATIENCE_S

from backends.meters.chunks import ChunkMeter
from backends.meters.events import StreamCall
from backends.upstream import ConnectionLimits, Upstream, UpstreamClosed
from gateway.api.endpoints import ChargeRule, Endpoint
from gateway.forwarding.answers.relay import (
    RelayResult,
    StreamReports,
    passed_headers,
    read_whole,
    relay_body,
    relay_stream,
)
from gateway.forwarding.answers.unread_bytes import UnreadBytes
from gateway.http import connection as stall
from gateway.http.cors import Cors
from gateway.http.request_ids import RequestIds
from gateway.http.response import Response
from gateway.http.server import GatewayServer
from gateway.ports.listener import Listener
from policies.types import Outcome, Usage

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n"
DONE = b"data: [DONE]\n\n"
BODY_MAX = 1 << 20


def served(test):
    @functools.wraps(test)
    def run(**arguments):
        uvloop.run(asyncio.wait_for(test(**arguments), PATIENCE_S))

    return run


def event(output, *, with_usage=True, finish=None, content="co"):
    message = {"id": "x", "choices": [{"index": 0, "delta": {"content": content}, "finish_reason": finish}]}
    if with_usage:
        message["usage"] = {"prompt_tokens": 7, "total_tokens": 7 + output, "completion_tokens": output}
    return b"data: " + json.dumps(message, separators=(",", ":")).encode() + b"\n\n"


def framed(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


def unframed(body):
    out = b""
    while True:
        size, _, body = body.partition(b"\r\n")
        if size == b"0":
            assert body == b"\r\n"
            return out
        out += body[: int(size, 16)]
        assert body[int(size, 16) :][:2] == b"\r\n"
        body = body[int(size, 16) + 2 :]


class House:
    """A backend that runs `answer(writer)` for every request, and a gateway that is only the relay."""

    def __init__(self, answer):
        self.answer = answer
        self.results = []
        self.usages = []
        self.unread_s = []
        self.unread = UnreadBytes(BODY_MAX)
        self.backend_gone = asyncio.Event()
        self.cancelled = 0

    def on_usage(self, usage):
        self.usages.append(usage)
        return usage.output_tokens + 1

    async def __aenter__(self):
        self._backend = await asyncio.start_server(self._backend_side, "127.0.0.1", 0)
        port = self._backend.sockets[0].getsockname()[1]
        self.upstream = Upstream(
            f"http://127.0.0.1:{port}",
            ConnectionLimits(connect_timeout_s=2, idle_s_max=5, idle_connections_max=8, silence_s_max=60),
        )
        answers = {"/stream": self._stream, "/body": self._body}
        server = GatewayServer(
            {Endpoint(path=path, charge=ChargeRule.NOTHING): answer for path, answer in answers.items()},
            names=RequestIds(),
            cors=Cors(()),
            body_bytes_max=1000,
        )
        self._listener = Listener(server, ("127.0.0.1", 0), None, stop_s_max=1.0)
        self.port = int((await self._listener.start()).rpartition(":")[2])
        return self

    async def __aexit__(self, *_):
        await self.upstream.aclose()
        await self._listener.stop()
        self._backend.close()

    async def _backend_side(self, reader, writer):
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await self.answer(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.backend_gone.set()
            writer.close()

    async def _stream(self, request):
        try:
            async with await self.upstream.open("POST", "/") as exchange:
                meter = ChunkMeter(StreamCall())
                own = {"x-request-id": "mine"}
                told = StreamReports(self.on_usage, self.unread_s.append)
                result = await relay_stream(request, exchange, meter, told, headers=own)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.results.append(result)
        return result.response

    async def _body(self, request):
        async with await self.upstream.open("POST", "/") as exchange:
            try:
                body, unread = await read_whole(exchange, BODY_MAX, self.unread, "t")
                response = relay_body(exchange, body, unread, headers={"x-request-id": "mine"})
                result = RelayResult(response, Outcome.COMPLETED)
            except UpstreamClosed as error:
                self.results.append(error)
                return Response(502)
        self.results.append(result)
        return result.response

    async def client(self, path="/stream", *, version="1.1", method="POST", headers=""):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 16)
        writer.write(f"{method} {path} HTTP/{version}\r\nhost: x\r\n{headers}\r\n".encode())
        return reader, writer

    async def get(self, path="/stream", **options):
        """One request on its own connection: head and body as they came."""
        reader, writer = await self.client(path, **options)
        head = await reader.readuntil(b"\r\n\r\n")
        body = b""
        while not (b"chunked" in head and body.endswith(b"0\r\n\r\n")):
            piece = await reader.read(65536)
            if not piece:
                break
            body += piece
        writer.close()
        await self.settle(lambda: self.results)
        return head, body

    async def settle(self, condition):
        async with asyncio.timeout(5):
            while not condition():  # noqa: ASYNC110 - of state that sets no event
                await asyncio.sleep(0.002)


def streams(*pieces, close=False):
    async def answer(writer):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.005)
        if close:
            writer.close()

    return answer


async def forever(writer):
    writer.write(HEAD + b"\r\n")
    for output in range(1, 10_000):
        writer.write(framed(event(output)))
        await writer.drain()
        await asyncio.sleep(0.005)


WHOLE = [HEAD + b"\r\n", *(framed(event(n)) for n in (1, 2, 4)), framed(DONE), b"0\r\n\r\n"]
TO_CLIENT = b"".join(event(n, with_usage=False) for n in (1, 2, 4)) + DONE


@pytest.mark.parametrize("cut", ["by chunk", "at once", "by byte"])
@served
async def test_a_stream_is_relayed_counted_and_both_connections_are_kept(cut):
    whole = b"".join(WHOLE)
    pieces = {"by chunk": WHOLE, "at once": [whole], "by byte": [whole[i : i + 1] for i in range(len(whole))]}[cut]
    async with House(streams(*pieces)) as house:
        head, body = await house.get()
        assert unframed(body) == TO_CLIENT
        assert house.usages[-1] == Usage(7, 0, 4)
        assert house.usages == sorted(set(house.usages))
        result = house.results[0]
        assert (result.outcome, result.failure, result.slowed) == (Outcome.COMPLETED, None, False)
        assert house.upstream.idle_connections == 1
        assert b"connection: close" not in head.lower()


@served
async def test_every_chunk_reaches_the_client_and_the_account_when_it_comes():
    async with House(forever) as house:
        reader, writer = await house.client()
        await reader.readuntil(b"\r\n\r\n")
        for output in range(1, 4):
            size = int((await reader.readline()).strip(), 16)
            assert await reader.readexactly(size + 2) == event(output, with_usage=False) + b"\r\n"
            assert house.usages[-1].output_tokens >= output
        writer.close()
        await house.settle(lambda: house.cancelled)


@served
async def test_a_connection_serves_one_stream_after_the_other():
    async with House(streams(*WHOLE)) as house:
        reader, writer = await house.client()
        for _ in range(2):
            await reader.readuntil(b"\r\n\r\n")
            assert unframed(await reader.readuntil(b"\r\n0\r\n\r\n")) == TO_CLIENT
            writer.write(b"POST /stream HTTP/1.1\r\nhost: x\r\n\r\n")
        writer.close()


@served
async def test_headers_that_are_the_connections_own_do_not_pass():
    theirs = (
        b"x-note: yes\r\nset-cookie: a=b\r\nserver: uvicorn\r\ndate: never\r\nkeep-alive: 9\r\nx-request-id: theirs\r\n"
    )
    async with House(streams(HEAD + theirs + b"\r\n", *WHOLE[1:])) as house:
        head, _ = await house.get()
        lower = head.lower()
        assert b"content-type: text/event-stream; charset=utf-8\r\n" in lower
        assert b"x-note: yes\r\n" in lower
        assert b"x-request-id: mine\r\n" in lower
        for absent in (b"set-cookie", b"uvicorn", b"never", b"keep-alive", b"theirs"):
            assert absent not in lower


def test_one_table_says_which_headers_pass():
    headers = {"content-type": "a", "connection": "b", "x-c": "c", "content-length": "3", "retry-after": "1"}
    assert passed_headers(headers) == {"content-type": "a", "x-c": "c", "retry-after": "1"}


@served
async def test_a_client_of_http_1_0_gets_an_unframed_body_that_ends_with_the_connection():
    async with House(streams(*WHOLE)) as house:
        for headers in ("", "connection: keep-alive\r\n"):
            head, body = await house.get(version="1.0", headers=headers)
            assert body == TO_CLIENT
            assert b"chunked" not in head.lower()
            assert b"keep-alive" not in head.lower()


CUT = [HEAD + b"\r\n", framed(event(1)), framed(event(2))]


@pytest.mark.parametrize(
    ("pieces", "failure"),
    [
        ([*CUT], "closed by the backend"),
        ([*CUT, framed(event(3)[:50])], "closed by the backend"),
        ([*CUT, b"zz\r\n"], "not HTTP"),
        ([*CUT, b"0\r\n\r\n"], "without saying so"),
    ],
    ids=["between events", "inside an event", "malformed", "ended without done"],
)
@served
async def test_a_stream_that_is_cut_ends_with_an_error_event_and_no_done(pieces, failure):
    async with House(streams(*pieces, close=True)) as house:
        _, body = await house.get()
        whole = event(1, with_usage=False) + event(2, with_usage=False)
        assert unframed(body).startswith(whole)
        last = unframed(body).removeprefix(whole)
        assert last.endswith(b"\n\n")
        error = json.loads(last.removeprefix(b"data: "))["error"]
        assert (error["code"], error["param"], sorted(error)) == (502, None, ["code", "message", "param", "type"])
        assert house.results[0].outcome is Outcome.BACKEND_FAILED
        assert failure in house.results[0].failure
        assert house.usages[-1] == Usage(7, 0, 2)


@served
async def test_an_error_event_of_the_backend_is_passed_without_done_and_told():
    error = b'data: {"error": {"message": "EngineCore encountered an issue.", "code": 500}}\n\n'
    async with House(streams(*CUT, framed(error), framed(DONE), b"0\r\n\r\n")) as house:
        _, body = await house.get()
        assert unframed(body) == event(1, with_usage=False) + event(2, with_usage=False) + error
        assert house.results[0].outcome is Outcome.BACKEND_FAILED


@served
async def test_an_answer_that_was_whole_before_the_connection_broke_is_whole():
    async with House(streams(*WHOLE[:-1], close=True)) as house:
        _, body = await house.get()
        assert unframed(body) == TO_CLIENT
        assert house.results[0].outcome is Outcome.COMPLETED
        assert house.upstream.open_connections == 0


async def silent(writer):
    await writer.drain()
    await asyncio.sleep(60)


async def head_only(writer):
    writer.write(HEAD + b"\r\n")
    await asyncio.sleep(60)


@pytest.mark.parametrize("answer", [silent, head_only, forever])
@served
async def test_a_client_that_leaves_reaches_the_backend_at_once_and_leaves_no_log(answer, caplog):
    caplog.set_level(logging.INFO)
    async with House(answer) as house:
        _, writer = await house.client()
        await asyncio.sleep(0.05)
        writer.transport.abort()
        async with asyncio.timeout(1):
            await house.settle(lambda: house.cancelled or house.results)
            await house.settle(lambda: house.upstream.open_connections == 0)
        assert house.upstream.idle_connections == 0
    assert [record for record in caplog.records if record.name.startswith("gateway")] == []


def flood(total):
    async def answer(writer):
        writer.write(HEAD + b"\r\n")
        for output in range(1, total + 1):
            writer.write(framed(event(output, content="x" * 8000)))
            await writer.drain()
            answer.sent = output
        writer.write(framed(DONE) + b"0\r\n\r\n")

    answer.sent = 0
    return answer


async def stuck(answer):
    """Until nothing more is taken of a flood; how much was."""
    sent = -1
    while sent != answer.sent or not sent:
        sent = answer.sent
        await asyncio.sleep(0.2)
    return sent


@served
async def test_a_slow_client_slows_its_backend_and_still_gets_everything():
    total = 3000
    answer = flood(total)
    async with House(answer) as house:
        reader, writer = await house.client()
        await reader.readuntil(b"\r\n\r\n")
        assert await stuck(answer) < total
        body = await reader.readexactly(1)
        while not body.endswith(b"\r\n0\r\n\r\n"):
            body += await reader.read(1 << 20)
        text = unframed(body)
        assert text.count(b"data: ") == total + 1
        assert text.endswith(DONE)
        await house.settle(lambda: house.results)
        assert house.usages[-1].output_tokens == total
        assert house.results[0].slowed
        assert house.upstream.idle_connections == 1
        writer.close()


@served
async def test_a_client_that_takes_nothing_is_given_up(monkeypatch):
    monkeypatch.setattr(stall, "CLIENT_STALL_S_MAX", 0.1)
    async with House(flood(3000)) as house:
        _, writer = await house.client()
        await house.settle(lambda: house.cancelled or house.results)
        await house.settle(lambda: house.upstream.open_connections == 0)
        assert house.unread_s == [pytest.approx(0.1, abs=0.09)]
        writer.close()


@served
async def test_a_client_that_leaves_with_much_unread_leaves_the_time_it_read_nothing():
    answer = flood(3000)
    async with House(answer) as house:
        reader, writer = await house.client()
        await reader.readuntil(b"\r\n\r\n")
        await stuck(answer)
        writer.transport.abort()
        await house.settle(lambda: house.cancelled or house.results)
        (unread_s,) = house.unread_s
        assert 0.05 < unread_s < 2


@served
async def test_a_client_that_read_all_there_was_leaves_nothing_unread():
    async with House(forever) as house:
        reader, writer = await house.client()
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()
        await house.settle(lambda: house.cancelled or house.results)
        assert house.unread_s == []


BODY = json.dumps({"id": "x", "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 9}}).encode()


def answers(status, body, headers=b"content-type: application/json\r\n"):
    return streams(b"HTTP/1.1 %b\r\n%bcontent-length: %d\r\n\r\n%b" % (status, headers, len(body), body))


@served
async def test_a_whole_body_passes_untouched():
    async with House(answers(b"200 OK", BODY)) as house:
        head, body = await house.get("/body", headers="connection: close\r\n")
        assert body == BODY
        assert b"content-length: %d\r\n" % len(BODY) in head.lower()
        assert b"content-type: application/json\r\n" in head.lower()
        assert b"x-request-id: mine\r\n" in head.lower()
        assert house.upstream.idle_connections == 1


@pytest.mark.parametrize("status", [b"400 Bad Request", b"500 Oops", b"503 Busy"])
@served
async def test_a_refusal_of_the_backend_passes_untouched(status):
    async with House(answers(status, BODY)) as house:
        head, body = await house.get("/body", headers="connection: close\r\n")
        assert head.startswith(b"HTTP/1.1 " + status[:3])
        assert body == BODY


@pytest.mark.parametrize(
    ("version", "asked", "says", "stays"),
    [
        ("1.1", "", None, True),
        ("1.1", "connection: close\r\n", b"close", False),
        ("1.0", "", None, False),
        ("1.0", "connection: keep-alive\r\n", b"keep-alive", True),
    ],
)
@served
async def test_a_whole_answer_keeps_the_connection_where_the_client_does(version, asked, says, stays):
    async with House(answers(b"200 OK", BODY)) as house:
        reader, writer = await house.client("/body", version=version, headers=asked)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(f"HTTP/{version} 200 OK\r\n".encode())
        fields = [line.partition(b": ") for line in head.lower().split(b"\r\n")[1:-2]]
        assert sorted(name for name, _, _ in fields) == sorted(
            [b"content-length", b"content-type", b"date", b"x-request-id", *([b"connection"] if says else [])]
        )
        assert (b"connection", b": ", says) in fields or says is None
        assert await reader.readexactly(len(BODY)) == BODY
        if stays:
            writer.write(f"POST /body HTTP/{version}\r\nhost: x\r\n\r\n".encode())
        assert bool(await reader.read(1)) is stays
        writer.close()


@served
async def test_an_answer_that_may_have_no_body_has_no_length():
    async with House(answers(b"204 No Content", b"", b"x-answer: yes\r\n")) as house:
        head, body = await house.get("/body", headers="connection: close\r\n")
        assert head.startswith(b"HTTP/1.1 204")
        assert b"content-length" not in head.lower()
        assert body == b""
        assert b"x-answer: yes\r\n" in head.lower()


@served
async def test_a_body_that_is_not_json_passes():
    async with House(answers(b"200 OK", b"hello", b"content-type: text/plain\r\n")) as house:
        _, body = await house.get("/body", headers="connection: close\r\n")
        assert body == b"hello"


@served
async def test_a_body_that_is_cut_is_the_callers_to_answer():
    response = b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{"
    async with House(streams(response, close=True)) as house:
        head, _ = await house.get("/body", headers="connection: close\r\n")
        assert head.startswith(b"HTTP/1.1 502")
        assert house.results[0].bytes_received
