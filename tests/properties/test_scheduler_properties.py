"""Any order of facts: every policy keeps the books and the limits, and what it promises.

Each policy has its share of the steps (one fact, or one instant of many, each), over all placements and predictions.
The same steps are made every time; with FAIRLEAD_PROPERTY_FACTOR=20 they are twenty times as many, and others each
time.
"""

import os

import pytest
from any_facts import AnyFacts
from fair_facts import FairFacts
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from backends.simulation.bounds import BOUNDS
from policies.fairness import FAIRNESS

FACTOR = int(os.environ.get("FAIRLEAD_PROPERTY_FACTOR", "1"))
STEPS_TOTAL = 100_000
EXAMPLE_STEPS = 100
BOUNDED = sorted(name for name, bound in BOUNDS.items() if bound is not None)
ANY_STEPS, FAIR_STEPS = 7_000, 11_500  # of each policy


def steps_of(machine, policy, steps):
    """Run the machine under the policy for at least about so many steps; how many they were."""
    under_policy = type(f"{machine.__name__}_{policy}", (machine,), {"policy": policy})
    run_state_machine_as_test(
        under_policy,
        settings=settings(
            max_examples=FACTOR * steps // EXAMPLE_STEPS + 20,
            stateful_step_count=EXAMPLE_STEPS,
            derandomize=FACTOR == 1,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    return under_policy.steps


@pytest.mark.parametrize("policy", sorted(FAIRNESS))
def test_whatever_happens_nothing_is_lost_sent_twice_or_charged_wrong_and_nothing_idles(policy):
    assert steps_of(AnyFacts, policy, ANY_STEPS) >= ANY_STEPS


@pytest.mark.parametrize("policy", BOUNDED)
def test_no_two_tenants_differ_by_more_than_the_policy_promises(policy):
    assert steps_of(FairFacts, policy, FAIR_STEPS) >= FAIR_STEPS


def test_every_policy_says_what_it_promises_and_the_baselines_and_experiments_promise_nothing():
    assert BOUNDS.keys() == FAIRNESS.keys()
    assert FAIRNESS.keys() - set(BOUNDED) == {"fifo", "lcf", "equinox", "justitia"}


def test_the_steps_are_enough():
    assert ANY_STEPS * len(FAIRNESS) + FAIR_STEPS * len(BOUNDED) >= STEPS_TOTAL
