"""Backends whose answers are not HTTP, or are two answers, or stop in the middle.

Whatever comes, a client gets exactly one answer, well framed: the backend's if it was whole, else an error of the
gateway. What cannot be trusted to be over leaves nothing behind for the next call.
"""

import asyncio
import contextlib
import json
from dataclasses import dataclass

import pytest
from gateway_rig import CHAT, answer, assert_error, call, gateway, http, scripted, until, wire

pytestmark = pytest.mark.jumping

ANSWER = {
    "id": "x",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "one"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 9, "total_tokens": 12, "completion_tokens": 3},
}
BODY = json.dumps(ANSWER).encode()
LENGTH = b"content-length: %d" % len(BODY)
CHUNKED = b"transfer-encoding: chunked"
LAST = b"0\r\n\r\n"
EVIL = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 12\r\n\r\n{"evil": 1}\n'
EVENT = b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"one"},"finish_reason":null}]}\n\n'
DONE = b"data: [DONE]\n\n"
PAUSE, PAUSE_S = b"", 0.02  # time for the gateway to read what was sent before
CLOSE = None  # what ends the connection, in a list of what is sent
TRIES_MAX = 2  # a backend that breaks the connection before it answers is asked once more


@dataclass(frozen=True)
class Case:
    """What the backend sends, in writes; the status that the client gets; whether the connection may be used again."""

    sent: tuple[bytes | None, ...]
    status: int = 200
    reused: bool = False


def head(*lines, line=b"HTTP/1.1 200 OK", content_type=b"application/json"):
    return b"\r\n".join([line, b"content-type: " + content_type, *lines]) + b"\r\n\r\n"


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


def served(*sent):
    return Case(sent)


def reused(*sent):
    return Case(sent, reused=True)


def refused(*sent):
    return Case(sent, status=502)


