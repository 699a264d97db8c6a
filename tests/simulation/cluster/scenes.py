"""Scenes: which cluster a seed makes, and which faults befall it when."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from types import ModuleType

from gateway.cluster import records
from gateway.cluster.follower import telling
from gateway.cluster.leader import intake, pool_journal
from policies.pool.preemption import InterruptRules
from policies.types import Tenant
from tests.simulation.cluster.judges import all_judges
from tests.simulation.cluster.world import ClusterWorld, Settings

CALM_S = 25.0  # after the last fault, for everything to end
TENANTS = (
    Tenant("a"),
    Tenant("b", weight=2.0),
    Tenant("c"),
    Tenant("d", weight=0.5),
    Tenant("e", requests_per_minute_max=8),
)


def scene(seed: int, **given) -> ClusterWorld:
    """Run the cluster of this seed to its end; a judge raises what it finds broken. Of some seeds, members tell what
    they have in small slices, and leaders take few facts in and write few records at once, as if there were thousands.
    """
    rng = Random(f"slices {seed}")
    with (
        changed(telling, "SLICE_MAX", rng.choice([1, 2, 5, telling.SLICE_MAX])),
        changed(intake, "TAKEN_MAX", rng.choice([3, 10, intake.TAKEN_MAX])),
        changed(records, "SLICE_RECORDS", rng.choice([1, 3, records.SLICE_RECORDS])),
        changed(pool_journal, "CHANGES_MAX", rng.choice([1, 3, pool_journal.CHANGES_MAX])),
        changed(pool_journal, "WRITTEN_MAX", rng.choice([2, pool_journal.WRITTEN_MAX])),
    ):
        return _scene(seed, **given)


@contextmanager
def changed(module: ModuleType, name: str, value: int) -> Iterator[None]:
    """A constant of this module has another value."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def _scene(seed: int, *, judges=None, begun=lambda _world: None, **changes) -> ClusterWorld:
    """`begun` is called first."""
    rng = Random(seed)
    settings = Settings(
        members=rng.choice([2, 2, 3, 3, 4, 5, 8]),
        backends=rng.choice([1, 2, 3]),
        slots=rng.choice([2, 4, 6]),
        tenants=(*TENANTS[: rng.randint(2, 4)], *TENANTS[4:]),
        duration_s=rng.uniform(4.5, 10.0),
        rate_per_s=rng.uniform(4.0, 12.0),
        delay_s=(0.0002, rng.choice([0.002, 0.02, 0.1])),
        preempt_service=rng.choice([None, None, 60.0]),
        patience_s=rng.choice([None, 3.0]),
    )
    for name, value in changes.items():
        object.__setattr__(settings, name, value)
    world = ClusterWorld(settings, seed, all_judges() if judges is None else judges)
    begun(world)
    for _ in range(rng.choice([0, 1, 2, 3, 4])):
        befall(world, rng, rng.uniform(2.3, settings.duration_s))
    world.run(settings.duration_s + 1.0)
    calm(world)
    while world.now < settings.duration_s + CALM_S and not world.is_done:
        world.run(world.now + 1.0)
    world.run(world.now + 0.5)  # for the last facts to arrive
    for judge in world.judges:
        judge.conclude()
    return world


def interrupted_scene(seed: int, **changes) -> ClusterWorld:
    """As `scene`, with requests that can be continued, which backends and preemptions cut, while leaders change."""
    rng = Random(-seed - 1)
    rules = InterruptRules(
        times_max=rng.choice([0, 1, 3]),
        tokens_between_min=rng.choice([1, 10]),
        drain_s=rng.choice([None, 0.0, 0.3]),
    )
    cuts = [(rng.uniform(1.5, 10.0), rng.choice([crash, crash, drain])) for _ in range(rng.randint(1, 6))]

    def begun(world):
        for at, happens in cuts:
            world.at(at, partial(happens, world, rng))

    more = {"preempt_service": rng.choice([None, 20.0]), "resumable_ratio": rng.choice([0.5, 1.0])}
    return scene(seed, begun=begun, interrupt_rules=rules, **{"placement": "least-reserved", **more, **changes})


