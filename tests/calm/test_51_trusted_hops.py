"""Whose address a call has, behind proxies: in the throttle of bad keys, and in the access log."""

import asyncio
import json
from ipaddress import ip_network

import pytest
from gateway_rig import assert_untouched, bearer, gateway, http, scripted, wire
from multidict import CIMultiDict

from gateway.api.trusted_hops import TrustedHops
from gateway.identity.throttle import FAILURES_BURST

HOPS = TrustedHops([ip_network("10.0.0.0/8"), ip_network("fd00::/8")])
TRUSTED, STRANGER = "10.0.0.1", "203.0.113.9"

# The peer, its X-Forwarded-For lines, and the client's address.
CASES = {
    "no header": (TRUSTED, [], TRUSTED),
    "a stranger without": (STRANGER, [], STRANGER),
    "a stranger that names another": (STRANGER, ["198.51.100.1"], STRANGER),
    "a stranger that names a proxy": (STRANGER, [TRUSTED], STRANGER),
    "one hop": (TRUSTED, ["198.51.100.1"], "198.51.100.1"),
    "made up before it": (TRUSTED, ["1.1.1.1, 198.51.100.1"], "198.51.100.1"),
    "two trusted hops": (TRUSTED, ["198.51.100.1, 10.9.9.9"], "198.51.100.1"),
    "made up before two": (TRUSTED, ["1.1.1.1, 198.51.100.1, 10.9.9.9"], "198.51.100.1"),
    "a made-up proxy before a stranger": (TRUSTED, ["10.1.1.1, 198.51.100.1"], "198.51.100.1"),
    "all trusted": (TRUSTED, ["10.7.7.7, 10.9.9.9"], "10.7.7.7"),
    "two lines": (TRUSTED, ["1.1.1.1", "198.51.100.1, 10.9.9.9"], "198.51.100.1"),
    "no spaces": (TRUSTED, ["1.1.1.1,198.51.100.1"], "198.51.100.1"),
    "with a port": (TRUSTED, ["198.51.100.1:4711"], "198.51.100.1"),
    "IPv6": (TRUSTED, ["2001:db8::1"], "2001:db8::1"),
    "IPv6 with a port": (TRUSTED, ["[2001:db8::1]:4711"], "2001:db8::1"),
    "an IPv6 hop": ("fd00::1", ["198.51.100.1, fd00::2"], "198.51.100.1"),
    "a mapped peer": ("::ffff:10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
    "a mapped client": (TRUSTED, ["::ffff:198.51.100.1"], "198.51.100.1"),
    "no address": (TRUSTED, ["unknown"], TRUSTED),
    "no address before a proxy": (TRUSTED, ["198.51.100.1, unknown, 10.9.9.9"], "10.9.9.9"),
    "an empty entry": (TRUSTED, ["198.51.100.1,"], TRUSTED),
    "a unix socket": (None, ["198.51.100.1"], None),
}


@pytest.mark.parametrize("name", CASES)
def test_the_client_is_the_right_most_hop_that_is_not_trusted(name):
    peer, lines, client = CASES[name]
    headers = CIMultiDict(("X-Forwarded-For", line) for line in lines)
    assert HOPS.client_address(headers, peer) == client


def test_without_trusted_hops_the_header_means_nothing():
    assert TrustedHops([]).client_address(CIMultiDict({"X-Forwarded-For": "1.1.1.1"}), TRUSTED) == TRUSTED


async def fail_until_throttled(rig, forwarded_for):
    """The number of calls with a bad key until one gets 429; None where all were answered 401."""
    for number in range(int(FAILURES_BURST) + 5):
        reply = await rig.post(headers={**bearer("bad"), "X-Forwarded-For": forwarded_for(number)})
        if reply.status == 429:
            return number
        assert reply.status == 401
    return None


@pytest.mark.parametrize("is_trusted", [False, True])
async def test_bad_keys_are_counted_by_the_clients_address_and_not_by_a_made_up_one(tmp_path, figure, is_trusted):
    auth = {"mode": "keys", "secret": "0123456789abcdef", "keys_file": str(tmp_path / "keys")}
    (tmp_path / "keys").touch()
    log = tmp_path / "access.log"
    config = {
        "auth": auth,
        "tenants": {"alice": {}},
        "access_log": {"enabled": True, "path": str(log)},
        "listen": {"port": 0, "trusted_hops": ["127.0.0.0/8"] if is_trusted else []},
    }
    async with scripted() as backend, gateway(backend, **config) as rig:
        # Each names another address: behind a trusted proxy they are many clients, else they are one that makes it up.
        many = await fail_until_throttled(rig, lambda number: f"1.1.1.1, 198.51.100.{number + 1}")
        one = await fail_until_throttled(rig, lambda number: f"1.1.1.{number + 1}, 203.0.113.1")
        assert (many is None) is is_trusted
        assert one is not None
        figure(51, f"cases with{'' if is_trusted else 'out'} trusted hops", len(CASES), target=">= 20 of 20")
    clients = {json.loads(line)["client"] for line in log.read_text().splitlines()}
    assert clients == ({f"198.51.100.{n + 1}" for n in range(25)} | {"203.0.113.1"} if is_trusted else {"127.0.0.1"})


async def test_a_proxy_header_is_no_request():
    async with scripted() as backend, gateway(backend) as rig:
        for line in (b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\r\n", b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + bytes(12)):
            async with wire(rig) as connection:
                connection.send(line + http({"model": "tiny"}))
                assert (await connection.reply()).status == 400
                assert await connection.at_end()
        await asyncio.sleep(0)
        assert_untouched(rig, backend)
