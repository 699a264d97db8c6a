"""Any order of facts: the scheduler keeps its books, its limits and its promise of fairness.

Hypothesis makes up the facts, one at a time or several in one instant, with a poll after each instant; the judges
of backends/simulation/checkers.py watch. At the end whatever lives is brought to its end, the books are closed,
and the whole recording is told to a second scheduler, which has to decide the same.
"""

from functools import partial
from types import MappingProxyType

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from backends.simulation.books import Books
from backends.simulation.checkers import InFlightLimits, ServiceBound, Watch, WorkConservation
from backends.simulation.recording import Recorder, replay
from policies.fairness import FAIRNESS, DeficitLongestPrefix, SlackCounter
from policies.placement import PLACEMENT
from policies.prediction import PREDICTION
from policies.scheduler import Scheduler
from policies.types import BackendLoad, Outcome, Request, Tenant, Tier, Usage

TIERS = (Tier("default"), Tier("gold", weight=3.0, reserve_ratio=0.25))
TENANTS = (
    Tenant("a"),
    Tenant("b", weight=2.0),
    Tenant("c", in_flight_max=2),
    Tenant("d", tier_id="gold"),
    Tenant("e", tier_id="gold", weight=0.5, queued_requests_max=3),
)
BACKENDS = ("x", "y")
PREDICTIONS = sorted(PREDICTION.keys() - {"noisy-oracle"})  # which a replay would have to draw again
BACKEND_IDS = st.sampled_from([None, None, None, *map(frozenset, ("x", "y", "xy", "z"))])
NO_FIELDS = MappingProxyType({})
STEPS_MAX = 10_000
AHEAD_SERVICE = {"vtc": 0.0, "slack": 100.0, "dlpm": 100.0}  # what the orders that have a bound let one get ahead
ORDERS = {
    **FAIRNESS,
    "slack": partial(SlackCounter, AHEAD_SERVICE["slack"], "deadline"),
    "dlpm": partial(DeficitLongestPrefix, AHEAD_SERVICE["dlpm"]),
}
CHOOSE_REQUESTS = {"slack", "dlpm", "justitia"}  # orders that may send a tenant's younger request first


