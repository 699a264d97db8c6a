"""Groups share their tier by weight, however many tenants each has, and their limits hold for all of their tenants."""

from random import Random

import pytest
from pools import POOLS, Pool

from policies.accounts.checkpoint import without_lifted_tenants
from policies.facts import WindowsRestored
from policies.fairness import FAIRNESS, VirtualTokenCounter
from policies.fairness.tree import FairTree
from policies.scheduler import Scheduler
from policies.types import (
    BackendLoad,
    Group,
    LimitKind,
    Outcome,
    PolicyChoice,
    Reason,
    Reject,
    Request,
    Tenant,
    Tier,
    Usage,
    Wait,
)
from tests.examples import examples
from tests.simulation.bound_checkers import ServiceBound
from tests.simulation.recording import Recorder
from tests.simulation.run_accounts import RunAccounts, ViolationError

PROMPT = 10
ROUNDS = 120
ONE_SEAT = BackendLoad("gpu", requests_running_max=1)


def members(group_id, count, **settings):
    return [Tenant(f"{group_id}-{number:02}", group_id=group_id, **settings) for number in range(count)]


class Backlog:
    """A pool of one seat in which every tenant always has something waiting; each request costs PROMPT."""

    def __init__(self, tenants, groups, *, make_pool=Pool, **options):
        self.tenants, self.made = {tenant.id: tenant for tenant in tenants}, 0
        self.pool = make_pool(tenants=tenants, groups=groups, loads=[ONE_SEAT], **options)
        for tenant in tenants:
            self.send(tenant.id)
            self.send(tenant.id)

    def join(self, tenant):
        """Add a tenant, with its backlog."""
        self.tenants[tenant.id] = tenant
        self.pool.change(tenant)
        self.send(tenant.id)
        self.send(tenant.id)

    def send(self, tenant_id):
        self.made += 1
        self.pool.send(tenant_id, f"{tenant_id}/{self.made}", prompt=PROMPT)

    def served(self, rounds=ROUNDS):
        """The tenants of the next so many requests, in order."""
        served = []
        for _ in range(rounds):
            self.pool.now += 0.01
            (request_id,) = self.pool.dispatched()
            tenant_id = request_id.split("/")[0]
            served.append(tenant_id)
            self.send(tenant_id)
            self.pool.report(request_id, PROMPT, 0)
            self.pool.end(request_id)
        return served

    def shares(self, rounds=ROUNDS):
        """How many of the requests each group got; a tenant without a group counts by itself."""
        counts = {}
        for tenant_id in self.served(rounds):
            name = self.tenants[tenant_id].group_id or tenant_id
            counts[name] = counts.get(name, 0) + 1
        return counts


@pytest.mark.parametrize("policy", sorted(FAIRNESS))
@pytest.mark.parametrize("crowd", [1, 2, 30])
def test_a_groups_share_does_not_depend_on_how_many_tenants_it_has(crowd, policy):
    backlog = Backlog(
        [*members("few", 2), *members("many", crowd), Tenant("alone")],
        [Group("few", weight=2.0), Group("many")],
        fairness=FAIRNESS[policy],
    )
    assert backlog.shares() == pytest.approx({"few": 60, "many": 30, "alone": 30}, abs=2)


@pytest.mark.parametrize("make_pool", POOLS.values(), ids=POOLS)
def test_a_shared_order_knows_groups_their_limits_and_moves(make_pool):
    """Groups are told to the process that leads with tiers, and tenants are looked up there."""
    groups = [Group("few", weight=2.0), Group("many")]
    backlog = Backlog([*members("few", 2), *members("many", 10)], groups, make_pool=make_pool)
    assert backlog.shares(60) == pytest.approx({"few": 40, "many": 20}, abs=2)
    scheduler = backlog.pool.scheduler
    scheduler.tenants_changed(groups=[Group("few", weight=2.0, in_flight_max=0), Group("late")], now=backlog.pool.now)
    moved = Tenant("many-00", group_id="late")
    backlog.tenants[moved.id] = moved
    backlog.pool.change(moved)
    assert backlog.shares(40) == pytest.approx({"late": 20, "many": 20}, abs=2)
    kept = getattr(scheduler, "led", scheduler).checkpoint()[""].tiers["default"]
    assert set(kept.groups) == {"few", "many", "late"}