WHOLE = {
    "a length": reused(head(LENGTH) + BODY),
    "chunks": reused(head(CHUNKED) + chunk(BODY) + LAST),
    "an extension and a trailer": reused(
        head(CHUNKED) + b"%x;a=b\r\n%b\r\n" % (len(BODY), BODY) + b"0\r\nset-cookie: a=b\r\nx-a: b\r\n\r\n"
    ),
    "no length, to the end of the connection": served(head() + BODY, CLOSE),
    "HTTP/1.0": served(head(LENGTH, line=b"HTTP/1.0 200 OK") + BODY, CLOSE),
    "an interim answer": reused(b"HTTP/1.1 103 Early Hints\r\ncontent-length: 3\r\n\r\n" + head(LENGTH) + BODY),
    "no reason": reused(head(LENGTH, line=b"HTTP/1.1 200") + BODY),
    # Framing that can be read two ways.
    "two lengths": refused(head(LENGTH, b"content-length: 5") + BODY),
    "two lengths, the short one first": refused(head(b"content-length: 5", LENGTH) + BODY),
    "the same length twice": refused(head(LENGTH, LENGTH) + BODY),
    "a list of lengths": refused(head(b"content-length: %d, %d" % (len(BODY), len(BODY))) + BODY),
    "CL.TE": refused(head(LENGTH, CHUNKED) + chunk(BODY) + LAST),
    "TE.CL": refused(head(CHUNKED, b"content-length: 5") + chunk(BODY) + LAST),
    "TE.TE": refused(head(CHUNKED, b"transfer-encoding: identity") + chunk(BODY) + LAST),
    "gzip, chunked": refused(head(b"transfer-encoding: gzip, chunked") + chunk(BODY) + LAST),
    "gzip": refused(head(b"transfer-encoding: gzip") + BODY, CLOSE),
    "a positive length": refused(head(b"content-length: +%d" % len(BODY)) + BODY),
    "a negative length": refused(head(b"content-length: -1") + BODY),
    "a hexadecimal length": refused(head(b"content-length: 0x%x" % len(BODY)) + BODY),
    "a length over 64 bits": refused(head(b"content-length: " + b"9" * 30) + BODY, CLOSE),
    "an empty length": refused(head(b"content-length:") + BODY, CLOSE),
    "no chunk size": refused(head(CHUNKED) + b"zz\r\n" + BODY),
    "a chunk size over 64 bits": refused(head(CHUNKED) + b"1" + b"0" * 16 + b"\r\n" + BODY),
    "bare LFs in chunks": refused(head(CHUNKED) + (chunk(BODY) + LAST).replace(b"\r\n", b"\n")),
    "an answer as trailer": refused(head(CHUNKED) + chunk(BODY) + b"0\r\n" + EVIL),
    # Answers that stop in the middle.
    "cut": refused(head(LENGTH) + BODY[:20], CLOSE),
    "cut, a length that is too large": refused(head(b"content-length: 5000") + BODY, CLOSE),
    "cut between chunks": refused(head(CHUNKED) + chunk(BODY), CLOSE),
    "cut within a chunk": refused(head(CHUNKED) + b"%x\r\n%b" % (len(BODY) + 5, BODY), CLOSE),
    "cut, without a length": refused(head() + BODY[:50], CLOSE),
    "cut, without a length and before it began": refused(head(), CLOSE),
    "cut within the head": refused(b"HTTP/1.1 200 OK\r\nx-a", CLOSE),
    # More than was asked for.
    "two answers": served(head(LENGTH) + BODY + EVIL),
    "two answers, in chunks": served(head(CHUNKED) + chunk(BODY) + LAST + EVIL),
    "a second answer, later": served(head(LENGTH) + BODY, PAUSE, EVIL),
    "bytes behind the answer": served(head(LENGTH) + BODY + b"garbage"),
    "a switch of protocols": refused(b"HTTP/1.1 101 X\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n" + BODY, CLOSE),
    "a flood of interim answers": refused(b"HTTP/1.1 100 Continue\r\n\r\n" * 4000, PAUSE, head(LENGTH) + BODY),
    "a flood of headers": refused(b"HTTP/1.1 200 OK\r\n" + b"x-a: b\r\n" * 40_000, PAUSE, b"\r\n", CLOSE),
    "an endless header": refused(b"HTTP/1.1 200 OK\r\nx-a: " + b"b" * 400_000, PAUSE, b"\r\n\r\n", CLOSE),
    # Heads that are none.
    "HTTP/0.9": refused(BODY, CLOSE),
    "another protocol": refused(b"ICY 200 OK\r\n\r\n" + BODY, CLOSE),
    "TLS": refused(b"\x15\x03\x03\x00\x02\x02\x50", CLOSE),
    "status 99": refused(head(LENGTH, line=b"HTTP/1.1 099 X") + BODY),
    "status 600": refused(head(LENGTH, line=b"HTTP/1.1 600 X") + BODY),
    "status 1000": refused(head(LENGTH, line=b"HTTP/1.1 1000 X") + BODY),
    "status abc": refused(head(LENGTH, line=b"HTTP/1.1 abc X") + BODY),
    "obs-fold": refused(head(b"x-a: b\r\n c", LENGTH) + BODY),
    "bare LFs": refused(head(LENGTH).replace(b"\r\n", b"\n") + BODY),
    "a bare LF": refused(head(b"x-a: b\nset-cookie: c", LENGTH) + BODY),
    "a bare CR": refused(head(b"x-a: b\rset-cookie: c", LENGTH) + BODY),
    "a NUL": refused(head(b"x-a: b\0", LENGTH) + BODY),
    "a control character": refused(head(b"x-a: \x01", LENGTH) + BODY),
    "a space before the colon": refused(head(b"x-a : b", LENGTH) + BODY),
    "no colon": refused(head(b"x-a", LENGTH) + BODY),
}
SSE = {"content_type": b"text/event-stream; charset=utf-8"}
STREAMS = {
    "chunks": reused(head(CHUNKED, **SSE) + chunk(EVENT) + chunk(DONE) + LAST),
    "a length": reused(head(b"content-length: %d" % len(EVENT + DONE), **SSE) + EVENT + DONE),
    "no length, to the end of the connection": served(head(**SSE) + EVENT + DONE, CLOSE),
    "cut behind [DONE]": served(head(CHUNKED, **SSE) + chunk(EVENT) + chunk(DONE), CLOSE),
    "two answers": served(head(CHUNKED, **SSE) + chunk(EVENT) + chunk(DONE) + LAST + EVIL),
    "an answer as trailer": served(head(CHUNKED, **SSE) + chunk(EVENT) + chunk(DONE) + b"0\r\n" + EVIL),
    "CL.TE": refused(head(LENGTH, CHUNKED, **SSE) + chunk(EVENT) + chunk(DONE) + LAST),
    "gzip, chunked": refused(head(b"transfer-encoding: gzip, chunked", **SSE) + chunk(EVENT) + chunk(DONE) + LAST),
}
CUT_STREAMS = {
    "ended without [DONE]": reused(head(CHUNKED, **SSE) + chunk(EVENT) + LAST),
    "cut": served(head(CHUNKED, **SSE) + chunk(EVENT), CLOSE),
    "cut within an event": served(head(CHUNKED, **SSE) + chunk(EVENT) + chunk(DONE[:9]), CLOSE),
    "cut within a chunk": served(head(CHUNKED, **SSE) + chunk(EVENT) + b"ff\r\n" + DONE[:9], CLOSE),
    "cut without a length": served(head(**SSE) + EVENT + DONE[:9], CLOSE),
    "a length that is too small": served(head(b"content-length: %d" % len(EVENT), **SSE) + EVENT + DONE),
    "no chunk size": served(head(CHUNKED, **SSE) + chunk(EVENT) + b"zz\r\n" + DONE),
}


