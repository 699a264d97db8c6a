"""Two workers of one gateway: what they keep together besides the order, wherever a call comes to."""

import asyncio
import json
import os
import signal
from contextlib import AsyncExitStack

import pytest
import yaml
from gateway_rig import MODEL, PATIENCE_S, answer, engine, fall_silent, scripted, until, whole
from workers_rig import workers

from gateway.workers.parent import count_of

CALL_TOKENS = 14 + 8  # a prompt as it is estimated, and its answer


def sized(backend, requests):
    return {"name": "b0", "url": backend.url, "requests_running_max": requests}


@pytest.mark.parametrize("count", [2, 3])
async def test_a_budget_is_spent_once_by_the_calls_at_all_workers(tmp_path, count):
    tenants = {"alice": {"tokens_per_day_max": 100 * CALL_TOKENS}}
    async with (
        engine(requests_running_max=64) as backend,
        workers(tmp_path, sized(backend, 64), workers=count, tenants=tenants) as gateway,
        AsyncExitStack() as stack,
    ):
        sides = [await stack.enter_async_context(gateway.clients("alice", pid, 8)) for pid in gateway.pids]
        answered = 0

        async def spend(clients):
            nonlocal answered
            while (status := await clients.ask()) == 200:
                answered += 1
            assert status == 429

        async with asyncio.timeout(2 * PATIENCE_S):
            await asyncio.gather(*(spend(clients) for clients in sides for _ in range(8)))
        # As at one process: a call is admitted if its prompt fits, so the last one may exceed the budget.
        assert 95 <= answered <= 101


async def test_a_response_made_at_one_worker_is_found_at_the_other_and_goes_on_there(tmp_path):
    ask = {"model": MODEL, "input": "Hello there", "max_output_tokens": 4}
    async with (
        engine(responses_stored=True) as backend,
        workers(tmp_path, backend) as gateway,
        gateway.clients("alice", gateway.pids[0]) as one,
        gateway.clients("alice", gateway.pids[1]) as two,
        gateway.clients("bob", gateway.pids[1]) as bob,
    ):
        for here, there in ((one, two), (two, one)):
            status, made = await here.post("/v1/responses", ask)
            assert status == 200
            async with asyncio.timeout(PATIENCE_S):  # told as it is made, on another connection
                while (found := await there.get(f"/v1/responses/{made['id']}")) == 404:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert found == 200
            assert (await there.post("/v1/responses", {**ask, "previous_response_id": made["id"]}))[0] == 200
            assert await bob.get(f"/v1/responses/{made['id']}") == 404


FINDS_BY_FILE = """
import pathlib
from backends.discovery import dns
async def ask(self):
    return frozenset(pathlib.Path({file!r}).read_text().split())
dns.Dns._ask, dns.DNS_EVERY_S = ask, 0.1
dns.Dns.__init__.__kwdefaults__["every_s"] = 0.1
from gateway.cli import main
main()
"""


async def test_what_discovery_finds_reaches_every_worker(tmp_path):
    file = tmp_path / "found"
    async with engine() as one, engine() as two:
        file.write_text(one.url)
        discovery = [{"dns": "a-name-of-this-test", "port": 1}]
        async with (
            workers(tmp_path, discovery=discovery, program=FINDS_BY_FILE.format(file=str(file))) as gateway,
            AsyncExitStack() as stack,
        ):
            sides = [await stack.enter_async_context(gateway.clients("alice", pid)) for pid in gateway.pids]
            for side in sides:
                await until_served(side)
            file.write_text(two.url)
            for side in sides:
                served = emitted(two)
                async with asyncio.timeout(PATIENCE_S):
                    while emitted(two) == served:
                        assert await side.ask() in {200, 404, 503}
            await one.stop()
            assert [await side.ask() for side in sides] == [200, 200]


async def until_served(clients):
    async with asyncio.timeout(PATIENCE_S):
        while (status := await clients.ask()) != 200:
            assert status in {404, 503}
            await asyncio.sleep(0.05)


