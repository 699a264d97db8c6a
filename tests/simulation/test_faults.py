"""Runs in which things go wrong, under every judge: nothing is lost or charged wrong, nothing idles, and what waits
is served fairly all the same.

Tenants ask for more than the engines can do, in different shapes. Chance is seeded; the parametrised seed is in a
failure's name.
"""

from dataclasses import replace
from functools import partial
from random import Random

import pytest

from backends.engine.coefficients import COEFFICIENTS
from backends.engine.engine import Engine
from policies.facts import Submitted
from policies.fairness import FAIRNESS
from policies.fairness.bounds import BOUNDS
from policies.placement import ARRIVAL_PLACEMENT, PLACEMENT
from policies.pool.preemption import NO_INTERRUPTIONS, InterruptRules
from policies.scheduler import Scheduler
from policies.types import Outcome, Preempt, Tenant
from tests.fairness_orders import CHOOSE_AMONG_REQUESTS, ahead_service
from tests.simulation.arrivals import merged, poisson
from tests.simulation.bound_checkers import ServiceBound
from tests.simulation.checkers import InFlightLimits, RunWatch, WorkConservation
from tests.simulation.faults import EngineDies, EngineDrains, EngineSlows, FaultyWorld, TenantsChange
from tests.simulation.queue_accounts import QueueWatcher, WatchedPlacement
from tests.simulation.recording import Polled, Recorder, replay
from tests.simulation.run_accounts import RunAccounts

SEATS = 256  # of every engine, and given
DURATION_S = 18.0  # of arrivals
ENGINES = ("x", "y")
PREEMPT_SERVICE = 500.0
TENANTS = (Tenant("chat"), Tenant("batch", weight=2.0), Tenant("short"), Tenant("rare", weight=0.5))
SHAPES = {  # calls per second, prompt tokens, output tokens
    "chat": (6.0, (100, 500), (20, 200)),
    "batch": (3.0, (400, 1000), (200, 400)),
    "short": (20.0, (5, 40), (1, 30)),
    "rare": (0.2, (50, 100), (50, 100)),
}
PARAMETERS = {"slack": {"slack_service": 3_000.0, "second_key": "arrival"}}
MAIN = [name for name, bound in BOUNDS.items() if bound is not None]


def mostly_long(names, *short):
    """Of these in short runs of the suite, of all the others in long ones: each takes seconds."""
    return [name if name in short else pytest.param(name, marks=pytest.mark.long) for name in names]


make_engine = partial(Engine, COEFFICIENTS["a10g-llama2-7b"])
dies = EngineDies(backend_id="x", at_s=5.0, returns_at_s=10.0)
slows = EngineSlows(backend_id="y", at_s=4.5, until_s=13.0, factor=4.0)


def workload(seed, patience_s=None, *, duration_s=DURATION_S, is_resumable=False):
    """Calls; of clients without much patience there are twice as many."""
    times = 1.0 if patience_s is None else 2.0
    rng = Random(seed)
    arrivals = merged(
        *(
            poisson(
                tenant_id,
                lambda _, rate=times * rate: rate,
                rate_per_s_max=times * rate,
                duration_s=duration_s,
                prompt_tokens=prompts,
                output_tokens=outputs,
                rng=rng,
                patience_s=patience_s,
            )
            for tenant_id, (rate, prompts, outputs) in SHAPES.items()
        )
    )
    return (replace(arrival, is_resumable=is_resumable) for arrival in arrivals)


