"""Any order of facts: every policy, with every placement, keeps the books and the limits, and what it promises.

A step is an instant: what happens in it, a poll, and the judgement of both. The same steps are made every time, and a
history that fails is printed as it is. `make test` makes a sixth of the steps of `make test-long`, of every policy
with every placement; bounds are judged with capped shares for half of these, and with uncapped ones for the other
half. FAIRLEAD_PROPERTY_FACTOR=20 makes twenty times as many, others each time, and looks for the
shortest that fails.
"""

import os
from itertools import count, product

import pytest
from any_facts import AnyFacts
from fair_facts import FairFacts, GroupFacts, LiveGroupFacts
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from policies.fairness import FAIRNESS
from policies.fairness.bounds import BOUNDS
from policies.placement import PLACEMENT

FACTOR = int(os.environ.get("FAIRLEAD_PROPERTY_FACTOR", "1"))
STEPS_TOTAL = 100_000
ANY_STEPS, FAIR_STEPS = 1_200, 1_500  # of each long run, of which there are so many:
BOUNDED = sorted(name for name, bound in BOUNDS.items() if bound is not None)
ANY_RUNS = len(FAIRNESS) * len(PLACEMENT)
FAIR_RUNS = len(BOUNDED) * len(PLACEMENT) * 2

every_placement = pytest.mark.parametrize("placement", sorted(PLACEMENT))
both_lengths = pytest.mark.parametrize(
    "divisor", [pytest.param(6, id="short"), pytest.param(1, id="long", marks=pytest.mark.long)]
)


def steps_of(machine, steps, *, histories, first_seed=0, **attributes):
    """Run the machine with these attributes, so many histories at a time, until it has made so many steps."""
    special = type(machine.__name__, (machine,), attributes)
    special.steps = 0
    for number in count(first_seed):
        # A history may end long before its hundred steps, so how many it takes is not known beforehand.
        run_state_machine_as_test(
            seed(number)(special) if FACTOR == 1 else special,
            settings=settings(
                max_examples=FACTOR * histories,
                stateful_step_count=100,
                database=None,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                report_multiple_bugs=False,
                phases=[Phase.generate] if FACTOR == 1 else list(Phase),
            ),
        )
        if special.steps >= FACTOR * steps:
            return


@both_lengths
@every_placement
@pytest.mark.parametrize("policy", sorted(FAIRNESS))
def test_whatever_happens_nothing_is_lost_sent_twice_or_charged_wrong_and_nothing_idles(policy, placement, divisor):
    # The few histories that a short run takes of seed 0 send no request.
    attributes = {"policy": policy, "placement": placement}
    steps_of(AnyFacts, ANY_STEPS // divisor, histories=20 // divisor, first_seed=1, **attributes)


def fair_runs():
    """Policy, placement, is_capped, divisor: all of them long, and half of them short, so that each policy is capped
    with half of the placements, and each placement with half of the policies.
    """
    for (row, policy), (column, placement) in product(enumerate(BOUNDED), enumerate(sorted(PLACEMENT))):
        for is_capped in (True, False):
            name = f"{policy}-{placement}-{'capped' if is_capped else 'uncapped'}"
            yield pytest.param(policy, placement, is_capped, 1, id=f"{name}-long", marks=pytest.mark.long)
            if is_capped == ((row + column) % 2 == 1):
                yield pytest.param(policy, placement, is_capped, 6, id=f"{name}-short")


@pytest.mark.parametrize(("policy", "placement", "is_capped", "divisor"), [*fair_runs()])
def test_no_two_tenants_differ_by_more_than_the_policy_promises(policy, placement, is_capped, divisor):
    attributes = {"policy": policy, "placement": placement, "is_capped": is_capped}
    steps_of(FairFacts, FAIR_STEPS // divisor, histories=max(2, 10 // divisor), **attributes)


@both_lengths
@pytest.mark.parametrize("is_capped", [True, False])
@pytest.mark.parametrize("placement", ["least-reserved", "round-robin"])
@pytest.mark.parametrize("policy", BOUNDED)
def test_no_two_tenants_groups_or_tiers_differ_by_more_than_is_promised(policy, placement, is_capped, divisor):
    attributes = {"policy": policy, "placement": placement, "is_capped": is_capped}
    steps_of(GroupFacts, FAIR_STEPS // divisor, histories=max(2, 10 // divisor), **attributes)


@both_lengths
@pytest.mark.parametrize("is_capped", [True, False])
@pytest.mark.parametrize("policy", BOUNDED)
def test_bounds_hold_between_changes_of_groups_that_are_made_while_their_tenants_wait(policy, is_capped, divisor):
    attributes = {"policy": policy, "placement": "least-reserved", "is_capped": is_capped}
    steps_of(LiveGroupFacts, FAIR_STEPS // divisor, histories=max(2, 10 // divisor), **attributes)


def test_every_policy_says_what_it_promises_and_the_baselines_and_experiments_promise_nothing():
    without = FAIRNESS.keys() - set(BOUNDED)
    experimental = {name for name, order in FAIRNESS.items() if ".experimental." in order.__module__}
    assert {"fifo", "lcf"} | experimental <= without
    assert not without & {"vtc", "slack", "dlpm", "drr"}


def test_the_steps_are_enough():
    assert ANY_RUNS * ANY_STEPS + FAIR_RUNS * FAIR_STEPS >= STEPS_TOTAL
