"""5,000 idle connections of 1,000 tenants cost little memory, and all of them are served afterwards."""

import asyncio
import resource

import pytest
from forked import FAIRLEAD
from gateway_process import serving
from gateway_rig import call, engine, http, until

from tests.calm.rig import MIB, descriptors, rss_bytes
from tests.calm.streams import CallClient, port_of

TENANTS = 1_000
EACH = 5
AT_ONCE = 50
RISE_MAX = 150 * MIB
# On a busy machine the first ones are idle for longer than 30 s; it looks for such ones each second.
PATIENT = f"from gateway.http import server\nserver.KEEPALIVE_S, server.KEEPALIVE_CHECKS = 3600.0, 3600\n{FAIRLEAD}"


@pytest.fixture
def many_descriptors():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * TENANTS * EACH
    if before[1] != resource.RLIM_INFINITY and before[1] < wanted:
        pytest.skip(f"the hard limit of descriptors is {before[1]}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(wanted, before[0]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_idle_connections_of_many_tenants(tmp_path, many_descriptors, figure):
    loop = asyncio.get_running_loop()
    async with engine() as server, serving(tmp_path, server, program=PATIENT) as process:
        assert await process.ask("alice") == 200
        base, clients, port = rss_bytes(process.pid), [], port_of(process.url)
        requests = [http(call(max_tokens=1), f"Authorization: Bearer tenant-{each}") for each in range(TENANTS)] * EACH
        for start in range(0, len(requests), AT_ONCE):
            made = await asyncio.gather(
                *(
                    loop.create_connection(lambda request=request: CallClient(request), "127.0.0.1", port)
                    for request in requests[start : start + AT_ONCE]
                )
            )
            clients += [client for _, client in made]
        await until(lambda: descriptors(process.pid) > len(clients))
        idle = rss_bytes(process.pid)
        statuses = []
        for start in range(0, len(clients), AT_ONCE):
            statuses += await asyncio.gather(*(client.ask() for client in clients[start : start + AT_ONCE]))
        served = rss_bytes(process.pid)
        for client in clients:
            client.transport.abort()
        figure(1, "RSS rise with 5,000 idle connections", (idle - base) / MIB, "MB", target="<= 150")
        figure(1, "RSS rise after a call on each", (served - base) / MIB, "MB", target="<= 150")
        figure(1, "calls answered 200, of 5,000", statuses.count(200), target="all")
        assert statuses == [200] * len(clients)
        assert max(idle, served) - base <= RISE_MAX
