"""An observer changes nothing and sees what the judges see."""

from functools import cache
from unittest import mock

import pytest

from backends.engine.coefficients import COEFFICIENTS
from backends.engine.engine import Engine
from backends.simulation.requests import Arrival
from backends.simulation.world import World
from gateway.simulate.exposure import RunExposure
from gateway.simulate.observer import SHARE_WINDOW_S, Observer, Shares
from gateway.simulate.report.series import Timeline
from policies.accounts.cost import LinearPrice
from policies.fairness import FAIRNESS
from policies.fairness.fairness_bound import FairnessBound
from policies.scheduler import Scheduler
from policies.types import Tenant
from tests.simulation.bound_checkers import ServiceBound
from tests.simulation.checkers import RunWatch
from tests.simulation.recording import Polled, Recorder
from tests.simulation.run_accounts import RunAccounts

SECONDS, WINDOW_S = 25, 25.0


def flood(seconds=SECONDS):
    """Two tenants that always wait, one with long answers and one with short ones, and a third now and then."""
    for number in range(seconds * 10):
        yield Arrival("long", number / 10, 60, 200, 256)
        yield Arrival("short", number / 10, 200, 20, 256)
        if number % 100 < 4:
            yield Arrival("rare", number / 10, 100, 50, 256)


@cache
def observed(fairness="vtc", tenants=(), seconds=SECONDS):
    """A run with an observer, and the decisions and judge of the same run."""
    tenants = {tenant.id: tenant for tenant in tenants}
    scheduler = Scheduler(fairness=FAIRNESS[fairness], wait_s_max=1e9, share_ratio_max=1.0)
    accounts = RunAccounts(tenants=())
    judge = ServiceBound(
        accounts, FairnessBound(both_wait=1e12, one_waits=1e12, until_sent=1e12)
    )  # it measures, and finds no fault
    decisions = []
    recorder = Recorder(scheduler, RunWatch(accounts, [judge, decisions.append]))
    engines = {"e": Engine(COEFFICIENTS["a10g-llama2-7b"])}
    timeline = Timeline()
    exposure = RunExposure(LinearPrice(), kv_tokens=10_000)
    observer = Observer(
        recorder,
        engines=engines,
        tenant_of=lambda tenant_id: tenants.get(tenant_id, Tenant(tenant_id)),
        exposure=exposure,
        timeline=timeline,
    )
    with mock.patch("gateway.simulate.observer.SHARE_WINDOW_S", WINDOW_S):
        list(World(observer, engines, requests_running_max=256).run(flood(seconds)))
    return observer, judge, exposure, [entry for entry in decisions if isinstance(entry, Polled)]


def test_watching_changes_no_decision():
    _, _, _, decisions = observed()
    engines = {"e": Engine(COEFFICIENTS["a10g-llama2-7b"])}
    bare = Scheduler(tenants=[Tenant(name) for name in ("long", "short", "rare")], wait_s_max=1e9, share_ratio_max=1.0)
    alone = []
    recorder = Recorder(bare, alone.append)
    list(World(recorder, engines, requests_running_max=256).run(flood()))
    assert [entry for entry in alone if isinstance(entry, Polled)] == decisions


@pytest.mark.parametrize("fairness", ["vtc", "fifo"])
def test_the_largest_difference_is_that_of_the_judge_as_far_as_it_is_looked_at(fairness):
    observer, judge, _, _ = observed(fairness)
    assert observer.difference_max <= judge.spread_max
    assert observer.difference_max >= 0.8 * judge.spread_max


def test_a_fair_policy_stays_within_twice_the_exposure_and_first_come_does_not_share():
    fair, _, exposure, _ = observed("vtc")
    assert fair.difference_max <= 2 * exposure.service
    assert fair.shares.jain > 0.99
    unfair, _, _, _ = observed("fifo")
    assert unfair.shares.jain < 0.95
    assert unfair.difference_max > 4 * fair.difference_max


def test_a_tenant_of_more_weight_is_compared_by_what_it_gets_over_its_weight():
    heavy, _, exposure, _ = observed("vtc", tenants=(Tenant("long", weight=3.0),))
    assert heavy.difference_max <= 2 * exposure.service
    assert heavy.shares.jain > 0.99


def test_tenants_with_a_limit_in_flight_are_owed_nothing_and_not_compared():
    limited, _, _, _ = observed("vtc", tenants=(Tenant("long", in_flight_max=1),), seconds=15)
    assert limited.difference_max < 1500  # of "short" and "rare"


def test_engines_and_queues_are_watched():
    observer, _, _, _ = observed()
    assert max(observer.running.bins.values()) > 5
    assert max(observer.queued.bins.values()) > 50
    assert 0.3 < max(observer.kv_ratio.bins.values()) <= 1.0


def test_only_tenants_that_waited_through_a_window_are_compared_in_it():
    shares = Shares()
    shares.looked(0.0, {"a": 0.0, "b": 0.0, "c": 0.0}, {"a": 0.0, "b": 0.0, "c": 0.0})
    shares.looked(30.0, {"a": 9.0, "b": 9.0}, {"a": 0.0, "b": 0.0})
    assert shares.jain is None
    # "c" left and came back, "d" came later: neither waited all the time.
    service = {"a": 200.0, "b": 100.0, "c": 900.0, "d": 900.0}
    shares.looked(SHARE_WINDOW_S, service, {"a": 0.0, "b": 0.0, "c": 40.0, "d": 1.0})
    assert shares.jain == pytest.approx(0.9)
    shares.interrupted()
    shares.looked(2 * SHARE_WINDOW_S, service, dict.fromkeys(service, 0.0))
    assert shares.windows == 1
