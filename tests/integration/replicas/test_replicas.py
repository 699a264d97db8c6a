"""Replicas that share a Redis share one order: whichever of them a client's connection comes to."""

import asyncio
import contextlib
import os
import signal
import ssl
from pathlib import Path

import pytest
from gateway_rig import FAST, PATIENCE_S, engine, running, until
from redis_server import RedisServer
from replicas_rig import replicas
from tls_rig import NEEDS_OPENSSL, make_authority

SERVED = 6_000  # to bob, while the shares are measured: one request of its is a hundredth of it
SETTLED = 600  # to bob, before that: who comes first has all slots, and the other is then served more

FRAME_BYTES = 2 << 20  # of strangers
CLIENTS = 64  # of each tenant, so many that it always waits, also on a machine that is busy with something else


@pytest.fixture
def server(tmp_path):
    with RedisServer(tmp_path) as made:
        yield made


async def test_weights_hold_between_clients_of_different_replicas(tmp_path, server):
    """Takes seconds: shares are of hundreds of calls."""
    tenants = {"alice": {"weight": 4}, "bob": {"weight": 1}}
    options = {**FAST, "speed": 0.4, "requests_running_max": 8}  # so slow that both always wait
    scheduling = {"share_ratio_max": 1.0}  # a cap of three quarters would be 3:1
    async with (
        engine(**options) as backend,
        replicas(
            tmp_path, server, 3, {"name": "b0", "url": backend.url, "requests_running_max": 8},
            tenants=tenants, scheduling=scheduling,
        ) as gateways,
    ):  # fmt: skip
        await gateways.ready()
        leader = await gateways.leader()
        others = [number for number in range(3) if number != leader]

        async def ask(tenant, number):
            while True:
                assert await gateways.processes[number].ask(tenant, max_tokens=16) == 200

        async def services():
            by_labels = await gateways.processes[leader].metric("fairlead_tenant_service_total")
            return {labels.rsplit('tenant="', 1)[1].split('"')[0]: service for labels, service in by_labels.items()}

        async def served(before, service):
            """The services once bob was served so much more."""
            async with asyncio.timeout(2 * PATIENCE_S):
                while (after := await services())["bob"] - before["bob"] <= service:
                    assert not any(task.done() for task in clients), [task for task in clients if task.done()]
                    await asyncio.sleep(0.2)
            return after

        clients = [asyncio.create_task(ask("alice", others[0])) for _ in range(CLIENTS)]
        clients += [asyncio.create_task(ask("bob", others[1])) for _ in range(CLIENTS)]
        try:
            async with asyncio.timeout(PATIENCE_S):
                while len(begun := await services()) < len(tenants):  # noqa: ASYNC110 - until both are served
                    await asyncio.sleep(0.2)
            before = await served(begun, SETTLED)
            after = await served(before, SERVED)
            ratio = (after["alice"] - before["alice"]) / (after["bob"] - before["bob"])
        finally:
            for task in clients:
                task.cancel()
        assert ratio == pytest.approx(4, rel=0.03)


async def test_streams_and_requests_of_followers_outlive_a_leader_that_is_killed(tmp_path, server):
    async with (
        engine(**{**FAST, "speed": 0.3}) as backend,
        replicas(tmp_path, server, 3, backend) as gateways,
    ):
        await gateways.ready()
        leader = await gateways.leader()
        others = [number for number in range(3) if number != leader]
        streams = [
            asyncio.create_task(gateways.processes[number].ask("alice", max_tokens=400, stream=True))
            for number in others
        ]
        await until(lambda: running(backend) >= 2)
        gateways.kill(leader, signal.SIGKILL)
        asked = [asyncio.create_task(gateways.processes[number].ask("bob", max_tokens=4)) for number in others * 5]
        assert await asyncio.gather(*asked) == [200] * 10
        assert await asyncio.gather(*streams) == [200] * 2
        assert await gateways.leader(among=others) in others


@NEEDS_OPENSSL
async def test_replicas_with_certificates_talk_to_those_of_their_authority_alone(tmp_path, server):
    authority = make_authority(tmp_path)
    (tmp_path / "secret").write_text("a secret of the cluster alone")
    pair = {"cert_file": str(authority / "server.pem"), "key_file": str(authority / "server.key")}
    cluster = {"secret_file": str(tmp_path / "secret"), "tls": {**pair, "ca_file": str(authority / "ca.pem")}}
    async with engine(**FAST) as backend, replicas(tmp_path, server, 2, backend, cluster=cluster) as gateways:
        await gateways.ready()
        leader = await gateways.leader()
        assert await gateways.processes[1 - leader].ask("alice", max_tokens=4) == 200
        _, view = await gateways.processes[leader].admin("GET", "/admin/v1/cluster")
        address = next(each["address"] for each in view["members"] if each["role"] == "leader")
        own = ssl.create_default_context(cafile=authority / "ca.pem")
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await answered(address, own)
        own.load_cert_chain(authority / "server.pem", authority / "server.key")
        assert await answered(address, own)


async def test_strangers_at_the_cluster_port_cost_a_leader_no_memory_and_not_its_lease(tmp_path, server):
    """Real processes: memory is one's own, and a lease is lost in 1.6 s."""
    async with engine(**FAST) as backend, replicas(tmp_path, server, 2, backend) as gateways:
        await gateways.ready()
        leader = await gateways.leader()
        epoch = await gateways.value(leader, "fairlead_cluster_epoch")
        _, view = await gateways.processes[leader].admin("GET", "/admin/v1/cluster")
        host, port = next(each["address"] for each in view["members"] if each["role"] == "leader").split(":")
        head = b"GET /services HTTP/1.1\r\nHost: m\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
        head += b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
        frame = b"\x82\xff" + FRAME_BYTES.to_bytes(8, "big") + bytes(4)  # masked, of one message

        async def intrude(number):
            context = None
            if number % 2:
                context = ssl.create_default_context()
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
                try:
                    writer.write(head + frame + bytes(FRAME_BYTES - 1))
                    assert await reader.read(1) in (b"", b"\x15")  # nothing, or an alert of TLS
                finally:
                    writer.close()

        before = resident_bytes(gateways.pid(leader))
        await asyncio.gather(*(intrude(number) for number in range(40)))
        assert resident_bytes(gateways.pid(leader)) - before < 20 * FRAME_BYTES
        assert await gateways.leader() == leader
        assert await gateways.value(leader, "fairlead_cluster_epoch") == epoch


def resident_bytes(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def answered(address, context):
    """The first byte of an answer from a replica's port for the others."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    writer.write(b"GET /nothing HTTP/1.1\r\nHost: leader\r\n\r\n")
    try:
        return await reader.readexactly(1)
    finally:
        writer.close()
