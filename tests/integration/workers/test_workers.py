"""Two workers of one gateway: one order, one set of limits, whichever worker a client's connection comes to."""

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from forked import FAIRLEAD
from gateway_rig import FAST, PATIENCE_S, SLOW, engine, running, until
from workers_rig import children, workers

SETTLED = 600  # to bob, before a share is measured: who comes first has all slots, and the other is then served more
SERVED = 3_600  # to bob, meanwhile: one request of its is an eightieth of it
LOOK_S = 0.2  # instead of a second
LOOKS_OFTEN = f"from gateway.observability.metrics import scheduler_metrics as m; m.INTERVAL_S = {LOOK_S}; {FAIRLEAD}"


def sized(backend, requests):
    """The configuration of this engine, with its size: a gateway that learns it sends more at first."""
    return {"name": "b0", "url": backend.url, "requests_running_max": requests}


def is_there(pid):
    return Path(f"/proc/{pid}").exists()


async def test_each_worker_answers_whole_and_streamed(tmp_path):
    async with engine() as backend, workers(tmp_path, backend, program=LOOKS_OFTEN) as gateway:
        for pid in gateway.pids:
            async with gateway.clients("alice", pid) as alice:
                assert await alice.get("/readyz") == 200
                assert await alice.ask() == 200
                async with alice.streaming() as answer:
                    assert answer.status == 200
                    assert (await answer.read()).endswith(b"data: [DONE]\n\n")
        await asyncio.sleep(5 * LOOK_S)  # what a worker counts stays while it looks at tenants again and again
        total = await gateway.process.metric("fairlead_tenant_requests_total")
        assert sum(total.values()) == 4


async def test_a_limit_per_minute_counts_the_calls_at_all_workers(tmp_path):
    tenants = {"alice": {"requests_per_minute_max": 5}}
    async with engine() as backend, workers(tmp_path, backend, tenants=tenants) as gateway, AsyncExitStack() as stack:
        sides = [await stack.enter_async_context(gateway.clients("alice", pid)) for pid in gateway.pids]
        statuses = [await sides[turn % 2].ask() for turn in range(8)]
        assert statuses == [200] * 5 + [429] * 3


async def test_weights_hold_between_clients_of_different_workers_and_follow_a_change(tmp_path):
    """Takes seconds: shares are of hundreds of calls, twice."""
    tenants = {"alice": {"weight": 4}, "bob": {"weight": 1}}
    options = {**FAST, "speed": 0.4, "requests_running_max": 8}  # so slow that both always wait
    scheduling = {"share_ratio_max": 1.0}  # a cap of three quarters would be 3:1
    async with (
        engine(**options) as backend,
        workers(tmp_path, sized(backend, 8), tenants=tenants, scheduling=scheduling) as gateway,
        gateway.clients("alice", gateway.pids[0], 32) as alice,
        gateway.clients("bob", gateway.pids[1], 32) as bob,
    ):

        async def ask(clients):
            while True:
                assert await clients.ask(max_tokens=16) == 200

        async def share(served):
            """What alice was charged until bob was charged so much, over that."""
            before = await gateway.services()
            async with asyncio.timeout(PATIENCE_S):
                while (after := await gateway.services())["bob"] - before["bob"] <= served:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            return (after["alice"] - before["alice"]) / (after["bob"] - before["bob"])

        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(ask(clients)) for clients in (alice, bob) * 32]
            async with asyncio.timeout(PATIENCE_S):
                while len(await gateway.services()) < len(tenants):  # noqa: ASYNC110 - until both are served
                    await asyncio.sleep(0.1)
            await share(SETTLED)  # from here on both wait all the time
            assert await share(SERVED) == pytest.approx(4.0, rel=0.08)
            status, _ = await gateway.process.admin("PATCH", "/admin/v1/tenants/alice", {"weight": 1})
            assert status == 200
            await asyncio.sleep(1.0)
            assert await share(SERVED) == pytest.approx(1.0, rel=0.08)
            for task in asking:
                task.cancel()