def test_a_weight_that_changes_while_all_wait_holds_from_then_on():
    groups = [Group("few", weight=2.0), Group("many")]
    backlog = Backlog([*members("few", 1), *members("many", 6)], groups)
    assert backlog.shares(60) == {"few": pytest.approx(40, abs=2), "many": pytest.approx(20, abs=2)}
    backlog.pool.scheduler.tenants_changed(groups=[Group("few", weight=0.5)], now=backlog.pool.now)
    assert backlog.shares(60) == {"few": pytest.approx(20, abs=2), "many": pytest.approx(40, abs=2)}


def test_tenants_of_one_group_share_it_by_their_weights():
    backlog = Backlog([Tenant("a", group_id="g"), Tenant("b", weight=3.0, group_id="g"), Tenant("c")], [Group("g")])
    served = backlog.served()
    assert [served.count(each) for each in "abc"] == [pytest.approx(each, abs=2) for each in (15, 45, 60)]


def test_tiers_come_before_groups():
    tenants = [*members("g", 5, tier_id="gold"), Tenant("x", tier_id="gold"), Tenant("y")]
    tiers = [Tier("gold", weight=2.0), Tier("default")]
    shares = Backlog(tenants, [Group("g", tier_id="gold")], tiers=tiers).shares()
    assert shares == pytest.approx({"g": 40, "x": 40, "y": 40}, abs=2)


@pytest.mark.parametrize("policy", sorted(FAIRNESS))
def test_groups_that_no_tenant_belongs_to_change_no_decision(policy):
    tenants = [Tenant("a"), Tenant("b", weight=2.5), Tenant("c", weight=0.3)]
    plain = Backlog(tenants, [], fairness=FAIRNESS[policy])
    grouped = Backlog(tenants, [Group("g", weight=9.0), Group("h")], fairness=FAIRNESS[policy])
    assert plain.served() == grouped.served()
    counters = [[each.pool.counter(tenant_id) for tenant_id in "abc"] for each in (plain, grouped)]
    assert counters[0] == counters[1], "to the digit"


def test_under_vtc_a_tenant_without_a_group_is_served_as_if_each_group_were_one_tenant():
    grouped = Backlog([*members("b", 1), Tenant("a"), Tenant("c")], [Group("b", weight=2.0)])
    plain = Backlog([Tenant("b-00", weight=2.0), Tenant("a"), Tenant("c")], [])
    assert sorted(grouped.served()) == sorted(plain.served())


def test_a_group_that_was_idle_has_saved_no_credit():
    backlog = Backlog([*members("idle", 1)[:0], Tenant("a"), Tenant("b")], [Group("late")])
    backlog.served()
    backlog.join(Tenant("late-00", group_id="late"))
    assert backlog.shares(30) == pytest.approx({"a": 10, "b": 10, "late": 10}, abs=1)


# -- limits -------------------------------------------------------------------------------------------------------


def test_a_group_never_has_more_in_flight_than_it_may_and_its_tenants_say_why_they_wait():
    pool = Pool(
        tenants=[*members("g", 3), Tenant("a")],
        groups=[Group("g", in_flight_max=2)],
        loads=[BackendLoad("gpu", requests_running_max=8)],
    )
    for tenant_id in ("g-00", "g-01", "g-02", "a"):
        pool.send(tenant_id, tenant_id)
    assert sorted(pool.dispatched()) == ["a", "g-00", "g-01"]
    assert pool.scheduler.waits_for("g-02", pool.now) is Wait.TENANT_LIMIT
    assert pool.tenant("g-02").waits is Wait.TENANT_LIMIT
    pool.end("g-01")
    assert pool.dispatched() == ["g-02"]


def test_a_limit_that_is_set_live_holds_from_then_on_and_one_that_is_lifted_does_not():
    pool = Pool(tenants=members("g", 3), groups=[Group("g")], loads=[BackendLoad("gpu", requests_running_max=8)])
    pool.send("g-00", "r0")
    assert pool.dispatched() == ["r0"]
    pool.scheduler.tenants_changed(groups=[Group("g", in_flight_max=1)], now=pool.now)
    pool.send("g-01", "r1")
    assert pool.dispatched() == []
    pool.scheduler.tenants_changed(groups=[Group("g")], now=pool.now)
    assert pool.dispatched() == ["r1"]