def emitted(backend):
    return sum(snapshot.emitted_tokens_total for snapshot in backend.snapshots())


async def test_the_file_is_read_again_by_every_worker(tmp_path):
    async with engine() as backend, engine(model="small") as new, workers(tmp_path, backend) as gateway:
        file = tmp_path / "fairlead.yaml"
        settings = yaml.safe_load(file.read_text())
        settings["tenants"] = {"bob": {"requests_per_minute_max": 2}}
        settings["backends"].append({"name": "b1", "url": new.url})
        file.write_text(yaml.safe_dump(settings))
        os.kill(gateway.parent, signal.SIGHUP)
        for pid in gateway.pids:
            async with gateway.clients("alice", pid) as alice, asyncio.timeout(PATIENCE_S):
                while (status := await alice.ask(model="small")) != 200:
                    assert status in {404, 503}  # unknown, and not measured yet
                    await asyncio.sleep(0.05)
        async with gateway.clients("bob", gateway.pids[0]) as here, gateway.clients("bob", gateway.pids[1]) as there:
            assert [await side.ask() for side in (there, here, there, here)] == [200, 200, 429, 429]


async def test_a_call_at_one_worker_gives_way_to_one_far_behind_at_the_other(tmp_path):
    scheduling = {"fairness": "lcf", "prediction": "none", "preempt_service": 5.0, "share_ratio_max": 1.0}
    async with (
        scripted(None, answer(), fall_silent, answer(), answer()) as backend,
        workers(tmp_path, sized(backend, 1), scheduling=scheduling) as gateway,
        gateway.clients("ahead", gateway.pids[1]) as ahead,
        gateway.clients("behind", gateway.pids[0]) as behind,
    ):
        assert await ahead.ask() == 200
        waiting = asyncio.create_task(ahead.ask())
        await until(lambda: len(backend.calls) == 2)
        assert await behind.ask() == 200
        assert await waiting == 200
        assert backend.calls[1].body == backend.calls[3].body


async def test_the_plugin_is_told_of_each_worker_by_a_name_of_its_own(tmp_path):
    reports = {
        "version": 1,
        "epoch": "e",
        "next": 0,
        "steps": [],
        "engines": {"0": {"pab_tokens": 5e4, "dispatches": {}}},
    }
    async with scripted() as backend:
        others = backend._poll
        backend._poll = lambda target: whole(reports) if target.startswith("/fairlead/steps") else others(target)
        entry = {"name": "b0", "url": backend.url, "kind": "vllm"}
        async with workers(tmp_path, entry) as gateway, AsyncExitStack() as stack:
            sides = [await stack.enter_async_context(gateway.clients("alice", pid)) for pid in gateway.pids]
            for side in (*sides, *sides):
                assert await side.ask() == 200
        told = [json.loads(each.body)["vllm_xargs"]["fairlead_dispatch"] for each in backend.calls]
        names = [name for name, _ in told]
        assert names[0] != names[1]
        assert names[:2] == names[2:]
        assert [number for _, number in told] == [1, 1, 2, 2]


async def test_the_engine_of_a_killed_worker_0_is_followed_by_another(tmp_path):
    fast = {"model": MODEL, "coefficients": "cpu-tiny"}
    async with workers(tmp_path, engine=fast) as gateway:
        leader, follower = gateway.pids
        async with gateway.clients("alice", follower) as there:
            assert await there.ask() == 200
            os.kill(leader, signal.SIGKILL)
            await gateway.restarted(leader)
            async with asyncio.timeout(2 * PATIENCE_S):
                while (status := await there.ask()) != 200:
                    assert status in {502, 503}  # the engine died with its worker
                    await asyncio.sleep(0.05)
            async with gateway.clients("alice", gateway.pids[0]) as here:
                assert await here.ask() == 200


async def test_auto_is_one_worker_for_each_core(tmp_path):
    async with engine() as backend, workers(tmp_path, backend, workers="auto") as gateway:
        count = count_of("auto")
        assert len(gateway.pids) == (count if count > 1 else 0)
