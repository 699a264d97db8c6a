"""A request that would miss its envelope gets the slot of a preemptible tier's request, if nothing was sent yet."""

import pytest

from policies.pool.preemption import WAITED_RATIO_MAX
from policies.prediction import PREDICTION
from policies.step_time import StepTime, StepTimeModel
from policies.types import BackendLoad, Dispatch, Preempt, SloEnvelope, Tenant, Tier, Usage

pytestmark = pytest.mark.every_scheduler

STEP = StepTimeModel(base_s=0.01, token_s=0.0001)
TIERS = (Tier("default"), Tier("chat", weight=4.0), Tier("batch", preemptible=True))
TENANTS = (Tenant("C", tier_id="chat"), Tenant("D"), Tenant("B", tier_id="batch"), Tenant("B2", tier_id="batch"))
SOON = SloEnvelope(ttft_s=1.0)


def slots(number, *, is_sure=False):
    step_time = StepTime(STEP, error_ratio=0.05, is_sure=is_sure)
    return [BackendLoad("gpu", requests_running_max=number, step_tokens_max=2_000, step_time=step_time)]


def held(make_pool, *batch, is_sure=False, **options):
    """All seats held by requests of the preemptible tier, sent one after the other."""
    pool = make_pool(tenants=TENANTS, tiers=TIERS, loads=slots(len(batch), is_sure=is_sure), **options)
    for number, tenant_id in enumerate(batch):
        pool.now += 0.001
        pool.send(tenant_id, f"{tenant_id}-{number}", prompt=100)
        pool.dispatched()
    return pool


def test_before_a_request_is_late_the_youngest_of_the_preemptible_tier_goes_back_to_its_head(make_pool):
    pool = held(make_pool, "B", "B2")
    pool.send("B2", "later", prompt=1)
    pool.send("C", "c", envelope=SOON)
    began_at = pool.now
    assert pool.poll() == [], "there is time yet"
    wakeup_at = pool.scheduler.next_wakeup()
    assert wakeup_at == pytest.approx(began_at + WAITED_RATIO_MAX)
    pool.now = wakeup_at
    assert pool.poll() == [Preempt("B2-1")]
    assert pool.poll() == [], "not answered yet"
    charged = pool.service("B2")
    pool.come_back("B2-1")
    assert pool.dispatched() == ["c"]
    pool.end("c")
    assert pool.dispatched() == ["B2-1"], "before what came after it"
    pool.emit("B2-1", 2)
    pool.end("B2-1")
    assert pool.service("B2") == charged + 2 * 2


def test_only_as_many_go_back_as_have_to_and_each_once(make_pool):
    pool = held(make_pool, "B", "B", "B")
    for name in ("c1", "c2"):
        pool.send("C", name, envelope=SOON)
    pool.now += WAITED_RATIO_MAX
    preempted = []
    for _ in range(20):
        for action in pool.poll():
            if isinstance(action, Preempt):
                preempted.append(action.request_id)
                pool.come_back(action.request_id)
    assert preempted == ["B-2", "B-1"]
    pool.end("c1")
    assert pool.dispatched() == ["B-1"]
    pool.send("C", "c3", envelope=SOON)
    pool.now += WAITED_RATIO_MAX
    assert pool.poll() == [Preempt("B-0")], "B-1 was taken back before"


def test_a_request_that_was_sent_a_byte_keeps_its_seat(make_pool):
    pool = held(make_pool, "B")
    pool.emit("B-0")
    pool.send("C", "c", envelope=SOON)
    pool.now += WAITED_RATIO_MAX
    assert pool.poll() == []


@pytest.mark.parametrize("tenant_id", ["D", "C"])
def test_who_is_not_preemptible_keeps_his_seat(make_pool, tenant_id):
    pool = held(make_pool, tenant_id)
    pool.send("C", "c", envelope=SOON)
    pool.now += WAITED_RATIO_MAX
    assert pool.poll() == []


@pytest.mark.parametrize("envelope", [None, SloEnvelope(tpot_s=0.01)])
def test_who_has_no_first_token_due_takes_nothing(make_pool, envelope):
    pool = held(make_pool, "B")
    pool.send("C", "c", envelope=envelope)
    pool.now += 60.0
    assert pool.poll() == []


def test_who_is_late_already_takes_nothing(make_pool):
    pool = held(make_pool, "B")
    pool.send("C", "c", envelope=SOON)
    pool.now += 1.1
    assert pool.poll() == []


