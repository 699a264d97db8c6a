"""What makes room in a full queue: the newest of the tenant that holds most of it beyond its share."""

from random import Random

import pytest

from policies.admission import BoundedQueues
from policies.scheduler import Scheduler
from policies.types import BackendLoad, Dispatch, Group, Outcome, Reason, Reject, Request, Tenant, Tier
from tests.examples import examples

QUEUED_MAX = 12
FULL = [BackendLoad("gpu", requests_running_max=1)]
GROUP = Group("g", in_flight_max=2)
FLOODS = [Tenant(f"flood-{number}", group_id="g") for number in range(6)]


def full_pool(make_pool, *tenants, **options):
    """A pool of these tenants whose queue the group has filled."""
    pool = make_pool(
        tenants=[*FLOODS, *tenants], groups=[GROUP], loads=FULL,
        admission=[BoundedQueues(requests_max=QUEUED_MAX)], **options,
    )  # fmt: skip
    pool.send("flood-0", "running")
    pool.poll()
    for number in range(QUEUED_MAX):
        pool.send(FLOODS[number % len(FLOODS)].id, f"flood-{number}", body_bytes=10)
    assert pool.refused() == {}
    return pool


@pytest.mark.every_scheduler
def test_a_group_that_fills_the_queue_makes_room_for_a_tenant_outside_until_that_has_its_share(make_pool):
    pool = full_pool(make_pool, Tenant("honest"))
    for number in range(10):
        pool.send("honest", f"honest-{number}")
    refused = pool.refused()
    # Half of the queue is the tenant's; of the group the newest make room.
    assert sorted(refused) == sorted([*(f"flood-{n}" for n in range(6, 12)), *(f"honest-{n}" for n in range(6, 10))])
    assert set(refused.values()) == {Reason.QUEUE_FULL}


@pytest.mark.every_scheduler
def test_what_is_pushed_out_is_told_when_to_come_again(make_pool):
    pool = full_pool(make_pool, Tenant("honest"))
    pool.send("honest", "honest-0")
    (reject,) = [action for action in pool.poll() if isinstance(action, Reject)]
    assert reject.request_id.startswith("flood-")
    assert reject.retry_after_s >= 1


@pytest.mark.every_scheduler
def test_a_group_of_three_times_the_weight_keeps_three_quarters_of_the_queue(make_pool):
    pool = make_pool(
        tenants=[*FLOODS, Tenant("honest")], groups=[Group("g", weight=3.0)], loads=FULL,
        admission=[BoundedQueues(requests_max=QUEUED_MAX)],
    )  # fmt: skip
    pool.send("flood-0", "running")
    pool.poll()
    for number in range(QUEUED_MAX):
        pool.send(FLOODS[number % len(FLOODS)].id, f"flood-{number}")
        pool.send("honest", f"honest-{number}")
    pool.poll()
    assert pool.tenant("honest").queued_requests == QUEUED_MAX / 4


@pytest.mark.every_scheduler
def test_within_a_group_the_tenant_with_the_most_makes_room_for_another(make_pool):
    pool = make_pool(tenants=FLOODS, groups=[GROUP], loads=FULL, admission=[BoundedQueues(requests_max=QUEUED_MAX)])
    pool.send("flood-0", "running")
    pool.poll()
    for number in range(QUEUED_MAX):
        pool.send("flood-0", f"a{number}")
    pool.send("flood-1", "b")
    assert pool.refused() == {f"a{QUEUED_MAX - 1}": Reason.QUEUE_FULL}


@pytest.mark.every_scheduler
def test_in_a_queue_that_is_full_of_bytes_the_tenant_with_most_of_them_makes_room(make_pool):
    pool = make_pool(loads=FULL, admission=[BoundedQueues(bytes_max=100)])
    pool.send("B", "running")
    pool.poll()
    for number in range(5):
        pool.send("B", f"small-{number}", body_bytes=4)
    pool.send("A", "large", body_bytes=80)
    pool.send("C", "c", body_bytes=10)
    assert pool.refused() == {"large": Reason.QUEUE_FULL}


@pytest.mark.every_scheduler
def test_no_request_makes_room_for_one_of_a_less_important_tier(make_pool):
    tiers = [Tier("default"), Tier("batch", priority=-1)]
    pool = full_pool(make_pool, Tenant("later", tier_id="batch"), tiers=tiers)
    pool.send("later", "batch")
    assert pool.refused() == {"batch": Reason.QUEUE_FULL}


