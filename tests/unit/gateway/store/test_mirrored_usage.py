"""The usage of other gateways is read every few seconds, whatever the wall clock does."""

import time

from gateway.store.base import Totals, UsageKey, UsageQuery, UsageRow
from gateway.store.mirrored_usage import MirroredUsage
from gateway.store.sqlite import SqliteStore

HOUR_S = 3_600.0
ALICE = UsageKey("2026-11-20", "alice", "k1", "m")


async def test_a_clock_that_is_set_back_does_not_delay_it(monkeypatch):
    now_s = 1_795_176_000.0  # 2026-11-20 12:00 UTC
    monkeypatch.setattr(time, "time", lambda: now_s)
    shared, own = SqliteStore(None), SqliteStore(None)
    shared.epoch = ""
    for each in (shared, own):
        await each.open()
    usage = MirroredUsage(shared, own)
    await usage.sync()
    await shared.put_usage([UsageRow("other", ALICE, Totals(1, 10, 0, 2))])
    now_s -= HOUR_S
    await usage.sync()
    assert [row.of for row in await own.usage(UsageQuery(ALICE.day, ALICE.day))] == [ALICE]
    for each in (shared, own):
        await each.close()
