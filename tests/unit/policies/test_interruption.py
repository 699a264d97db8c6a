"""A request that stops in the middle of its answer waits again, and goes on where it stopped."""

from dataclasses import replace

import pytest

from policies.admission import BoundedQueues, RateLimiter
from policies.facts import Kept
from policies.fairness import LeastCounterFirst
from policies.placement import PLACEMENT
from policies.pool.preemption import InterruptRules
from policies.prediction import NoPrediction
from policies.types import BackendLoad, Cause, Dispatch, Preempt, Reason, SloEnvelope, Tenant, Tier, Usage

pytestmark = pytest.mark.every_scheduler
ONE_SLOT = [BackendLoad("gpu", requests_running_max=1)]
TWO_BACKENDS = [BackendLoad(name, requests_running_max=2) for name in "xy"]


def test_it_goes_first_again_and_is_charged_once_for_what_it_has_in_the_end(make_pool):
    pool = make_pool(loads=ONE_SLOT)
    pool.send("A", "a", prompt=10, is_resumable=True)
    pool.send("A", "later", prompt=10)
    assert pool.dispatched() == ["a"]
    pool.emit("a", 3)
    pool.cut("a", tokens=2)
    assert pool.service("A") == 10 + 2 * 5
    assert pool.dispatched() == ["a"]
    assert pool.service("A") == 10 + 2 * 5, "what is computed again is not charged"
    pool.emit("a", 4)
    pool.end("a")
    assert pool.service("A") == 10 + 2 * 9
    assert pool.dispatched() == ["later"]


def test_its_reservation_has_room_for_its_prompt_and_for_what_it_has(make_pool):
    pool = make_pool(loads=[BackendLoad("gpu", kv_tokens_max=1_000)])
    pool.send("A", "a", prompt=100, is_resumable=True)
    pool.dispatched()
    pool.cut("a", tokens=300)
    assert pool.backend().reserved_tokens == 0
    pool.dispatched()
    assert pool.backend().reserved_tokens == 400
    pool.emit("a", 5)
    assert pool.backend().reserved_tokens == 405
    pool.end("a")
    assert pool.backend().reserved_tokens == 0


def test_what_does_not_fit_beside_others_waits_with_its_whole_length(make_pool):
    pool = make_pool(loads=[BackendLoad("gpu", kv_tokens_max=500)])
    pool.send("A", "a", prompt=100, is_resumable=True)
    pool.dispatched()
    pool.cut("a", tokens=300)
    pool.send("B", "b", prompt=150)
    assert pool.dispatched() == ["a"], "chosen before, and what it needs leaves no room for the other"
    pool.end("a")
    assert pool.dispatched() == ["b"]


def test_its_client_may_leave_while_it_waits_and_pays_for_what_it_got(make_pool):
    pool = make_pool(loads=ONE_SLOT)
    pool.send("A", "a", prompt=10, is_resumable=True)
    pool.dispatched()
    pool.cut("a", tokens=5)
    pool.scheduler.cancel("a", pool.now)
    assert pool.service("A") == pool.rank("A") == 10 + 2 * 5


def test_its_client_may_leave_in_the_instant_of_its_next_dispatch_and_pays_for_what_it_got(make_pool):
    pool = make_pool(loads=ONE_SLOT)
    pool.send("A", "a", prompt=10, is_resumable=True)
    pool.dispatched()
    pool.cut("a", tokens=5)
    pool.dispatched()
    pool.scheduler.cancel("a", pool.now)
    assert pool.service("A") == pool.rank("A") == 10 + 2 * 5


def test_it_may_be_refused_and_cut_again_and_still_pays_once(make_pool):
    pool = make_pool(loads=ONE_SLOT)
    pool.send("A", "a", prompt=10, is_resumable=True)
    for tokens in (5, 0, 7):
        pool.dispatched()
        if tokens:
            pool.cut("a", tokens=tokens)
        else:
            pool.come_back("a")
    pool.dispatched()
    pool.end("a")
    assert pool.service("A") == 10 + 2 * 12


def test_its_queue_timeout_begins_anew(make_pool):
    pool = make_pool(loads=ONE_SLOT, wait_s_max=10.0)
    pool.send("A", "a", is_resumable=True)
    pool.dispatched()
    pool.now = 100.0
    pool.cut("a", tokens=5, hold_s=50.0)
    pool.now = 109.0
    assert pool.poll() == []
    pool.now = 110.0
    assert pool.refused() == {"a": Reason.QUEUE_TIMEOUT}
    assert pool.service("A") == 1 + 2 * 5


