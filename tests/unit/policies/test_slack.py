"""The knob between VTC and a second key: which tenants are level, and what is best among them."""

from functools import partial
from math import inf
from random import Random

import pytest
from orders import Orderly

from policies.accounts.cost import LinearPrice
from policies.due_times import TTFT_S_UNSET, urgency_at
from policies.fairness import SlackCounter, VirtualTokenCounter
from policies.fairness.cached import LOOKUPS_MAX
from policies.fairness.slack import SECOND_KEYS
from policies.queues import ArrivalOrder
from policies.types import BackendLoad, Request, SloEnvelope, Usage

pytestmark = pytest.mark.every_scheduler


def slack(service: float, second_key: str) -> Orderly:
    return Orderly(SlackCounter(service, second_key))


@pytest.mark.parametrize("second_key", SECOND_KEYS)
def test_a_slack_of_zero_is_vtc_exactly(second_key):
    rng = Random(1)
    knob, vtc = slack(0.0, second_key), Orderly(VirtualTokenCounter())
    for number in range(2_000):
        service = rng.choice([10.0, 30.0, 50.0])
        if rng.random() < 0.5:
            request_id, ttft_s, cached = f"{rng.choice('ABCD')}{number}", rng.random(), rng.randrange(5)
            for each in (knob, vtc):
                each.send(request_id, ttft_s=ttft_s, cached=cached)
        else:
            assert knob.dispatch(service) == vtc.dispatch(service)


def test_an_infinite_slack_is_the_longest_prefix_first():
    pool = slack(inf, "prefix")
    for request_id, cached in (("A1", 2), ("B1", 7), ("A2", 5), ("C1", 7), ("B2", 0)):
        pool.send(request_id, cached=cached)
        pool.now += 1.0
    assert pool.everything(service=1_000.0) == ["B1", "C1", "A2", "A1", "B2"]


def test_an_infinite_slack_is_the_earliest_deadline_first():
    pool = slack(inf, "deadline")
    for request_id, ttft_s in (("A1", 9.0), ("B1", 3.0), ("A2", 1.0), ("C1", None), ("B2", 3.0)):
        pool.send(request_id, ttft_s=ttft_s)
        pool.now += 1.0
    assert pool.everything(service=1_000.0) == ["A2", "B1", "B2", "A1", "C1"]


def test_an_infinite_slack_is_first_come_first_served():
    pool = slack(inf, "arrival")
    for request_id in ("B1", "A1", "A2", "C1", "B2"):
        pool.send(request_id)
        pool.now += 1.0
    assert pool.everything(service=1_000.0) == ["B1", "A1", "A2", "C1", "B2"]


@pytest.mark.parametrize("second_key", SECOND_KEYS)
def test_only_tenants_within_the_slack_of_the_smallest_key_compete_by_the_second(second_key):
    pool = slack(100.0, second_key)
    for number, tenant_id in enumerate("ABC"):  # by every second key C is best, then B, then A
        pool.now = -float(number)
        pool.send(f"{tenant_id}1", ttft_s=1.0, cached=number)
    pool.order.charged("B", 100.0, 0.0)
    pool.order.charged("C", 100.1, 0.0)
    assert pool.dispatch(50.0) == "B1"
    assert pool.dispatch(50.0) == "A1", "B is gone, and C is 0.1 too far ahead"
    assert pool.dispatch() == "C1"


@pytest.mark.parametrize("second_key", SECOND_KEYS)
def test_tenants_enter_as_the_smallest_key_rises_and_leave_as_they_get_ahead(second_key):
    pool = slack(100.0, second_key)
    pool.send("A1", ttft_s=5.0, cached=0)
    pool.now = -1.0
    for number in range(3):
        pool.send(f"B{number}", ttft_s=1.0, cached=9)
    assert [pool.dispatch(60.0) for _ in range(2)] == ["B0", "B1"], "60 is within 100 of 0, 120 is not"
    assert pool.next() == "A1"
    pool.order.charged("A", 30.0, 0.0)
    assert pool.next() == "B2", "120 is within 100 of 30"
    pool.order.charged("A", -30.0, 0.0)
    assert pool.next() == "A1", "A was given something back"


@pytest.mark.parametrize("second_key", SECOND_KEYS)
def test_an_ineligible_tenant_sets_no_standard_for_the_others(second_key):
    pool = slack(10.0, second_key)
    pool.send("A1")
    pool.send("B1", ttft_s=5.0)
    pool.send("C1", ttft_s=1.0, cached=3)
    pool.order.charged("B", 500.0, 0.0)
    pool.order.charged("C", 505.0, 0.0)
    assert pool.next() == "A1"
    assert pool.next(lambda request: request.tenant_id != "A") in ("C1", "B1")
    if second_key != "arrival":
        assert pool.next(lambda request: request.tenant_id != "A") == "C1"
    assert pool.next() == "A1"


def test_a_tenant_whose_best_request_may_not_go_sends_the_one_it_would_otherwise():
    pool = slack(100.0, "deadline")
    pool.send("A1", ttft_s=9.0)
    pool.send("A2", ttft_s=1.0)
    assert pool.next(lambda request: request.id != "A2") == "A1"