def sends(*writes):
    async def act(reader, writer):
        for data in writes:
            if data is CLOSE:
                return False
            writer.write(data)
            await writer.drain()
            if data == PAUSE:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PAUSE_S):
                        if not await reader.read(1):  # the gateway has seen enough
                            return False
        return True

    return act


async def play(case, body):
    """One call to a gateway whose backend answers like this; then another, that is answered as it should be."""
    async with scripted(answer(), *[sends(*case.sent)] * TRIES_MAX) as backend, gateway(backend) as rig:
        async with wire(rig) as connection:
            connection.send(http(body))
            reply = await connection.reply()
            del backend.script[:]
            (upstream,) = [backend_client.upstream for backend_client in rig.gateway._clients.by_id.values()]
            if case.reused:
                assert upstream.idle_connections == 1
            else:
                await until(lambda: upstream.open_connections == 0)
            await until(lambda: rig.snapshot().backends["b0"].available)
            connection.send(http(call(), path=CHAT))
            after = await connection.reply()
            assert (after.status, after.json["usage"]["completion_tokens"]) == (200, 3)
            assert b"evil" not in reply.body + after.body
        await until(rig.idle)
        return reply


@pytest.mark.parametrize("name", WHOLE)
async def test_a_client_gets_the_whole_answer_or_an_error(name):
    case = WHOLE[name]
    reply = await play(case, call())
    if case.status == 200:
        assert (reply.status, reply.body) == (200, BODY)
    else:
        assert_error(reply, case.status)
    assert "set-cookie" not in reply.headers


@pytest.mark.parametrize("name", STREAMS)
async def test_a_client_gets_the_whole_stream_or_an_error(name):
    case = STREAMS[name]
    reply = await play(case, call(stream=True))
    if case.status == 200:
        assert (reply.status, reply.body) == (200, EVENT + DONE)
    else:
        assert_error(reply, case.status)


@pytest.mark.parametrize("name", CUT_STREAMS)
async def test_a_stream_that_is_not_whole_ends_with_an_error_and_never_with_done(name):
    reply = await play(CUT_STREAMS[name], call(stream=True))
    assert reply.status == 200
    assert reply.events[0] == EVENT.decode().removeprefix("data: ").strip()
    assert json.loads(reply.events[1])["error"]["code"] == 502
    assert len(reply.events) == 2
