"""What cannot be in time is answered at once, where that is sure, by its tier's choice; and what is shed for it."""

import pytest

from policies.admission import BoundedQueues, Feasibility
from policies.admission.feasible import OVERLOAD_S_MAX, RETRY_AFTER_S_MAX
from policies.prediction import PREDICTION
from policies.queues import PoolQueues
from policies.step_time import StepTime, StepTimeModel
from policies.types import BackendLoad, Dispatch, Outcome, Reason, Reject, Request, SloEnvelope, Tenant, Tier, Usage

pytestmark = pytest.mark.every_scheduler

STEP = StepTimeModel(base_s=0.01, token_s=0.0001)  # a decode step of four: 10.4 ms; a prompt of 1,000: 110 ms
GOLD, WAITS, BULK, JUNK = (
    Tier("gold", rejects_misses=True),
    Tier("waits"),
    Tier("bulk", priority=-1),
    Tier("junk", priority=-2),
)
TIERS = (Tier("default"), GOLD, WAITS, BULK, JUNK)
TENANTS = (
    Tenant("G", tier_id="gold"),
    Tenant("W", tier_id="waits"),
    Tenant("B", tier_id="bulk"),
    Tenant("J", tier_id="junk"),
)


def load(*, is_sure=True, slots=4):
    step_time = StepTime(STEP, error_ratio=0.05, is_sure=is_sure)
    return BackendLoad(
        "gpu", requests_running_max=slots, kv_tokens_max=100_000, step_tokens_max=2_000, step_time=step_time
    )


def envelope(ttft_s):
    return SloEnvelope(ttft_s=ttft_s)


def a_pool(make_pool, *, tenants=TENANTS, is_sure=True, slots=4, **options):
    options = {"prediction": PREDICTION["oracle"](), **options}
    return make_pool(tenants=tenants, tiers=TIERS, loads=[load(is_sure=is_sure, slots=slots)], **options)


def full(pool, tenant_id="W", *, waiting=20):
    """All seats taken by requests of 100 tokens, about a second each, and a queue behind them."""
    for number in range(4 + waiting):
        pool.send(tenant_id, f"{tenant_id}{number}", prompt=10, output_max=100, output_tokens_known=100)
    pool.poll()


# -- the rule itself ---------------------------------------------------------------------------------------


class Rule:
    """Feasibility with a forecast that the test says."""

    def __init__(self, *, ttft_s=0.0, least_ttft_s=0.0):
        self.ttft_s, self.least_ttft_s, self.now = ttft_s, least_ttft_s, 100.0
        self.rule = Feasibility(
            tiers={tier.id: tier for tier in TIERS},
            ttft_s=lambda *_: self.ttft_s,
            is_hopeless=lambda _, due_at, now: self.least_ttft_s > due_at - now,
        )

    def ask(self, tier_id, ttft_s, *, given_s=None, **fields):
        targets = None if ttft_s is None else SloEnvelope(ttft_s, ttft_s_given=given_s)
        request = Request("r", "t", "m", self.now, 1, 1, envelope=targets, **fields)
        return self.rule.check(request, Tenant("t", tier_id=tier_id), PoolQueues(), self.now)


def test_a_tier_chooses_between_refusal_and_waiting():
    rule = Rule(ttft_s=8.0)
    assert rule.ask("gold", 1.0)[:2] == (Reason.SLO_UNREACHABLE, pytest.approx(5.0)), "8 s may be 6: 5 s too late"
    assert rule.ask("waits", 1.0) is None
    assert rule.ask("gold", None) is None, "promised nothing"


@pytest.mark.parametrize(("forecast_s", "is_let_in"), [(0.9, True), (1.3, True), (1.4, False), (None, True)])
def test_a_forecast_is_taken_at_its_best_and_without_one_none_is_refused(forecast_s, is_let_in):
    assert (Rule(ttft_s=forecast_s).ask("gold", 1.0) is None) is is_let_in


def test_retry_after_is_a_second_at_least_and_long_for_what_could_not_be_in_time_alone():
    assert Rule(ttft_s=1.4).ask("gold", 1.0).retry_after_s == 1.0
    assert Rule(ttft_s=20.0, least_ttft_s=19.0).ask("gold", 1.0).retry_after_s == RETRY_AFTER_S_MAX
    assert Rule(ttft_s=1e12).ask("gold", 1.0).retry_after_s == RETRY_AFTER_S_MAX


@pytest.mark.parametrize("tier_id", ["gold", "waits"])
def test_while_a_protected_request_would_be_late_sheddable_tiers_are_not_let_in(tier_id):
    rule = Rule(ttft_s=8.0)
    assert rule.ask("bulk", None) is None
    rule.ask(tier_id, 3.0)
    assert rule.ask("bulk", None)[:2] == (Reason.SHED, pytest.approx(3.0))
    assert rule.ask("waits", None) is None, "protected"
    rule.now += 3.1
    assert rule.ask("bulk", None) is None


