"""A pool whose tenants wait for long: what is reported is true to within a known error, and tenants keep their identity
while they have anything here. Then a policy keeps its promise, whatever predicts and however requests are shaped.
"""

from collections import Counter
from random import Random
from typing import ClassVar

from facts import BACKENDS, PARAMETERS, PREDICTIONS, Facts, load
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from policies.accounts.checkpoint import without_lifted_tenants
from policies.fairness.bounds import BOUNDS
from policies.pool.preemption import InterruptRules
from policies.types import Group, Outcome, PolicyChoice, SloEnvelope, Tenant, Tier
from tests.fairness_orders import ahead_service
from tests.simulation.bound_checkers import Exposure, ServiceBound
from tests.simulation.queue_accounts import QueueWatcher
from tests.simulation.run_accounts import RunAccounts

PROMPT_ERROR_TOKENS = 5
NAMES = ["a", "b", "c", "d", "e", "f"]
GOLD = {"d", "f"}
FLOOD = 60
COMPETE_ROUNDS = 60
PREEMPTED = {"vtc", "slack"}  # ordered by what preemption looks at
tenant_ids = st.sampled_from(NAMES)
prompts, outputs = st.sampled_from([1, 10, 30, 60]), st.sampled_from([1, 4, 12, 30])


def tenant(tenant_id, weight=1.0, group_id=None):
    return Tenant(tenant_id, weight=weight, tier_id="gold" if tenant_id in GOLD else "default", group_id=group_id)