class AnyFacts(RuleBasedStateMachine):
    """Everything may happen: wrong estimates, cached prompts, lost backends, refused dispatches, new weights."""

    tenants, tiers = TENANTS, TIERS
    wait_s_max = 30.0

    @initialize(
        fairness=st.sampled_from(sorted(ORDERS)),
        prediction=st.sampled_from(PREDICTIONS),
        share_ratio_max=st.sampled_from([0.3, 0.5, 1.0]),
        placement=st.sampled_from(sorted(PLACEMENT)),
    )
    def start(self, fairness, prediction, share_ratio_max, placement):
        self.fairness = fairness
        self.make = lambda: Scheduler(
            tenants=self.tenants,
            tiers=self.tiers,
            fairness=ORDERS[fairness],
            prediction=PREDICTION[prediction](),
            placement=PLACEMENT[placement](),
            share_ratio_max=share_ratio_max,
            wait_s_max=self.wait_s_max,
        )
        self.scheduler = self.make()
        self.books = Books(tenants=self.tenants, tiers=self.tiers)
        self.entries = []
        watch = Watch(self.books, [self.entries.append, *self.judges()])
        self.recorder = Recorder(self.scheduler, watch)
        self.now = 0.0
        self.made = 0
        self.same_instant = False
        self.recorder.load_changed([load(backend_id) for backend_id in BACKENDS], self.now)

    def judges(self):
        return [InFlightLimits(self.books), self.conservation()]

    def conservation(self):
        return WorkConservation(self.books, self.scheduler, oldest_first=self.fairness not in CHOOSE_REQUESTS)

    # -- facts -----------------------------------------------------------------------------------------------

    @rule(
        tenant_id=st.sampled_from(["a", "b", "c", "d", "e", "nobody"]),
        prompt_tokens=st.integers(1, 120),
        output_tokens_max=st.integers(1, 80),
        choices=st.sampled_from([1, 1, 1, 2]),
        shared_blocks=st.sampled_from([0, 0, 1, 3]),
        fields=st.fixed_dictionaries({"backend_ids": BACKEND_IDS, "program_id": st.sampled_from([None, "p", "q"])}),
    )
    def submit(self, tenant_id, prompt_tokens, output_tokens_max, choices=1, *, shared_blocks=0, fields=NO_FIELDS):
        self.made += 1
        request = Request(
            id=f"r{self.made}",
            tenant_id=tenant_id,
            model="m",
            arrived_at=self.now,
            prompt_tokens=prompt_tokens + 16 * shared_blocks,
            output_tokens_max=output_tokens_max * choices,
            choices=choices,
            body_bytes=prompt_tokens,
            prefix=tuple(range(shared_blocks)),
            prefix_block_tokens=16.0,
            output_tokens_known=max(1, output_tokens_max * choices // 2),
            **fields,
        )
        self.recorder.submit(request, self.now)

    @precondition(lambda self: self.in_flight())
    @rule(data=st.data(), tokens=st.integers(1, 40), error=st.integers(-5, 5), cached=st.booleans())
    def progress(self, data, tokens, error, cached):
        books = data.draw(st.sampled_from(self.in_flight()))
        request = books.request
        prompt_tokens = max(1, request.prompt_tokens + error)
        output_tokens = min(books.output_tokens + tokens, request.output_tokens_max)
        usage = Usage(prompt_tokens, prompt_tokens // 2 if cached else 0, output_tokens)
        self.recorder.tokens(request.id, usage, self.now)

    @precondition(lambda self: self.in_flight())
    @rule(data=st.data(), outcome=st.sampled_from(list(Outcome)))
    def finish(self, data, outcome):
        self.recorder.finished(data.draw(st.sampled_from(self.in_flight())).request.id, outcome, self.now)

    @precondition(lambda self: any(not books.output_tokens for books in self.in_flight()))
    @rule(data=st.data(), hold_s=st.sampled_from([0.0, 0.5, 3.0]))
    def refuse(self, data, hold_s):
        untouched = [books for books in self.in_flight() if not books.output_tokens]
        self.recorder.returned(data.draw(st.sampled_from(untouched)).request.id, self.now, hold_s)

    @rule(tenant_id=st.sampled_from(["a", "b", "c", "d", "e"]), prompt_tokens=st.integers(0, 50))
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
                requests_running=self.books.sequences_at[backend_id] + foreign,
                requests_waiting=0,
                kv_used_ratio=0.2,
                preemptions_total=self.made // 10,
            )
            for backend_id, is_available in zip(BACKENDS, available, strict=True)
        ]
        self.recorder.load_changed(loads, self.now)

    @rule(present=st.sampled_from([("x",), ("y",), ("x", "y"), ()]))
    def discover(self, present):
        self.recorder.load_changed([load(backend_id) for backend_id in present], self.now)

    @rule(
        tenant_id=st.sampled_from(["a", "b", "c", "d", "e"]),
        weight=st.sampled_from([0.5, 1.0, 4.0]),
        tier_id=st.sampled_from(["default", "gold"]),
        in_flight_max=st.sampled_from([None, 1, 5]),
    )
    def change_tenant(self, tenant_id, weight, tier_id, in_flight_max):
        changed = Tenant(tenant_id, weight=weight, tier_id=tier_id, in_flight_max=in_flight_max)
        self.recorder.tenants_changed(changed=[changed], now=self.now)

    @rule(tenant_id=st.sampled_from(["a", "b", "c", "d", "e"]))
    def remove_tenant(self, tenant_id):
        self.recorder.tenants_changed(removed=[tenant_id], now=self.now)

    @rule(weight=st.sampled_from([0.5, 2.0]), reserve_ratio=st.sampled_from([0.0, 0.25]))
    def change_tier(self, weight, reserve_ratio):
        self.recorder.tenants_changed(tiers=[Tier("gold", weight, reserve_ratio)], now=self.now)

    @rule(seconds=st.sampled_from([0.0, 0.01, 1.0, 20.0]))
    def wait(self, seconds):
        self.now += seconds

    @rule()
    def go_on_in_the_same_instant(self):
        self.same_instant = True

    # -- what holds ------------------------------------------------------------------------------------------

    @invariant()
    def the_books_agree_after_every_poll(self):
        if not hasattr(self, "recorder"):
            return
        if self.same_instant:
            self.same_instant = False
            return
        self.poll()

    def poll(self):
        self.recorder.poll(self.now)
        self.books.compare(self.scheduler.snapshot(self.now))
        wakeup = self.scheduler.next_wakeup()
        assert wakeup is None or wakeup > self.now, "a poll leaves nothing to do at its own instant"
        assert wakeup is not None or not self.waiting(), "what waits has a deadline"

    def teardown(self):
        if not hasattr(self, "recorder"):
            return
        self.poll()
        for _ in range(STEPS_MAX):
            if not self.books.requests:
                break
            for books in self.in_flight():
                self.recorder.finished(books.request.id, Outcome.COMPLETED, self.now)
            self.now += 1.0
            self.poll()
        self.books.conclude(self.scheduler.snapshot(self.now))
        assert list(replay(self.entries, self.make())) == []

    def in_flight(self):
        return [books for books in self.books.requests.values() if books.backend_id is not None]

    def waiting(self):
        return [books for books in self.books.requests.values() if books.backend_id is None]


