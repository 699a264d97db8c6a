"""The live page of a follower: its stream gives the leader's document, with what ended at either."""

from gateway_rig import FAST, engine
from live_viewer import EVENTS, Viewer
from redis_server import RedisServer
from replicas_rig import replicas


def stream(process):
    headers = {**EVENTS, "Authorization": f"Bearer {process._admin_key}"}
    return process._session.get(f"{process._admin_url}/admin/v1/live", headers=headers)


async def test_a_follower_streams_the_leaders_document_with_what_ended_at_either(tmp_path):
    with RedisServer(tmp_path) as server:
        async with (
            engine(**FAST) as backend,
            replicas(tmp_path, server, 2, {"name": "b0", "url": backend.url}) as gateways,
        ):
            await gateways.ready()
            leader = await gateways.leader()
            leading, following = gateways.processes[leader], gateways.processes[1 - leader]
            async with stream(leading) as theirs, stream(following) as ours:
                assert theirs.status == 200, await theirs.text()
                at_leader, at_follower = Viewer(theirs), Viewer(ours)
                for viewer in (at_leader, at_follower):  # what was served before the first look counts for nothing
                    await viewer.until(lambda document: document["pools"])
                for process, tenant in ((leading, "alice"), (following, "bob")):
                    assert await process.ask(tenant, max_tokens=4, stream=True) == 200
                of_leader = await at_leader.until(has_latencies)
                of_follower = await at_follower.until(has_latencies)
    assert (of_leader["gateway"]["role"], of_follower["gateway"]["role"]) == ("leader", "follower")
    assert of_leader["gateway"]["name"] == of_follower["cluster"]["leader"]
    (there,), (here,) = of_leader["pools"].values(), of_follower["pools"].values()
    assert here["tenants"].keys() == there["tenants"].keys() == {"alice", "bob"}
    for tenant in ("alice", "bob"):
        assert here["tenants"][tenant]["ttft_s"] == there["tenants"][tenant]["ttft_s"]
        assert here["tenants"][tenant]["share"][2] == there["tenants"][tenant]["share"][2] > 0
    assert here["backends"].keys() == there["backends"].keys() == {"b0"}


def has_latencies(document):
    """Calls of both tenants have ended."""
    tenants = [tenant for pool in document["pools"].values() for tenant in pool["tenants"].values()]
    return len(tenants) == 2 and all(tenant["ttft_s"] for tenant in tenants)
