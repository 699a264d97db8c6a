"""Everything may happen: wrong estimates, cached prompts, lost backends, refused dispatches, new weights."""

from facts import BACKENDS, PARAMETERS, PREDICTIONS, Facts, load
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from policies.accounts.cost import PRICES
from policies.admission import BoundedQueues
from policies.fairness import FAIRNESS
from policies.placement import PLACEMENT
from policies.pool.preemption import InterruptRules
from policies.types import Group, KeyLimits, Outcome, PolicyChoice, Request, SloEnvelope, Tenant, Tier, Usage


def keys_of(tenant_id, in_flight_max=1):
    """The keys of a tenant that have limits."""
    return {
        f"{tenant_id}-tight": KeyLimits(in_flight_max=in_flight_max),
        f"{tenant_id}-rated": KeyLimits(requests_per_minute_max=20),
    }


NAMES = ["a", "b", "c", "d", "e"]
tenant_ids = st.sampled_from(NAMES)


class AnyFacts(Facts):
    """No promise of fairness is judged here; conservation is."""

    tiers = (Tier("default", preemptible=True, priority=-1), Tier("gold", weight=3.0, reserve_ratio=0.25))
    tenants = (
        Tenant("a", group_id="red", keys=keys_of("a")),
        Tenant("b", weight=2.0, group_id="red"),
        Tenant("c", in_flight_max=2, keys=keys_of("c")),
        Tenant("d", tier_id="gold", keys=keys_of("d")),
        Tenant("e", tier_id="gold", weight=0.5, queued_requests_max=3, keys=keys_of("e")),
    )
    groups = (Group("red", weight=2.0, in_flight_max=3), Group("blue", requests_per_minute_max=30))
    wait_s_max = 30.0

    @initialize(
        prediction=st.sampled_from(PREDICTIONS),
        price=st.sampled_from(sorted(PRICES)),
        share_ratio_max=st.sampled_from([0.3, 0.5, 1.0]),
        preempt_service=st.sampled_from([None, 1.0]),
        queued_requests_max=st.sampled_from([None, 6]),
        may_switch=st.booleans(),
        interrupt_rules=st.builds(
            InterruptRules,
            times_max=st.sampled_from([0, 1, 3]),
            tokens_between_min=st.sampled_from([0, 5]),
            drain_s=st.sampled_from([None, 0.0, 1.0]),
        ),
    )
    def start(self, price, may_switch, queued_requests_max, **options):
        if queued_requests_max is not None:
            self.admission = [BoundedQueues(requests_max=queued_requests_max)]
        self.price = PRICES[price]()
        self.may_switch = may_switch
        self.begin(**options)

    @rule(
        tenant_id=st.sampled_from([*NAMES, "nobody"]),
        prompt_tokens=st.integers(0, 120),
        output_tokens_max=st.integers(1, 80),
        choices=st.sampled_from([1, 1, 1, 2]),
        shared_blocks=st.sampled_from([0, 0, 1, 3]),
        backend_ids=st.sampled_from([None, None, None, {"x"}, {"y"}, {"elsewhere"}]),
        program_id=st.sampled_from([None, None, "p", "q"]),
        is_resumable=st.booleans(),
        ttft_s=st.sampled_from([None, 1.0]),
        key=st.sampled_from([None, "tight", "tight", "rated"]),
    )
    def arrive(self, tenant_id, backend_ids, ttft_s, key, **request):
        self.submit(
            tenant_id,
            key_id="" if key is None else f"{tenant_id}-{key}",
            backend_ids=None if backend_ids is None else frozenset(backend_ids),
            envelope=ttft_s and SloEnvelope(ttft_s=ttft_s),
            **request,
        )

    @rule(tenant_id=tenant_ids, count=st.integers(2, 4), is_resumable=st.booleans())
    def send_many_of_a_key(self, tenant_id, count, is_resumable):
        """A program with a key of few requests in flight sends more."""
        for _ in range(count):
            self.submit(
                tenant_id,
                prompt_tokens=10,
                output_tokens_max=10,
                is_resumable=is_resumable,
                key_id=f"{tenant_id}-tight",
            )

    @rule(
        tenant_id=st.sampled_from(["a", "b"]),
        urgent_id=st.sampled_from(["d", "e"]),
        later_s=st.sampled_from([0.0, 0.6, 2.0]),
    )
    def crowd(self, tenant_id, urgent_id, later_s):
        """Few slots, many requests that want them, and one that cannot wait for long."""
        self.recorder.load_changed([load(each, requests_running_max=2) for each in BACKENDS], self.now)
        for _ in range(6):
            self.submit(tenant_id, prompt_tokens=20, output_tokens_max=20, is_resumable=True)
        self.poll()
        self.submit(urgent_id, prompt_tokens=5, output_tokens_max=5, envelope=SloEnvelope(ttft_s=1.0))
        self.poll()
        self.now += later_s

    @precondition(lambda self: self.in_flight())
    @rule(data=st.data(), tokens=st.integers(1, 40), error=st.integers(-5, 5), cached_tokens=st.integers(0, 60))
    def tokens_pass(self, data, tokens, error, cached_tokens):
        accounts = data.draw(st.sampled_from(self.in_flight()))
        self.progress(accounts, tokens=tokens, prompt_error=error, cached_tokens=cached_tokens)

    @precondition(lambda self: self.in_flight())
    @rule(data=st.data(), outcome=st.sampled_from(list(Outcome)))
    def finish(self, data, outcome):
        self.end(data.draw(st.sampled_from(self.in_flight())), outcome)

    @precondition(lambda self: self.resumable())
    @rule(data=st.data(), tokens=st.integers(1, 40), hold_s=st.sampled_from([0.0, 0.5]))
    def cut(self, data, tokens, hold_s):
        """Its backend fails in the middle of its answer."""
        self.interrupt(data.draw(st.sampled_from(self.resumable())), tokens=tokens, hold_s=hold_s)

    @precondition(lambda self: self.untouched())
    @rule(data=st.data(), hold_s=st.sampled_from([0.0, 0.5, 3.0]))
    def refuse(self, data, hold_s):
        self.recorder.returned(data.draw(st.sampled_from(self.untouched())).request.id, self.now, hold_s)

    @precondition(lambda self: self.untouched())
    @rule(data=st.data(), is_known=st.booleans())
    def lose_a_dispatch(self, data, is_known):
        """It did not reach the process that sends, or crossed the news that the client has gone."""
        request_id = data.draw(st.sampled_from(self.untouched())).request.id
        (self.recorder.undelivered if is_known else self.recorder.cancel)(request_id, self.now)

    @precondition(lambda self: self.waiting())
    @rule(data=st.data())
    def part(self, data):
        """The process of a waiting request goes away, or is back."""
        request = data.draw(st.sampled_from(self.waiting())).request
        if request.id in self.accounts.parked:
            self.recorder.readmitted(request, self.now)
        else:
            self.recorder.park(request.id, self.now)

    @rule(
        tenant_id=tenant_ids,
        backend_id=st.sampled_from([*BACKENDS, "elsewhere"]),
        tokens=st.integers(0, 40),
        waits=st.booleans(),
        key=st.sampled_from(["", "tight"]),
    )
    def take_over(self, tenant_id, backend_id, tokens, waits, key):
        """Another scheduler's request is told; with the next measurements the backends are open again."""
        self.made += 1
        request = Request(
            f"r{self.made}", tenant_id, "m", self.now - 1.0, 20, 80, output_tokens_known=40, key_id=f"{tenant_id}-{key}"
        )
        if waits:
            usage = Usage(20, 0, tokens) if tokens % 4 == 3 else None
            self.recorder.readmitted(request, self.now, prepaid=Usage(20, 0, 0) if tokens % 2 else None, usage=usage)
        elif tenant_id in self.accounts.tenants.keys() - self.accounts._removed:
            self.recorder.adopted(request, backend_id, Usage(20, 0, tokens), self.now)
            self.cached_tokens[request.id] = 0

    @rule()
    def hand_over(self):
        self.recorder.taken_over(self.now)
        self.recorder.load_changed([load(each) for each in BACKENDS], self.now)

    @rule(tenant_id=tenant_ids, prompt_tokens=st.integers(0, 50))
    def spend(self, tenant_id, prompt_tokens):
        self.recorder.spent(tenant_id, Usage(prompt_tokens, 0, 1), self.now)

    @precondition(lambda self: self.waiting())
    @rule(data=st.data())
    def cancel(self, data):
        self.recorder.cancel(data.draw(st.sampled_from(self.waiting())).request.id, self.now)

    @rule(
        available=st.tuples(st.booleans(), st.booleans()),
        kv_tokens_max=st.sampled_from([None, 200, 600]),
        requests_running_max=st.sampled_from([None, 2, 6]),
        foreign=st.integers(0, 3),
    )
    def measure(self, available, kv_tokens_max, requests_running_max, foreign):
        loads = [
            load(
                backend_id,
                available=is_available,
                kv_tokens_max=kv_tokens_max,
                requests_running_max=requests_running_max,
                requests_running=self.accounts.sequences_at[backend_id] + foreign,
                requests_waiting=0,
                kv_used_ratio=0.2,
                preemptions_total=self.made // 10,
            )
            for backend_id, is_available in zip(BACKENDS, available, strict=True)
        ]
        self.recorder.load_changed(loads, self.now)

    @rule(backend_id=st.sampled_from(BACKENDS), drains=st.booleans())
    def drain(self, backend_id, drains):
        self.recorder.measured(load(backend_id, available=not drains, drains=drains), self.now)

    @rule(present=st.sampled_from([("x",), ("y",), ("x", "y"), ()]))
    def discover(self, present):
        self.recorder.load_changed([load(backend_id) for backend_id in present], self.now)

    @rule(
        tenant_id=tenant_ids,
        weight=st.sampled_from([0.5, 1.0, 4.0]),
        tier_id=st.sampled_from(["default", "gold"]),
        in_flight_max=st.sampled_from([None, 1, 5]),
        group_id=st.sampled_from([None, "red", "blue"]),
        key_in_flight_max=st.sampled_from([None, 1, 2, 4]),
    )
    def change_tenant(self, tenant_id, tier_id, group_id, key_in_flight_max, **settings):
        changed = Tenant(
            tenant_id,
            tier_id=tier_id,
            group_id=group_id if tier_id == "default" else None,
            keys=keys_of(tenant_id, key_in_flight_max),
            **settings,
        )
        tiers = [] if tier_id in self.scheduler.snapshot(self.now).tiers else [Tier(tier_id)]
        self.recorder.tenants_changed(tiers=tiers, changed=[changed], now=self.now)

    @rule(
        group_id=st.sampled_from(["red", "blue"]),
        weight=st.sampled_from([0.5, 1.0, 4.0]),
        in_flight_max=st.sampled_from([None, 1, 4]),
    )
    def change_group(self, group_id, weight, in_flight_max):
        self.recorder.tenants_changed(
            groups=[Group(group_id, weight=weight, in_flight_max=in_flight_max)], now=self.now
        )

    @rule(tenant_id=tenant_ids)
    def remove_tenant(self, tenant_id):
        self.recorder.tenants_changed(removed=[tenant_id], now=self.now)

    @rule(weight=st.sampled_from([0.5, 2.0]), reserve_ratio=st.sampled_from([0.0, 0.25]), rejects_misses=st.booleans())
    def change_tier(self, **settings):
        self.recorder.tenants_changed(tiers=[Tier("gold", **settings)], now=self.now)

    @rule(tier_id=st.sampled_from(["gold", "silver"]))
    def remove_tier(self, tier_id):
        self.recorder.tenants_changed(tiers_removed=[tier_id], now=self.now)

    @rule(tenant_id=st.sampled_from(["a", "d"]))
    def move_to_a_tier_of_its_own(self, tenant_id):
        self.recorder.tenants_changed(
            tiers=[Tier("silver", weight=2.0)], changed=[Tenant(tenant_id, tier_id="silver")], now=self.now
        )

    @rule(preemptible=st.booleans(), priority=st.sampled_from([0, -1]))
    def change_the_other_tier(self, **settings):
        self.recorder.tenants_changed(tiers=[Tier("default", **settings)], now=self.now)

    @rule(prediction=st.sampled_from([None, *PREDICTIONS]))
    def start_the_order_anew(self, prediction):
        fairness = PolicyChoice(self.policy, PARAMETERS.get(self.policy, {}))
        self.recorder.policy_changed(
            fairness=fairness, prediction=prediction and PolicyChoice(prediction), now=self.now
        )

    @precondition(lambda self: self.may_switch)
    @rule(fairness=st.sampled_from([None, *FAIRNESS]), placement=st.sampled_from([None, *PLACEMENT]))
    def switch(self, fairness, placement):
        self.is_switched = True
        self.recorder.policy_changed(
            fairness=fairness and PolicyChoice(fairness, PARAMETERS.get(fairness, {})),
            placement=placement and PolicyChoice(placement, PARAMETERS.get(placement, {})),
            now=self.now,
        )

    @rule(returning_s=st.sampled_from([0.0, 1.0]))
    def start_again(self, returning_s):
        self.restart(self.scheduler.checkpoint(), returning_s)

    @rule(seconds=st.sampled_from([0.0, 0.01, 1.0, 20.0]))
    def wait(self, seconds):
        self.now += seconds

    @rule()
    def go_on_in_the_same_instant(self):
        self.same_instant = True
