"""Which request makes room is chosen as the plain rule says, and few are looked at for it."""

from math import inf
from random import Random

import pytest

from policies.admission import BoundedQueues
from policies.due_times import first_token_due_at
from policies.scheduler import Scheduler
from policies.slo.shedding import NOTED_MAX, PARTS, Shedding
from policies.types import BackendLoad, Dispatch, Outcome, PolicyChoice, Request, SloEnvelope, Tenant, Tier, Usage
from tests.examples import examples

TIERS = [Tier("gold", priority=2), Tier("default"), Tier("low", priority=-1), Tier("spot", priority=-2)]
TIERS.append(Tier("flood", priority=-2))


def due_at(request):
    due = first_token_due_at(request)
    return inf if due is None else due


def plain_victim(scheduler, newcomer, now):
    """The rule written out: every waiting request is looked at."""
    queues, tier, rank = scheduler._queues, scheduler._tenants.tier, scheduler._tenants.ranks
    priority = tier(newcomer.tenant_id).priority
    yielding = [each for each in queues.tenant_ids() if tier(each).is_sheddable and tier(each).priority < priority]
    if not yielding:
        return None
    late = [head for each in yielding if due_at(head := queues.head(each)) < now]
    if late:
        return min(late, key=lambda request: (tier(request.tenant_id).priority, due_at(request), request.id))
    ahead = max(yielding, key=lambda each: (-tier(each).priority, rank(each), each))
    return list(queues.of(ahead).requests.values())[-1]


def check(scheduler, monkeypatch):
    """Compare every victim with that of the plain rule. Returns those that there were."""
    shedding, victims = scheduler._shedding, []
    choose = type(shedding).victim

    def victim(self, newcomer, now):
        chosen = choose(self, newcomer, now)
        assert chosen == plain_victim(scheduler, newcomer, now)
        victims.append(chosen)
        return chosen

    monkeypatch.setattr(type(shedding), "victim", victim)
    return victims


def envelope(rng):
    return rng.choice([None, SloEnvelope(ttft_s=rng.uniform(0.1, 20.0)), SloEnvelope(tpot_s=0.1)])


@pytest.mark.drawn
@pytest.mark.interpreted
@pytest.mark.parametrize("seed", range(examples(36)))
@pytest.mark.parametrize("placement", [None, PolicyChoice("round-robin")])
def test_it_is_the_victim_of_the_rule_written_out(seed, placement, monkeypatch):
    rng, now = Random(seed), 0.0
    tenants = [Tenant(f"t{number}", tier_id=rng.choice(TIERS).id, weight=rng.choice([1, 3])) for number in range(12)]
    tenants[0] = Tenant("t0", tier_id="low", in_flight_max=1)
    rules = [BoundedQueues(requests_max=15)]
    scheduler = Scheduler(tenants=tenants, tiers=TIERS, admission=rules)
    scheduler.load_changed([BackendLoad("x", requests_running_max=3), BackendLoad("y", requests_running_max=2)], now)
    if placement is not None:
        scheduler.policy_changed(placement=placement, now=now)
    victims, running, waiting = check(scheduler, monkeypatch), [], []
    for number in range(600):
        now += rng.random()
        match rng.randrange(9):
            case 0 | 1 | 2 | 3:
                sender = rng.choice(tenants).id
                request = Request(f"r{number}", sender, "m", now, rng.randrange(1, 400), 300, envelope=envelope(rng))
                scheduler.submit(request, now)
                waiting.append(request.id)
            case 4 if running:
                scheduler.tokens(rng.choice(running), Usage(100, 0, rng.randrange(600)), now)
            case 5 if running:
                scheduler.finished(running.pop(rng.randrange(len(running))), Outcome.COMPLETED, now)
            case 6 if running:
                scheduler.returned(running.pop(rng.randrange(len(running))), now)
            case 7 if waiting:
                scheduler.cancel(rng.choice(waiting), now)
            case 8 if rng.random() < 0.2:
                place = rng.randrange(1, len(tenants))
                tenants[place] = Tenant(tenants[place].id, tier_id=rng.choice(TIERS).id)
                tiers = [Tier("low", priority=rng.choice([-3, -1, 1]))] if rng.random() < 0.5 else []
                scheduler.tenants_changed(changed=[tenants[place]], tiers=tiers, now=now)
        if rng.random() < 0.8:
            running += [each.request_id for each in scheduler.poll(now) if isinstance(each, Dispatch)]
        if rng.random() < 0.005:
            scheduler.policy_changed(fairness=PolicyChoice(rng.choice(["drr", "lcf", "vtc", "dlpm"])), now=now)
    assert sum(each is not None for each in victims) > 20


@pytest.mark.interpreted
def test_an_arrival_looks_at_few_of_many_tenants_that_wait(monkeypatch):
    tenants = [Tenant(f"t{number:05}", tier_id="spot") for number in range(5_000)]
    rules = [BoundedQueues(requests_max=5_000)]
    scheduler = Scheduler(tenants=[*tenants, Tenant("vip", tier_id="gold")], tiers=TIERS, admission=rules)
    scheduler.load_changed([BackendLoad("x", requests_running_max=1)], 0.0)
    for number, tenant in enumerate(tenants):
        scheduler.submit(Request(f"r{number}", tenant.id, "m", 0.0, 100, 100), 0.0)
        scheduler.poll(0.0)
    asked = []
    rank = type(scheduler._tenants).ranks
    monkeypatch.setattr(type(scheduler._tenants), "ranks", lambda self, each: asked.append(each) or rank(self, each))
    scheduler._shedding.ranks = scheduler._tenants.ranks
    for number in range(100):
        scheduler.submit(Request(f"vip-{number}", "vip", "m", 1.0, 100, 100), 1.0)
    assert sum(action.reason == "shed" for action in scheduler.poll(1.0) if hasattr(action, "reason")) >= 99
    assert len(asked) < 100 * 20


@pytest.mark.interpreted
def test_no_poll_pays_for_all_tenants_that_a_burst_has_noted(monkeypatch):
    tenants = [Tenant(f"t{number:04}", tier_id="spot") for number in range(1_000)]
    scheduler = Scheduler(tenants=tenants, tiers=TIERS, admission=())
    scheduler.load_changed([BackendLoad("x", requests_running_max=1)], 0.0)
    looked_at, noted = [], [len(tenants)]
    look_at = Shedding._look_at

    def counted(self, tenant_ids):
        tenant_ids = list(tenant_ids)
        looked_at.append(len(tenant_ids))
        look_at(self, tenant_ids)

    monkeypatch.setattr(Shedding, "_look_at", counted)
    for number, tenant in enumerate(tenants):
        scheduler.submit(Request(f"r{number}", tenant.id, "m", 0.0, 100, 100), 0.0)
    for _ in range(30):
        scheduler.poll(0.0)
        noted.append(len(scheduler._shedding.noted))
    assert max(looked_at) <= len(tenants) / PARTS
    assert noted[-1] < 2 * NOTED_MAX, "they do not pile up"