@pytest.mark.parametrize("second_key", ["arrival", "deadline"])
def test_the_heaps_agree_with_looking_at_every_tenant(second_key):
    """Against the definition, over thousands of random steps: joins, charges, refunds, leaving in the middle."""
    rng, slack_service = Random(7), 120.0
    pool = slack(slack_service, second_key)
    rank = {"arrival": lambda request: request.arrived_at, "deadline": urgency_at}[second_key]
    for number in range(4_000):
        pool.now += 1.0
        dice, tenant_id = rng.random(), rng.choice("ABCDEFGH")
        if dice < 0.45:
            pool.send(f"{tenant_id}{number}", ttft_s=rng.choice([None, rng.random() * 50]))
        elif dice < 0.6:
            pool.order.charged(tenant_id, rng.uniform(-40.0, 60.0), rng.uniform(-20.0, 30.0))
        elif dice < 0.7 and tenant_id in pool.queues:
            pool.drop(rng.choice(sorted(pool.queues[tenant_id])))
        else:
            out = rng.choice("ABCDEFGH")
            keys = {each: pool.order.service_record(each).rank for each in pool.queues if each != out}
            level = [each for each in keys if keys[each] <= min(keys.values()) + slack_service]
            best = min((rank(request) for each in level for request in pool.queues[each].values()), default=None)
            picked = pool.order.pick(lambda request, out=out: request.tenant_id != out)
            assert (picked is None) == (best is None)
            if picked is not None:
                assert picked.tenant_id in level
                assert rank(picked) == best
                pool.dispatch(rng.choice([10.0, 50.0]), eligible=lambda request, out=out: request.tenant_id != out)


def test_one_decision_looks_up_a_limited_number_of_prompts_and_stays_fair():
    looked_up = []
    order = SlackCounter(1_000.0, "prefix")
    pool = Orderly(order)
    order.look_up_in(lambda request: looked_up.append(request.id) or 0)
    for number in range(3 * LOOKUPS_MAX):
        pool.send(f"A{number}")
        pool.send(f"B{number}")
    order.charged("A", 2_000.0, 0.0)
    assert pool.next().startswith("B")
    assert len(looked_up) == LOOKUPS_MAX


def test_with_more_tenants_than_lookups_those_that_received_the_least_are_looked_at():
    order = SlackCounter(inf, "prefix")
    looked_up = []
    order.look_up_in(lambda request: looked_up.append(request.tenant_id) or 0)
    tenants = [f"t{number:03}" for number in range(2 * LOOKUPS_MAX)]
    for tenant_id in tenants:
        order.joined(tenant_id, ArrivalOrder([Request("r", tenant_id, "m", 0.0, 1, 1)]))
    for tenant_id in tenants[:LOOKUPS_MAX]:
        order.charged(tenant_id, 1.0, 0.0)
    assert order.pick(lambda _: True).tenant_id == tenants[LOOKUPS_MAX]
    assert looked_up == tenants[LOOKUPS_MAX:]


def test_a_deadline_is_the_arrival_and_the_target_or_a_minute():
    request = Request("r", "A", "m", 5.0, 1, 1)
    assert urgency_at(request) == 5.0 + TTFT_S_UNSET
    assert urgency_at(Request("r", "A", "m", 5.0, 1, 1, envelope=SloEnvelope(ttft_s=0.5))) == 5.5
    assert urgency_at(Request("r", "A", "m", 5.0, 1, 1, envelope=SloEnvelope(tpot_s=0.5))) == 5.0 + TTFT_S_UNSET


def test_in_a_pool_what_is_cached_goes_first_and_is_charged_as_such_until_the_backend_reports(make_pool):
    pool = make_pool(
        fairness=partial(SlackCounter, 1_000.0, "prefix"), loads=[BackendLoad("gpu", requests_running_max=1)]
    )
    warm = {"prefix": (1, 2), "prefix_block_tokens": 16.0}
    pool.send("A", "a1", prompt=40, **warm)
    pool.dispatched()
    pool.send("B", "cold", prompt=40)
    pool.send("C", "warm", prompt=40, **warm)
    pool.end("a1")
    (action,) = pool.poll()
    assert (action.request_id, action.cached_tokens) == ("warm", 32)


@pytest.mark.parametrize(("received", "goes_first"), [(900, "urgent"), (1_100, "patient")])
def test_in_a_pool_the_tenant_due_sooner_goes_first_as_long_as_it_is_not_too_far_ahead(make_pool, received, goes_first):
    pool = make_pool(
        fairness=partial(SlackCounter, 1_000.0, "deadline"), loads=[BackendLoad("gpu", requests_running_max=1)]
    )
    pool.send("C", "runs", prompt=1)
    pool.dispatched()
    pool.send("A", "patient", envelope=SloEnvelope(ttft_s=9.0))
    pool.send("B", "urgent", envelope=SloEnvelope(ttft_s=1.0))
    pool.scheduler.spent("B", Usage(received, 0, 0), pool.now)
    pool.end("runs")
    assert pool.dispatched() == [goes_first]


def test_cached_tokens_have_their_price_at_dispatch_and_the_report_replaces_the_estimate(make_pool):
    pool = make_pool(
        fairness=partial(SlackCounter, 1_000.0, "prefix"),
        price=LinearPrice(prompt=1, cached_prompt=0, output=2),
        loads=[BackendLoad("gpu", requests_running_max=2)],
    )
    warm = {"prefix": (1, 2), "prefix_block_tokens": 16.0}
    pool.send("A", "a1", prompt=40, **warm)
    pool.dispatched()
    assert pool.service("A") == 40
    pool.send("B", "b1", prompt=40, **warm)
    pool.dispatched()
    assert pool.service("B") == 8
    pool.report("b1", prompt=40, output=1, cached=16)
    assert pool.service("B") == 24 + 2


def test_without_an_order_or_placement_that_asks_nothing_is_believed_to_be_cached(make_pool):
    pool = make_pool()
    warm = {"prefix": (1, 2), "prefix_block_tokens": 16.0}
    pool.send("A", "a1", prompt=40, **warm)
    pool.dispatched()
    pool.send("A", "a2", prompt=40, **warm)
    (action,) = pool.poll()
    assert action.cached_tokens == 0
