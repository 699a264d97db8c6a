"""Requests one by one over several processes: any admin port shows all of them, and cancels one that another holds."""

import asyncio
import json

from admin_rig import within
from gateway_rig import CHAT, FAST, call, engine, running, until
from redis_server import RedisServer
from replicas_rig import replicas

SLOW = {**FAST, "speed": 0.01, "requests_running_max": 1}  # so slow that calls are seen


async def send(url, session, tenant, request_id):
    """The status and body of a call of this tenant."""
    headers = {"Authorization": "Bearer k", "X-Tenant-Id": tenant, "x-request-id": request_id}
    headers["Content-Type"] = "application/json"
    async with session.post(url + CHAT, data=json.dumps(call(max_tokens=400)), headers=headers) as reply:
        return reply.status, await reply.json()


async def test_a_replica_shows_and_cancels_what_another_holds(tmp_path):
    with RedisServer(tmp_path) as server:
        async with (
            engine(**SLOW) as backend,
            replicas(tmp_path, server, 2, {"name": "b0", "url": backend.url, "requests_running_max": 1}) as gateways,
        ):
            await gateways.ready()
            leader = await gateways.leader()
            leading, following = gateways.processes[leader], gateways.processes[1 - leader]
            first = asyncio.create_task(send(following.url, following.session, "alice", "a-0"))
            await until(lambda: running(backend) == 1)
            calls = [
                asyncio.create_task(send(process.url, process.session, tenant, request_id))
                for process, tenant, request_id in ((following, "alice", "a-1"), (leading, "bob", "b-2"))
            ]
            for asked in (leading, following):
                items = {each["id"]: each for each in await asked.requests(3)}
                assert {each: items[each]["state"] for each in items} == {
                    "a-0": "running", "a-1": "queued", "b-2": "queued",
                }  # fmt: skip
                assert items["a-0"]["process"] == items["a-1"]["process"] != items["b-2"]["process"]
                assert (items["a-1"]["waits"]["reason"], items["a-1"]["waits"]["ahead"]) == ("no_room", "bob")
                assert (items["b-2"]["waits"]["reason"], items["b-2"]["waits"]["ahead"]) == ("no_room", None)
            # One that the follower holds is cancelled at the leader, and the other way round.
            assert (await leading.admin("DELETE", "/admin/v1/requests/a-1"))[0] == 204
            assert (await following.admin("DELETE", "/admin/v1/requests/b-2"))[0] == 204
            for status, body in await asyncio.gather(*calls):
                assert (status, body["error"]["reason"]) == (403, "cancelled")
            assert (await leading.admin("DELETE", "/admin/v1/requests/a-0"))[0] == 204
            assert (await first)[0] == 403
            await until(lambda: running(backend) == 0)
            for asked in (leading, following):
                assert {each["id"] for each in await asked.requests(3, "?state=ended")} == {"a-0", "a-1", "b-2"}
                status, ended = await asked.admin("GET", "/admin/v1/requests/a-1")
                assert (status, ended["outcome"]) == (200, "cancelled")
                assert (await asked.admin("DELETE", "/admin/v1/requests/a-1"))[0] == 409
                assert (await asked.admin("GET", "/admin/v1/requests/never"))[0] == 404


async def test_a_replica_shows_a_what_if_that_another_was_asked_for(tmp_path):
    """Behind a load balancer the page asks now one and now the other."""
    with RedisServer(tmp_path) as server:
        async with (
            engine(**FAST) as backend,
            replicas(tmp_path, server, 2, {"name": "b0", "url": backend.url}) as gateways,
        ):
            await gateways.ready()
            one, other = gateways.processes
            for number, process in enumerate((one, other)):
                assert (await send(process.url, process.session, "alice", f"a-{number}"))[0] == 200
            status, begun = await one.admin("POST", "/admin/v1/what-ifs", {})
            assert status == 202, begun
            path = f"/admin/v1/what-ifs/{begun['id']}"
            found = []

            async def is_over():
                found[:] = await other.admin("GET", path)
                assert found[0] == 200, found
                return found[1]["state"] != "running"

            await within(is_over, timeout_s=90.0)
            assert found[1] == (await one.admin("GET", path))[1]
            assert found[1]["replayed"]["requests"] == 2, "of both"
            assert (await other.admin("GET", "/admin/v1/what-ifs/none"))[0] == 404