class FaultyRun:
    """One run to its end, and what was judged."""

    def __init__(
        self,
        policy,
        placement="least-reserved",
        *,
        seed=1,
        patience_s=None,
        duration_s=DURATION_S,
        faults=(),
        rules=None,
        **world,
    ):
        """With `rules` all answers can be continued, and tenants give way to each other by them."""
        self.policy, self.placement, self.rules = policy, placement, rules
        self.entries = []
        self.bounds = []
        self.compared_at = 0.0
        place, self.waits_for = PLACEMENT[placement](), {}
        if placement in ARRIVAL_PLACEMENT:
            place = WatchedPlacement(place)
            self.waits_for = place.backend_ids
        scheduler = self.scheduler(place)
        accounts = RunAccounts(tenants=TENANTS)
        any_request = policy in CHOOSE_AMONG_REQUESTS

        def agree(entry):
            if isinstance(entry, Polled) and entry.now >= self.compared_at + 0.5:
                self.compared_at = entry.now
                accounts.compare(scheduler.snapshot(entry.now))

        judges = [
            self.entries.append,
            agree,
            InFlightLimits(accounts),
            WorkConservation(accounts, scheduler, any_request=any_request, waits_for=self.waits_for, every_s=0.2),
            *self.judges(accounts, place, stays=not any(isinstance(fault, EngineDies) for fault in faults)),
        ]
        self.world = FaultyWorld(
            Recorder(scheduler, RunWatch(accounts, judges)),
            {engine: make_engine() for engine in ENGINES},
            make_engine=make_engine,
            faults=faults,
            requests_running_max=SEATS,
            **world,
        )
        self.records = list(
            self.world.run(workload(seed, patience_s, duration_s=duration_s, is_resumable=rules is not None))
        )
        accounts.conclude(scheduler.snapshot(self.world.now))
        assert list(replay(self.entries, self.scheduler(PLACEMENT[placement]()))) == []

    def scheduler(self, placement):
        return Scheduler(
            tenants=TENANTS,
            fairness=partial(FAIRNESS[self.policy], **PARAMETERS.get(self.policy, {})),
            placement=placement,
            admission=(),
            wait_s_max=1e6,
            preempt_service=PREEMPT_SERVICE if self.rules and self.rules.times_max else None,
            interrupt_rules=self.rules or NO_INTERRUPTIONS,
        )

    def judges(self, accounts, place, *, stays):
        """The policy's promise in the pool's one queue, or in each engine's as long as engines stay."""
        if BOUNDS[self.policy] is None:
            return
        if not self.waits_for and self.placement not in ARRIVAL_PLACEMENT:
            yield self.bound(accounts)
        elif stays:
            for backend_id in ENGINES:
                queue_accounts = RunAccounts(tenants=TENANTS)
                yield QueueWatcher(backend_id, place, queue_accounts, [self.bound(queue_accounts)])

    def bound(self, accounts):
        ahead = ahead_service(self.policy, PARAMETERS.get(self.policy))
        judge = ServiceBound(accounts, BOUNDS[self.policy], ahead_service=ahead, every_s=0.2)
        self.bounds.append(judge)
        return judge

    @property
    def lost(self):
        """Answers that broke off: their engine died. (A client that leaves has no last token either.)"""
        return [each for each in self.finished() if each.outcome is Outcome.BACKEND_FAILED]

    def finished(self):
        return [entry for entry in self.entries if getattr(entry, "call", "") == "finished"]

    def interrupted(self):
        return [entry for entry in self.entries if getattr(entry, "call", "") == "interrupted"]

    def came_back(self):
        return [entry for entry in self.entries if getattr(entry, "call", "") == "returned"]


@pytest.mark.parametrize("policy", mostly_long(sorted(FAIRNESS), "vtc"))
def test_an_engine_that_dies_takes_its_answers_with_it_and_nothing_else(policy):
    run = FaultyRun(policy, faults=[dies])
    assert run.lost
    assert run.came_back(), "what it had not begun, and what was sent before its end was noticed"
    broken = [record for record in run.records if record.total_latency_s is None]
    assert len(broken) == len(run.lost)
    assert all(record.output_tokens for record in broken)


@pytest.mark.parametrize("placement", mostly_long(sorted(PLACEMENT), "d2lpm"))
def test_what_waits_for_an_engine_that_dies_is_served_elsewhere_and_there_again_when_it_returns(placement):
    run = FaultyRun("vtc", placement, faults=[dies])
    sent = [(entry.now, action) for entry in run.entries for action in getattr(entry, "actions", ())]
    while_away = {action.backend_id for now, action in sent if dies.at_s + 2.0 < now < dies.returns_at_s}
    afterwards = {action.backend_id for now, action in sent if now > dies.returns_at_s + 2.0}
    assert while_away == {"y"}
    assert afterwards == {"x", "y"}
    assert len(run.records) - len(run.lost) == sum(record.total_latency_s is not None for record in run.records)


@pytest.mark.parametrize("seed", mostly_long([1, 2], 1))
@pytest.mark.parametrize("policy", mostly_long(MAIN, "drr"))
def test_slow_engines_and_late_metrics_break_no_promise(policy, seed):
    run = FaultyRun(policy, seed=seed, faults=[slows], metrics_lag_s=3.0)
    assert not run.came_back()
    assert all(record.total_latency_s is not None for record in run.records)
    assert all(bound.spread_max > 0 for bound in run.bounds)


