"""What may break beside replicas that share one order, each as a coroutine that breaks it and waits until it is over.

`EVENTS` says of each what the table of failures allows (docs/results/replicas.md): whose calls may fail, for how long
nothing may be begun at a backend, whether one may have more than its limit, and whether 4 : 1 holds.
"""

import asyncio
import contextlib
import hmac
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from failures_rig import REPLICAS, SECRET, SLOTS, STREAM, STREAM_TOKENS, Cluster, Figures, Load
from network import Network
from redis_server import RedisServer, slow_proxy

from gateway.cluster.promise import SILENT_S
from gateway.replicas import PURPOSE

FROZEN_S = SILENT_S + 1.5  # longer than the lease, its margin, and the silence that is noticed
LONG_S = 10.0
SLOW_S = 0.1  # each way
DOWN_S = 3.0

OF_ANOTHER_VERSION = """
from dataclasses import replace
from gateway import replicas

def place_of(config, redis, before=replicas.place_of):
    place = before(config, redis)
    return replace(place, version=place.version + 1)

replicas.place_of = place_of
from gateway.cli import main
main()
"""

Break = Callable[[Cluster, Load, int, float], Awaitable[set[int]]]
"""Breaks something, given the leader's number and how long it lasts, and returns the replicas whose calls may fail."""


@dataclass(frozen=True)
class Event:
    """`idle_s`: the longest time without a dispatch, None: no limit is given. `over`: how many more than its limit a
    backend may have. `is_shared`: all share one order, but for the time without dispatch. `kills`: a process that had
    calls is killed.
    """

    act: Break
    idle_s: float | None
    over: int = 0
    is_shared: bool = True
    kills: bool = False
    seconds: float = 0.0
    redis_delay_s: float | None = None
    has_network: bool = False  # each replica in a network namespace of its own


async def kill_leader(cluster: Cluster, load: Load, leader: int, seconds: float) -> set[int]:
    await cluster.kill(leader)
    load.forget(leader)
    may_fail = await come_back(cluster, load, leader)
    await asyncio.sleep(seconds)
    return may_fail


async def kill_follower(cluster: Cluster, load: Load, leader: int, _seconds: float) -> set[int]:
    follower = other(cluster, leader)
    await cluster.kill(follower)
    return await come_back(cluster, load, follower)


async def come_back(cluster: Cluster, load: Load, number: int) -> set[int]:
    await load.served(set(cluster.numbers) - {number})
    await cluster.start(number)
    await load.served()
    return {number}


async def terminate_leader(cluster: Cluster, load: Load, leader: int, _seconds: float) -> set[int]:
    await cluster.terminate(leader)
    await load.served(set(cluster.numbers) - {leader})
    await cluster.start(leader)
    await load.served()
    return set()


async def terminate_follower(cluster: Cluster, load: Load, leader: int, _seconds: float) -> set[int]:
    return await terminate_leader(cluster, load, other(cluster, leader), _seconds)


async def freeze_leader(cluster: Cluster, load: Load, leader: int, seconds: float) -> set[int]:
    cluster.send(leader, signal.SIGSTOP)
    await asyncio.sleep(seconds)
    await load.served(set(cluster.numbers) - {leader})
    cluster.send(leader, signal.SIGCONT)
    await load.served()
    return {leader}  # what waited there without a leader for longer than it may


async def freeze_follower(cluster: Cluster, load: Load, leader: int, seconds: float) -> set[int]:
    return await freeze_leader(cluster, load, other(cluster, leader), seconds)


async def freeze_redis(cluster: Cluster, load: Load, _leader: int, seconds: float) -> set[int]:
    cluster.server.freeze()
    await asyncio.sleep(seconds)
    await load.served()
    cluster.server.thaw()
    await cluster.led()
    await load.served()
    return set()


async def kill_redis(cluster: Cluster, load: Load, _leader: int, seconds: float) -> set[int]:
    cluster.server.kill()
    await asyncio.sleep(seconds)
    await load.served()
    cluster.server.start()
    await cluster.led()
    await load.served()
    return set()


async def empty_redis(cluster: Cluster, load: Load, _leader: int, seconds: float) -> set[int]:
    cluster.server.restart_empty()
    await asyncio.sleep(seconds)  # the leader of before goes on for a while
    await load.served()
    await cluster.led()
    await load.served()
    return set()


async def flush_redis(cluster: Cluster, load: Load, leader: int, seconds: float) -> set[int]:
    """It forgets everything, and all connections to it stay."""
    cluster.server.command("FLUSHALL")
    return await nothing(cluster, load, leader, seconds)