async def test_an_in_flight_cap_is_one_for_all_workers(tmp_path):
    tenants = {"alice": {"in_flight_max": 2}}
    async with (
        engine(**SLOW) as backend,
        workers(tmp_path, backend, tenants=tenants) as gateway,
        gateway.clients("alice", gateway.pids[0], 3) as here,
        gateway.clients("alice", gateway.pids[1], 3) as there,
    ):
        most = 0

        async def look():
            nonlocal most
            while True:
                most = max(most, running(backend))
                await asyncio.sleep(0.002)

        looking = asyncio.create_task(look())
        statuses = await asyncio.gather(*(side.ask(max_tokens=10) for side in (here, there) * 3))
        looking.cancel()
        assert statuses == [200] * 6
        assert most == 2


async def test_the_slots_of_a_killed_follower_are_free_at_once(tmp_path):
    tenants = {"alice": {"in_flight_max": 1}}
    async with engine(**SLOW) as backend, workers(tmp_path, backend, tenants=tenants) as gateway:
        leader, follower = gateway.pids
        async with (
            gateway.clients("alice", follower) as there,
            gateway.clients("alice", leader) as here,
            there.streaming(max_tokens=2000),
        ):
            waiting = asyncio.create_task(here.ask(max_tokens=2))
            await asyncio.sleep(0.3)
            assert not waiting.done()
            os.kill(follower, signal.SIGKILL)
            async with asyncio.timeout(0.9):  # without the parent's word it takes a second
                assert await waiting == 200
            await gateway.restarted(follower)
            async with gateway.clients("alice", gateway.pids[1]) as again:
                assert await again.ask() == 200
        assert "cannot be followed" not in gateway.process.said, "workers are not ready at one time"
        said = await gateway.process.end(signal.SIGTERM)
        assert "follows this process no more: its connection has ended" in said


async def test_streams_of_a_follower_outlive_the_leader_and_its_waiting_calls_are_served(tmp_path):
    tenants = {"alice": {"in_flight_max": 1}}
    async with engine(**SLOW) as backend, workers(tmp_path, backend, tenants=tenants) as gateway:
        leader, follower = gateway.pids
        async with gateway.clients("alice", follower, 2) as there, there.streaming(max_tokens=75) as answer:
            waiting = asyncio.create_task(there.ask(max_tokens=2))
            await asyncio.sleep(0.2)
            os.kill(leader, signal.SIGKILL)
            assert (await answer.read()).endswith(b"data: [DONE]\n\n")
            assert await waiting == 200
            await gateway.restarted(leader)
            assert await there.ask() == 200
            async with gateway.clients("alice", gateway.pids[0]) as here:
                assert await here.ask() == 200


async def test_a_terminated_gateway_ends_what_runs_at_every_worker(tmp_path):
    shutdown = {"lame_duck_s": 0.2, "drain_s": 10.0}
    async with engine(**SLOW) as backend, workers(tmp_path, backend, shutdown=shutdown) as gateway:
        async with AsyncExitStack() as stack:
            answers = []
            for pid in gateway.pids:
                clients = await stack.enter_async_context(gateway.clients("alice", pid))
                answers.append(await stack.enter_async_context(clients.streaming(max_tokens=60)))
            ending = asyncio.create_task(gateway.process.end(signal.SIGTERM))
            for answer in answers:
                assert (await answer.read()).endswith(b"data: [DONE]\n\n")
        said = await ending
        assert gateway.process._process.returncode == 0, said
        assert not any(map(is_there, gateway.pids))


async def test_a_gateway_whose_parent_was_killed_ends(tmp_path):
    async with engine() as backend, workers(tmp_path, backend) as gateway:
        os.kill(gateway.parent, signal.SIGKILL)
        await until(lambda: not any(map(is_there, gateway.pids)))


async def test_one_worker_has_no_parent(tmp_path):
    async with engine() as backend, workers(tmp_path, backend, workers=1) as gateway:
        assert children(gateway.parent) == []
