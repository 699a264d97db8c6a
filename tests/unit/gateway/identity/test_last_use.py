"""The day of last use: all days once, then only those that can change, at most every REFRESH_S."""

import pytest

from gateway.identity.last_use import REFRESH_S, LastUse
from gateway.store.base import Totals, UsageKey, UsageRow
from gateway.store.sqlite import SqliteStore


class Counted(SqliteStore):
    """Notes what it is asked."""

    asked: tuple[str, ...] = ()

    async def last_days(self, since):
        self.asked += (since,)
        return await super().last_days(since)


class Time:
    now_s, day = 0.0, "2026-11-20"


@pytest.fixture
async def store():
    made = Counted(None)
    await made.open()
    yield made
    await made.close()


async def use(store, key, day, tenant="alice"):
    await store.put_usage([UsageRow("w", UsageKey(day, tenant, key, "m"), Totals(1, 1, 0, 0))])


async def test_days_are_read_once_and_then_from_the_day_before_the_last_reading(store):
    time = Time()
    keys = LastUse(store, clock=lambda: time.now_s, today=lambda: time.day)
    await use(store, "old", "2026-01-01")
    await use(store, "k", "2026-11-19")
    assert await keys.of_keys() == {"old": "2026-01-01", "k": "2026-11-19"}
    await use(store, "k", "2026-11-20")
    time.now_s += REFRESH_S / 2
    assert (await keys.of_keys())["k"] == "2026-11-19"
    time.now_s, time.day = time.now_s + REFRESH_S, "2026-11-25"
    assert await keys.of_keys() == {"old": "2026-01-01", "k": "2026-11-20"}
    await use(store, "k", "2026-11-24")
    time.now_s += REFRESH_S
    assert (await keys.of_keys())["k"] == "2026-11-24"
    assert store.asked == ("", "2026-11-19", "2026-11-24")


async def test_a_tenant_was_last_used_on_the_newest_day_of_any_of_its_keys_or_of_none(store):
    last = LastUse(store, clock=lambda: 0.0, today=lambda: "2026-11-20")
    for key, day, tenant in [("k", "2026-11-03", "alice"), ("", "2026-11-05", "alice"), ("l", "2026-10-01", "bob")]:
        await use(store, key, day, tenant)
    assert await last.of_tenants() == {"alice": "2026-11-05", "bob": "2026-10-01"}
    assert await last.of_keys() == {"k": "2026-11-03", "l": "2026-10-01"}