def test_a_group_at_its_limit_comes_back_without_credit():
    tenants = [*members("g", 2), Tenant("a")]
    backlog = Backlog(tenants, [Group("g")])
    backlog.pool.scheduler.tenants_changed(groups=[Group("g", in_flight_max=0)], now=backlog.pool.now)
    assert backlog.shares(40) == {"a": 40}
    backlog.pool.scheduler.tenants_changed(groups=[Group("g")], now=backlog.pool.now)
    assert backlog.shares(40) == pytest.approx({"a": 20, "g": 20}, abs=2)


def test_requests_per_minute_of_a_group_hold_for_all_of_its_tenants_together():
    pool = Pool(tenants=[*members("g", 3), Tenant("a")], groups=[Group("g", requests_per_minute_max=2)])
    for number, tenant_id in enumerate(["g-00", "g-01", "g-02", "a"]):
        pool.send(tenant_id, f"r{number}")
    (rejection,) = [action for action in pool.poll() if isinstance(action, Reject)]
    assert (rejection.request_id, rejection.reason) == ("r2", Reason.RATE_LIMITED)
    assert (rejection.limit, rejection.retry_after_s) == (LimitKind.REQUESTS, 60.0)


def test_tokens_per_minute_of_a_group_are_settled_by_what_was_used_and_survive_a_handover():
    groups = [Group("g", tokens_per_minute_max=100)]
    pool = Pool(tenants=members("g", 2), groups=groups)
    pool.send("g-00", "r0", prompt=60)
    assert pool.dispatched() == ["r0"]
    pool.report("r0", 60, 0)
    pool.end("r0")
    pool.send("g-01", "r1", prompt=60)
    assert pool.refused() == {"r1": "rate_limited"}
    after = Pool(tenants=members("g", 2), groups=groups)
    after.scheduler.told(WindowsRestored(after.now, pool.scheduler.parts.admission_rules.windows(pool.now)))
    after.send("g-01", "r2", prompt=60)
    assert after.refused() == {"r2": "rate_limited"}


def test_a_capped_share_lets_no_tenant_pass_another_of_its_group_that_is_too_far_behind():
    """Group A is next, but over its share. Y is within its own; Z of its group is over its share, and far behind Y."""
    tenants = [Tenant("a", group_id="A"), Tenant("y", group_id="B"), Tenant("z", group_id="B")]
    pool = Pool(tenants=tenants, groups=[Group("A"), Group("B")], loads=[ONE_SEAT], share_ratio_max=0.2)
    pool.send("a", "a0", prompt=9_990)
    pool.send("y", "y0", prompt=10_000)
    for number in range(3):
        pool.send("z", f"z{number}")
    for number in range(5):
        pool.send("a", f"a-{number}")
    for request_id in ("a0", "y0"):
        assert pool.dispatched()[0] == request_id
        pool.report(request_id, pool.prompts[request_id], 0)
        pool.scheduler.finished(request_id, Outcome.COMPLETED, pool.now)
    pool.measure(BackendLoad("gpu", requests_running_max=10))
    assert len(pool.dispatched()) == 8
    for tenant_id in "azy":  # Z waits before Y, so that it is not lifted to it
        pool.send(tenant_id, f"{tenant_id}9")
    assert pool.dispatched()[0] == "a9"


# -- changes ------------------------------------------------------------------------------------------------------


