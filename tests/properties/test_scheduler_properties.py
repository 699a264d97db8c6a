"""Any order of facts: every policy, with every placement, keeps the books and the limits, and what it promises.

A step is an instant: what happens in it, a poll, and the judgement of both. The same steps are made every time, and a
history that fails is printed as it is. `make test-long` judges every policy with every placement, capped and uncapped.
`make test` makes a twelfth of the steps of a third of these: each policy with a third of the placements, and each
placement with a third of the policies. FAIRLEAD_PROPERTY_FACTOR=20 makes twenty times as many, others each time, and
looks for the shortest that fails.
"""

import os
from itertools import count, product

import pytest
from any_facts import AnyFacts
from arrival_facts import ArrivalFacts
from fair_facts import FairFacts, GroupFacts, LiveGroupFacts
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from session_facts import HeldArrivals, HeldSessions, NoSessions, SessionArrivals, WatchedSessions

from policies.fairness import FAIRNESS
from policies.fairness.bounds import BOUNDS
from policies.placement import PLACEMENT

FACTOR = int(os.environ.get("FAIRLEAD_PROPERTY_FACTOR", "1"))
ANY_STEPS, FAIR_STEPS = 1_200, 1_500  # of each long run: 170,000 in all of them
BOUNDED = sorted(name for name, bound in BOUNDS.items() if bound is not None)

LONG, SHORT = 1, 12  # a run makes its steps divided by this


def runs(*axes, caps=(True, False), every):
    """Each combination of these and of capped shares: all of them long. Short runs are made of every third of those of
    the axes, or every so many, and of one cap of each: of each value with a part of the values of the others.
    """
    for places in product(*(range(len(axis)) for axis in axes)):
        values = [axis[place] for axis, place in zip(axes, places, strict=True)]
        for number, cap in enumerate(caps):
            name = "-".join((*values, *(("capped" if cap else "uncapped",) if caps != (None,) else ())))
            yield pytest.param(*values, cap, LONG, id=f"{name}-long", marks=pytest.mark.long)
            if sum(places) % every == 0 and sum(places) // every % len(caps) == number:
                yield pytest.param(*values, cap, SHORT, id=f"{name}-short")


def steps_of(machine, steps, *, divisor, histories, first_seed=0, **attributes):
    """Run the machine with these attributes, so many histories at a time, until it has made so many steps, of which a
    short run makes fewer.
    """
    history_steps = 100 if divisor == LONG else 50
    special = type(machine.__name__, (machine,), attributes)
    special.steps = 0
    for number in count(first_seed):
        # A history may end long before its last step, so how many it takes is not known beforehand.
        run_state_machine_as_test(
            seed(number)(special) if FACTOR == 1 else special,
            settings=settings(
                max_examples=FACTOR * histories,
                stateful_step_count=history_steps,
                database=None,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                report_multiple_bugs=False,
                phases=[Phase.generate] if FACTOR == 1 else list(Phase),
            ),
        )
        if special.steps >= FACTOR * steps // divisor:
            return


@pytest.mark.parametrize(
    ("policy", "placement", "_cap", "divisor"), [*runs(sorted(FAIRNESS), sorted(PLACEMENT), caps=(None,), every=3)]
)
def test_whatever_happens_nothing_is_lost_sent_twice_or_charged_wrong_and_nothing_idles(
    policy, placement, _cap, divisor
):
    # The few histories that a short run takes of seed 0 send no request.
    attributes = {"policy": policy, "placement": placement}
    histories = 20 if divisor == LONG else 3
    steps_of(AnyFacts, ANY_STEPS, divisor=divisor, histories=histories, first_seed=1, **attributes)


@pytest.mark.parametrize(
    ("policy", "placement", "_cap", "divisor"), [*runs(sorted(FAIRNESS), sorted(PLACEMENT), caps=(None,), every=4)]
)
def test_an_arrival_that_is_decided_at_once_is_decided_as_one_that_is_submitted_and_polled(
    policy, placement, _cap, divisor
):
    attributes = {"policy": policy, "placement": placement}
    histories = 20 if divisor == LONG else 3
    steps_of(ArrivalFacts, ANY_STEPS, divisor=divisor, histories=histories, first_seed=1, **attributes)


@pytest.mark.parametrize(
    ("policy", "placement", "_cap", "divisor"), [*runs(["vtc", "dlpm"], sorted(PLACEMENT), caps=(None,), every=4)]
)
@pytest.mark.parametrize("facts", [WatchedSessions, NoSessions, HeldSessions, SessionArrivals, HeldArrivals])
def test_agents_lose_nothing_and_without_a_reason_to_hold_them_all_is_decided_as_before(
    facts, policy, placement, _cap, divisor
):
    attributes = {"policy": policy, "placement": placement}
    histories = 20 if divisor == LONG else 3
    steps_of(facts, ANY_STEPS, divisor=divisor, histories=histories, first_seed=1, **attributes)


@pytest.mark.parametrize(("policy", "placement", "is_capped", "divisor"), [*runs(BOUNDED, sorted(PLACEMENT), every=3)])
def test_no_two_tenants_differ_by_more_than_the_policy_promises(policy, placement, is_capped, divisor):
    attributes = {"policy": policy, "placement": placement, "is_capped": is_capped}
    steps_of(FairFacts, FAIR_STEPS, divisor=divisor, histories=10 if divisor == LONG else 2, **attributes)


@pytest.mark.parametrize(
    ("policy", "placement", "is_capped", "divisor"), [*runs(BOUNDED, ["least-reserved", "round-robin"], every=2)]
)
def test_no_two_tenants_groups_or_tiers_differ_by_more_than_is_promised(policy, placement, is_capped, divisor):
    attributes = {"policy": policy, "placement": placement, "is_capped": is_capped}
    steps_of(GroupFacts, FAIR_STEPS, divisor=divisor, histories=10 if divisor == LONG else 2, **attributes)


@pytest.mark.parametrize(("policy", "is_capped", "divisor"), [*runs(BOUNDED, every=1)])
def test_bounds_hold_between_changes_of_groups_that_are_made_while_their_tenants_wait(policy, is_capped, divisor):
    attributes = {"policy": policy, "placement": "least-reserved", "is_capped": is_capped}
    steps_of(LiveGroupFacts, FAIR_STEPS, divisor=divisor, histories=10 if divisor == LONG else 2, **attributes)


def test_every_policy_says_what_it_promises_and_the_baselines_and_experiments_promise_nothing():
    without = FAIRNESS.keys() - set(BOUNDED)
    experimental = {name for name, order in FAIRNESS.items() if ".experimental." in order.__module__}
    assert {"fifo", "lcf"} | experimental <= without
    assert not without & {"vtc", "slack", "dlpm", "drr"}
