"""Redis is stopped (SIGSTOP): calls go on in one order for as long as its members renew the lease, then with local
shares of limits, metrics say which, and it recovers soon.

A gateway without Redis is asked in turn with the one that lost it, so that a neighbour disturbs both.
"""

import asyncio
import re
import time

import pytest
from gateway_rig import bearer, call, engine, gateway, until
from redis_server import RedisServer

from gateway.cluster import campaign
from tests.calm.replicas import is_together, joined
from tests.calm.rig import Watch, own_s, percentile

WARM_UP_S, FROZEN_S = 2.0, 30.0
RENEWED_S = FROZEN_S / 2  # by members, in place of 90 s: half of the calls are made in one order, half in two
RECOVERED_S_MAX = 2.0
P99_ADDED_S_MAX = 0.005


async def calls(rigs_and_keys, seconds):
    """Seconds of own time of the calls at each of these gateways, asked in turn."""
    ends_at, found = time.monotonic() + seconds, [[] for _ in rigs_and_keys]
    while time.monotonic() < ends_at:
        for (rig, key), each in zip(rigs_and_keys, found, strict=True):
            watch = Watch(own_s)
            assert (await rig.post(call(max_tokens=1), headers=bearer(key))).status == 200
            each.append(watch.s)
            await asyncio.sleep(0.003)
    return found


@pytest.mark.alone
async def test_calls_go_on_and_it_is_told(tmp_path, figure, monkeypatch):
    monkeypatch.setattr(campaign, "WITHOUT_STORE_S", RENEWED_S)
    with RedisServer(tmp_path) as server:
        async with (
            engine() as backend,
            gateway(backend) as control,
            joined(tmp_path, server.url, 2, backend, alice={}) as (rigs, keys),
        ):
            both = [(rigs[0], keys["alice"]), (control, "alice")]
            await calls(both, WARM_UP_S)
            server.freeze()
            told, parts = [], []
            for seconds in (RENEWED_S / 2, FROZEN_S - RENEWED_S / 2):
                parts.append(await calls(both, seconds))
                page = await rigs[0].gateway.metrics.exposition()
                told.append(int(re.search(rb"^fairlead_replicas_cut_off (\d)", page, re.MULTILINE)[1]))
            during, beside = (first + then for first, then in zip(*parts, strict=True))
            server.thaw()
            watch = Watch(own_s)
            await until(lambda: all(is_together(rig, 2) for rig in rigs))
            recovered_s = watch.s
            assert b"fairlead_replicas_cut_off 0.0" in await rigs[0].gateway.metrics.exposition()
    added = [percentile(during, share) - percentile(beside, share) for share in (0.5, 0.99)]
    figure(23, "calls while it was frozen", len(during))
    figure(23, "p50 added to a call, own time", 1e3 * added[0], "ms")
    figure(23, "p99 added to a call, own time", 1e3 * added[1], "ms", target="<= 5")
    figure(23, "gauge fairlead_replicas_cut_off while members renew the lease", told[0], target="0")
    figure(23, "gauge fairlead_replicas_cut_off after it", told[1], target="1")
    figure(23, "time until one order is kept again", recovered_s, "s", target="<= 2")
    assert told == [0, 1]
    assert added[1] <= P99_ADDED_S_MAX
    assert recovered_s <= RECOVERED_S_MAX