def refused_writes(breaks: str, mends: str) -> Break:
    """Redis answers, and refuses what would change it, after one command and until another."""

    async def refuse(cluster: Cluster, load: Load, _leader: int, seconds: float) -> set[int]:
        cluster.server.command(breaks)
        await asyncio.sleep(seconds)
        await load.served()
        cluster.server.command(mends)
        await cluster.led()
        await load.served()
        return set()

    return refuse


async def nothing(_cluster: Cluster, load: Load, _leader: int, seconds: float) -> set[int]:
    await asyncio.sleep(seconds)
    await load.served()
    return set()


async def roll(cluster: Cluster, load: Load, _leader: int, _seconds: float) -> set[int]:
    for number in cluster.numbers:
        await cluster.terminate(number)
        await cluster.start(number)
        await load.served()
    return set()


async def replace_secret(cluster: Cluster, load: Load, leader: int, seconds: float) -> set[int]:
    """From the secret that is derived of the API keys' to another, in three rollouts, as docs/operations.md says."""
    derived, new = hmac.digest(SECRET.encode(), PURPOSE, "sha256").hex(), "a new secret of the cluster"
    file = cluster.folder / "cluster-secret"
    cluster.settings["cluster"] = {"secret_file": str(file)}
    for lines in ([derived, new], [new, derived], [new]):
        file.write_text("\n".join(lines))
        await roll(cluster, load, leader, seconds)
    return set()


async def mix_versions(cluster: Cluster, load: Load, _leader: int, seconds: float) -> set[int]:
    """A rollout of another version, one replica after the other. While two are there, each replica is alone."""
    for number in cluster.numbers:
        await cluster.terminate(number)
        cluster.options[number] = {"program": OF_ANOTHER_VERSION}
        await cluster.start(number)
        await load.served()
        if number != cluster.numbers[-1]:
            await cluster.divided()
    await asyncio.sleep(seconds)
    await cluster.led()
    await load.served()
    return set()


async def silence(cluster: Cluster, load: Load, one: int, to: int, seconds: float) -> set[int]:
    """What one sends to the other is lost; their connection is open at both ends."""
    assert cluster.network is not None, "replicas have namespaces of their own"
    cluster.network.silence(one, to)
    await asyncio.sleep(seconds)
    cluster.network.heal(one, to)
    await cluster.led()
    await load.served()
    return {one, to}  # what waited there without a leader for longer than it may


async def silence_follower(cluster: Cluster, load: Load, leader: int, seconds: float) -> set[int]:
    return await silence(cluster, load, other(cluster, leader), leader, seconds)


async def silence_leader(cluster: Cluster, load: Load, leader: int, seconds: float) -> set[int]:
    return await silence(cluster, load, leader, other(cluster, leader), seconds)


async def unplug_leader(cluster: Cluster, load: Load, leader: int, seconds: float) -> set[int]:
    """Its machine is lost to all, Redis, backends and clients too, and comes back; no connection ends by that."""
    assert cluster.network is not None, "replicas have namespaces of their own"
    cluster.network.unplug(leader)
    await asyncio.sleep(seconds)
    await load.served(set(cluster.numbers) - {leader})
    cluster.network.plug(leader)
    await cluster.led()
    await load.served()
    return {leader}


async def delete_tenant(cluster: Cluster, load: Load, leader: int, _seconds: float) -> set[int]:
    """A tenant that has calls at all replicas, most of them queued, is deleted at a follower."""
    path, call = "/admin/v1/tenants/doomed", STREAM | {"max_tokens": 10 * STREAM_TOKENS}
    status, _ = await cluster.processes[leader].admin("PUT", path, {"weight": 4})
    assert status in (200, 201), status
    await load.served()
    numbers = [number for number in cluster.numbers for _ in range(SLOTS)]
    asked = [asyncio.create_task(cluster.processes[number].ask("doomed", **call)) for number in numbers]
    await asyncio.sleep(0.5)
    status, _ = await cluster.processes[other(cluster, leader)].admin("DELETE", path)
    assert status == 204, status
    statuses = await asyncio.gather(*asked)
    assert {*statuses} == {200, 403}, statuses  # what runs goes on, what waits is refused
    await load.served()
    return set()


async def cut_follower(cluster: Cluster, load: Load, leader: int, seconds: float) -> set[int]:
    """A follower and the leader reach each other no more; both reach Redis, the backends and the third."""
    assert cluster.network is not None, "replicas have namespaces of their own"
    number = other(cluster, leader)
    cluster.network.cut(number, leader)
    await asyncio.sleep(seconds)
    await load.served(set(cluster.numbers) - {number})
    cluster.network.heal(number, leader)
    await cluster.led()
    await load.served()
    return {number}  # what waited there without a leader for longer than it may