@pytest.mark.local_scheduler
@pytest.mark.parametrize("ends", ["completed", "left"])
def test_a_limit_of_tokens_per_minute_counts_it_once(make_pool, ends):
    tenant = Tenant("A", tokens_per_minute_max=100)
    pool = make_pool(tenants=[tenant], loads=ONE_SLOT, admission=[RateLimiter(NoPrediction().predict)])
    pool.send("A", "a", prompt=10, is_resumable=True)
    pool.dispatched()
    pool.cut("a", tokens=5)
    pool.dispatched()
    pool.cut("a", tokens=5)
    if ends == "left":
        pool.scheduler.cancel("a", pool.now)
    else:
        pool.dispatched()
        pool.end("a")
    assert pool.scheduler.rate_limits("A", pool.now).tokens.remaining == 100 - 20


def test_while_it_waits_it_is_not_in_flight_and_its_tenant_may_send_another(make_pool):
    pool = make_pool(tenants=[Tenant("A", in_flight_max=1)], loads=TWO_BACKENDS)
    pool.send("A", "a", is_resumable=True)
    pool.send("A", "b")
    assert pool.dispatched() == ["a"]
    pool.cut("a", tokens=5)
    assert pool.tenant("A").in_flight_requests == 0
    assert pool.dispatched() == ["a"]
    assert pool.dispatched() == [], "its limit holds"


def test_it_goes_back_to_the_backend_that_has_its_blocks_unless_that_failed(make_pool):
    pool = make_pool(loads=TWO_BACKENDS)
    pool.send("A", "a", is_resumable=True)
    (at,) = pool.placed().values()
    other = "y" if at == "x" else "x"
    pool.send("B", "b", backend_ids=frozenset(at))
    pool.dispatched()
    pool.cut("a", tokens=5)
    assert pool.placed() == {"a": at}, "though the other runs nothing"
    pool.cut("a", tokens=5, hold_s=1.0)
    assert pool.placed() == {"a": other}


def test_a_repeated_report_of_what_it_had_before_is_no_first_token(make_pool):
    pool = make_pool(loads=ONE_SLOT)
    pool.send("A", "a", prompt=10, is_resumable=True)
    pool.dispatched()
    pool.cut("a", tokens=50)
    pool.dispatched()
    pool.report("a", prompt=10, output=50)
    assert pool.scheduler.prefilled("a", pool.now) == Usage(10, 0, 50)
    pool.emit("a")
    pool.end("a")
    assert pool.service("A") == 10 + 2 * 51


def preempting(make_pool, **options):
    """A has had 1,000 and holds the only slot, in the middle of an answer; B has had nothing."""
    rules = options.pop("rules", InterruptRules(times_max=2, tokens_between_min=3))
    pool = make_pool(
        fairness=LeastCounterFirst, loads=ONE_SLOT, preempt_service=100.0, interrupt_rules=rules, **options
    )
    pool.send("A", "a0", prompt=1_000)
    pool.dispatched()
    pool.end("a0")
    pool.send("A", "a", prompt=10, is_resumable=True)
    pool.dispatched()
    return pool


def test_a_tenant_that_is_far_ahead_gives_way_in_the_middle_of_an_answer_and_goes_on_later(make_pool):
    pool = preempting(make_pool)
    pool.emit("a", 3)
    pool.send("B", "b", prompt=10)
    assert pool.poll() == [Preempt("a")]
    assert pool.poll() == [], "one at a time"
    pool.emit("a", 2)
    assert pool.poll() == [], "a token is no answer"
    pool.cut("a")
    assert pool.dispatched() == ["b"]
    pool.end("b")
    assert pool.dispatched() == ["a"]
    pool.emit("a", 1)
    pool.end("a")
    assert pool.service("A") == 1_000 + 10 + 2 * 6


def test_a_token_that_crosses_a_preemption_does_not_answer_it(make_pool):
    pool = preempting(make_pool)
    pool.send("B", "b", prompt=10)
    assert pool.poll() == [Preempt("a")]
    pool.emit("a", 1)
    pool.cut("a")
    assert pool.dispatched() == ["b"], "it gave way, and goes on when it is its turn"


def test_what_a_backend_cuts_goes_on_before_a_tenant_that_is_behind(make_pool):
    pool = preempting(make_pool, rules=InterruptRules())
    pool.emit("a", 3)
    pool.send("B", "b", prompt=10)
    pool.cut("a", hold_s=1.0)
    pool.now = 1.0
    assert pool.dispatched() == ["a"]


def test_it_gives_way_only_after_some_tokens_and_only_some_times(make_pool):
    pool = preempting(make_pool)
    for number in range(3):
        pool.emit("a", 2)
        pool.send("B", f"b{number}", prompt=1)
        assert pool.poll() == [], "too few tokens since it was sent"
        pool.emit("a", 1)
        assert pool.poll() == ([Preempt("a")] if number < 2 else []), "twice at most"
        if number < 2:
            pool.cut("a")
            assert pool.dispatched() == [f"b{number}"]
            pool.end(f"b{number}")
            assert pool.dispatched() == ["a"]