class FairFacts(Facts):
    """The policy's bound is judged in every queue."""

    tiers = (Tier("default", preemptible=True), Tier("gold", weight=2.0))
    tenants = tuple(tenant(name, {"b": 2.0, "e": 0.5}.get(name, 1.0)) for name in NAMES)

    is_capped: ClassVar[bool]
    group_of: ClassVar[dict[str, str]] = {}

    @initialize(
        prediction=st.sampled_from(PREDICTIONS),
        share_ratio_max=st.sampled_from([0.3, 0.5]),
        second_key=st.sampled_from(["arrival", "deadline", "prefix"]),
        slots=st.sampled_from([2, 4]),
        kv_tokens_max=st.sampled_from([120, 400]),
        preempt_service=st.sampled_from([None, None, 100.0]),
        times_max=st.sampled_from([0, 2]),
        floods=st.lists(st.tuples(tenant_ids, prompts, outputs), max_size=len(NAMES)),
    )
    def start(
        self, *, prediction, share_ratio_max, second_key, slots, kv_tokens_max, preempt_service, times_max, floods
    ):
        self.more = {"second_key": second_key} if self.policy == "slack" else {}
        self.bounds = []
        self.kept = None
        self.begin(
            prediction=prediction,
            share_ratio_max=share_ratio_max if self.is_capped else 1.0,
            preempt_service=preempt_service if self.policy in PREEMPTED and not self.is_capped else None,
            interrupt_rules=InterruptRules(times_max, tokens_between_min=1),
            **self.more,
        )
        self.resize([slots, slots], kv_tokens_max)
        for tenant_id, prompt_tokens, output_tokens_max in floods:
            self.flood(tenant_id, FLOOD, prompt_tokens=prompt_tokens, output_tokens_max=output_tokens_max)

    def judges(self):
        in_each_queue = map(self.fair_queue, BACKENDS) if self.watched else [self.bound(self.accounts)]
        return [*super().judges(), *in_each_queue]

    def fair_queue(self, backend_id):
        accounts = RunAccounts(tenants=self.tenants, tiers=self.tiers, groups=self.groups, price=self.price)
        return QueueWatcher(backend_id, self.watched, accounts, [self.bound(accounts)])

    def bound(self, accounts):
        bound = BOUNDS[self.policy]
        judge = ServiceBound(
            accounts,
            bound,
            ahead_service=ahead_service(self.policy, PARAMETERS.get(self.policy)),
            is_capped=self.is_capped,
            exposure=Exposure(accounts, price=self.price, prompt_error_tokens=PROMPT_ERROR_TOKENS),
        )
        self.bounds.append(judge)
        return judge

    # -- facts -----------------------------------------------------------------------------------------------

    @rule(
        tenant_id=tenant_ids,
        prompt_tokens=st.integers(1, 30),
        output_tokens_max=st.integers(1, 20),
        shared_blocks=st.sampled_from([0, 0, 2]),
        ttft_s=st.sampled_from([None, 0.05, 1.0, 30.0]),
        is_resumable=st.booleans(),
    )
    def arrive(self, tenant_id, ttft_s, **request):
        self.submit(tenant_id, envelope=ttft_s and SloEnvelope(ttft_s=ttft_s), **request)

    @rule(
        tenant_id=tenant_ids,
        count=st.integers(5, FLOOD),
        prompt_tokens=prompts,
        output_tokens_max=outputs,
        ttft_s=st.sampled_from([None, 0.05, 1.0, 30.0]),
        is_resumable=st.booleans(),
    )
    def flood(self, tenant_id, count, ttft_s=None, **request):
        for _ in range(count):
            self.submit(tenant_id, envelope=ttft_s and SloEnvelope(ttft_s=ttft_s), **request)

    @precondition(lambda self: self.in_flight())
    @rule(data=st.data(), tokens=st.integers(1, 40))
    def tokens_pass(self, data, tokens):
        self.told(data.draw(st.sampled_from(self.in_flight())), tokens)

    @precondition(lambda self: self.in_flight())
    @rule(data=st.data(), outcome=st.sampled_from(list(Outcome)))
    def finish(self, data, outcome):
        self.end(data.draw(st.sampled_from(self.in_flight())), outcome)

    @rule(
        seed=st.integers(0, 1 << 16),
        rounds=st.integers(1, 30),
        ending=st.sampled_from([0.02, 0.3, 1.0]),
        failing=st.lists(tenant_ids, max_size=2),
        cutting=st.sampled_from([0.0, 0.1]),
    )
    def time_passes(self, seed, rounds, ending, failing, cutting):
        """Requests get tokens and end, by lot: what Hypothesis would take long to think of. Some tenants' fail, and
        those that can be continued are cut.
        """
        rng = Random(seed)
        for _ in range(rounds):
            for accounts in self.in_flight():
                if accounts.request.tenant_id in failing and rng.random() < ending:
                    self.end(accounts, Outcome.BACKEND_FAILED)
                    continue
                self.told(accounts, rng.randint(1, 12))
                if accounts.request.is_resumable and self.watched is None and rng.random() < cutting:
                    self.interrupt(accounts)
                    continue
                if rng.random() < ending or accounts.output_tokens == accounts.request.output_tokens_max:
                    self.end(accounts, Outcome.COMPLETED)
            self.now += 0.01
            self.poll()

    # What is cut is placed anew, perhaps in another backend's queue, which a watcher of queues does not follow.
    @precondition(lambda self: self.resumable() and self.watched is None)
    @rule(data=st.data(), tokens=st.integers(1, 12))
    def cut(self, data, tokens):
        accounts = data.draw(st.sampled_from(self.resumable()))
        self.told(accounts, tokens)
        self.interrupt(accounts)

    # A backend that refuses for too long is left: from then on its queue's tenants are served by another's order.
    @precondition(lambda self: self.untouched() and self.watched is None)
    @rule(data=st.data(), hold_s=st.sampled_from([0.0, 0.5]))
    def refuse(self, data, hold_s):
        self.recorder.returned(data.draw(st.sampled_from(self.untouched())).request.id, self.now, hold_s)

    @precondition(lambda self: self.waiting())
    @rule(data=st.data())
    def cancel(self, data):
        self.recorder.cancel(data.draw(st.sampled_from(self.waiting())).request.id, self.now)

    @precondition(lambda self: self.waiting())
    @rule(tenant_id=tenant_ids)
    def give_up(self, tenant_id):
        """All that the tenant has waiting is cancelled: it has left."""
        for accounts in self.waiting():
            if accounts.request.tenant_id == tenant_id:
                self.recorder.cancel(accounts.request.id, self.now)

    @rule(slots=st.tuples(*[st.sampled_from([1, 2, 4])] * len(BACKENDS)), kv_tokens_max=st.sampled_from([120, 400]))
    def resize(self, slots, kv_tokens_max):
        loads = [
            load(backend_id, requests_running_max=number, kv_tokens_max=kv_tokens_max)
            for backend_id, number in zip(BACKENDS, slots, strict=True)
        ]
        self.recorder.load_changed(loads, self.now)

    @precondition(lambda self: self.watched is None)
    @rule(present=st.sampled_from([("x",), ("y",), ("x", "y")]))
    def lose_or_find_a_backend(self, present):
        self.recorder.load_changed([load(backend_id, requests_running_max=2) for backend_id in present], self.now)

    @rule(tenant_id=tenant_ids, weight=st.sampled_from([0.5, 1.0, 4.0]))
    def change_weight(self, tenant_id, weight):
        if not self.has_anything(tenant_id):
            self.recorder.tenants_changed(
                changed=[tenant(tenant_id, weight, self.group_of.get(tenant_id))], now=self.now
            )

    @rule(tenant_id=tenant_ids)
    def replace_tenant(self, tenant_id):
        """It is removed, and is new the next time."""
        if not self.has_anything(tenant_id):
            self.recorder.tenants_changed(removed=[tenant_id], now=self.now)
            self.poll()
            self.recorder.tenants_changed(changed=[tenant(tenant_id, 1.0, self.group_of.get(tenant_id))], now=self.now)

    # Counters that were kept per queue say nothing of one queue's shares once they are added up.
    @precondition(lambda self: self.watched is None)
    @rule()
    def start_the_order_anew(self):
        parameters = PARAMETERS.get(self.policy, {}) | self.more
        self.recorder.policy_changed(fairness=PolicyChoice(self.policy, parameters), now=self.now)

    @rule()
    def keep_the_standings(self):
        self.kept = self.scheduler.checkpoint()

    @precondition(lambda self: self.kept is not None)
    @rule(returning=st.permutations(NAMES))
    def start_again(self, returning):
        """A process that was killed, and forgot what came after its last checkpoint; all tenants come back for more."""
        self.restart(without_lifted_tenants(self.kept), 0.0)
        for tenant_id in returning:
            self.flood(tenant_id, FLOOD, prompt_tokens=10, output_tokens_max=4)

    @rule(seconds=st.sampled_from([0.01, 1.0, 20.0]))
    def wait(self, seconds):
        self.now += seconds

    def told(self, accounts, tokens):
        """The backend reports: what it says of the prompt it has said from its first word on."""
        number = int(accounts.request.id[1:])
        error = number % (2 * PROMPT_ERROR_TOKENS + 1) - PROMPT_ERROR_TOKENS
        believed = self.cached_tokens[accounts.request.id]
        self.progress(accounts, tokens=tokens, prompt_error=error, cached_tokens=believed if number % 3 else 0)

    def has_anything(self, tenant_id):
        return any(accounts.request.tenant_id == tenant_id for accounts in self.accounts.requests.values())


