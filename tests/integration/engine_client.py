"""A running embedded engine and a client of it."""

import asyncio
import contextlib
import time

import aiohttp
import openai
from faulty_engine import FaultyServer

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO = [{"role": "user", "content": "Hello there"}]
FAST = {"model": "tiny", "coefficients": "cpu-tiny", "max_model_len": 4096, "block_tokens": 128, "seed": 7}
SLOW = {**FAST, "speed": 0.02}  # 50 ms a step


@contextlib.asynccontextmanager
async def serving(**options):
    """A server and a session of its own to talk to it."""
    server = FaultyServer(**{**FAST, **options})
    url = await server.start()
    async with aiohttp.ClientSession(url) as session:
        try:
            yield server, session
        finally:
            await server.stop()


@contextlib.asynccontextmanager
async def official_client(**options):
    server = FaultyServer(**{**FAST, **options})
    url = await server.start()
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="secret", max_retries=0) as client:
        try:
            yield server, client
        finally:
            await server.stop()


async def post(session, path, body, **kwargs):
    async with session.post(path, json=body, **kwargs) as response:
        return response.status, await response.read()


async def events(session, path, body, **kwargs) -> list[str]:
    """The payloads of a stream, [DONE] included; asserts its framing."""
    async with session.post(path, json={**body, "stream": True}, **kwargs) as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        data = await response.text()
    assert data.endswith("\n\n")
    lines = data.removesuffix("\n\n").split("\n\n")
    assert all(line.startswith("data: ") for line in lines)
    return [line.removeprefix("data: ") for line in lines]


async def read_until_it_breaks(response) -> bytes:
    received = b""
    try:
        async for part in response.content.iter_any():
            received += part
    except aiohttp.ClientError:
        return received
    raise AssertionError("the stream came to a regular end")


async def until(condition, timeout_s=2.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        await asyncio.sleep(0.002)
