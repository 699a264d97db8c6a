"""Preemption in a whole run: the engine gives requests back, the accounts stay right, and a late request waits less."""

from random import Random

from backends.engine.coefficients import COEFFICIENTS
from backends.engine.engine import Engine
from backends.simulation.world import World
from policies.fairness import LeastCounterFirst
from policies.prediction import NoPrediction
from policies.scheduler import Scheduler
from policies.types import Preempt, Tenant
from tests.simulation.arrivals import merged, poisson
from tests.simulation.checkers import InFlightLimits, RunWatch
from tests.simulation.recording import Polled, Recorder, replay
from tests.simulation.run_accounts import RunAccounts

TENANTS = [Tenant("early"), Tenant("late")]


def make_scheduler(preempt_service):
    return Scheduler(
        tenants=TENANTS,
        fairness=LeastCounterFirst,
        prediction=NoPrediction(),
        admission=(),
        preempt_service=preempt_service,
        share_ratio_max=1.0,
        wait_s_max=1e6,
    )


def run(preempt_service):
    """Long prompts of one tenant fill the engine, three of them, when the other's short ones begin to come."""
    rng = Random(5)
    arrivals = merged(
        poisson("early", lambda _: 3.0, rate_per_s_max=3.0, duration_s=60, prompt_tokens=(2900, 3000),
                output_tokens=(5, 9), rng=rng),
        poisson("late", lambda at_s: 0.5 if at_s > 40 else 0.0, rate_per_s_max=0.5, duration_s=60,
                prompt_tokens=(800, 900), output_tokens=(10, 20), rng=rng),
    )  # fmt: skip
    scheduler, entries = make_scheduler(preempt_service), []
    accounts = RunAccounts(tenants=TENANTS)
    recorder = Recorder(scheduler, RunWatch(accounts, [entries.append, InFlightLimits(accounts)]))
    world = World(recorder, {"x": Engine(COEFFICIENTS["a10g-llama2-7b"])})
    records = list(world.run(arrivals))
    accounts.conclude(scheduler.snapshot(world.now))
    return records, entries


def test_requests_that_are_preempted_are_served_later_and_every_charge_is_the_price_of_what_was_produced():
    records, entries = run(preempt_service=5_000.0)
    preempted = [action for entry in entries if isinstance(entry, Polled) for action in entry.actions]
    assert any(isinstance(action, Preempt) for action in preempted)
    assert all(record.total_latency_s is not None for record in records)
    assert list(replay(entries, make_scheduler(5_000.0))) == []


def test_who_is_far_behind_waits_less_for_it():
    waits = {}
    for preempt_service in (None, 5_000.0):
        late = [record for record in run(preempt_service)[0] if record.tenant_id == "late"]
        waits[preempt_service] = sum(record.first_token_latency_s for record in late) / len(late)
    assert waits[5_000.0] < 0.8 * waits[None]
