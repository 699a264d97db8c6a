import asyncio
import socket
from ipaddress import ip_network

import pytest

from backends.address_allowlist import AddressAllowlist, AddressRefusedError, literal
from backends.connection import ConnectFailed
from backends.poll import Poller, UnansweredError
from backends.spec import BackendSpec
from backends.upstream import ConnectionLimits, Upstream

INSIDE = AddressAllowlist((ip_network("10.0.0.0/8"), ip_network("fd00::/8")))
HERE = AddressAllowlist((ip_network("127.0.0.0/8"),))


@pytest.mark.parametrize("address", ["10.1.2.3", "fd12::1", "::ffff:10.1.2.3"])
def test_addresses_of_the_allowed_networks_may_be_connected_to(address):
    assert INSIDE.allows(address)


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "169.254.169.254", "fd00:ec2::254", "8.8.8.8", "no-address", ""]
)
def test_no_other_address_may_be_connected_to_however_it_is_written(address):
    assert not INSIDE.allows(address)


@pytest.mark.parametrize("address", ["169.254.169.254", "::ffff:169.254.169.254", "fe80::1%eth0", "0.0.0.0", "::"])
def test_what_is_never_a_backend_is_refused_within_any_network(address):
    assert not AddressAllowlist((ip_network("0.0.0.0/0"), ip_network("::/0"))).allows(address)


@pytest.mark.parametrize(
    ("host", "address"),
    [("0x7f.1", "127.0.0.1"), ("2130706433", "127.0.0.1"), ("127.1", "127.0.0.1"), ("vllm-0", None)],
)
def test_an_address_is_known_in_every_way_of_writing_one(host, address):
    assert literal(host) == address


@pytest.fixture
async def server():
    """A server on this machine that tells which addresses connected."""
    peers = []

    async def serve(reader, writer):
        peers.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield listening.sockets[0].getsockname()[1], peers
    listening.close()
    await listening.wait_closed()


def upstream(url, address_allowlist):
    limits = ConnectionLimits(connect_timeout_s=2, idle_s_max=1, idle_connections_max=1, silence_s_max=5)
    return Upstream(url, limits, address_allowlist=address_allowlist)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0x7f.1", "[::ffff:127.0.0.1]", "2130706433"])
async def test_neither_a_call_nor_a_poll_reaches_an_address_outside(server, host):
    port, peers = server
    url = f"http://{host}:{port}"
    with pytest.raises(ConnectFailed):
        await upstream(url, INSIDE).open("GET", "/")
    poller = Poller(timeout_s=2)
    poller.start()
    try:
        with pytest.raises(UnansweredError):
            await poller.get(BackendSpec("b", url, address_allowlist=INSIDE), "/health", bytes_max=10)
    finally:
        await poller.stop()
    assert peers == []


async def test_calls_and_polls_reach_an_address_inside(server):
    port, peers = server
    url = f"http://localhost:{port}"
    to = upstream(url, HERE)
    async with await to.open("GET", "/") as exchange:
        assert await exchange.read(10) == b"ok"
    await to.aclose()
    poller = Poller(timeout_s=2)
    poller.start()
    try:
        # localhost may be ::1 first, which is not inside.
        assert (
            await poller.get(BackendSpec("b", f"http://127.0.0.1:{port}", address_allowlist=HERE), "/", bytes_max=10)
            == b"ok"
        )
    finally:
        await poller.stop()
    assert len(peers) == 2


async def test_a_name_that_comes_to_mean_something_else_is_refused_when_it_does(server, monkeypatch):
    port, _ = server
    answers = iter(["127.0.0.1", "169.254.169.254"])

    async def getaddrinfo(host, port, **_):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers), port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    assert await HERE.addresses("rebinding.test", port) == ["127.0.0.1"]
    with pytest.raises(AddressRefusedError):
        await HERE.addresses("rebinding.test", port)


async def test_one_address_outside_among_those_of_a_name_is_enough_to_refuse_it(monkeypatch):
    async def getaddrinfo(host, port, **_):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in ("10.0.0.1", "127.0.0.1")]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    with pytest.raises(AddressRefusedError):
        await INSIDE.addresses("both.test", 80)