@pytest.mark.parametrize("placement", mostly_long(sorted(ARRIVAL_PLACEMENT), "d2lpm", "round-robin"))
@pytest.mark.parametrize("policy", mostly_long(["vtc", "dlpm"], "vtc"))
def test_a_slow_engine_is_as_fair_to_the_tenants_that_wait_for_it_as_the_other(policy, placement):
    run = FaultyRun(policy, placement, faults=[slows])
    assert len(run.bounds) == len(ENGINES)
    assert all(bound.spread_max > 0 for bound in run.bounds)


@pytest.mark.parametrize("policy", mostly_long(MAIN, "dlpm"))
def test_tenants_come_go_and_change_weight_while_engines_die(policy):
    faults = [
        TenantsChange(at_s=5.0, removed=("short",)),
        EngineDies(backend_id="y", at_s=6.5, returns_at_s=9.0),
        TenantsChange(at_s=10.0, changed=(Tenant("chat", weight=3.0), Tenant("short", weight=0.5))),
        EngineDies(backend_id="x", at_s=13.0),
    ]
    run = FaultyRun(policy, faults=faults)
    rejected = [record for record in run.records if record.rejected is not None]
    assert {record.tenant_id for record in rejected} == {"short"}
    assert any(record.tenant_id == "short" and record.arrived_at > 10.0 for record in run.records if record.served)


CUTS = (
    EngineDies(backend_id="x", at_s=4.0, returns_at_s=6.0),
    EngineDrains(backend_id="y", at_s=7.5, until_s=10.0),
    EngineDies(backend_id="y", at_s=11.5, returns_at_s=13.0, noticed_after_s=0.5),
    EngineDrains(backend_id="x", at_s=15.0, until_s=18.0),
    EngineDies(backend_id="x", at_s=16.1, returns_at_s=18.0),
)
RULES = InterruptRules(times_max=2, tokens_between_min=8, drain_s=1.0)


@pytest.mark.parametrize("seed", mostly_long([1, 2, 3], 1))
@pytest.mark.parametrize("policy", mostly_long(sorted(FAIRNESS), "vtc"))
def test_no_answer_breaks_that_can_be_continued_and_none_is_charged_or_served_unfairly_for_it(policy, seed):
    run = FaultyRun(policy, faults=CUTS, seed=seed, rules=RULES)
    assert not run.lost
    assert all(record.total_latency_s is not None for record in run.records)
    assert run.interrupted()
    preempted = {action for entry in run.entries for action in getattr(entry, "actions", ()) if type(action) is Preempt}
    assert preempted
    assert sum(record.interruptions for record in run.records) == len(run.interrupted())
    assert sum(record.recomputed_tokens for record in run.records) > 0


@pytest.mark.parametrize("placement", mostly_long(sorted(PLACEMENT), "d2lpm"))
def test_with_every_placement_answers_are_continued(placement):
    run = FaultyRun("vtc", placement, faults=CUTS, rules=RULES)
    assert run.interrupted()
    assert not run.lost
    assert all(record.total_latency_s is not None for record in run.records)


def test_clients_that_leave_while_their_answers_are_cut_leave_nothing_behind():
    run = FaultyRun("vtc", faults=CUTS, rules=RULES, patience_s=4.0, metrics_lag_s=1.0)
    assert any(entry.call == "cancel" for entry in run.entries)
    assert run.interrupted()


@pytest.mark.parametrize("policy", mostly_long(sorted(FAIRNESS), "vtc"))
def test_a_pool_whose_answers_could_be_continued_decides_as_one_whose_could_not(policy):
    """As long as nothing is cut, and but for saying that it may be."""
    run = FaultyRun(policy, faults=[slows])
    could = (
        replace(entry, request=replace(entry.request, is_resumable=True)) if isinstance(entry, Submitted) else entry
        for entry in run.entries
    )
    others = list(replay(could, run.scheduler(PLACEMENT["least-reserved"]())))
    assert others, "it says so"
    for poll in others:
        assert tuple(replace(action, may_be_preempted=False) for action in poll.replayed) == poll.recorded


@pytest.mark.parametrize("policy", mostly_long(MAIN))
def test_clients_that_leave_while_engines_die_leave_nothing_behind(policy):
    run = FaultyRun(policy, faults=[dies, slows], patience_s=4.0, metrics_lag_s=1.0)
    gone = [entry for entry in run.finished() if entry.outcome is Outcome.CLIENT_DISCONNECTED]
    assert gone
    assert any(entry.call == "cancel" for entry in run.entries)
    assert run.lost


def test_the_same_faults_happen_the_same_way():
    one, other = (FaultyRun("vtc", "d2lpm", duration_s=8.0, faults=[dies, slows], metrics_lag_s=1.0) for _ in range(2))
    assert one.entries == other.entries