def test_off_by_default_and_for_requests_that_cannot_be_continued(make_pool):
    for rules, is_resumable in ((InterruptRules(), True), (InterruptRules(times_max=2), False)):
        pool = preempting(make_pool, rules=rules)
        pool.end("a")
        pool.send("A", "a1", prompt=10, is_resumable=is_resumable)
        pool.dispatched()
        pool.emit("a1", 5)
        pool.send("B", "b", prompt=10)
        assert pool.poll() == []


def test_one_that_was_kept_is_not_asked_again(make_pool):
    pool = preempting(make_pool)
    pool.emit("a", 3)
    pool.send("B", "b", prompt=10)
    assert pool.poll() == [Preempt("a")]
    pool.scheduler.told(Kept(pool.now, "a"))
    assert pool.poll() == []


def test_an_envelope_gets_the_slot_of_a_preemptible_tier_in_the_middle_of_an_answer(make_pool):
    pool = make_pool(
        tenants=[Tenant("A", tier_id="batch"), Tenant("B", tier_id="chat")],
        tiers=[Tier("batch", preemptible=True), Tier("chat", weight=4.0)],
        loads=ONE_SLOT,
        interrupt_rules=InterruptRules(times_max=2, tokens_between_min=3),
    )
    pool.send("A", "a", prompt=10, is_resumable=True)
    pool.dispatched()
    pool.emit("a", 50)
    pool.send("B", "b", prompt=10, envelope=SloEnvelope(ttft_s=1.0))
    assert pool.poll() == [], "there is time yet"
    pool.now = 0.5
    assert pool.poll() == [Preempt("a")]
    pool.cut("a")
    assert pool.dispatched() == ["b"]


def beside_batch(make_pool, *, chat_service=0, is_resumable=True, times_max=2):
    """Two batch answers hold all slots; each is worth 10 + 2 * 50. Chat has had so much, and asks for one."""
    pool = make_pool(
        tenants=[Tenant("A", tier_id="batch"), Tenant("B", tier_id="chat")],
        tiers=[Tier("batch", preemptible=True), Tier("chat")],
        interrupt_rules=InterruptRules(times_max=times_max, tokens_between_min=3),
    )
    for request_id in ("a1", "a2"):
        pool.send("A", request_id, prompt=10, is_resumable=is_resumable)
        pool.dispatched()
        pool.emit(request_id, 50)
    pool.scheduler.spent("B", Usage(chat_service, 0, 0), pool.now)
    pool.send("B", "b", prompt=10, envelope=SloEnvelope(ttft_s=1.0))
    return pool


@pytest.mark.parametrize(("lead", "gives"), [(0, True), (200, True), (240, False)])
def test_a_tier_gives_way_to_one_that_is_ahead_by_no_more_than_its_running_answers(make_pool, lead, gives):
    """By more than one of them is worth, and less than both: as far as VTC lets two tiers differ."""
    pool = beside_batch(make_pool, chat_service=2 * 110 + lead)
    pool.now = 0.5
    assert pool.poll() == ([Preempt("a2")] if gives else [])


def test_for_one_that_is_late_in_any_case_only_those_give_way_that_lose_nothing(make_pool):
    for is_resumable, times_max in ((True, 2), (False, 2), (True, 0)):
        pool = beside_batch(make_pool, is_resumable=is_resumable, times_max=times_max)
        pool.now = 5.0
        assert pool.poll() == ([Preempt("a2")] if is_resumable and times_max else [])


@pytest.mark.local_scheduler
def test_what_it_received_at_one_backend_stays_in_the_accounts_of_that_one(make_pool):
    """Where each backend has a queue of its own, an answer that moves takes only what is to come along."""
    pool = make_pool(loads=TWO_BACKENDS, placement=PLACEMENT["round-robin"]())
    pool.send("A", "a", prompt=10, is_resumable=True)
    ((_, at),) = pool.placed().items()
    pool.emit("a", 5)
    received = pool.scheduler.checkpoint()[at].tiers["default"].tenants["A"]
    pool.measure(*[replace(load, available=load.backend_id != at) for load in TWO_BACKENDS])
    pool.cut("a")
    assert pool.placed() == {"a": "y" if at == "x" else "x"}
    assert pool.scheduler.checkpoint()[at].tiers["default"].tenants["A"] == received


