"""Requests one by one: worker 0 shows those of all workers, and cancels one that another holds."""

import asyncio

from gateway_rig import FAST, engine, running, until
from workers_rig import workers

SLOW = {**FAST, "speed": 0.01, "requests_running_max": 1}  # so slow that calls are seen


async def test_worker_0_shows_and_cancels_what_another_worker_holds(tmp_path):
    async with (
        engine(**SLOW) as backend,
        workers(tmp_path, {"name": "b0", "url": backend.url, "requests_running_max": 1}) as gateway,
        gateway.clients("alice", gateway.pids[1], 2) as alice,
    ):
        process = gateway.process
        first = asyncio.create_task(alice.ask(max_tokens=400))
        await until(lambda: running(backend) == 1)
        second = asyncio.create_task(alice.ask(max_tokens=400))
        runs, waits = await process.requests(2)
        assert (runs["state"], waits["state"], waits["waits"]["reason"]) == ("running", "queued", "no_room")
        assert runs["process"] == waits["process"] != (await process.admin("GET", "/admin/v1/cluster"))[1]["name"]
        for each in (waits, runs):
            assert (await process.admin("DELETE", f"/admin/v1/requests/{each['id']}"))[0] == 204
        assert (await first, await second) == (403, 403)
        assert {each["id"] for each in await process.requests(2, "?state=ended")} == {runs["id"], waits["id"]}
        # The calls of the other worker are played as well.
        assert await alice.ask(max_tokens=2) == 200
        status, began = await process.admin("POST", "/admin/v1/what-ifs", {"weights": {"alice": 2}})
        assert status == 202
        found, path = began, f"/admin/v1/what-ifs/{began['id']}"
        async with asyncio.timeout(60):
            while found["state"] == "running":
                await asyncio.sleep(0.1)
                _, found = await process.admin("GET", path)
        assert (found["state"], found["error"]) == ("done", None)
        assert found["happened"]["requests"] == 3
