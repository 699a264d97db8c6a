"""The admin port of any replica answers for all of them: which one leads, what waits, what was changed and where."""

import asyncio

from gateway_rig import FAST, engine, running, until
from redis_server import RedisServer
from replicas_rig import replicas


async def get(process, path):
    status, body = await process.admin("GET", f"/admin/v1{path}")
    assert status == 200, body
    return body


async def test_any_replica_answers_for_all_of_them(tmp_path):
    options = {**FAST, "speed": 0.01, "requests_running_max": 1}  # so slow that calls are seen
    with RedisServer(tmp_path) as server:
        async with (
            engine(**options) as backend,
            replicas(tmp_path, server, 2, {"name": "b0", "url": backend.url, "requests_running_max": 1}) as gateways,
        ):
            await gateways.ready()
            leader = await gateways.leader()
            leading, following = gateways.processes[leader], gateways.processes[1 - leader]
            views = await _agreeing(leading, following)
            _check_cluster(*sorted(views, key=lambda view: view["role"] != "leader"))
            calls = [asyncio.create_task(following.ask("alice", max_tokens=400)) for _ in range(3)]
            try:
                await until(lambda: running(backend) == 1)
                await _check_state(leading, following)
            finally:
                for call in calls:
                    call.cancel()
            status, _ = await following.admin("PUT", "/admin/v1/tenants/carol", {"weight": 2})
            assert status == 201
            (newest,) = (await get(following, "/audit?limit=1"))["items"]
            assert views[1]["name"].startswith(newest["replica"])


async def _agreeing(*processes):
    """The views of these processes, once they list each other and agree on the leader, which may change on a busy
    machine.
    """
    async with asyncio.timeout(15):
        while True:
            views = [await get(process, "/cluster") for process in processes]
            roles = sorted(view["role"] for view in views)
            listed = {len(view["members"]) for view in views} == {len(processes)}
            agree = len({(view["leader"], view["epoch"]) for view in views}) == 1
            if roles == ["follower", "leader"] and listed and agree:
                return views
            await asyncio.sleep(0.05)


def _check_cluster(leading, following):
    assert (leading["role"], following["role"]) == ("leader", "follower")
    assert leading["leader"] == following["leader"] == leading["name"]
    assert leading["epoch"] == following["epoch"] > 0
    assert leading["elections"] >= 1
    assert leading["round_trip_s"] is None
    assert 0 <= following["round_trip_s"] < 5  # by a clock that steps by a millisecond
    for view in (leading, following):
        assert not view["standalone"]
        roles = {member["name"]: member["role"] for member in view["members"]}
        assert roles == {leading["name"]: "leader", following["name"]: "follower"}
        assert all(member["address"] and member["since"] > 1e9 for member in view["members"])


async def _check_state(leading, following):
    """What clients of the follower have queued and in flight is the same, asked at either."""
    for process in (following, leading):
        async with asyncio.timeout(10):
            while True:
                (pool,) = (await get(process, "/state"))["pools"]
                if (pool["in_flight_requests"], pool["queued_requests"]) == (1, 2):
                    break
        assert pool["backends"]["b0"]["in_flight_requests"] == 1
        (alice,) = [each for each in (await get(process, "/state/tenants"))["items"] if each["tenant"] == "alice"]
        assert (alice["in_flight_requests"], alice["queued_requests"]) == (1, 2)
        status, problem = await process.admin("GET", "/admin/v1/state/tenants?limit=no")
        assert (status, problem["errors"][0]["field"]) == (422, "query.limit")