def other(cluster: Cluster, number: int) -> int:
    return (number + 1) % len(cluster.numbers)


EVENTS: dict[str, Event] = {
    # For what its books lack to be a small part of what is given.
    "the leader is killed": Event(kill_leader, 1.0, kills=True, seconds=4.0),
    "a follower is killed": Event(kill_follower, 2.5, kills=True),
    "the leader is told to stop": Event(terminate_leader, 0.5),
    "a follower is told to stop": Event(terminate_follower, 0.5),
    # Too short for a ratio: what the frozen one has in hand is a tenth of all.
    "the leader is frozen": Event(freeze_leader, 2.5, is_shared=False, seconds=FROZEN_S),
    "a follower is frozen": Event(freeze_follower, 2.5, is_shared=False, seconds=FROZEN_S),
    "the leader is frozen for 10 s": Event(freeze_leader, 2.5, seconds=LONG_S),
    "a follower is frozen for 10 s": Event(freeze_follower, 2.5, seconds=LONG_S),
    # A majority of the members renews the leader's lease. On a busy machine an answer takes up to a second.
    "Redis is frozen": Event(freeze_redis, 1.0, seconds=DOWN_S),
    "Redis is killed": Event(kill_redis, 1.0, seconds=DOWN_S),
    "Redis is killed for 10 s": Event(kill_redis, 1.0, seconds=LONG_S),
    "Redis is emptied": Event(empty_redis, 1.0, seconds=2 * SILENT_S + 1.0),
    "Redis forgets everything": Event(flush_redis, 1.0, seconds=2 * SILENT_S + 1.0),
    "Redis is slow by 200 ms": Event(nothing, 1.0, seconds=LONG_S, redis_delay_s=SLOW_S),
    "Redis is out of memory for 10 s": Event(
        refused_writes("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"), 0.5, seconds=LONG_S
    ),
    "Redis is read-only for 10 s": Event(
        refused_writes("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"), 0.5, seconds=LONG_S
    ),
    "Redis lacks its replica for 10 s": Event(
        refused_writes("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0"), 0.5, seconds=LONG_S
    ),
    "a follower cannot reach the leader": Event(cut_follower, 2.5, seconds=DOWN_S, has_network=True),
    "a follower cannot reach the leader for 10 s": Event(cut_follower, 2.5, seconds=LONG_S, has_network=True),
    "the leader hears a follower no more for 10 s": Event(silence_follower, 2.5, seconds=LONG_S, has_network=True),
    "a follower hears the leader no more for 10 s": Event(silence_leader, 2.5, seconds=LONG_S, has_network=True),
    "the leader's machine is lost for 10 s": Event(unplug_leader, 2.5, seconds=LONG_S, has_network=True),
    "a tenant is deleted while its calls run": Event(delete_tenant, 0.5),
    "all are restarted in turn": Event(roll, 2.5),
    "the secret of all is replaced": Event(replace_secret, 2.5),
    # A member that is alone keeps what it runs, and others may already use their parts of the same backend.
    "all become another version in turn": Event(mix_versions, 4.0, over=SLOTS - 1, is_shared=False, seconds=DOWN_S),
}


async def run(name: str, folder: Path, *, seconds: float | None = None, **settings: Any) -> tuple[Figures, set[int]]:
    """Break it under load, for so many seconds or those of the event; what there was, and the replicas whose calls may
    fail.
    """
    event = EVENTS[name]
    seconds = event.seconds if seconds is None else seconds
    async with contextlib.AsyncExitStack() as stack:
        network = stack.enter_context(Network(REPLICAS)) if event.has_network else None
        bound = () if network is None else ("--bind", "127.0.0.1", network.host, "--protected-mode", "no")
        server = stack.enter_context(RedisServer(folder, *bound))
        redis_url = server.url if network is None else server.url.replace("127.0.0.1", network.host)
        if event.redis_delay_s is not None:
            port = await stack.enter_async_context(slow_proxy(server.port, event.redis_delay_s))
            redis_url = f"redis://127.0.0.1:{port}/0"
        settings["state"] = {"redis": {"url": redis_url, "timeout_ms": 1000}}
        cluster = await stack.enter_async_context(Cluster(folder, server, network=network, **settings))
        load = await stack.enter_async_context(Load(cluster))
        may_fail = await event.act(cluster, load, await cluster.led(), seconds)
        return await load.end(), may_fail
