"""Requests that are read one way by one server and another way by the next: the gateway reads them one way, or not.

Each case is raw bytes, the answers they get, and what becomes of the connection. Behind the gateway stands a
backend that notes every byte which is not part of exactly one plain request. `@ID@` in the bytes is replaced by
the case's own request id, by which the backend knows the request that it sees. SMUGGLED may never arrive.
"""

import asyncio
import json
from dataclasses import dataclass

import pytest
from gateway_rig import CHAT, call, gateway, wire
from recording_backend import recording

from gateway.http import request_reader

BODY = json.dumps(call()).encode()
LENGTH = f"Content-Length: {len(BODY)}"
CHUNKED = "Transfer-Encoding: chunked"
LAST = b"0\r\n\r\n"
SMUGGLED = (
    b"POST %b HTTP/1.1\r\nHost: x\r\nX-Request-ID: smuggled\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b"
) % (
    CHAT.encode(),
    len(BODY),
    BODY,
)
PROBE = b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Probe: 1\r\n\r\n"
BODY_TIMEOUT_S = 1.5  # longer than it takes to send a body in pieces on a busy machine
PIECE_BYTES = 100  # of what is long: a byte at a time would take seconds


@dataclass(frozen=True)
class Case:
    """Bytes, the statuses they may get, and whether the connection is over then; None: that depends on what one
    read brings, and so may the statuses.
    """

    data: bytes
    answers: tuple[tuple[int, ...], ...]
    closed: bool | None


def post(*headers, body=BODY, line=f"POST {CHAT} HTTP/1.1", host="Host: gateway"):
    lines = [line, host, "X-Request-ID: @ID@", "Content-Type: application/json", *headers]
    return b"\r\n".join(_bytes(line) for line in lines if line is not None) + b"\r\n\r\n" + body


def chunks(body=BODY, *, size=None, extension=b"", after=b"\r\n", last=LAST):
    return (b"%x" % len(body) if size is None else size) + extension + b"\r\n" + body + after + last


def taken(data):
    """One call, and the connection goes on."""
    return Case(data, ((200,),), closed=False)


def first_taken(data):
    """Two complete requests. The second is answered, and the connection goes on, if no read brought some of both."""
    return Case(data, ((200,), (200, 200)), closed=None)


def taken_and_closed(data):
    """One call, and the connection is over: another server may not be trusted with what follows."""
    return Case(data, ((200,),), closed=True)


def refused(data, status=400):
    """What cannot be trusted to end where it seems to end: the connection is over."""
    return Case(data, ((status,),), closed=True)


def answered(data, *statuses):
    """Complete requests, each with an answer of its own, and the connection goes on."""
    return Case(data, (statuses,), closed=False)


def answered_early(data, status):
    """An answer that does not need the body: the connection goes on if the body was there."""
    return Case(data, ((status,),), closed=None)


def _bytes(line):
    return line if isinstance(line, bytes) else line.encode()