def test_a_request_for_less_time_than_was_given_is_judged_by_that_and_shuts_none_out_for_it():
    rule = Rule(ttft_s=8.0)
    assert rule.ask("gold", 1.0, given_s=30.0).reason is Reason.SLO_UNREACHABLE
    assert rule.ask("bulk", None) is None
    rule.ask("waits", 1.0, given_s=4.0)
    assert rule.ask("bulk", None)[:2] == (Reason.SHED, pytest.approx(2.0))


def test_neither_a_hopeless_request_nor_a_sheddable_one_shuts_others_out_and_none_does_for_long():
    rule = Rule(ttft_s=8.0, least_ttft_s=7.0)
    rule.ask("waits", 1.0)
    assert rule.ask("bulk", None) is None
    rule = Rule(ttft_s=8.0)
    rule.ask("bulk", 1.0)
    assert rule.ask("bulk", None) is None
    rule = Rule(ttft_s=1e9)
    rule.ask("waits", 1.0)
    assert rule.ask("bulk", None).retry_after_s == OVERLOAD_S_MAX


# -- in a pool ---------------------------------------------------------------------------------------------


def test_behind_a_queue_a_request_that_cannot_be_in_time_is_refused_at_once_and_moves_no_counter(make_pool):
    pool = a_pool(make_pool)
    full(pool, "G", waiting=40)
    pool.send("G", "asks", prompt=10, envelope=envelope(0.2))  # from now on it is watched what waits
    pool.poll()
    before = pool.scheduler.snapshot(pool.now).tenants["G"]
    pool.send("G", "late", prompt=10, envelope=envelope(0.2))
    (refusal,) = pool.poll()
    assert isinstance(refusal, Reject)
    assert (refusal.request_id, refusal.reason) == ("late", Reason.SLO_UNREACHABLE)
    assert refusal.retry_after_s > 1.0
    after = pool.scheduler.snapshot(pool.now).tenants["G"]
    assert (after.service, after.counter, after.rank, after.queued_requests) == (
        before.service, before.counter, before.rank, before.queued_requests,
    )  # fmt: skip
    assert after.attainment.refused == before.attainment.refused + 1
    pool.send("G", "in time", prompt=10, envelope=envelope(60.0))
    assert pool.refused() == {}


def test_a_longer_queue_has_a_later_retry_after(make_pool):
    waits = []
    for waiting in (20, 40, 80):
        pool = a_pool(make_pool)
        full(pool, "G", waiting=waiting)
        for name in ("asks", "late"):
            pool.send("G", name, prompt=10, envelope=envelope(0.2))
            actions = pool.poll()
        waits += [action.retry_after_s for action in actions]
    assert waits == sorted(waits)
    assert waits[2] > 3 * waits[0]


def test_what_is_ahead_is_its_own_tenants_queue_and_others_shares_of_the_meantime(make_pool):
    """W has a long queue; G has none and is ahead of no tenant: it goes next."""
    pool = a_pool(make_pool)
    full(pool, "W", waiting=200)
    for name in ("asks", "goes next"):
        pool.send("G", name, prompt=10, envelope=envelope(2.0))
        assert pool.refused() == {}


def test_an_unsure_model_refuses_no_request(make_pool):
    pool = a_pool(make_pool, is_sure=False)
    full(pool, "G", waiting=100)
    for name in ("asks", "late"):
        pool.send("G", name, prompt=10, envelope=envelope(0.2))
        assert pool.refused() == {}


def test_a_burst_that_fits_is_not_taken_for_a_queue(make_pool):
    pool = a_pool(make_pool, slots=64)
    for number in range(30):
        pool.send("G", f"g{number}", prompt=10, envelope=envelope(0.2))
    assert all(isinstance(action, Dispatch) for action in pool.poll())


def test_what_waits_until_it_is_late_for_certain_is_refused_then_and_where_it_may_wait_it_waits(make_pool):
    pool = a_pool(make_pool, is_sure=False, slots=1)
    pool.send("W", "runs")
    pool.poll()
    pool.send("G", "g", envelope=envelope(0.5))
    pool.send("W", "w", envelope=envelope(0.5))
    assert pool.poll() == []
    assert pool.scheduler.next_wakeup() == 0.5
    pool.now = 0.5
    assert pool.refused() == {"g": Reason.SLO_UNREACHABLE}
    pool.now = 1.0
    pool.end("runs")
    assert pool.dispatched() == ["w"]


