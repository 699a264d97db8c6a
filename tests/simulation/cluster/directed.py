"""Directed scenes: one cluster, and faults at the moments where one mechanism alone keeps a rule."""

from random import Random

from gateway.cluster.election_store import ABANDONED_S, Ask
from gateway.cluster.promise import LEASE_S, PING_S
from policies.types import Tenant
from tests.simulation.cluster.judges import Pauses, Together, all_judges
from tests.simulation.cluster.world import ClusterWorld, Settings


def run(world: ClusterWorld, until: float) -> None:
    world.run(until)
    while world.now < until + 25.0 and not world.is_done:
        world.run(world.now + 1.0)
    world.run(world.now + 0.5)
    for judge in world.judges:
        judge.conclude()


def leader_of(world):
    return next(node for node in world.nodes.values() if node.is_alive and node.member.lead.is_for_all)


def others(world):
    return [node for node in world.nodes.values() if not node.member.lead.is_for_all]


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


def without_store(seed: int) -> None:
    """The store is away for 9 s, and the members go on as if it were there; in odd seeds it has forgotten all then."""
    settings = Settings(members=2 + seed % 4, rate_per_s=24.0, duration_s=16.0)
    world = ClusterWorld(settings, seed, [*all_judges(), Pauses(4.0, 0.6), Together(4.0)])

    def back():
        world.store.is_away = False
        if seed % 2:
            world.store.forget(all_of_it=True)

    world.at(5.0, lambda: setattr(world.store, "is_away", True))
    world.at(14.0, back)
    run(world, 17.0)


def frozen_store(seed: int) -> None:
    """The store stops for 9 s, and then answers all that it was asked, late."""
    settings = Settings(members=2 + seed % 4, rate_per_s=24.0, duration_s=16.0)
    world = ClusterWorld(settings, seed, [*all_judges(), Pauses(4.0, 0.6), Together(4.0)])
    asked, reach = [], world._reach_store

    def late(node, call):
        if 5.0 < world.now < 14.0:
            asked.append((node, call))
        else:
            reach(node, call)

    def wakes():
        world.rng.shuffle(asked)
        for node, call in asked:
            reach(node, call)

    world._reach_store = late
    world.at(14.0, wakes)
    run(world, 17.0)


def apart(world, some, others_) -> None:
    """Cut these members off from those."""
    world.cut |= {frozenset((one, other)) for one in some for other in others_}


def together(world) -> None:
    """End what keeps members from each other and from the store."""
    world.without_store.clear()
    for pair in list(world.cut):
        world.heal(pair)


def minority(seed: int) -> None:
    """A follower is cut off from all others, and they from the store, which it reaches. It may not lead: it is alone
    until it is back.
    """
    settings = Settings(members=3, rate_per_s=20.0, duration_s=14.0)
    world = ClusterWorld(settings, seed, [*all_judges(), Pauses(4.5, LEASE_S + PING_S)])
    alone = []

    def cut():
        one, *rest = [*others(world), leader_of(world)]
        alone.append(one)
        apart(world, [one.name], [each.name for each in rest])
        world.without_store |= {each.name for each in rest}

    def is_alone():
        assert alone[0].member.lead.is_standalone, "it serves its clients"
        leader_of(world)

    world.at(5.0, cut)
    world.at(9.5, is_alone)
    world.at(11.0, lambda: together(world))
    run(world, 15.0)


def returned(seed: int) -> None:
    """The store is away, and a follower is cut off from the leader for 4 s: then they share one order again."""
    settings = Settings(members=3, rate_per_s=20.0, duration_s=14.0)
    world = ClusterWorld(settings, seed, [*all_judges(), Together(11.0)])

    def cut():
        apart(world, [leader_of(world).name], [others(world)[0].name])

    world.at(4.5, lambda: setattr(world.store, "is_away", True))
    world.at(5.0, cut)
    world.at(9.0, lambda: together(world))
    world.at(15.0, lambda: setattr(world.store, "is_away", False))
    run(world, 16.0)


def split(seed: int) -> None:
    """The store has been away for a while. The leader and one follower are cut off from the other two, which reach it
    then: they may elect another leader, but not before the first one's lease by its members has ended.
    """
    settings = Settings(members=4, rate_per_s=24.0, duration_s=13.0, delay_s=(0.0001, 0.0005))
    world = ClusterWorld(settings, seed, all_judges())

    def cut():
        leader, (one, *rest) = leader_of(world), others(world)
        world.store.is_away = False
        world.without_store |= {leader.name, one.name}
        apart(world, [leader.name, one.name], [each.name for each in rest])

    world.at(4.5, lambda: setattr(world.store, "is_away", True))
    world.at(8.0 + seed / 24, cut)
    world.at(12.0, lambda: together(world))
    run(world, 14.0)