def parted_scene(seed: int, **changes) -> ClusterWorld:
    """As `scene`, while members are parted in two now and then, and some of them lose the store."""
    rng = Random(-seed - 7)
    times = [(rng.uniform(2.3, 10.0), rng.choice([1.0, 3.0, 6.0])) for _ in range(rng.randint(1, 3))]

    def begun(world):
        for at, lasts_s in times:
            world.at(at, partial(part, world, rng, lasts_s))

    return scene(seed, begun=begun, **changes)


def part(world, rng, lasts_s):
    """Members of two parts do not reach each other, and of one part, of all or of none the store."""
    names = [name for name, node in world.nodes.items() if node.is_alive]
    if len(names) < 2:
        return
    rng.shuffle(names)
    at = rng.randint(1, len(names) - 1)
    some, others = names[:at], names[at:]
    pairs = {frozenset((one, other)) for one in some for other in others}
    without_store = set(rng.choice([some, others, names, []]))
    world.cut |= pairs
    world.without_store |= without_store

    def ends():
        world.without_store -= without_store
        for pair in pairs:
            world.heal(pair)

    world.at(world.now + lasts_s, ends)


def crash(world, rng):
    world.crash(rng.choice(list(world.backends.values())))


def drain(world, rng):
    """A backend drains for a while."""
    backend = rng.choice(list(world.backends.values()))
    backend.drains = world.has_drained = True

    def ends():
        backend.drains = False

    world.at(world.now + rng.choice([0.6, 2.0]), ends)


def calm(world: ClusterWorld) -> None:
    """End all faults."""
    for pair in list(world.cut):
        world.heal(pair)
    world.store.is_away = False
    for backend in world.backends.values():
        backend.drains = False
    world.without_store.clear()
    for node in world.nodes.values():
        node.unreachable.clear()


def befall(world: ClusterWorld, rng: Random, at: float) -> None:
    """One fault, chosen now, that happens at `at`."""
    fault = rng.choice(
        [kill, freeze, stop, break_links, cut, cut_from_store, store_away, store_forgets, key_lost, unreach, join]
    )
    world.at(at, partial(fault, world, rng))


def _some(world, rng, *, leads=None):
    nodes = [node for node in world.nodes.values() if node.is_alive]
    leaders = [node for node in nodes if node.member.lead.is_for_all]
    if rng.random() < 0.5 and leaders:
        return rng.choice(leaders)
    return rng.choice(nodes)


def kill(world, rng):
    if sum(node.is_alive for node in world.nodes.values()) > 1:
        world.kill(_some(world, rng))


def freeze(world, rng):
    world.freeze(_some(world, rng), rng.choice([0.3, 1.5, 3.0, 10.0]))


def stop(world, rng):
    world.stop(_some(world, rng))


def break_links(world, rng):
    for node in list(world.nodes.values()):
        if node.is_alive and rng.random() < 0.5:
            world.break_link(node)


def cut(world, rng):
    names = [name for name, node in world.nodes.items() if node.is_alive]
    one = _some(world, rng).name
    for other in names:
        if other != one and rng.random() < 0.7:
            pair = frozenset((one, other))
            world.cut.add(pair)
            world.at(world.now + rng.choice([0.4, 2.0, 6.0]), partial(world.heal, pair))


def cut_from_store(world, rng):
    name = _some(world, rng).name
    world.without_store.add(name)
    world.at(world.now + rng.choice([1.0, 4.0]), partial(world.without_store.discard, name))


def store_away(world, rng):
    world.store.is_away = True

    def back():
        world.store.is_away = False
        if rng.random() < 0.3:
            world.store.forget(all_of_it=True)

    world.at(world.now + rng.choice([0.5, 2.0, 5.0]), back)


def store_forgets(world, rng):
    world.store.forget(all_of_it=True)


def key_lost(world, rng):
    world.store.forget(all_of_it=False)


def unreach(world, rng):
    node, backend_id = _some(world, rng), rng.choice(list(world.backends))
    node.unreachable.add(backend_id)
    world.at(world.now + rng.choice([0.5, 3.0]), partial(node.unreachable.discard, backend_id))


def join(world, rng):
    node = world.start_node()
    world.at(world.now, partial(world.pump, node))