# A request that is answered before its body is read, and ends like another.
ALIKE = post(CHUNKED, line="GET /livez HTTP/1.1", body=chunks())
LENGTHS = {
    "one length": taken(post(LENGTH)),
    "leading zeros": taken(post(f"Content-Length: 000{len(BODY)}")),
    "white space around": taken(post(f"Content-Length: \t {len(BODY)} \t")),
    "twice the same": refused(post(LENGTH, LENGTH)),
    "twice": refused(post(LENGTH, "Content-Length: 0", body=BODY + SMUGGLED)),
    "twice, the short one first": refused(post("Content-Length: 0", LENGTH, body=SMUGGLED)),
    "a list of the same": refused(post(f"Content-Length: {len(BODY)}, {len(BODY)}")),
    "a list": refused(post(f"Content-Length: {len(BODY)}, 0")),
    "plus": refused(post(f"Content-Length: +{len(BODY)}")),
    "negative": refused(post("Content-Length: -1")),
    "hexadecimal": refused(post(f"Content-Length: {len(BODY):#x}")),
    "a fraction": refused(post(f"Content-Length: {len(BODY)}.0")),
    "an exponent": refused(post("Content-Length: 1e2")),
    "underscores": refused(post("Content-Length: 1_0")),
    "a space inside": refused(post("Content-Length: 1 0")),
    "other digits": refused(post("Content-Length: \u0661\u0662")),
    "nothing": refused(post("Content-Length:")),
    "a vertical tab": refused(post(f"Content-Length: {len(BODY)}\x0b")),
    "over 64 bits": refused(post(f"Content-Length: {2**64 + len(BODY)}")),
    "far over 64 bits": refused(post("Content-Length: " + "9" * 40)),
    "over the limit": refused(post(f"Content-Length: {2**63}"), 413),
    "a space before the colon": refused(post(f"Content-Length : {len(BODY)}")),
    "a name in pieces": refused(post(f"Content-\r\n Length: {len(BODY)}")),
    "more than comes": refused(post(LENGTH, body=BODY[:-1]), 408),
    # What follows the body is the next request, or none.
    "less than comes": Case(post(LENGTH, body=BODY + b"GARBAGE\r\n\r\n"), ((400,), (200, 400)), closed=True),
    "none, and a body": answered(post(body=PROBE), 400, 200),
    "zero, and a body": answered(post("Content-Length: 0", body=PROBE), 400, 200),
}
ENCODINGS = {
    "chunked": taken(post(CHUNKED, body=chunks())),
    "chunked, and one behind": first_taken(post(CHUNKED, body=chunks() + PROBE)),
    "chunked, and one behind that ends like it": first_taken(post(CHUNKED, body=chunks() + ALIKE)),
    "capitals": taken(post("tRANSFER-eNCODING: CHUNKED", body=chunks())),
    "CL.TE": refused(post("Content-Length: 5", CHUNKED, body=LAST + SMUGGLED)),
    "TE.CL": refused(post(CHUNKED, "Content-Length: 4", body=chunks() + SMUGGLED)),
    "both, and they agree": refused(post(CHUNKED, f"Content-Length: {len(chunks())}", body=chunks())),
    "TE.TE": refused(post(CHUNKED, CHUNKED, body=chunks())),
    "chunked, chunked": refused(post("Transfer-Encoding: chunked, chunked", body=chunks())),
    "gzip, chunked": refused(post("Transfer-Encoding: gzip, chunked", body=chunks())),
    "identity, chunked": refused(post("Transfer-Encoding: identity, chunked", body=chunks())),
    "chunked, gzip": refused(post("Transfer-Encoding: chunked, gzip", body=chunks())),
    "chunked, identity": refused(post("Transfer-Encoding: chunked, identity", body=chunks())),
    "gzip": refused(post("Transfer-Encoding: gzip", body=chunks())),
    "gzip, then chunked in a line of its own": refused(post("Transfer-Encoding: gzip", CHUNKED, body=chunks())),
    "chunked, then identity in a line of its own": refused(post(CHUNKED, "Transfer-Encoding: identity", body=chunks())),
    "identity": refused(post("Transfer-Encoding: identity", LENGTH)),
    "xchunked": refused(post("Transfer-Encoding: xchunked", body=chunks())),
    "quoted": refused(post('Transfer-Encoding: "chunked"', body=chunks())),
    "a parameter": refused(post("Transfer-Encoding: chunked;q=1", body=chunks())),
    "a comma behind": refused(post("Transfer-Encoding: chunked,", body=chunks())),
    "a comma before": refused(post("Transfer-Encoding: ,chunked", body=chunks())),
    "a vertical tab": refused(post("Transfer-Encoding: \x0bchunked", body=chunks())),
    "a NUL": refused(post("Transfer-Encoding: chun\0ked", body=chunks())),
    "no value, and a length": refused(post("Transfer-Encoding:", LENGTH)),
    "no value": refused(post("Transfer-Encoding:", body=SMUGGLED)),
    "a space before the colon": refused(post("Transfer-Encoding : chunked", body=chunks())),
    "a tab before the colon": refused(post("Transfer-Encoding\t: chunked", body=chunks())),
    "folded": refused(post("Transfer-Encoding:\r\n chunked", body=chunks())),
    "a line that begins with a space": refused(post("X-A: b", " " + CHUNKED, body=chunks())),
    "behind a bare CR": refused(post("X-A: b\r" + CHUNKED, LENGTH)),
    "behind a bare LF": refused(post("X-A: b\n" + CHUNKED, LENGTH)),
    "HTTP/1.0": refused(post(CHUNKED, body=chunks(), line=f"POST {CHAT} HTTP/1.0")),
    "HTTP/1.0 with a length": refused(post(CHUNKED, LENGTH, body=chunks(), line=f"POST {CHAT} HTTP/1.0")),
    "another header": taken(post("Transfer_Encoding: chunked", LENGTH)),
}
CHUNKS = {
    "an extension": taken(post(CHUNKED, body=chunks(extension=b";a=b"))),
    "an extension of the last": taken(post(CHUNKED, body=chunks(last=b"0;a=b\r\n\r\n"))),
    "zeros before the size": taken(post(CHUNKED, body=chunks(size=b"0000%x" % len(BODY)))),
    "zeros for the last": taken(post(CHUNKED, body=chunks(last=b"000\r\n\r\n"))),
    "a trailer that ends like a body": taken_and_closed(
        post(CHUNKED, body=chunks(last=b"0\r\nX-Session-ID: late0\r\n\r\n"))
    ),
    "a trailer": taken_and_closed(post(CHUNKED, body=chunks(last=b"0\r\nX-Session-ID: late\r\n\r\n") + SMUGGLED)),
    "a line break in an extension": refused(post(CHUNKED, body=chunks(extension=b';a="\r\n"'))),
    "a bare LF in an extension": refused(post(CHUNKED, body=chunks(extension=b";a\n0\r\n\r\n" + SMUGGLED))),
    "a bare CR in an extension": refused(post(CHUNKED, body=chunks(extension=b";a\r0"))),
    "a space behind the size": refused(post(CHUNKED, body=chunks(extension=b" "))),
    "a space before the size": refused(post(CHUNKED, body=b" " + chunks())),
    "0x": refused(post(CHUNKED, body=b"0x" + chunks())),
    "plus": refused(post(CHUNKED, body=b"+" + chunks())),
    "minus": refused(post(CHUNKED, body=b"-" + chunks())),
    "no size": refused(post(CHUNKED, body=chunks(size=b""))),
    "no number": refused(post(CHUNKED, body=chunks(size=b"xyz"))),
    "over 64 bits": refused(post(CHUNKED, body=chunks(size=b"1" + b"0" * 16))),
    "2^64 - 1": refused(post(CHUNKED, body=chunks(size=b"f" * 16)), 408),
    "more than comes": refused(post(CHUNKED, body=chunks(size=b"7fffffff")), 408),
    "less than comes": refused(post(CHUNKED, body=chunks(size=b"5"))),
    "bare LFs": refused(post(CHUNKED, body=chunks().replace(b"\r\n", b"\n"))),
    "bare CRs": refused(post(CHUNKED, body=chunks().replace(b"\r\n", b"\r"))),
    "a bare LF behind the size": refused(post(CHUNKED, body=chunks().replace(b"\r\n", b"\n", 1))),
    "a bare LF behind the data": refused(post(CHUNKED, body=chunks(after=b"\n"))),
    "no line break behind the data": refused(post(CHUNKED, body=chunks(after=b"xx"))),
    "bare LFs behind the last": refused(post(CHUNKED, body=chunks(last=b"0\n\n"))),
    "no last chunk": refused(post(CHUNKED, body=chunks(last=b"")), 408),
    "a length in the trailer": refused(post(CHUNKED, body=chunks(last=b"0\r\nContent-Length: 5\r\n\r\n"))),
    "an encoding in the trailer": refused(post(CHUNKED, body=chunks(last=b"0\r\nTransfer-Encoding: chunked\r\n\r\n"))),
    "a request as trailer": refused(post(CHUNKED, body=chunks(last=b"0\r\n" + SMUGGLED))),
    "a folded trailer": refused(post(CHUNKED, body=chunks(last=b"0\r\nX-A: b\r\n c\r\n\r\n"))),
    # A handler that waits for the body already is told that it is none.
    "endless trailers": Case(
        post(CHUNKED, body=chunks(last=b"0\r\n" + b"X-A: b\r\n" * 3000)), ((431,), (400,)), closed=True
    ),
}
HEADERS = {
    "obs-fold": refused(post("X-A: b\r\n c", LENGTH)),
    "obs-fold of the first": refused(post(LENGTH, host=" X-A: b")),
    "bare LFs": refused(post(LENGTH).replace(b"\r\n", b"\n")),
    "a bare LF": refused(post("X-A: b\nX-C: d", LENGTH)),
    "a bare LF at the end": refused(post(LENGTH).replace(b"\r\n\r\n", b"\r\n\n", 1)),
    "a bare CR": refused(post("X-A: b\rX-C: d", LENGTH)),
    "two CRs": refused(post("X-A: b\r", LENGTH)),
    "a NUL in a value": refused(post("X-A: b\0c", LENGTH)),
    "a NUL in a name": refused(post("X\0A: b", LENGTH)),
    "a control character": refused(post("X-A: b\x01c", LENGTH)),
    "not ASCII in a name": refused(post(b"X-\xff: b", LENGTH)),
    "not ASCII in a value": taken(post(b"X-A: \xff\xfe", b"X-Session-ID: \xff", LENGTH)),
    "no name": refused(post(": b", LENGTH)),
    "no colon": refused(post("X-A", LENGTH)),
    "a space in a name": refused(post("X A: b", LENGTH)),
    "a bracket in a name": refused(post("X(A): b", LENGTH)),
    "no Host": refused(post(LENGTH, host=None)),
    "no Host in HTTP/1.0": taken_and_closed(post(LENGTH, host=None, line=f"POST {CHAT} HTTP/1.0")),
    "an empty Host": taken(post(LENGTH, host="Host:")),
    "Host with a port": taken(post(LENGTH, host="Host: [::1]:8080")),
    "Host twice the same": refused(post("Host: gateway", LENGTH)),
    "Host twice": refused(post("Host: elsewhere", LENGTH)),
    "Host with a space": refused(post(LENGTH, host="Host: a b")),
    "Host with a path": refused(post(LENGTH, host="Host: a/b@c")),
    "Host as a list": refused(post(LENGTH, host="Host: a, b")),
    "Connection names the length": taken(post("Connection: content-length", LENGTH)),
    "Connection names the encoding": taken(post("Connection: transfer-encoding", CHUNKED, body=chunks())),
    "Connection names Host": taken_and_closed(post("Connection: close, host", LENGTH)),
    "hop by hop": taken(post("Keep-Alive: 1", "Proxy-Connection: x", "TE: trailers", "Trailer: X-T", LENGTH)),
    "Connection names a header that is passed on": taken(
        post("Connection: keep-alive", "Connection: x-session-id", "X-Session-ID: late", LENGTH)
    ),
    "headers that only the gateway sends": taken(
        post("X-Vllm-Priority: late", "X-data-parallel-rank: late", "Cookie: late", "X-Forwarded-For: late", LENGTH)
    ),
    "too many": refused(post(*(f"X-{number}: 1" for number in range(200)), LENGTH), 431),
    "a long one": refused(post("X-A: " + "a" * 40_000, LENGTH), 431),
    "a long name": refused(post("X" * 40_000 + ": a", LENGTH), 431),
}
LINES = {
    "absolute-form": taken(post(LENGTH, line=f"POST http://Gateway{CHAT} HTTP/1.1")),
    "absolute-form of another host": refused(post(LENGTH, line=f"POST http://elsewhere.example{CHAT} HTTP/1.1")),
    "absolute-form of another port": refused(post(LENGTH, line=f"POST http://gateway:81{CHAT} HTTP/1.1")),
    "absolute-form with a user": refused(post(LENGTH, line=f"POST http://a:b@gateway{CHAT} HTTP/1.1")),
    "absolute-form with no port": refused(post(LENGTH, line=f"POST http://elsewhere:99999{CHAT} HTTP/1.1")),
    "authority-form": refused(post(LENGTH, line="POST elsewhere.example:80 HTTP/1.1")),
    "asterisk-form": refused(post(LENGTH, line="POST * HTTP/1.1")),
    "CONNECT": refused(post(line="CONNECT elsewhere.example:443 HTTP/1.1", body=SMUGGLED), 404),
    "no slash": refused(post(LENGTH, line=f"POST {CHAT[1:]} HTTP/1.1")),
    "two slashes": answered_early(post(LENGTH, line=f"POST /{CHAT} HTTP/1.1"), 404),
    "dots": answered_early(post(LENGTH, line=f"POST /v1/..{CHAT} HTTP/1.1"), 404),
    "escaped": taken(post(LENGTH, line="POST /v1/ch%61t/completions HTTP/1.1")),
    "escaped line breaks": answered_early(post(LENGTH, line=f"POST {CHAT}%20HTTP/1.1%0d%0aX:%20y HTTP/1.1"), 404),
    "escaped line breaks in the query": taken(post(LENGTH, line=f"POST {CHAT}?a=%0d%0aX:%20y HTTP/1.1")),
    "a fragment": refused(post(LENGTH, line=f"POST {CHAT}#b HTTP/1.1")),
    "backslashes": refused(post(LENGTH, line="POST \\v1\\chat\\completions HTTP/1.1")),
    "a space in the target": refused(post(LENGTH, line=f"POST {CHAT} b HTTP/1.1")),
    "a NUL in the target": refused(post(LENGTH, line=f"POST {CHAT}\0 HTTP/1.1")),
    "not ASCII in the target": refused(post(LENGTH, line=f"POST {CHAT}\u00e9 HTTP/1.1")),
    "a long target": refused(post(LENGTH, line="POST /" + "a" * 40_000 + " HTTP/1.1"), 431),
    "tabs": refused(post(LENGTH, line=f"POST\t{CHAT}\tHTTP/1.1")),
    "a bare LF": refused(post(LENGTH).replace(b"\r\n", b"\n", 1)),
    "a bare CR": refused(post(LENGTH).replace(b"\r\n", b"\r", 1)),
    "HTTP/0.9": refused(f"GET {CHAT}\r\n\r\n".encode()),
    "HTTP/1.2": refused(post(LENGTH, line=f"POST {CHAT} HTTP/1.2")),
    "HTTP/1.11": refused(post(LENGTH, line=f"POST {CHAT} HTTP/1.11")),
    "HTTP/2.0": refused(post(LENGTH, line=f"POST {CHAT} HTTP/2.0")),
    "http/1.1": refused(post(LENGTH, line=f"POST {CHAT} http/1.1")),
    "the preface of HTTP/2": refused(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 20),
    "TLS": refused(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    "post": refused(post(LENGTH, line=f"post {CHAT} HTTP/1.1")),
    "P@ST": refused(post(LENGTH, line=f"P@ST {CHAT} HTTP/1.1")),
    "a space before it": refused(b" " + post(LENGTH)),
    "empty lines before it": taken(b"\r\n" * 3 + post(LENGTH)),
    "GET with a body": answered_early(post(LENGTH, line="GET /livez HTTP/1.1"), 200),
    "GET with chunks": answered_early(post(CHUNKED, line="GET /livez HTTP/1.1", body=chunks()), 200),
}
OFFERS = {
    # An upgrade is passed over.
    "h2c": taken(post("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AA", LENGTH)),
    "h2c and one behind": first_taken(post("Connection: Upgrade", "Upgrade: h2c", LENGTH, body=BODY + PROBE)),
    # Looked at from its end, the read could be the first request alone.
    "h2c and one behind with the same body": first_taken(
        post("Connection: Upgrade", "Upgrade: h2c", LENGTH, body=BODY + post(LENGTH, line="GET /livez HTTP/1.1"))
    ),
    "h2c of a GET": Case(
        post("Connection: Upgrade", "Upgrade: h2c", line="GET /livez HTTP/1.1", body=b""), ((200,),), closed=False
    ),
    "h2c of a GET and one behind": first_taken(
        post("Connection: Upgrade", "Upgrade: h2c", line="GET /livez HTTP/1.1", body=PROBE)
    ),
    "h2c of chunks": taken(post("Connection: Upgrade", "Upgrade: h2c", CHUNKED, body=chunks())),
    "h2c of chunks and one behind that ends like them": first_taken(
        post("Connection: Upgrade", "Upgrade: h2c", CHUNKED, body=chunks() + ALIKE)
    ),
    "h2c of chunks with a trailer and one behind that ends like them": taken_and_closed(
        post("Connection: Upgrade", "Upgrade: h2c", CHUNKED, body=chunks(last=b"0\r\nX-A: b\r\n\r\n") + ALIKE)
    ),
    "h2c, websocket": taken_and_closed(post("Connection: Upgrade", "Upgrade: h2c, websocket", LENGTH)),
    "websocket": taken_and_closed(post("Connection: Upgrade", "Upgrade: websocket", LENGTH, body=BODY + SMUGGLED)),
    "an upgrade that Connection does not name": taken(post("Upgrade: h2c", LENGTH)),
    "Expect of something else": taken(post("Expect: 200-ok", LENGTH)),
    "two": answered(post(LENGTH, body=BODY + PROBE), 200, 200),
}
TABLES = {
    "length": LENGTHS,
    "encoding": ENCODINGS,
    "chunks": CHUNKS,
    "headers": HEADERS,
    "line": LINES,
    "offers": OFFERS,
}


def pieces(data, whole):
    if whole:
        return [data]
    size = 1 if len(data) < 20 * PIECE_BYTES else PIECE_BYTES
    return [data[at : at + size] for at in range(0, len(data), size)]


async def answer(connection):
    """The next answer, or how it comes that there is none."""
    try:
        return await connection.reply()
    except ConnectionError:
        # A reader that is reset raises even where an answer came before: this client was still sending.
        received = bytes(connection.reader._buffer)
        if not received:
            return "closed"
        connection.reader = asyncio.StreamReader()
        connection.reader.feed_data(received)
        connection.reader.feed_eof()
        return await answer(connection)
    except asyncio.IncompleteReadError:
        return "closed"
    except TimeoutError:
        return "silence"


async def play(rig, case, request_id, *, at_once):
    """Send the bytes; return the statuses of all answers, and what becomes of a request that is sent behind them."""
    statuses, reply = [], None
    async with wire(rig) as connection:
        for piece in pieces(case.data.replace(b"@ID@", request_id.encode()), at_once):
            if connection.writer.is_closing():
                break
            connection.send(piece)
            await asyncio.sleep(0)
        while len(statuses) < max(map(len, case.answers)):
            reply = await answer(connection)
            if isinstance(reply, str):
                return (*statuses, reply)
            statuses.append(reply.status)
        says_close = reply.headers.get("connection") == "close"
        if not connection.writer.is_closing():  # a busy machine is late, and the wait below may be over
            if says_close or not case.closed:
                connection.send(PROBE)
            if says_close:  # it waits a while for what is on its way, unless it hears that there is nothing more
                connection.writer.write_eof()
        reply = await answer(connection)
        return (*statuses, reply if isinstance(reply, str) else reply.status)


def expected(case):
    ends = {True: ["closed"], False: [200], None: ["closed", 200]}[case.closed]
    return [(*statuses, end) for statuses in case.answers for end in ends]


def is_call(case):
    return case.data.lstrip().startswith(b"POST")


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "in pieces"])
@pytest.mark.parametrize("table", TABLES)
async def test_every_request_is_read_one_way_or_not_at_all(table, at_once, caplog, monkeypatch):
    monkeypatch.setattr(request_reader, "LINE_BYTES_MAX", 16_384)
    names = {f"case-{number}": name for number, name in enumerate(TABLES[table])}
    cases = {request_id: TABLES[table][name] for request_id, name in names.items()}
    limits = {"body_timeout_s": BODY_TIMEOUT_S}
    async with recording() as backend, gateway(backend, limits=limits) as rig:
        outcomes = await asyncio.gather(
            *(play(rig, case, request_id, at_once=at_once) for request_id, case in cases.items())
        )
        results = dict(zip(cases, outcomes, strict=True))
        wrong = {
            names[request_id]: (result, expected(cases[request_id]))
            for request_id, result in results.items()
            if result not in expected(cases[request_id])
        }
        assert wrong == {}
        assert backend.faults == []
        served = {
            request_id for request_id, result in results.items() if result[0] == 200 and is_call(cases[request_id])
        }
        assert backend.bodies == {request_id: [BODY] for request_id in served}
        assert all("late" not in value for headers in backend.headers.values() for value in headers.values())
        assert rig.idle()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


