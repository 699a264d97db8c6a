"""Heads that are too large are refused at once, and leave nothing in memory."""

import os

import pytest
from gateway_rig import CHAT, assert_untouched, call, gateway, http, scripted, wire

from gateway.http.request_reader import LINE_BYTES_MAX
from tests.calm.rig import MIB, Watch, own_s, percentile, rss_bytes

ANSWER_S_MAX = 0.01
RISE_MAX = 2 * MIB  # CPython's allocator takes memory by the MiB
CASES = {
    "a long line": (http(call(), "X-A: " + "a" * (LINE_BYTES_MAX + 1)), {400, 431}),
    "a long name": (http(call(), "X" * (LINE_BYTES_MAX + 1) + ": a"), {400, 431}),
    "129 headers": (http(call(), *(f"X-{number}: 1" for number in range(129))), {400, 431}),
    "more than 64 KiB together": (http(call(), *(f"X-{number}: " + "a" * 8_000 for number in range(9))), {431}),
    "a long URI": (http(call(), path=f"{CHAT}?{'a' * (LINE_BYTES_MAX + 1)}"), {400, 414, 431}),
}
RUNS = 40


@pytest.mark.parametrize("name", CASES)
async def test_a_large_head_is_refused_and_closed(name, figure):
    data, statuses = CASES[name]
    async with scripted() as backend, gateway(backend) as rig:
        times = []
        for number in range(RUNS):
            async with wire(rig) as connection:
                watch = Watch(own_s)
                connection.send(data)
                reply = await connection.reply()
                times.append(watch.s)
                assert reply.status in statuses
                assert await connection.at_end()
            if number == 9:
                before = rss_bytes(os.getpid())
        grown = max(0, rss_bytes(os.getpid()) - before)
        figure(35, f"time to answer, {name}, median of own time", 1e3 * percentile(times, 0.5), "ms", target="<= 10")
        figure(35, f"rise of RSS over 30, of {name}", grown / MIB, "MiB", target="flat")
        assert percentile(times, 0.5) <= ANSWER_S_MAX
        assert grown <= RISE_MAX
        assert_untouched(rig, backend)


async def test_64_kib_of_headers_are_served():
    async with scripted() as backend, gateway(backend) as rig, wire(rig) as connection:
        connection.send(http(call(), *(f"X-{number}: " + "a" * 7_900 for number in range(8))))
        assert (await connection.reply()).status == 200
        assert len(backend.calls) == 1