@pytest.mark.drawn
@pytest.mark.parametrize("policy", sorted(FAIRNESS))
@pytest.mark.parametrize("seed", range(examples(6)))
def test_tenants_that_move_between_groups_while_they_wait_and_run_lose_nothing(policy, seed):
    rng, now, made = Random(seed), 0.0, 0
    places = [("default", None), ("default", "g"), ("default", "h"), ("gold", None), ("gold", "k")]
    tiers = [Tier("default"), Tier("gold", weight=2.0)]
    groups = [Group("g", in_flight_max=2), Group("h", weight=3.0), Group("k", tier_id="gold")]
    tenants = [Tenant(name) for name in "abcd"]
    accounts = RunAccounts(tenants=tenants, tiers=tiers, groups=groups)
    scheduler = Scheduler(tenants=tenants, tiers=tiers, groups=groups, fairness=FAIRNESS[policy])
    recorder = Recorder(scheduler, accounts)
    recorder.load_changed([BackendLoad("gpu", requests_running_max=3)], now)
    for _ in range(300):
        now += 0.01
        match rng.randrange(4):
            case 0:
                tier_id, group_id = rng.choice(places)
                moved = Tenant(rng.choice("abcd"), weight=rng.choice([0.5, 2.0]), tier_id=tier_id, group_id=group_id)
                recorder.tenants_changed(changed=[moved], now=now)
            case 1 | 2:
                made += 1
                request = Request(f"r{made}", rng.choice("abcd"), "m", now, rng.randint(1, 50), 20)
                recorder.submit(request, now)
            case 3:
                running = [each for each in accounts.requests.values() if each.backend_id is not None]
                for each in running[:1]:
                    recorder.tokens(each.request.id, Usage(each.request.prompt_tokens, 0, rng.randint(0, 20)), now)
                    recorder.finished(each.request.id, Outcome.COMPLETED, now)
        recorder.poll(now)
        accounts.compare(scheduler.snapshot(now))
    while accounts.requests:
        now += 1.0
        for request_id in [each.request.id for each in accounts.requests.values() if each.backend_id is not None]:
            recorder.finished(request_id, Outcome.COMPLETED, now)
        recorder.poll(now)
    accounts.conclude(scheduler.snapshot(now))
    (fair_queue,) = scheduler._arrangement.fair_queues.all()
    for tenant in (each.tenant for each in accounts.tenants.values()):
        order = fair_queue.order
        assert order.root.order.service_record(tenant.tier_id).outstanding == pytest.approx(0.0, abs=1e-6)
        for node in order.path(tenant):
            outstanding = node.outer.order.service_record(node.id).outstanding
            assert outstanding == pytest.approx(0.0, abs=1e-6), "what ran is charged where it ended"


def test_what_a_tenant_has_in_flight_moves_with_it_to_another_group():
    groups = [Group("g", in_flight_max=1), Group("h", in_flight_max=1)]
    pool = Pool(tenants=[*members("g", 2), *members("h", 1)], groups=groups)
    pool.send("g-00", "r0")
    assert pool.dispatched() == ["r0"]
    pool.change(Tenant("g-00", group_id="h"))
    pool.send("g-01", "r1")
    pool.send("h-00", "r2")
    assert pool.dispatched() == ["r1"], "g has room now, and h has none"
    pool.end("r0")
    assert pool.dispatched() == ["r2"]


def test_when_the_last_tenant_leaves_its_group_the_tier_is_one_order_again():
    backlog = Backlog([*members("g", 1), Tenant("a"), Tenant("b")], [Group("g")], fairness=FAIRNESS["fifo"])
    order = backlog.pool.scheduler._arrangement.fair_queues.all()[0].order
    backlog.served(7)
    assert order.is_grouped("default")
    backlog.pool.change(Tenant("g-00"))
    assert not order.is_grouped("default")
    served = backlog.served(30)
    assert {each: served.count(each) for each in ("g-00", "a", "b")} == dict.fromkeys(("g-00", "a", "b"), 10)


def test_a_removed_group_is_forgotten_with_its_last_tenant():
    pool = Pool(tenants=members("g", 1), groups=[Group("g")])
    pool.scheduler.tenants_changed(groups_removed=["g"], now=pool.now)
    assert "g" in pool.scheduler._tenants.groups
    pool.change(removed=["g-00"])
    assert "g" not in pool.scheduler._tenants.groups


# -- counters that outlive a process, or a policy --------------------------------------------------------------------


def uneven(**options):
    """Group `ahead` has had the pool for itself for a while, then `behind` came and has caught up by a part only."""
    tenants = [*members("ahead", 2), *members("behind", 2), Tenant("alone")]
    backlog = Backlog(tenants, [Group("ahead", weight=2.0), Group("behind")], **options)
    backlog.served(41)
    return backlog


