"""A gzip bomb of 1 MB gets 415 and is not inflated."""

import asyncio
import zlib

import aiohttp
from gateway_process import serving
from gateway_rig import CHAT, scripted

from tests.calm.rig import MIB, rss_bytes

AT_ONCE = 8


def bomb():
    """1 GiB of blanks as 1 MiB of gzip."""
    made = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = made.compress(b" " * (64 * MIB))
    pieces = [block] + [made.compress(b" " * (64 * MIB)) for _ in range(3)]
    return b"".join([*pieces, made.flush()]).ljust(MIB, b"\0")


async def test_a_bomb_is_refused_and_takes_no_memory(tmp_path, figure):
    packed = bomb()
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}

    async def statuses(session, url):
        async def ask():
            async with session.post(url + CHAT, data=packed, headers=headers, skip_auto_headers={"Expect"}) as answer:
                await answer.read()
                return answer.status

        return await asyncio.gather(*(ask() for _ in range(AT_ONCE)), return_exceptions=True)

    async with scripted() as backend, serving(tmp_path, backend) as process, aiohttp.ClientSession() as session:
        assert await process.ask("alice") == 200
        await statuses(session, process.url)
        before = rss_bytes(process.pid)
        answered = await statuses(session, process.url)
        assert {each for each in answered if not isinstance(each, aiohttp.ClientError)} == {415}
        grown = rss_bytes(process.pid, "VmHWM") - before
        figure(44, f"RSS rise of {AT_ONCE} compressed bodies at once", grown / MIB, "MiB", target="<= 16")
        assert grown <= 16 * MIB
        assert len(backend.calls) == 1
