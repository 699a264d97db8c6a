"""W6: several replicas hold sessions as one gateway does, also when the one that leads dies."""

from dataclasses import replace
from statistics import fmean

import pytest

from gateway.simulate.trace.agents import GAPS_S
from policies.types import SessionState
from tests.simulation.sessions.replicas import Replicas
from tests.simulation.sessions.scenes import ON, THREE, Scene, cpu, play
from tests.simulation.sessions.world import SessionWorld

pytestmark = pytest.mark.interpreted  # the scenes note when the ledger releases a turn

SEEDS = 4  # one run differs from another by some 3 %, whatever serves them
DIES_AT_S = 35.0
Known = dict[str, tuple[SessionState, int]]


def varied(seed: int, until_s: float) -> Scene:
    """The scene on two cores, with gaps and lengths of sessions that are drawn anew by each seed."""
    scene = cpu(gap_s=GAPS_S, until_s=until_s)
    agents = tuple(replace(each, starts_within_s=10.0, turns=((0.0, 8.0), (1.0, 16.0))) for each in scene.agents)
    return replace(scene, agents=agents, seed=seed)


@pytest.mark.long
def test_three_replicas_serve_as_much_as_one_gateway():
    one, three = ([play(varied(seed, 180.0), way).tokens_per_s for seed in range(SEEDS)] for way in (ON, THREE))
    assert fmean(three) == pytest.approx(fmean(one), rel=0.03)


class Death:
    """The leader's death in a world, and what is known of sessions right before and once the next one decides."""

    def __init__(self, world: SessionWorld) -> None:
        assert isinstance(world._scheduler, Replicas)
        self.world, self.order = world, world._scheduler
        self.before: Known = {}
        self.after: Known = {}
        self.ended: set[str] = set()
        self.order.calls_at(["m1", "m2"])  # what the leader's own clients have sent ends with it
        world._at(DIES_AT_S, self.dies)

    def dies(self, now: float) -> None:
        self.before = known(self.order)
        self.order.leader_dies(now, next_leader="m1")
        self.look(now)

    def look(self, now: float) -> None:
        if self.order.leader.is_deciding:
            self.after = known(self.order)
            self.ended = {f"s{each.number}" for each in self.world.sessions if each.ended_at is not None}
        else:
            self.world._at(now + 0.01, self.look)


def test_a_leaders_death_forgets_no_session_and_breaks_no_turn():
    deaths: list[Death] = []
    figures = play(varied(3, 70.0), THREE, lambda world: deaths.append(Death(world)))
    (death,) = deaths
    assert len(death.order.schedulers) == 2
    states = [state for state, _ in death.before.values()]
    assert min(states.count(each) for each in (SessionState.RUNNING, SessionState.IDLE, SessionState.HELD)) > 0
    alive = {name: told for name, told in death.before.items() if name not in death.ended and told[1]}
    assert len(alive) > 10
    for name, (state, context) in alive.items():
        assert death.after[name][1] >= context
        if state in (SessionState.RUNNING, SessionState.IDLE):
            assert death.after[name][0] in (SessionState.RUNNING, SessionState.IDLE)
    assert all(each.latency_s is not None for each in death.world.turns), "each turn was answered to its end"
    assert figures.hits > 0.6


def known(order: Replicas) -> Known:
    """State and context of each session."""
    assert order.scheduler._sessions is not None
    table = order.scheduler._sessions.ledger.table
    found = (session for tenant in table.tenants for session in table.sessions(tenant).values())
    return {session.id: (session.state, session.context) for session in found}