def test_a_checkpoint_keeps_the_counters_of_groups_and_of_their_tenants():
    before = uneven()
    checkpoint = before.pool.scheduler.checkpoint()
    after = Pool(tenants=list(before.tenants.values()), groups=[Group("ahead", weight=2.0), Group("behind")])
    after.scheduler.restored(without_lifted_tenants(checkpoint), 0.0)
    tier, again = checkpoint[""].tiers["default"], after.scheduler.checkpoint()[""].tiers["default"]
    assert set(tier.groups) == {"ahead", "behind"}
    assert set(tier.tenants) == {"alone"}
    for group_id, group in tier.groups.items():
        kept = again.groups.get(group_id)
        if kept is not None:
            assert kept.counter == group.counter
            assert kept.level == group.level
    assert again.level == tier.level


def test_a_restored_tenant_that_has_changed_its_group_meanwhile_is_served_there():
    before = uneven()
    now_in = [Tenant(tenant.id, group_id="behind" if tenant.group_id else None) for tenant in before.tenants.values()]
    after = Backlog(now_in[:0], [Group("ahead"), Group("behind")])
    after.pool.scheduler.restored(before.pool.scheduler.checkpoint(), 0.0)
    for tenant in now_in:
        after.join(tenant)
    assert after.shares(40) == pytest.approx({"behind": 20, "alone": 20}, abs=3)


def test_a_group_that_is_told_after_its_counters_were_restored_has_its_weight():
    before = uneven()
    after = Backlog([], [])
    after.pool.scheduler.restored(before.pool.scheduler.checkpoint(), 0.0)
    after.pool.scheduler.tenants_changed(groups=[Group("ahead", weight=2.0), Group("behind")], now=0.0)
    for tenant in before.tenants.values():
        after.join(tenant)
    assert after.shares(80) == pytest.approx({"ahead": 40, "behind": 20, "alone": 20}, abs=3)


@pytest.mark.parametrize("placement", [None, PolicyChoice("round-robin")])
@pytest.mark.parametrize("fairness", [PolicyChoice("slack"), PolicyChoice("vtc"), PolicyChoice("drr")])
def test_a_switch_of_policies_keeps_the_shares_of_groups(fairness, placement):
    backlog = uneven()
    backlog.pool.scheduler.policy_changed(fairness=fairness, placement=placement, now=backlog.pool.now)
    shares = backlog.shares(80)
    assert shares == pytest.approx({"ahead": 40, "behind": 20, "alone": 20}, abs=4)


# -- the checker notices -------------------------------------------------------------------------------------------


def judged(tenants, groups, rounds=200):
    """A run of one seat under backlog, judged by the bound of VTC."""
    accounts = RunAccounts(tenants=tenants, groups=groups)
    bound = VirtualTokenCounter.bound
    judge = ServiceBound(accounts, bound, is_capped=False)

    def listen(entry):
        accounts(entry)
        judge(entry)

    scheduler = Scheduler(tenants=tenants, groups=groups, share_ratio_max=1.0)
    recorder, now = Recorder(scheduler, listen), 0.0
    recorder.load_changed([ONE_SEAT], now)
    made = 0

    def send(tenant_id):
        nonlocal made
        made += 1
        recorder.submit(Request(f"{tenant_id}/{made}", tenant_id, "m", now, PROMPT, 2), now)

    for tenant in tenants:
        send(tenant.id)
        send(tenant.id)
    for _ in range(rounds):
        now += 0.01
        for action in recorder.poll(now):
            send(action.request_id.split("/")[0])
            recorder.tokens(action.request_id, Usage(PROMPT, 0, 1), now)
            recorder.finished(action.request_id, Outcome.COMPLETED, now)
    return judge


CROWD = [*members("few", 1), *members("many", 20), Tenant("alone")]
BOTH = [Group("few"), Group("many")]


def test_the_bound_among_groups_is_kept():
    assert 0.0 < judged(CROWD, BOTH).used_ratio_max <= 1.0


@pytest.mark.interpreted
def test_an_order_without_counters_of_groups_breaks_the_bound(monkeypatch):
    def of_the_tenant_alone(tree, tenant, charge):
        tree.leaf(tenant).order.charged(tenant.id, *(amount / tenant.weight for amount in charge))

    monkeypatch.setattr(FairTree, "charged", of_the_tenant_alone)
    with pytest.raises(ViolationError, match="the groups"):
        judged(CROWD, BOTH)
