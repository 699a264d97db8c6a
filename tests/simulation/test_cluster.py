"""One order over many processes, by seeds: whatever fails, no request is lost or sent twice, and no limit is passed."""

import pytest

from policies.fairness import FAIRNESS
from policies.placement import PLACEMENT
from tests.examples import examples
from tests.simulation.cluster import directed
from tests.simulation.cluster.figures import service_difference_of, weights_at_different_members
from tests.simulation.cluster.scenes import interrupted_scene, parted_scene, scene

SEEDS = 200
INTERRUPTED_SEEDS = 100
PARTED_SEEDS = 60
PER_TEST = 20


@pytest.mark.drawn
@pytest.mark.parametrize("first", range(0, examples(SEEDS), PER_TEST))
def test_a_cluster_with_faults_keeps_every_rule(first):
    for seed in range(first, min(first + PER_TEST, examples(SEEDS))):
        try:
            scene(seed)
        except AssertionError as error:
            raise AssertionError(f"python -m tests.simulation.cluster --seed {seed}: {error}") from error


@pytest.mark.drawn
@pytest.mark.parametrize("first", range(0, examples(INTERRUPTED_SEEDS), PER_TEST))
def test_answers_that_are_cut_while_leaders_change_end_once_and_cost_what_they_cost(first):
    for seed in range(first, first + PER_TEST):
        try:
            interrupted_scene(seed)
        except AssertionError as error:
            raise AssertionError(f"python -m tests.simulation.cluster --cuts --seed {seed}: {error}") from error


@pytest.mark.drawn
@pytest.mark.parametrize("first", range(0, examples(PARTED_SEEDS), PER_TEST))
def test_members_that_are_parted_in_two_have_one_leader_that_acts(first):
    for seed in range(first, min(first + PER_TEST, examples(PARTED_SEEDS))):
        try:
            parted_scene(seed)
        except AssertionError as error:
            raise AssertionError(f"python -m tests.simulation.cluster --parts --seed {seed}: {error}") from error


@pytest.mark.parametrize(
    "seed",
    [
        2247,  # an answer ends, its link is cut, its leader dies, and its member freezes before it notices
        2724,  # a leader freezes while it gathers, and is told of requests that it never admits
        2774,  # a leader is elected again, and its followers speak to the old epoch
        1455,  # a frozen member drops a Dispatch, leads itself, and sends the request to the same backend
        1697,  # a member that leads itself for a moment takes in nothing of what ended before
        1862,  # a leader that gathered decides and goes, and no Pong arrives
        20064,  # a frozen leader is told of an end, and its follower freezes before it notices
        20098,  # a leader resigns, and the next one sends to the slots that its requests fill
    ],
)
def test_a_seed_that_once_broke_a_rule_keeps_it(seed):
    scene(seed)


@pytest.mark.parametrize(
    "seed",
    [
        30420,  # a leader resigns, and the next one sends to the slots that its requests fill
        30423,  # a frozen leader reads of a request after its connection's end, and dispatches it at once
        30830,  # as 30420
        1001097,  # a leader is frozen after an end, and resigns when it wakes: its own checkpoint alone has that end
        1102702,  # a frozen member finds a Withdraw and the end of the same request
        1030490,  # a preemption is carried out, and what says so is lost with its connection
        1001204,  # a Dispatch is lost, and its member, alone by then, rejects the request
    ],
)
def test_a_seed_with_cuts_that_once_broke_a_rule_keeps_it(seed):
    interrupted_scene(seed)


@pytest.mark.long
@pytest.mark.parametrize(
    "directed_scene",
    [
        directed.frozen_follower,
        directed.frozen_leader,
        directed.killed_leader,
        directed.broken_links,
        directed.lone_members,
        directed.stopped_alone,
        directed.lost_key,
        directed.pause_of_a_killed_leader,
        directed.pause_of_a_frozen_leader,
        directed.pause_of_a_lost_machine,
        directed.without_store,
        directed.frozen_store,
        directed.minority,
        directed.returned,
        directed.split,
        directed.word,
        directed.abandoned,
    ],
)
def test_every_rule_holds_where_one_mechanism_alone_keeps_it(directed_scene):
    for seed in range(6):
        directed_scene(seed)


def test_a_seed_is_a_run():
    ends = [[(client.request.id, client.ended, client.ended_at) for client in scene(5).clients] for _ in range(2)]
    assert ends[0] == ends[1]


@pytest.mark.drawn
@pytest.mark.parametrize("fairness", sorted(FAIRNESS))
def test_every_order_is_shared(fairness):
    for seed in range(1, 1 + examples(2)):
        scene(seed, fairness=fairness)


@pytest.mark.drawn
@pytest.mark.parametrize("placement", sorted(PLACEMENT))
def test_with_every_placement_the_order_is_shared(placement):
    for seed in range(3, 3 + examples(2)):
        scene(seed, placement=placement)


def test_weights_hold_between_tenants_at_different_members():
    assert weights_at_different_members(30.0) == pytest.approx(4.0, rel=0.03)


@pytest.mark.parametrize("seconds", [15.0, pytest.param(30.0, marks=pytest.mark.long)])
def test_many_tenants_at_four_members_are_served_as_fairly_as_at_one(seconds):
    one, four = (service_difference_of(members, seconds) for members in (1, 4))
    assert four <= 1.15 * one
