"""A tenant that is moved to another tier takes along by how much it is ahead or behind, and nothing else."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pools import Pool

from policies.accounts.checkpoint import SHARED_QUEUE, QueueCheckpoint, TierCheckpoint, without_lifted_tenants
from policies.fairness import FAIRNESS
from policies.prediction import NoPrediction, TenantQuantile
from policies.types import BackendLoad, Tenant, Tier, Usage
from tests.examples import examples
from tests.fairness_orders import UNPROMISED, ahead_service

ONE_SEAT, ROOMY = BackendLoad("gpu", requests_running_max=1), BackendLoad("gpu", requests_running_max=8)
PROMPT = 50  # service of a request
UNPROMISED_AHEAD = 1_000  # of the policies without a bound, which starve no tenant all the same
ROUNDS = 80

every_order = pytest.mark.parametrize("name", sorted(FAIRNESS))
ages = st.sampled_from([0, 400, 65_000, 7_200_000])
weights = st.sampled_from([0.5, 1.0, 4.0])


class Move:
    """M is of tier `before`, beside N; R of tier `after`. All have received what others of their tier have, its age."""

    def __init__(self, name, *, ages=(0, 0), tiers=(1.0, 1.0), weight=1.0, prediction=None):
        self.name, self.weight = name, weight
        self.tiers = [Tier("before", weight=tiers[0]), Tier("after", weight=tiers[1])]
        self.tenants = [self.mover("before"), Tenant("N", tier_id="before"), Tenant("R", tier_id="after")]
        self.made, self.prediction = 0, prediction or NoPrediction()
        self.pool = self.make(self.tenants)
        tiers = {"before": ("M", "N"), "after": ("R",)}
        received = {
            tier_id: TierCheckpoint(0.0, age, dict.fromkeys(tenant_ids, age))
            for age, (tier_id, tenant_ids) in zip(ages, tiers.items(), strict=True)
        }
        self.pool.scheduler.restored({SHARED_QUEUE: QueueCheckpoint(0.0, received)}, 0.0, 0.0)

    def make(self, tenants):
        options = {"fairness": FAIRNESS[self.name], "prediction": self.prediction}
        return Pool(tenants=tenants, tiers=self.tiers, loads=[ONE_SEAT], **options)

    def mover(self, tier_id, weight=None):
        return Tenant("M", tier_id=tier_id, weight=weight or self.weight)

    def send(self, tenant_id, prompt=PROMPT):
        self.made += 1
        self.pool.now += 0.001
        request_id = f"{tenant_id}{self.made}"
        self.pool.send(tenant_id, request_id, prompt=prompt)
        return request_id

    def finish(self, request_id, output=1):
        prompt = self.pool.prompts[request_id]
        self.pool.scheduler.tokens(request_id, Usage(prompt, 0, output), self.pool.now)
        self.pool.end(request_id)

    def served(self, tenant_ids, rounds=ROUNDS):
        """How much service each gets of the next so many requests, over its weight, where all always wait."""
        for tenant_id in tenant_ids:
            for _ in range(2):
                self.send(tenant_id)
        services = dict.fromkeys(tenant_ids, 0.0)
        for _ in range(rounds):
            (request_id,) = self.pool.dispatched()
            self.finish(request_id)
            if request_id[0] in services:
                services[request_id[0]] += PROMPT + 2
                self.send(request_id[0])
        tenants = {tenant_id: state.tenant for tenant_id, state in self.pool.scheduler._tenants.states.items()}
        return {tenant_id: service / tenants[tenant_id].weight for tenant_id, service in services.items()}

    def allowed(self):
        """2 (U + K), over the least weight."""
        return 2 * (PROMPT + 2) / 0.5 + 2 * (UNPROMISED_AHEAD if self.name in UNPROMISED else ahead_service(self.name))


@every_order
def test_a_tenant_that_comes_from_an_old_tier_is_served_in_a_young_one(name):
    move = Move(name, ages=(7_200_000, 65_000))
    move.pool.change(move.mover("after"))
    service = move.served("RM", 400)
    assert abs(service["M"] - service["R"]) <= move.allowed()


@every_order
def test_a_tenant_that_comes_from_a_young_tier_does_not_keep_others_waiting_in_an_old_one(name):
    move = Move(name, ages=(65_000, 7_200_000))
    move.pool.change(move.mover("after"))
    service = move.served("RM", 400)
    assert abs(service["M"] - service["R"]) <= move.allowed()


@pytest.mark.parametrize("name", sorted(FAIRNESS.keys() - UNPROMISED))
@pytest.mark.parametrize("state", ["idle", "waiting", "in flight", "in flight and waiting", "prepaid"])
@settings(max_examples=examples(12))
@given(
    ages=st.tuples(ages, ages),
    tiers=st.tuples(weights, weights),
    weight=weights,
    new_weight=weights,
    ahead=st.sampled_from([0, 1_000, 10_000]),
    predicts=st.booleans(),
)
@example(ages=(7_200_000, 65_000), tiers=(1.0, 4.0), weight=0.5, new_weight=4.0, ahead=1_000, predicts=True)
def test_what_a_tenant_is_ahead_is_carried_and_nothing_else(
    name, state, *, ages, tiers, weight, new_weight, ahead, predicts
):
    prediction = TenantQuantile() if predicts else None
    move = Move(name, ages=ages, tiers=tiers, weight=weight, prediction=prediction)
    pool = move.pool
    move.served("MN", 20)  # both wait, and M has one request larger than all others
    move.send("M", PROMPT)
    for request_id in [request.id for request in pool.scheduler._queues.oldest_first()]:
        pool.scheduler.cancel(request_id, pool.now)
    large = move.send("M", max(1, int(ahead * weight)))
    waiting = [move.send("N"), move.send("M")] if "waiting" in state else [move.send("N")]
    pool.measure(ROOMY)
    sent = pool.dispatched()
    for request_id in sent:
        if request_id != large:
            move.finish(request_id)
    if state == "prepaid":
        pool.come_back(large)
    elif "in flight" not in state:
        move.finish(large)
    pool.measure(ONE_SEAT)
    if "waiting" in state:
        waiting.append(move.send("M"))
    pool.change(move.mover("after", new_weight))
    pool.measure(ROOMY)
    if state == "prepaid":
        assert large in pool.dispatched()
    if "in flight" in state or state == "prepaid":
        move.finish(large)
    for request_id in pool.dispatched():
        move.finish(request_id)
    pool.measure(ONE_SEAT)
    service = move.served("RM")
    assert service["M"] - service["R"] <= move.allowed(), "it is behind no tenant that it was not behind before"
    assert service["R"] - service["M"] <= move.allowed() + ahead + 100 * 2 / min(weight, new_weight)
    (fair_queue,) = pool.scheduler._arrangement.fair_queues.all()
    for tier in move.tiers:
        assert fair_queue.order.root.order.service_record(tier.id).outstanding == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("name", sorted(FAIRNESS.keys() - UNPROMISED))
def test_a_debt_is_carried_whole(name):
    """M has received 20,000 more than N, which waits beside it: R goes first for as long as N would have."""
    stays, moves = Move(name, ages=(0, 3_000_000)), Move(name, ages=(0, 3_000_000))
    for move in (stays, moves):
        running = move.send("N")
        assert move.pool.dispatched() == [running]
        large, _ = move.send("M", 20_000), move.send("N")
        move.finish(running)
        assert move.pool.dispatched() == [large]
        move.finish(large)
        move.send("R")
    moves.pool.change(moves.mover("after"))
    beside_n, beside_r = stays.served("MN", 400), moves.served("RM", 400)
    assert beside_n["N"] - beside_n["M"] == pytest.approx(beside_r["R"] - beside_r["M"], abs=moves.allowed())
    assert beside_r["R"] - beside_r["M"] >= 20_000 - moves.allowed()


@every_order
def test_moving_there_and_back_changes_nothing_for_the_others(name):
    move = Move(name, ages=(7_200_000, 65_000))
    for _ in range(5):
        for tier_id in ("after", "before"):
            move.pool.change(move.mover(tier_id))
    service = move.served("MN")
    assert abs(service["M"] - service["N"]) <= move.allowed()
    (fair_queue,) = move.pool.scheduler._arrangement.fair_queues.all()
    assert set(fair_queue.order.checkpoint().tiers["after"].tenants) == {"R"}


@pytest.mark.parametrize("name", ["vtc", "slack", "lcf"])  # deficits begin anew with the process
@pytest.mark.parametrize("knows_tier", [True, False])
@settings(max_examples=examples(12))
@given(ages=st.tuples(ages, ages), ahead=st.sampled_from([0, 5_000]), comes_first=st.booleans())
def test_a_tenant_that_was_moved_while_the_gateway_was_down_is_ahead_by_as_much(
    name, knows_tier, *, ages, ahead, comes_first
):
    """It was of another tier when the standings were kept, which may be gone now; or it comes back later."""
    move = Move(name, ages=ages)
    before = {"M": ages[0] + ahead, "N": ages[0]}
    kept = QueueCheckpoint(
        0.0, {"before": TierCheckpoint(0.0, ages[0], before), "after": TierCheckpoint(0.0, ages[1], {})}
    )
    here = [Tenant("R", tier_id="after"), *([move.mover("after")] if comes_first else [])]
    if not knows_tier:
        move.tiers = [tier for tier in move.tiers if tier.id == "after"]
    move.pool = move.make(here)
    move.pool.scheduler.restored(without_lifted_tenants({SHARED_QUEUE: kept}), 0.0, 0.0)
    if not comes_first:
        if ahead:
            kept = move.pool.scheduler.checkpoint()[SHARED_QUEUE].tiers["before"]
            assert kept.tenants["M"] == ages[0] + ahead, "a tenant that is not back yet is in the next checkpoint, too"
        move.pool.change(move.mover("after"))
    service = move.served("RM")
    assert service["M"] - service["R"] <= move.allowed() + (ages[1] if name == "lcf" else 0)
    assert service["R"] - service["M"] <= move.allowed() + ahead


def test_a_tenant_whose_tier_was_gone_for_a_while_comes_back_to_it_as_it_was():
    move = Move("vtc")
    kept = QueueCheckpoint(0.0, {"gone": TierCheckpoint(0.0, 7_200_000.0, {"M": 7_200_300.0})})
    move.pool = move.make([Tenant("R", tier_id="after")])
    move.pool.scheduler.restored({SHARED_QUEUE: kept}, 0.0, 0.0)
    move.pool.change(move.mover("gone"), Tenant("new", tier_id="gone"), tiers=[Tier("gone")])
    assert move.pool.counter("M") == 7_200_300
    move.send("new")
    assert move.pool.counter("new") == 7_200_000, "what a tenant that comes is lifted to"


def test_a_checkpoint_keeps_nothing_of_a_tier_that_is_gone_once_all_tenants_have_moved():
    move = Move("vtc")
    kept = QueueCheckpoint(0.0, {"gone": TierCheckpoint(0.0, 7_200_000.0, {"M": 7_200_300.0})})
    move.pool = move.make([move.mover("after")])
    move.pool.scheduler.restored({SHARED_QUEUE: kept}, 0.0, 0.0)
    assert "gone" not in move.pool.scheduler.checkpoint()[SHARED_QUEUE].tiers


def test_what_is_in_flight_is_charged_to_the_tier_that_its_tenant_is_of():
    move = Move("vtc", tiers=(2.0, 4.0))
    request_id = move.send("M", 100)
    move.pool.dispatched()
    move.pool.change(move.mover("after"))
    move.finish(request_id, output=40)
    (fair_queue,) = move.pool.scheduler._arrangement.fair_queues.all()
    assert fair_queue.order.root.order.service_record("before").counter == 100 / 2.0
    assert fair_queue.order.root.order.service_record("after").counter == 40 * 2 / 4.0