KEPT = json.dumps({"model": "tiny", "input": "Hello", "store": True}).encode()
IDS = {
    "resp_1": 200,
    "resp_1?stream=false&starting_after=1": 200,
    "resp_1?a=%0d%0aX:%20y%00&b=%23": 200,
    "resp_1?a=b?c/../d;e": 200,
    "resp_1#/../../../metrics": 400,
    "resp_2": 404,
    "resp_1%0d%0aX:%20y": 404,
    "resp_1%20HTTP/1.1": 404,
    "resp_1%3Fa=b": 404,
    "resp_1/../../../metrics": 404,
    "..%2f..%2fmetrics": 404,
    "resp_1/": 307,
    "": 307,
    "resp_1?a=b c": 400,
    "resp_1?a=\t": 400,
    "resp_1?a=\0": 400,
}


async def test_an_id_in_a_path_and_a_query_bring_nothing_else_along():
    async with recording() as backend, gateway(backend) as rig:
        async with wire(rig) as connection:
            line = "POST /v1/responses HTTP/1.1"
            connection.send(post(f"Content-Length: {len(KEPT)}", body=KEPT, line=line).replace(b"@ID@", b"kept"))
            assert (await connection.reply()).status == 200
        for number, (target, status) in enumerate(IDS.items()):
            async with wire(rig) as connection:
                lines = f"GET /v1/responses/{target} HTTP/1.1\r\nHost: x\r\nX-Request-ID: id-{number}\r\n\r\n"
                connection.send(lines.encode())
                assert (await connection.reply()).status == status, target
            asked = backend.targets.get(f"id-{number}")
            assert asked == (f"/v1/responses/{target.partition('#')[0]}" if status == 200 else None)
        assert backend.faults == []