class GroupFacts(FairFacts):
    """The same where tenants have groups: one with several tenants, one with one, and tenants without any."""

    group_of: ClassVar = {"a": "red", "b": "red", "e": "red", "d": "green"}
    groups = (Group("red", weight=2.0), Group("blue", weight=0.5), Group("green", tier_id="gold"))
    tenants = tuple(
        tenant(name, {"b": 2.0, "e": 0.5}.get(name, 1.0), {"a": "red", "b": "red", "e": "red", "d": "green"}.get(name))
        for name in NAMES
    )

    @initialize()
    def forget_moves(self):
        self.group_of = dict(type(self).group_of)

    @rule(tenant_id=st.sampled_from(["a", "b", "c"]), group_id=st.sampled_from([None, "red", "blue"]))
    def move(self, tenant_id, group_id):
        """Between groups, while it waits and runs: a new interval begins."""
        if not self.has_anything(tenant_id):
            self.group_of[tenant_id] = group_id
            self.recorder.tenants_changed(changed=[tenant(tenant_id, 1.0, group_id)], now=self.now)

    @rule(weight=st.sampled_from([0.5, 1.0, 4.0]))
    def change_group(self, weight):
        if not any(self.has_anything(tenant_id) for tenant_id, group in self.group_of.items() if group == "blue"):
            self.recorder.tenants_changed(groups=[Group("blue", weight=weight)], now=self.now)


class LiveGroupFacts(GroupFacts):
    """The same while groups come and go, and change while their tenants have requests. A group with a limit in flight
    takes part; what it is owed is not judged, what others are is.
    """

    groups = (*GroupFacts.groups, Group("grey", in_flight_max=2))

    @initialize()
    def forget_removals(self):
        self.removed = set()

    @rule(seed=st.integers(0, 1 << 16), prompt_tokens=prompts, output_tokens_max=outputs)
    def compete(self, seed, **request):
        """All wait for so long that shares which are not due show: those that have fewer waiting send more."""
        waiting = Counter(accounts.request.tenant_id for accounts in self.waiting())
        for tenant_id in NAMES:
            self.flood(tenant_id, FLOOD - waiting[tenant_id], **request)
        self.time_passes(seed=seed, rounds=COMPETE_ROUNDS, ending=0.3, failing=[], cutting=0.0)

    @rule(tenant_id=st.sampled_from(["a", "b", "c", "e"]), group_id=st.sampled_from([None, "red", "blue", "grey"]))
    def move(self, tenant_id, group_id):
        """Between groups, with what waits and runs; a group that was removed comes back."""
        groups = [Group(group_id)] if group_id in self.removed else []
        self.removed.discard(group_id)
        self.group_of[tenant_id] = group_id
        self.recorder.tenants_changed(groups=groups, changed=[tenant(tenant_id, 1.0, group_id)], now=self.now)

    @rule(group_id=st.sampled_from(["red", "blue"]), weight=st.sampled_from([0.5, 1.0, 4.0]))
    def change_group(self, group_id, weight):
        if group_id not in self.removed:
            self.recorder.tenants_changed(groups=[Group(group_id, weight=weight)], now=self.now)

    @rule(in_flight_max=st.sampled_from([0, 1, 3]))
    def limit_group(self, in_flight_max):
        self.recorder.tenants_changed(groups=[Group("grey", in_flight_max=in_flight_max)], now=self.now)

    @rule(group_id=st.sampled_from(["red", "blue"]))
    def remove_group(self, group_id):
        if group_id not in self.group_of.values():
            self.removed.add(group_id)
            self.recorder.tenants_changed(groups_removed=[group_id], now=self.now)