def test_a_preemptible_tier_takes_nothing_from_itself_or_its_like(make_pool):
    pool = held(make_pool, "B")
    pool.send("B2", "b", envelope=SOON)
    pool.now += WAITED_RATIO_MAX
    assert pool.poll() == []


def test_whose_turn_it_is_not_takes_nothing(make_pool):
    """The slot would go to another request."""
    pool = held(make_pool, "B")
    pool.scheduler.spent("C", Usage(10_000, 0, 0), pool.now)
    pool.send("D", "d")
    pool.send("C", "c", envelope=SOON)
    pool.now += WAITED_RATIO_MAX
    assert pool.poll() == []


def test_whose_tier_is_ahead_by_more_than_the_seat_is_worth_takes_nothing(make_pool):
    pool = held(make_pool, "B")
    pool.scheduler.spent("C", Usage(4 * (100 + 100) + 1, 0, 0), pool.now)
    pool.send("C", "c", envelope=SOON)
    pool.now += WAITED_RATIO_MAX
    assert pool.poll() == []


def test_a_flood_with_an_envelope_does_not_starve_the_tier_that_gives(make_pool):
    """Every answer takes so long that all that wait are about to be late when the next seat is free."""
    pool = held(make_pool, "B")
    for number in range(40):
        pool.send("B", f"b{number}", prompt=100)
    running, served = "B-0", {"C": 0, "B": 0}
    for number in range(60):
        pool.send("C", f"c{number}", prompt=100, envelope=SOON)
        pool.now += WAITED_RATIO_MAX
        for _ in range(3):
            for action in pool.poll():
                if isinstance(action, Preempt):
                    pool.come_back(action.request_id)
                elif isinstance(action, Dispatch):
                    running = action.request_id
        pool.emit(running)
        pool.end(running)
        served["B" if running.lower().startswith("b") else "C"] += 1
    assert served["B"] >= 60 // 5 - 2, "one in five is its share"
    assert served["C"] >= 60 // 2


def test_a_slot_that_was_taken_back_is_kept_for_the_request_that_it_was_taken_for_until_that_leaves(make_pool):
    pool = held(make_pool, "B")
    pool.send("B", "next by order", prompt=1)
    pool.send("C", "c", envelope=SOON)
    pool.now += WAITED_RATIO_MAX
    assert pool.poll() == [Preempt("B-0")]
    pool.scheduler.cancel("c", pool.now)
    pool.come_back("B-0")
    assert pool.dispatched() == ["B-0"]


def test_with_a_sure_model_a_seat_is_taken_when_the_forecast_says_so_and_not_for_what_it_cannot_save(make_pool):
    pool = held(make_pool, "B", is_sure=True, prediction=PREDICTION["oracle"]())
    pool.send("C", "hopeless", prompt=50_000, envelope=SOON)
    pool.now += 0.9
    assert pool.poll() == [], "its prompt alone takes longer"
    pool.scheduler.cancel("hopeless", pool.now)
    # What runs will go on for 100 steps of 10 ms: a second, and then some.
    pool.send("C", "c", envelope=SOON)
    assert pool.poll() == [Preempt("B-0")]


def test_only_what_may_go_back_is_marked(make_pool):
    pool = make_pool(tenants=TENANTS, tiers=TIERS, loads=slots(4))
    for tenant_id in ("B", "C", "D"):
        pool.send(tenant_id, tenant_id)
    marked = {action.request_id: action.may_be_preempted for action in pool.poll() if isinstance(action, Dispatch)}
    assert marked == {"B": True, "C": False, "D": False}


def test_what_was_sent_before_its_tier_became_preemptible_keeps_its_seat(make_pool):
    pool = make_pool(tenants=(Tenant("C", tier_id="chat"), Tenant("D")), tiers=TIERS[:2], loads=slots(2))
    pool.send("D", "before", prompt=100)
    pool.dispatched()
    pool.change(tiers=[Tier("default", preemptible=True)])
    pool.send("D", "after", prompt=100)
    pool.dispatched()
    for name in ("c1", "c2"):
        pool.send("C", name, envelope=SOON)
    pool.now += WAITED_RATIO_MAX
    assert pool.poll() == [Preempt("after")]
    pool.come_back("after")
    assert pool.dispatched() == ["c1"]
    assert pool.poll() == []
