"""What HTTP allows a client to do, beyond what well-behaved libraries do."""

import asyncio
import json

import pytest
from gateway_rig import CHAT, call, gateway, gateway_and_engine, http, scripted, until, wire


async def test_pipelined_requests_are_answered_in_their_order():
    async with gateway_and_engine() as (rig, _), wire(rig) as connection:
        connection.send(b"".join(http(call(max_tokens=tokens, stream=tokens == 5)) for tokens in (9, 5, 2, 7)))
        first = await connection.reply()
        streamed = await connection.reply()
        others = [await connection.reply() for _ in range(2)]
        assert first.json["usage"]["completion_tokens"] == 9
        assert streamed.events[-1] == "[DONE]"
        assert [reply.json["usage"]["completion_tokens"] for reply in others] == [2, 7]


async def test_a_pipelined_client_that_leaves_takes_all_its_requests_along():
    async with gateway_and_engine(speed=0.02) as (rig, server):
        async with wire(rig) as connection:
            connection.send(b"".join(http(call(max_tokens=1000)) for _ in range(3)))
            await until(lambda: server.snapshots()[0].requests_running)
        await until(rig.idle)
        await until(lambda: not server.snapshots()[0].requests_running)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_http_1_0_is_answered_and_closed(stream):
    async with gateway_and_engine() as (rig, _), wire(rig) as connection:
        connection.send(http(call(stream=stream), version="1.0"))
        reply = await connection.reply()
        assert reply.status == 200
        assert "transfer-encoding" not in reply.headers
        assert reply.events[-1] == "[DONE]" if stream else reply.json["usage"]
        assert await connection.at_end()


async def test_expect_100_continue_is_answered_before_the_body_comes():
    async with scripted() as backend, gateway(backend) as rig, wire(rig) as connection:
        head, body = http(call(), "Expect: 100-continue").split(b"\r\n\r\n", 1)
        connection.send(head + b"\r\n\r\n")
        assert (await connection.head())[0] == 100
        assert backend.calls == []
        connection.send(body)
        assert (await connection.reply()).status == 200


async def test_expect_100_continue_of_a_call_that_is_refused_gets_only_the_refusal():
    async with scripted() as backend, gateway(backend, limits={"body_bytes_max": 1000}) as rig, wire(rig) as connection:
        connection.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n")
        connection.send(b"Content-Length: 1001\r\n\r\n")
        assert (await connection.reply()).status == 413


async def test_head_gets_no_body():
    async with scripted() as backend, gateway(backend) as rig:
        for path, status in (("/health", 405), ("/nowhere", 404)):
            async with wire(rig) as connection:
                connection.send(f"HEAD {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
                assert (await connection.head())[0] == status
                assert await connection.at_end()


async def test_an_absolute_target_is_taken_as_its_path():
    async with scripted() as backend, gateway(backend) as rig, wire(rig) as connection:
        connection.send(http(call(), path=f"http://gateway{CHAT}?a=b"))
        assert (await connection.reply()).status == 200
        assert backend.calls[0].target == CHAT


@pytest.mark.parametrize("line", ["OPTIONS * HTTP/1.1", "CONNECT a.example:443 HTTP/1.1", "TRACE / HTTP/1.1"])
async def test_methods_of_other_servers_are_turned_away(line):
    async with scripted() as backend, gateway(backend) as rig, wire(rig) as connection:
        connection.send(f"{line}\r\nHost: x\r\n\r\n".encode())
        assert (await connection.head())[0] in {400, 404, 405}
        assert (await rig.get("/livez")).status == 200


async def test_a_body_in_chunks_is_read_and_sent_on_with_its_length():
    async with scripted() as backend, gateway(backend) as rig, wire(rig) as connection:
        head = (
            f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        connection.send(head.encode())
        for byte in json.dumps(call()):
            connection.send(b"1\r\n%b\r\n" % byte.encode())
        connection.send(b"0\r\n\r\n")
        assert (await connection.reply()).status == 200
        assert json.loads(backend.calls[0].body) == call()


async def test_a_body_that_comes_byte_by_byte_is_read():
    async with scripted() as backend, gateway(backend) as rig, wire(rig) as connection:
        for byte in http(call()):
            connection.send(bytes([byte]))
            await asyncio.sleep(0)
        assert (await connection.reply()).status == 200


async def test_an_offer_of_another_protocol_is_passed_over_and_ends_the_connection():
    async with scripted() as backend, gateway(backend) as rig, wire(rig) as connection:
        connection.send(http(call(), "Connection: Upgrade", "Upgrade: websocket"))
        reply = await connection.reply()
        assert (reply.status, reply.headers["Connection"]) == (200, "close")
        assert await connection.at_end()


@pytest.mark.parametrize("offer", [(), ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AA")])
@pytest.mark.parametrize("is_chunked", [True, False])
@pytest.mark.parametrize("at_once", [True, False])
async def test_a_connection_is_kept_as_javas_client_uses_it(offer, is_chunked, at_once):
    """It sends the head, then the body, and waits; another client may send both at once."""
    body = json.dumps(call()).encode()
    framing = "Transfer-Encoding: chunked" if is_chunked else f"Content-Length: {len(body)}"
    lines = (f"POST {CHAT} HTTP/1.1", "Host: x", "Content-Type: application/json", framing, *offer, "", "")
    head, sent = "\r\n".join(lines).encode(), b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if is_chunked else body
    async with scripted() as backend, gateway(backend) as rig, wire(rig) as connection:
        for _ in range(3):
            for piece in (head + sent,) if at_once else (head, sent[:20], sent[20:-3], sent[-3:]):
                connection.send(piece)
                await asyncio.sleep(0.01)
            reply = await connection.reply()
            assert (reply.status, reply.headers.get("Connection")) == (200, None)
        assert [json.loads(each.body) for each in backend.calls] == [call()] * 3


async def test_more_requests_than_are_parsed_ahead_are_all_answered():
    async with scripted() as backend, gateway(backend) as rig, wire(rig) as connection:
        connection.send(http(call()) * 100)
        assert [(await connection.reply()).status for _ in range(100)] == [200] * 100
        assert len(backend.calls) == 100


async def test_an_expectation_of_http_1_0_is_ignored():
    async with scripted() as backend, gateway(backend) as rig, wire(rig) as connection:
        head, body = http(call(), "Expect: 100-continue", version="1.0").split(b"\r\n\r\n", 1)
        connection.send(head + b"\r\n\r\n")
        await asyncio.sleep(0.02)
        connection.send(body)
        assert (await connection.reply()).status == 200


async def test_a_client_that_closes_its_half_is_gone_as_to_vllm():
    async with gateway_and_engine(speed=0.02) as (rig, server), wire(rig) as connection:
        connection.send(http(call(max_tokens=2000, stream=True)))
        await until(lambda: server.snapshots()[0].requests_running)
        connection.writer.write_eof()
        await until(rig.idle)
        await until(lambda: not server.snapshots()[0].requests_running)


async def test_a_client_that_leaves_within_its_body_leaves_nothing(caplog):
    async with scripted() as backend, gateway(backend) as rig:
        for headers in (b"Content-Length: 500", b"Transfer-Encoding: chunked"):
            async with wire(rig) as connection:
                connection.send(b"POST %b HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n" % (CHAT.encode(), headers))
                connection.send(b"5\r\nabc")
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.02)
        assert backend.calls == []
        assert rig.idle()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
