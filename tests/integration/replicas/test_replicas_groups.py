"""Groups over replicas: whichever replica a group's tenants use, its share, limits and budgets are one for all."""

import asyncio
import signal
import time
from contextlib import asynccontextmanager

import pytest
from gateway_rig import FAST, PATIENCE_S, engine, running, until
from redis_server import RedisServer
from replicas_rig import replicas

from gateway.cluster.checkpoints import CHECKPOINT_S

SHARED = {**FAST, "speed": 0.4, "requests_running_max": 8}  # so slow that both groups always wait
SERVED = 8_000  # to the smaller group while shares are measured: one request is a two hundredth of it
CLIENTS = 32  # of each group, four times as many as there are seats
IN_FORCE_S = 2.0  # a change at one replica is in force at all


@pytest.fixture
def server(tmp_path):
    with RedisServer(tmp_path) as made:
        yield made


def members(group, count):
    return {f"{group}-{number}": {"group": group} for number in range(count)}


@asynccontextmanager
async def asking(gateways, tenants_at):
    """Clients that ask all the time, so many of each tenant at each replica."""

    async def ask(tenant, number):
        while True:
            assert await gateways.processes[number].ask(tenant, max_tokens=16) == 200

    tasks = [asyncio.create_task(ask(*where)) for where, count in tenants_at.items() for _ in range(count)]
    try:
        yield
        assert not [task for task in tasks if task.done()]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def services(process):
    """What each group was charged, as one replica says."""
    found = {}
    for labels, service in (await process.metric("fairlead_tenant_service_total")).items():
        group = labels.rsplit('tenant="', 1)[1].split("-")[0]
        found[group] = found.get(group, 0.0) + service
    return found


async def ratio(process, one="few", other="many"):
    """Of what two groups are charged from now on, until the smaller one has got SERVED."""
    async with asyncio.timeout(4 * PATIENCE_S):
        while not {one, other} <= (before := await services(process)).keys():  # noqa: ASYNC110 - it is a process
            await asyncio.sleep(0.2)
        while True:
            await asyncio.sleep(0.2)
            after = await services(process)
            got = [after[each] - before[each] for each in (one, other)]
            if min(got) > SERVED:
                return got[0] / got[1]


async def test_a_groups_share_holds_wherever_its_tenants_ask_and_a_change_at_a_follower_is_in_force(tmp_path, server):
    """Takes seconds: shares are of hundreds of calls, twice."""
    tenants = members("few", 1) | members("many", 6)
    groups = {"few": {"weight": 2}, "many": {}}
    async with (
        engine(**SHARED) as backend,
        replicas(
            tmp_path, server, 3, {"name": "b0", "url": backend.url, "requests_running_max": 8},
            tenants=tenants, groups=groups, scheduling={"share_ratio_max": 1.0},
        ) as gateways,
    ):  # fmt: skip
        await gateways.ready()
        leader = await gateways.leader()
        others = [number for number in range(3) if number != leader]
        everywhere = [*others, leader]
        crowd = {(f"many-{number}", everywhere[number % 3]): CLIENTS // 6 for number in range(6)}
        async with asking(gateways, {("few-0", others[0]): CLIENTS, **crowd}):
            assert await ratio(gateways.processes[leader]) == pytest.approx(2, rel=0.03)
            status, _ = await gateways.processes[others[1]].admin("PATCH", "/admin/v1/groups/few", {"weight": 0.5})
            assert status == 200
            await asyncio.sleep(IN_FORCE_S)
            assert await ratio(gateways.processes[leader]) == pytest.approx(0.5, rel=0.03)


async def test_limits_of_a_group_are_exact_over_replicas_and_outlive_a_leader(tmp_path, server):
    """Takes seconds: calls run for two, and two checkpoints are waited for."""
    limit = 12
    groups = {"wide": {"in_flight_max": 5}, "rare": {"requests_per_minute_max": limit}}
    slow = {**FAST, "speed": 0.05, "requests_running_max": 64}  # a call takes a third of a second
    async with (
        engine(**slow) as backend,
        replicas(
            tmp_path, server, 3, {"name": "b0", "url": backend.url, "requests_running_max": 64},
            tenants=members("wide", 6) | members("rare", 3), groups=groups,
        ) as gateways,
    ):  # fmt: skip
        await gateways.ready()
        async with asking(gateways, {(f"wide-{number}", number % 3): 3 for number in range(6)}):
            await until(lambda: running(backend) == 5)
            most, ends_at = 0, time.monotonic() + 2.0
            while time.monotonic() < ends_at:
                most = max(most, running(backend))
                await asyncio.sleep(0.002)
            assert most == 5
        leader = await gateways.leader()

        async def burst(numbers):
            calls = [gateways.processes[number].ask(f"rare-{number}", max_tokens=1) for number in numbers]
            return await asyncio.gather(*calls)

        statuses = await burst([0, 1, 2] * limit)
        assert sorted(statuses) == [200] * limit + [429] * (2 * limit)
        await asyncio.sleep(2 * CHECKPOINT_S)
        gateways.kill(leader, signal.SIGKILL)
        others = [number for number in range(3) if number != leader]
        await gateways.leader(among=others)
        assert await burst(others * 3) == [429] * 6


async def counters(process):
    """Of each tenant in its group."""
    status, state = await process.admin("GET", "/admin/v1/state/tenants")
    assert status == 200
    return {each["tenant"]: each["counter"] for each in state["items"]}


async def test_what_tenants_have_received_in_their_groups_outlives_the_leader(tmp_path, server):
    """Takes seconds: two checkpoints are waited for."""
    async with (
        engine(**FAST) as backend,
        replicas(tmp_path, server, 3, backend, tenants=members("few", 2), groups={"few": {"weight": 2}}) as gateways,
    ):
        await gateways.ready()
        leader = await gateways.leader()
        others = [number for number in range(3) if number != leader]
        for tenant in ("few-0", "few-1") * 5:
            assert await gateways.processes[others[0]].ask(tenant, max_tokens=16) == 200
        before = await counters(gateways.processes[leader])
        assert min(before.values()) > 0
        await asyncio.sleep(2 * CHECKPOINT_S)
        gateways.kill(leader, signal.SIGKILL)
        successor = await gateways.leader(among=others)
        for tenant in before:  # the leader knows those that have asked
            assert await gateways.processes[others[0]].ask(tenant, max_tokens=1) == 200
        after = await counters(gateways.processes[successor])
        assert all(after[tenant] > before[tenant] for tenant in before)