class FairFacts(AnyFacts):
    """A pool that works: what is measured is true, and orders keep their bounds, whatever predicts."""

    tenants = (Tenant("a"), Tenant("b", weight=2.0), Tenant("c"), Tenant("d", tier_id="gold"), Tenant("e", weight=0.5))

    wait_s_max = 1e6

    @initialize(
        fairness=st.sampled_from(sorted(AHEAD_SERVICE)),
        prediction=st.sampled_from(PREDICTIONS),
        share_ratio_max=st.sampled_from([0.3, 0.5, 1.0]),
    )
    def start(self, fairness, prediction, share_ratio_max):
        super().start(fairness, prediction, share_ratio_max, "least-reserved")
        self.recorder.load_changed([load("x", requests_running_max=2)], self.now)

    def judges(self):
        return [*super().judges(), ServiceBound(self.books, ahead_service=AHEAD_SERVICE[self.fairness])]

    def spend(self, tenant_id, prompt_tokens):
        """No rule here: the bound speaks of what is queued."""

    @rule(
        tenant_id=st.sampled_from(["a", "b", "c", "d", "e"]),
        prompt_tokens=st.integers(1, 30),
        output_tokens_max=st.integers(1, 20),
    )
    def submit(self, tenant_id, prompt_tokens, output_tokens_max):
        super().submit(tenant_id, prompt_tokens, output_tokens_max)

    @rule(tenant_id=st.sampled_from(["a", "b"]), count=st.integers(5, 60), output_tokens_max=st.integers(1, 20))
    def flood(self, tenant_id, count, output_tokens_max):
        for _ in range(count):
            super().submit(tenant_id, 10, output_tokens_max)

    @precondition(lambda self: self.in_flight())
    @rule(data=st.data(), tokens=st.integers(1, 40))
    def progress(self, data, tokens):
        super().progress(data, tokens, 0, cached=False)

    @rule(times=st.integers(1, 20))
    def all_in_flight_runs_to_its_end(self, times):
        for _ in range(times):
            for books in self.in_flight():
                request = books.request
                usage = Usage(request.prompt_tokens, 0, request.output_tokens_max)
                self.recorder.tokens(request.id, usage, self.now)
                self.recorder.finished(request.id, Outcome.COMPLETED, self.now)
            self.poll()

    refuse = measure = discover = change_tenant = remove_tenant = change_tier = None


def load(backend_id, **known):
    return BackendLoad(backend_id, **{"kv_tokens_max": 400, "requests_running_max": 8, **known})


EXAMPLES = settings(
    max_examples=200, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
AnyFacts.TestCase.settings = FairFacts.TestCase.settings = EXAMPLES
TestAnyFacts = AnyFacts.TestCase
TestFairFacts = FairFacts.TestCase