@pytest.mark.local_scheduler
def test_it_is_not_shed(make_pool):
    tiers, tenants = (Tier("low", priority=-1), Tier("high")), (Tenant("A", tier_id="low"), Tenant("B", tier_id="high"))
    pool = make_pool(tenants=tenants, tiers=tiers, loads=ONE_SLOT, admission=[BoundedQueues(requests_max=1)])
    pool.send("A", "a", is_resumable=True)
    pool.dispatched()
    pool.cut("a", tokens=5, hold_s=1.0)
    pool.send("B", "b")
    assert pool.refused() == {"b": Reason.QUEUE_FULL}


DRAINING = BackendLoad("x", available=False, requests_running_max=2, drains=True)
DRAIN = InterruptRules(drain_s=30.0)


@pytest.mark.parametrize("is_gone", [False, True])
def test_what_a_backend_runs_that_drains_or_is_gone_moves_after_a_while(make_pool, is_gone):
    loads = [BackendLoad("x", requests_running_max=2)]
    pool = make_pool(loads=loads, interrupt_rules=DRAIN, fairness=LeastCounterFirst)
    pool.send("A", "before", prompt=1_000)
    pool.dispatched()
    pool.end("before")
    pool.send("A", "moves", is_resumable=True)
    pool.send("A", "stays")
    pool.dispatched()
    for request_id in ("moves", "stays"):
        pool.emit(request_id, 5)
    pool.measure(TWO_BACKENDS[1], *([] if is_gone else [DRAINING]))
    assert pool.poll() == []
    assert pool.scheduler.next_wakeup() == 30.0, "although nothing waits"
    pool.now = 30.0
    assert pool.poll() == [Preempt("moves")]
    assert pool.poll() == []
    assert pool.scheduler.next_wakeup() is None
    pool.send("B", "new")
    pool.cut("moves")
    sent = [action.request_id for action in pool.poll() if isinstance(action, Dispatch)]
    assert sent == ["moves", "new"], "it was chosen before, though its tenant is ahead"


def test_nothing_moves_where_there_is_no_other_backend_or_it_drains_no_more(make_pool):
    pool = make_pool(loads=[BackendLoad("x", requests_running_max=2)], interrupt_rules=DRAIN)
    pool.send("A", "a", is_resumable=True)
    pool.dispatched()
    pool.emit("a", 5)
    pool.measure(DRAINING)
    pool.now = 40.0
    assert pool.poll() == []
    pool.measure(*TWO_BACKENDS)
    assert pool.poll() == []
    pool.measure(TWO_BACKENDS[1], DRAINING)
    assert pool.poll() == [], "it drains anew"
    pool.now = 70.0
    assert pool.poll() == [Preempt("a")]


def test_without_a_time_to_drain_nothing_moves(make_pool):
    pool = make_pool(loads=[BackendLoad("x", requests_running_max=2)])
    pool.send("A", "a", is_resumable=True)
    pool.dispatched()
    pool.emit("a", 5)
    pool.measure(TWO_BACKENDS[1], DRAINING)
    pool.now = 1e6
    assert pool.poll() == []
    assert pool.scheduler.next_wakeup() is None


def test_interruptions_are_counted_by_cause_with_what_is_sent_again(make_pool):
    pool = preempting(make_pool, rules=InterruptRules(times_max=2, drain_s=0.0))
    pool.emit("a", 3)
    pool.cut("a", hold_s=1.0)
    pool.now = 1.0
    assert pool.dispatched() == ["a"]
    pool.emit("a", 2)
    pool.send("B", "b", prompt=10)
    assert pool.poll() == [Preempt("a")]
    pool.cut("a")
    assert pool.dispatched() == ["b"]
    pool.end("b")
    assert pool.dispatched() == ["a"]
    pool.emit("a", 1)
    pool.measure(BackendLoad("other", requests_running_max=1))
    assert pool.poll() == [Preempt("a")]
    pool.cut("a")
    assert pool.dispatched() == ["a"]
    snapshot = pool.scheduler.snapshot(pool.now)
    assert snapshot.interruptions == {Cause.FAILED: 1, Cause.PREEMPTED: 1, Cause.DRAINED: 1}
    assert snapshot.sent_again_tokens == (10 + 3) + (10 + 5) + (10 + 6)


def test_it_may_be_returned_for_some_backends_alone_and_its_backend_has_refused_nothing(make_pool):
    pool = make_pool(loads=[BackendLoad(name, requests_running_max=1) for name in "xyz"])
    pool.send("A", "a", prompt=10, is_resumable=True)
    left = {*"xyz"}
    while left:
        (backend_id,) = pool.placed().values()
        left.remove(backend_id)
        pool.scheduler.returned("a", pool.now, backend_ids=frozenset(left))
    assert pool.refused() == {"a": Reason.NO_BACKEND}
    pool.send("A", "b", prompt=10)
    assert pool.dispatched() == ["b"]