def test_after_the_longest_wait_the_reason_is_the_wait(make_pool):
    pool = a_pool(make_pool, slots=1, wait_s_max=3.0)
    pool.send("W", "runs")
    pool.poll()
    pool.send("G", "g", envelope=envelope(30.0))
    pool.now = 3.0
    assert pool.refused() == {"g": Reason.QUEUE_TIMEOUT}


# -- shedding ----------------------------------------------------------------------------------------------

TWO_EACH = (*TENANTS, Tenant("B2", tier_id="bulk"), Tenant("J2", tier_id="junk"))


def crowded(make_pool, *tenant_ids, waiting_max=None):
    """One seat, taken, and a queue that is full of one request each of these, in this order."""
    waiting_max = waiting_max or len(tenant_ids)
    pool = a_pool(
        make_pool, tenants=TWO_EACH, slots=1, is_sure=False, admission=[BoundedQueues(requests_max=waiting_max)]
    )
    pool.send("W", "runs")
    pool.poll()
    for number, tenant_id in enumerate(tenant_ids):
        pool.now += 1.0
        pool.send(tenant_id, f"{tenant_id}-{number}")
    pool.poll()
    return pool


def come(pool, tenant_id):
    pool.send(tenant_id, "comes")
    return pool.refused()


def test_the_lowest_tier_gives_first(make_pool):
    pool = crowded(make_pool, "W", "B", "J", "B", "G")
    assert come(pool, "G") == {"J-2": Reason.SHED}


def test_inside_a_tier_the_tenant_furthest_ahead_gives_and_of_its_requests_the_newest(make_pool):
    pool = crowded(make_pool, "B", "B", "B2", "B2", "B")
    pool.scheduler.spent("B2", Usage(500, 0, 0), pool.now)
    assert come(pool, "W") == {"B2-3": Reason.SHED}


def test_what_is_late_gives_before_everything(make_pool):
    pool = crowded(make_pool, "B", "J", waiting_max=3)
    pool.send("B2", "late", envelope=envelope(0.5))
    pool.now += 1.0
    assert come(pool, "G") == {"late": Reason.SHED}


def test_the_protected_do_not_give_and_none_gives_to_its_like(make_pool):
    assert come(crowded(make_pool, "W", "G"), "G") == {"comes": Reason.QUEUE_FULL}
    assert come(crowded(make_pool, "B", "W"), "B2") == {"comes": Reason.QUEUE_FULL}
    assert come(crowded(make_pool, "B", "W"), "J") == {"comes": Reason.QUEUE_FULL}
    assert come(crowded(make_pool, "J", "W"), "B") == {"J-0": Reason.SHED}


def test_the_protected_do_not_give_to_the_most_important_either(make_pool):
    tiers, tenants = (*TIERS, Tier("vip", priority=9)), (*TENANTS, Tenant("V", tier_id="vip"))
    pool = make_pool(tenants=tenants, tiers=tiers, loads=[load(slots=1)], admission=[BoundedQueues(requests_max=2)])
    pool.send("W", "runs")
    pool.poll()
    for name in ("W", "G"):
        pool.send(name, name)
    assert come(pool, "V") == {"comes": Reason.QUEUE_FULL}


def test_what_runs_is_not_shed_whosever_it_is(make_pool):
    pool = a_pool(make_pool, slots=1, is_sure=False, admission=[BoundedQueues(requests_max=1)])
    pool.send("J", "runs")
    pool.poll()
    pool.emit("runs", 3)
    pool.send("W", "waits")
    assert come(pool, "G") == {"comes": Reason.QUEUE_FULL}
    pool.end("runs", Outcome.COMPLETED)
    assert pool.dispatched() == ["waits"]


def test_a_request_refused_for_another_reason_sheds_none(make_pool):
    pool = a_pool(
        make_pool,
        tenants=(Tenant("G", tier_id="gold", queued_requests_max=0), *TENANTS[1:]),
        slots=1,
        is_sure=False,
        admission=[BoundedQueues(requests_max=1)],
    )
    pool.send("W", "runs")
    pool.poll()
    pool.send("J", "waits")
    assert come(pool, "G") == {"comes": Reason.TENANT_QUEUE_FULL}


def test_a_shed_request_that_had_been_sent_before_is_given_everything_back(make_pool):
    pool = a_pool(make_pool, slots=1, is_sure=False, admission=[BoundedQueues(requests_max=1)])
    pool.send("J", "sent", prompt=50)
    pool.poll()
    pool.come_back("sent", hold_s=5.0)
    assert pool.service("J") == 50
    assert come(pool, "G") == {"sent": Reason.SHED}
    assert pool.service("J") == pool.rank("J") == 0.0
