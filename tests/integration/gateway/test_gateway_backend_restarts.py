"""Three engines are restarted in turn under load: no stream fails, none breaks, and each is charged once."""

import asyncio
import socket
from collections import Counter
from itertools import pairwise

import pytest
from admin_rig import LOCAL, Admin
from engine_process import engines
from gateway_rig import gateway, snapshots_of, until
from streaming_load import STREAMS, TOKENS, Load, due

from backends.discovery import Dns
from gateway.continuation.loss_evidence import ENGINES_MAX
from gateway.store.sqlite import SqliteStore
from policies.types import Cause

ENGINES = 3
SPEED = 0.05  # 20 ms a token, so that a stream takes 1.2 s
DRAIN_S = 0.2
NAME = "vllm.llm.svc"
BUSY_S_MAX = 60.0


def busy(rig, backend_id):
    """Whether a backend writes so many streams that to end it matters. One without a token is sent again, which is no
    interruption, and one that has little left may end before its backend does.
    """
    view = rig.snapshot().backends.get(backend_id)
    usages = [each.trace.usage for each in rig.gateway._handlers.active.all() if each.trace.backend_id == backend_id]
    written = sum(usage is not None and 0 < usage.output_tokens <= TOKENS / 2 for usage in usages)
    return view is not None and view.available and written >= STREAMS / ENGINES / 2


def in_flight(rig, backend_id):
    view = rig.snapshot().backends.get(backend_id)
    return 0 if view is None else view.in_flight_requests


async def drained_by_the_operator(rig, folder, number, engine):
    """As `kubectl drain` or a script would: drain, wait until nothing runs there, end, start, let in."""
    admin = Admin(rig, rig.session, (folder / "admin-key").read_text().strip())
    backend_id = f"b{number}"
    assert (await admin.patch(f"/backends/{backend_id}", {"draining": True})).status == 200
    await until(lambda: not in_flight(rig, backend_id))
    await engine.terminate()
    await engine.start()
    assert (await admin.patch(f"/backends/{backend_id}", {"draining": False})).status == 200


async def removed_from_discovery(rig, addresses, number, engine, *, waits):
    """As a cluster does: the pod's address goes, then the pod, or both at once where it `waits` for nothing; another
    pod comes with the address of the first.
    """
    backend_id = f"127.0.0.{number + 1}:{engine.port}"
    addresses.remove(f"127.0.0.{number + 1}")
    if waits:
        await until(lambda: backend_id not in rig.gateway.backends.states())
    await engine.terminate()
    await until(lambda: backend_id not in rig.gateway.backends.states())
    await engine.start()
    addresses.append(f"127.0.0.{number + 1}")


async def without_notice(engine, end):
    await getattr(engine, end)()
    await engine.start()


async def restarted(rig, ids, restart):
    """Restart them in turn, each while it is busy. Returns the replies, and what the pool counted in each restart. No
    stream is there for ENGINES_MAX restarts: on a busy machine one would be, and is given up then, as it should.
    """
    async with Load(rig.url, rig.session) as load:
        aboard, counted = [], [Counter()]
        for number, backend_id in enumerate(ids):
            if number + 1 >= ENGINES_MAX:
                await until(lambda before=aboard[number + 1 - ENGINES_MAX]: not before & load.open, BUSY_S_MAX)
            await until(lambda each=backend_id: busy(rig, each), BUSY_S_MAX)
            await restart(number)
            aboard.append(set(load.open))
            counted.append(Counter(rig.snapshot().interruptions))
        await until(lambda: busy(rig, ids[-1]), BUSY_S_MAX)
    await until(rig.idle)
    return load.replies, [after - before for before, after in pairwise(counted)]


def assert_nothing_broke(rig, replies):
    assert len(replies) > STREAMS
    assert rig.service() == pytest.approx(due(replies))


@pytest.mark.parametrize("end", ["terminate", pytest.param("kill", marks=pytest.mark.long)])
async def test_engines_that_end_without_notice_break_no_stream(end):
    async with engines(*["127.0.0.1"] * ENGINES, speed=SPEED) as servers, gateway(*servers) as rig:
        ids = [f"b{number}" for number in range(ENGINES)]
        replies, interruptions = await restarted(rig, ids, lambda number: without_notice(servers[number], end))
        assert_nothing_broke(rig, replies)
        assert all(each[Cause.FAILED] >= STREAMS / ENGINES / 2 for each in interruptions), interruptions


@pytest.mark.long  # engines that end without notice break more, and tests/integration/admin drains one
async def test_engines_that_an_operator_drains_first_break_no_stream(tmp_path):
    admin = {"enabled": True, "port": 0, "key_file": str(tmp_path / "admin-key"), "backend_networks": LOCAL}
    settings = {"admin": admin, "store": SqliteStore(None), "continuation": {"drain_s": DRAIN_S}}
    async with engines(*["127.0.0.1"] * ENGINES, speed=SPEED) as servers, gateway(*servers, **settings) as rig:
        ids = [f"b{number}" for number in range(ENGINES)]
        replies, interruptions = await restarted(
            rig, ids, lambda number: drained_by_the_operator(rig, tmp_path, number, servers[number])
        )
        assert_nothing_broke(rig, replies)
        assert all(each[Cause.DRAINED] and not each[Cause.FAILED] for each in interruptions), interruptions


@pytest.mark.long  # as above
@pytest.mark.parametrize("waits", [True, False], ids=["first", "at once"])
async def test_engines_that_discovery_loses_break_no_stream(monkeypatch, waits):
    loop = asyncio.get_running_loop()
    addresses, lookup = [f"127.0.0.{number + 1}" for number in range(ENGINES)], loop.getaddrinfo

    async def getaddrinfo(host, port, **options):
        if host != NAME:
            return await lookup(host, port, **options)
        return [(socket.AF_INET, 1, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo, raising=False)
    async with engines(*addresses, speed=SPEED) as servers:
        monkeypatch.setitem(Dns.__init__.__kwdefaults__, "every_s", 0.02)
        source = {"dns": NAME, "port": servers[0].port}
        settings = {"store": SqliteStore(None), "continuation": {"drain_s": DRAIN_S}}
        async with gateway(discovery=[source], **settings) as rig:
            ids = [f"127.0.0.{number + 1}:{servers[0].port}" for number in range(ENGINES)]
            await until(lambda: snapshots_of(rig.gateway.pools) and set(rig.snapshot().backends) == set(ids))
            replies, interruptions = await restarted(
                rig, ids, lambda number: removed_from_discovery(rig, addresses, number, servers[number], waits=waits)
            )
            assert_nothing_broke(rig, replies)
            assert all(each[Cause.DRAINED if waits else Cause.FAILED] for each in interruptions), interruptions
            assert not (waits and any(each[Cause.FAILED] for each in interruptions))
