"""A stream with an event of 1 MB, comments, CRLFs and several lines of data is the same however it is split."""

from random import Random

import pytest
from gateway_rig import call, gateway, scripted, stream

USAGE = b'"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12}'
SMALL = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
LARGE = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"b" * (1 << 20) + b'"}}]}\r\n\r\n'
ODD = b": a comment\n\nevent: x\r\ndata: {\r\ndata: }\r\n\r\nid: 7\ndata:{}\n\n"
LAST = b'data: {"choices":[],' + USAGE + b"}\n\ndata: [DONE]"
BODY = SMALL + ODD + LARGE + SMALL + LAST


def split(body, size, rng):
    at, pieces = 0, []
    while at < len(body):
        step = size or rng.choice((1, 2, 3, 1000, 70_000))
        pieces.append(body[at : at + step])
        at += step
    return pieces


@pytest.mark.parametrize("end", [b"", b"\n\n"], ids=["no blank line at the end", "whole"])
@pytest.mark.parametrize("size", [0, 4096, 1 << 20, 1 << 21])
async def test_the_client_gets_the_backends_bytes_and_usage_is_read(size, end, figure):
    body = BODY + end
    async with scripted(stream(*split(body, size, Random(7)))) as backend, gateway(backend) as rig:
        reply = await rig.post(call(stream=True, stream_options={"include_usage": True}))
        assert reply.status == 200
        whole = BODY + b"\n\n"  # the last event is given its end where the backend forgot it
        figure(43, "bytes that differ", sum(a != b for a, b in zip(reply.body, whole, strict=False)), target="0")
        assert reply.body == whole
        assert rig.service() == 9 + 2 * 3