def plain_victim(scheduler, newcomer, of_bytes):
    """The rule written out: what each tenant holds is counted anew."""
    queues, states, tiers = scheduler._queues, scheduler._tenants.states, scheduler._tiers

    def path(tenant_id):
        state = states[tenant_id]
        group = [("group", state.group.group.id, state.group.group.weight)] if state.group else []
        tier = tiers[state.tenant.tier_id]
        return [("tier", tier.id, tier.weight), *group, ("tenant", tenant_id, state.tenant.weight)]

    def amount(request):
        return request.body_bytes if of_bytes else 1

    held = {tenant_id: sum(map(amount, queues.of(tenant_id).all())) for tenant_id in queues.tenant_ids()}
    tier = tiers[states[newcomer.tenant_id].tenant.tier_id]
    within, own = {each: n for each, n in held.items() if n}, path(newcomer.tenant_id)
    is_own = True
    for depth in range(3):
        loads = {}
        for tenant_id, n in within.items():
            holder = path(tenant_id)[depth]
            if depth or tiers[holder[1]].priority <= tier.priority:
                loads[holder] = loads.get(holder, 0) + n / holder[2]
        if not loads:
            return None
        most = min(loads, key=lambda holder: (-loads[holder], holder[1]))
        if is_own and most != own[depth]:
            is_own = loads[most] <= loads.get(own[depth], 0) + amount(newcomer) / own[depth][2]
        chosen = own[depth] if is_own else most
        within = {each: n for each, n in within.items() if path(each)[depth] == chosen}
        if chosen[0] == "tenant":
            return None if is_own else queues.of(chosen[1]).newest()
    raise AssertionError


@pytest.mark.drawn
@pytest.mark.interpreted
@pytest.mark.parametrize("seed", range(examples(12)))
def test_it_is_the_victim_of_the_rule_written_out(seed, monkeypatch):
    rng, now = Random(seed), 0.0
    tiers = [Tier("gold", weight=2.0, priority=1), Tier("default"), Tier("plain")]
    groups = [Group("g", weight=4.0), Group("h", tier_id="gold")]

    def tenant(number):
        group = rng.choice([None, None, *groups])
        tier_id = rng.choice(tiers).id if group is None else group.tier_id
        return Tenant(f"t{number}", tier_id=tier_id, weight=rng.choice([1, 2, 4]), group_id=group and group.id)

    tenants = [tenant(number) for number in range(9)]
    rules = [BoundedQueues(requests_max=16, bytes_max=256)]
    scheduler = Scheduler(tenants=tenants, tiers=tiers, groups=groups, admission=rules)
    scheduler.load_changed([BackendLoad("x", requests_running_max=2)], now)
    push_out, victims = scheduler._admission.push_out, []
    choose = type(push_out).victim

    def victim(self, newcomer, *, of_bytes):
        chosen = choose(self, newcomer, of_bytes=of_bytes)
        assert chosen == plain_victim(scheduler, newcomer, of_bytes)
        victims.append(chosen)
        return chosen

    monkeypatch.setattr(type(push_out), "victim", victim)
    running, waiting = [], []
    for number in range(800):
        now += rng.random()
        match rng.randrange(8):
            case 0 | 1 | 2 | 3:
                sender = rng.choice(tenants[: rng.choice([2, 9])]).id
                size = rng.choice([0, 8, 16, 64])
                scheduler.submit(Request(f"r{number}", sender, "m", now, 10, 30, body_bytes=size), now)
                waiting.append(f"r{number}")
            case 4 if running:
                scheduler.finished(running.pop(rng.randrange(len(running))), Outcome.COMPLETED, now)
            case 5 if running:
                scheduler.returned(running.pop(rng.randrange(len(running))), now)
            case 6 if waiting:
                scheduler.cancel(rng.choice(waiting), now)
            case 7 if rng.random() < 0.2:
                place = rng.randrange(len(tenants))
                tenants[place] = tenant(place)
                changed = [Group("g", weight=rng.choice([1.0, 4.0]))] if rng.random() < 0.5 else []
                scheduler.tenants_changed(changed=[tenants[place]], groups=changed, now=now)
        if rng.random() < 0.6:
            running += [each.request_id for each in scheduler.poll(now) if isinstance(each, Dispatch)]
    assert sum(each is not None for each in victims) > 20
    assert len(scheduler._queues) <= 16
    assert scheduler._queues.body_bytes <= 256


@pytest.mark.interpreted
def test_a_full_queue_of_many_tenants_is_not_searched_for_every_arrival(monkeypatch):
    tenants = [Tenant(f"t{number:05}") for number in range(2_000)]
    rules = [BoundedQueues(requests_max=4_000)]
    scheduler = Scheduler(tenants=[*tenants, Tenant("late", weight=100.0)], admission=rules)
    scheduler.load_changed([], 0.0)
    for number in range(4_000):
        scheduler.submit(Request(f"r{number}", tenants[number // 2].id, "m", 0.0, 100, 100), 0.0)
    push_out = scheduler._admission.push_out
    looked, path = [], type(push_out)._path
    monkeypatch.setattr(type(push_out), "_path", lambda self, each: looked.append(each) or path(self, each))
    for number in range(100):
        scheduler.submit(Request(f"late-{number}", "late", "m", 1.0, 100, 100), 1.0)
    assert sum(isinstance(action, Reject) for action in scheduler.poll(1.0)) == 100
    assert len(looked) < 2_000 + 100 * 5
