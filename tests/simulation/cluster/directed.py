"""Directed scenes: one cluster, and faults at the moments where one mechanism alone keeps a rule."""

from random import Random

from gateway.cluster.election import Ask
from policies.types import Tenant
from tests.simulation.cluster.judges import Pauses, all_judges
from tests.simulation.cluster.world import ClusterWorld, Settings


def run(world: ClusterWorld, until: float) -> None:
    world.run(until)
    while world.now < until + 25.0 and not world.is_done:
        world.run(world.now + 1.0)
    world.run(world.now + 0.5)
    for judge in world.judges:
        judge.conclude()


def leader_of(world):
    return next(node for node in world.nodes.values() if node.is_alive and node.member.is_leading)


def others(world):
    return [node for node in world.nodes.values() if not node.member.is_leading]


def paused(seed: int, pause_s: float, happens, **changes) -> None:
    """More come than can be served, `happens` at a moment of the seed, and dispatch goes on within `pause_s`."""
    since = 5.0 + Random(seed).uniform(0.0, 1.0)
    judges = [*all_judges(), Pauses(since, pause_s)]
    world = ClusterWorld(Settings(rate_per_s=24.0, duration_s=since + 4.0, **changes), seed, judges)
    world.at(since, lambda: happens(world))
    run(world, since + 5.0)


def pause_of_a_killed_leader(seed: int) -> None:
    """The leader dies, and with it its sockets: its key and its promises are given up at once."""
    paused(seed, 1.0, lambda world: world.kill(leader_of(world)), members=2 + seed % 4)


def pause_of_a_frozen_leader(seed: int) -> None:
    """The leader stops for 10 s: no one knows whether it acts until its lease has ended."""
    paused(seed, 2.5, lambda world: world.freeze(leader_of(world), 10.0), members=2 + seed % 4)


def pause_of_a_lost_machine(seed: int) -> None:
    """The leader's machine is lost: its connections are silent, and no port refuses one."""

    def lost(world):
        gone = leader_of(world).name
        world.cut |= {frozenset((gone, name)) for name in world.nodes if name != gone}
        world.without_store.add(gone)
        world.kill(world.nodes[gone])

    paused(seed, 2.5, lost, members=2 + seed % 4)


def frozen_follower(seed: int) -> None:
    """A follower stops for 10 s with Dispatches in its buffers: when it wakes, their slots are others'."""
    world = ClusterWorld(Settings(rate_per_s=14.0, duration_s=12.0, delay_s=(0.0002, 0.1)), seed, all_judges())
    world.at(4.5, lambda: world.freeze(others(world)[0], 5.0))
    run(world, 14.0)


def frozen_leader(seed: int) -> None:
    """The leader stops for 8 s. What its own clients run stays at the backends, and no one tells the next leader."""
    world = ClusterWorld(Settings(rate_per_s=14.0, output_tokens=(50, 500), duration_s=12.0), seed, all_judges())
    world.at(4.5, lambda: world.freeze(leader_of(world), 8.0))
    run(world, 13.0)


def killed_leader(seed: int) -> None:
    """The leader dies while tenants are at their limit per minute, and requests of the others run."""
    tenants = (Tenant("a", requests_per_minute_max=40), Tenant("b", weight=2.0))
    world = ClusterWorld(Settings(rate_per_s=16.0, tenants=tenants, duration_s=14.0), seed, all_judges())
    world.at(8.5, lambda: world.kill(leader_of(world)))
    run(world, 16.0)


def broken_links(seed: int) -> None:
    """Connections break again and again under the same leader, and some requests are beyond their tenant's limit."""
    tenants = (Tenant("a"), Tenant("b", weight=2.0), Tenant("c"), Tenant("d", requests_per_minute_max=4))
    settings = Settings(rate_per_s=16.0, tenants=tenants, duration_s=9.0, preempt_service=60.0, delay_s=(0.0002, 0.1))
    world = ClusterWorld(settings, seed, all_judges())
    for at in range(12):
        world.at(3.0 + at / 2, lambda: [world.break_link(node) for node in world.nodes.values()])
    run(world, 11.0)


def lone_members(seed: int) -> None:
    """The store is away for 8 s, and all members lead themselves; then one of them leads all again, and dies."""
    world = ClusterWorld(Settings(rate_per_s=12.0, duration_s=18.0), seed, all_judges())

    def away(*, is_away: bool) -> None:
        world.store.is_away = is_away

    world.at(4.0, lambda: away(is_away=True))
    world.at(12.0, lambda: away(is_away=False))
    world.at(17.0, lambda: world.kill(leader_of(world)))
    run(world, 19.0)


def lost_key(seed: int) -> None:
    """The store loses the key right after a renewal, and at that moment the leader and one follower are cut off from
    the rest. Their clocks are slow, that of the next leader is fast, and it looks at once: margins alone separate them.
    """
    settings = Settings(
        members=3, rate_per_s=14.0, duration_s=9.0, delay_s=(0.0001, 0.0005), clock_rates=(0.99, 0.99, 1.01)
    )
    world = ClusterWorld(settings, seed, all_judges())
    world.nodes["m1"].member.candidate.stands = world.nodes["m2"].member.candidate.stands = False
    answer = world.store.answer

    def lose(call, now):
        view = answer(call, now)
        if call.ask is Ask.RENEW and now > 5.0 and not world.cut:
            world.at(now + 0.002, cut)
        return view

    def cut():
        world.cut |= {frozenset(("m0", "m2")), frozenset(("m1", "m2"))}
        world.without_store |= {"m0", "m1"}
        world.store.forget(all_of_it=False)
        other = world.nodes["m2"]
        other.member.candidate.stands, other.member.candidate.leader = True, None
        other.member.candidate._next_at, other.member.candidate._pending = -1e9, None
        world.pump(other)

    def heal():
        world.without_store.clear()
        for pair in list(world.cut):
            world.heal(pair)

    world.store.answer = lose
    world.at(8.5, heal)
    run(world, 10.0)