def word(seed: int) -> None:
    """A follower tells the store that it helps its leader no more, and joins it again while both have lost the store.
    The third may rely on that word.
    """
    world = ClusterWorld(Settings(members=3, rate_per_s=20.0, duration_s=16.0), seed, all_judges())
    names = []

    def cut():
        names.extend([leader_of(world).name, *[each.name for each in others(world)]])
        apart(world, names[:1], names[1:2])

    def back():
        world.without_store |= {*names[:2]}
        world.heal(frozenset(names[:2]))

    world.at(4.0, cut)
    world.at(7.2, back)
    world.at(8.5, lambda: apart(world, names[:2], names[2:]))
    world.at(14.0, lambda: together(world))
    run(world, 17.0)


def abandoned(seed: int) -> None:
    """All members lose the store for good, and a new one that reaches it knows none of them. It leads in the end: by
    then they have given their order up.
    """
    settings = Settings(members=3, rate_per_s=6.0, duration_s=ABANDONED_S + 16.0)
    world = ClusterWorld(settings, seed, all_judges())

    def comes():
        old = list(world.nodes)
        world.without_store |= set(old)
        new = world.start_node()
        apart(world, old, [new.name])
        world.at(world.now, lambda: world.pump(new))

    def leads():
        assert leader_of(world).name == "m3", "it leads"

    world.at(5.0, comes)
    world.at(ABANDONED_S + 12.0, leads)
    world.at(ABANDONED_S + 13.0, lambda: together(world))
    run(world, ABANDONED_S + 17.0)


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


def stopped_alone(seed: int) -> None:
    """All members lead themselves, and one of them is told to stop: no other member could serve its clients."""
    world = ClusterWorld(Settings(rate_per_s=8.0, duration_s=10.0), seed, all_judges())

    def away():
        world.store.is_away = True
        for name in world.nodes:
            apart(world, [name], world.nodes.keys() - {name})

    def back():
        world.store.is_away = False
        together(world)

    world.at(3.0, away)
    world.at(6.5, lambda: world.stop(world.nodes["m1"]))
    world.at(14.0, back)
    run(world, 15.0)
    waited = [client for client in world.clients if client.node == "m1" and client.arrived_at > 5.5]
    assert waited, "clients of the stopped member wait"
    assert all(client.ended == "completed" for client in waited), [client.ended for client in waited]


def lone_members(seed: int) -> None:
    """The store is away for 8 s, and so are all links, and all members lead themselves; then one of them leads all
    again, and dies.
    """
    world = ClusterWorld(Settings(rate_per_s=12.0, duration_s=18.0), seed, all_judges())

    def away():
        world.store.is_away = True
        for name in world.nodes:
            apart(world, [name], world.nodes.keys() - {name})

    def back():
        world.store.is_away = False
        together(world)

    world.at(4.0, away)
    world.at(12.0, back)
    world.at(17.0, lambda: world.kill(leader_of(world)))
    run(world, 19.0)


def lost_key(seed: int) -> None:
    """Leader and follower are cut off from each other, and the store loses the key right after a renewal, when the
    leader loses the store. Its clock is slow, the follower's is fast, and it looks at once: a margin alone separates
    them.
    """
    settings = Settings(members=2, rate_per_s=14.0, duration_s=11.0, delay_s=(0.0001, 0.0005), clock_rates=(0.99, 1.01))
    world = ClusterWorld(settings, seed, all_judges())
    world.nodes["m1"].member.campaign.candidate.stands = False
    answer = world.store.answer

    def lose(call, now):
        view = answer(call, now)
        if call.ask is Ask.RENEW and now > 8.0 and not world.without_store:
            world.at(now + 0.002, lost)
        return view

    def lost():
        world.without_store.add("m0")
        world.store.forget(all_of_it=False)
        other = world.nodes["m1"]
        candidate = other.member.campaign.candidate
        candidate.stands, candidate.key.leader = True, None
        candidate.asking._next_at, candidate.asking._pending = -1e9, None
        world.pump(other)

    world.store.answer = lose
    world.at(5.0, lambda: apart(world, ["m0"], ["m1"]))
    world.at(10.5, lambda: together(world))
    run(world, 12.0)
