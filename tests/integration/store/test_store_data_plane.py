"""What happens to Redis, or to the disk, reaches no call: a stream of calls goes on through every fault."""

import asyncio
import contextlib
import time
from statistics import fmean

import pytest
from gateway_rig import call, engine, gateway
from redis_server import RedisServer, slow_proxy

from gateway.store.base import StoreUnavailable, Totals, UsageQuery
from gateway.store.mirrored import MirroredStore
from gateway.store.redis_store import RedisStore
from gateway.store.sqlite import SqliteStore

TIMEOUT_S = 0.4
SETTLE_S = 0.05  # no other gateway has anything to put back into an empty server
# What a call takes beyond one beside. At load 4, without a wait for the store, it is 0.02 s at most in the mean, and
# 0.04 s for the longest one: each gateway's engine has its own rhythm. A call that waits takes 0.7 s more for a slow
# Redis, and TIMEOUT_S or more for one that is frozen.
MEAN_WAIT_S, WAIT_S = 0.05, TIMEOUT_S / 2
FAULT_S = 1.6  # four timeouts: a longer fault is more of the same, as no state is left that could still change
CALLS_AT_ONCE = 4
USED_EVENTUALLY_S = 5.0
KEPT = {"file": "state.db"}  # says that state is kept; the store that is given keeps it
# A test that runs over midnight (UTC) counts on two days.
ALL_DAYS = UsageQuery("2000-01-01", "9999-12-31")


@pytest.fixture
def server(tmp_path):
    with RedisServer(tmp_path) as running:
        yield running


class Callers:
    """Several clients, each with one call after the other, until they are stopped; as many call a gateway beside, whose
    store is undisturbed.
    """

    def __init__(self, rig, beside):
        self._rig, self._beside = rig, beside
        self._stopping = False
        self.statuses = []
        self.took_s, self.took_beside_s = [], []

    async def __aenter__(self):
        self._tasks = [asyncio.create_task(self._call_on()) for _ in range(CALLS_AT_ONCE)]
        self._tasks += [asyncio.create_task(self._call_beside()) for _ in range(CALLS_AT_ONCE)]
        return self

    async def __aexit__(self, *_):
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def _call_on(self):
        while not self._stopping:
            self.statuses.append(await status(self._rig, self.took_s))

    async def _call_beside(self):
        while not self._stopping:
            await status(self._beside, self.took_beside_s)


async def status(rig, took_s):
    began = time.monotonic()
    reply = await rig.post(call(max_tokens=4), headers={"Authorization": "Bearer alice"})
    took_s.append(time.monotonic() - began)
    await asyncio.sleep(0.005)
    return reply.status


@contextlib.asynccontextmanager
async def two_gateways(store):
    """One with this store, and one beside."""
    async with (
        engine() as one,
        engine() as other,
        gateway(one, store=store, state=KEPT) as rig,
        gateway(other) as beside,
    ):
        yield rig, beside


def freeze(server):
    server.freeze()


def kill(server):
    server.kill()


def restart_empty(server):
    server.restart_empty()


@pytest.mark.parametrize("fault", [freeze, kill, restart_empty], ids=lambda fault: fault.__name__)
async def test_no_call_fails_or_waits_while_redis_is_away_and_all_are_counted(tmp_path, server, fault):
    store = MirroredStore(
        RedisStore(server.url, timeout_s=TIMEOUT_S, settle_s=SETTLE_S), SqliteStore(tmp_path / "state.db")
    )
    async with two_gateways(store) as rigs, Callers(*rigs) as callers:
        await asyncio.sleep(0.5)
        await asyncio.to_thread(fault, server)
        await asyncio.sleep(FAULT_S)
        if fault is freeze:
            server.thaw()
        elif fault is kill:
            await asyncio.to_thread(server.start)
        await asyncio.sleep(0.5)
        await callers.__aexit__()
        await check(callers, store)
        assert await shared_requests(server, len(callers.statuses)) == len(callers.statuses)


async def test_no_call_fails_or_waits_while_redis_is_slow(tmp_path, server):
    async with slow_proxy(server.port, 0.1) as port:
        url = f"redis://127.0.0.1:{port}/0"
        store = MirroredStore(
            RedisStore(url, timeout_s=TIMEOUT_S, settle_s=SETTLE_S), SqliteStore(tmp_path / "state.db")
        )
        async with two_gateways(store) as rigs:
            async with Callers(*rigs) as callers:
                await asyncio.sleep(FAULT_S)
            await check(callers, store)


async def test_no_call_fails_or_waits_while_the_disk_is_full_and_all_are_counted_later(tmp_path, monkeypatch):
    store = SqliteStore(tmp_path / "state.db")
    async with two_gateways(store) as rigs:

        def full(*_):
            raise StoreUnavailable("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(store, "_guarded", full)
            async with Callers(*rigs) as callers:
                await asyncio.sleep(FAULT_S / 2)
        await check(callers, store)


async def check(callers, store):
    assert len(callers.statuses) > 2 * CALLS_AT_ONCE
    assert set(callers.statuses) == {200}
    # A busy machine holds up the calls beside as well. Calm checks 23 and 25 have the figures.
    assert fmean(callers.took_s) < fmean(callers.took_beside_s) + MEAN_WAIT_S
    assert max(callers.took_s) < max(callers.took_beside_s) + WAIT_S
    give_up_at = time.monotonic() + USED_EVENTUALLY_S
    while (totals := summed(await store.usage(ALL_DAYS))).requests != len(callers.statuses):
        assert time.monotonic() < give_up_at, (totals, len(callers.statuses))
        await asyncio.sleep(0.05)
    assert totals.output_tokens == 4 * totals.requests


async def shared_requests(server, count):
    """What has come together in Redis, once it is as many, or is not after a while."""
    shared = RedisStore(server.url)
    give_up_at = time.monotonic() + USED_EVENTUALLY_S
    while True:
        totals = summed(await shared.usage(ALL_DAYS))
        if totals.requests == count or time.monotonic() > give_up_at:
            await shared.close()
            return totals.requests
        await asyncio.sleep(0.05)


def summed(rows):
    return Totals(*map(sum, zip(*(row.totals for row in rows), strict=True))) if rows else Totals()
