"""Above 90 % of its memory the gateway refuses bodies, above 95 % it accepts no connection, and it survives."""

import asyncio
import contextlib
import json

import aiohttp
from gateway_process import serving
from gateway_rig import CHAT, answer, call, gateway, http, scripted, until, wire

from tests.calm.rig import MIB, Watch, rss_bytes

LIMIT = 300 * MIB
BODY = json.dumps(call(messages=[{"role": "user", "content": "a" * (6 * MIB)}])).encode()
ATTACKERS = 80
ATTACK_S = 60.0


async def in_chunks(body):
    for start in range(0, len(body), 1 << 16):
        yield body[start : start + (1 << 16)]


async def attack(session, url, number, statuses):
    """Bodies again and again, declared and in chunks, and some that never end."""

    async def endless():
        async for piece in in_chunks(BODY[:-1]):
            yield piece
        await asyncio.sleep(60)

    while True:
        data = (BODY, in_chunks(BODY), endless())[number % 3]
        with contextlib.suppress(aiohttp.ClientError):
            async with session.post(url + CHAT, data=data) as response:
                statuses.append((response.status, response.headers.get("retry-after")))


async def test_a_process_that_is_sent_more_than_its_memory_holds_survives_and_serves_again(tmp_path, figure):
    released = asyncio.Event()

    async def hold(reader, writer):
        await released.wait()
        return await answer()(reader, writer)

    limits = {"memory_bytes_max": LIMIT, "body_timeout_s": 30}
    async with scripted(hold) as backend, serving(tmp_path, backend, settings={"limits": limits}) as process:
        base = rss_bytes(process.pid)
        statuses: list = []
        headers = {"Content-Type": "application/json"}
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers) as session:
            tasks = [asyncio.create_task(attack(session, process.url, n, statuses)) for n in range(ATTACKERS)]
            await asyncio.sleep(ATTACK_S)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        released.set()
        backend.default = answer()
        watch = Watch()
        while await process.ask("alice") != 200:
            assert watch.s < 15, "serves again"
            await asyncio.sleep(0.05)
        most = rss_bytes(process.pid, "VmHWM")
    figure(12, "RSS before", base / MIB, "MiB")
    figure(12, "highest RSS", most / MIB, "MiB", target="<= 300")
    figure(12, "bodies refused", statuses.count((503, "1")), target="> 0")
    figure(12, "serves again after", watch.s, "s")
    assert most <= LIMIT
    assert (503, "1") in statuses
    assert {status for status, _ in statuses} <= {200, 408, 503}  # 408: a body that never ends


async def test_bodies_are_refused_at_90_percent_and_connections_wait_at_95():
    async with scripted() as backend, gateway(backend, limits={"memory_bytes_max": 100 << 40}) as rig:
        guard, used = rig.gateway._handlers.memory, 0.0
        guard._resident = lambda: used * guard.limit_bytes
        async with wire(rig) as early:
            early.send(http(call()))
            assert (await early.reply()).status == 200
            used = 0.91
            await until(lambda: guard._used_bytes > 0.9 * guard.limit_bytes)
            early.send(http(call()))
            refused = await early.reply()
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            assert refused.error["reason"] == "service_unavailable"
            assert (await rig.get("/healthz")).status in (200, 404)  # what has no body is answered
            used = 0.96
            await until(lambda: guard._used_bytes > 0.95 * guard.limit_bytes)
            async with wire(rig) as late:
                late.send(http(call()))
                waiting = asyncio.create_task(late.reply())
                await asyncio.sleep(0.3)
                assert not waiting.done()
                used = 0.5
                assert (await waiting).status == 200
    assert len(backend.calls) == 2
