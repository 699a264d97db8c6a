"""What a simulated gateway knows of its engines' steps: what the real one would have learnt by then."""

from dataclasses import replace
from random import Random

import pytest

from backends.engine.coefficients import COEFFICIENTS
from backends.engine.engine import Engine
from backends.simulation.requests import Arrival
from backends.simulation.world import KnownSteps, World
from gateway.config import Config
from gateway.simulate.choices import Choices
from gateway.simulate.run import SimulatedFleet, simulate
from policies.facts import LoadChanged
from policies.scheduler import Scheduler
from policies.types import Tenant
from tests.simulation.recording import Recorder

NAME = "a800-llama3.1-8b"
ENGINE = COEFFICIENTS[NAME]


def arrivals(seconds: float = 60.0):
    rng, at_s = Random(1), 0.0
    while (at_s := at_s + rng.expovariate(4.0)) < seconds:
        output = int(rng.expovariate(1 / 150)) + 1
        yield Arrival("a", at_s, int(rng.uniform(50, 4000)), output, 1024)


def steps_told(entries):
    return [load.step_time for entry in entries if isinstance(entry, LoadChanged) for load in entry.loads]


def test_the_counters_of_an_engine_teach_how_long_its_steps_take():
    entries = []
    world = World(
        Recorder(Scheduler(tenants=[Tenant("a")]), entries.append), {"x": Engine(ENGINE)}, steps=KnownSteps(learnt=True)
    )
    assert list(world.run(arrivals()))
    told = steps_told(entries)
    assert told[0] is None, "nothing has run yet"
    assert told[-1].is_sure
    for new_tokens, context_tokens, requests in ((20, 20_000, 20), (2_000, 20_000, 20), (8_000, 40_000, 5)):
        step = {"new_tokens": new_tokens, "context_tokens": context_tokens, "requests": requests}
        assert told[-1].model.step_s(**step) == pytest.approx(ENGINE.step_time_model().step_s(**step), rel=0.15)


def test_a_simulated_trace_is_decided_with_what_was_learnt_and_tells_how_much_of_the_bound_was_used():
    entries = []
    (policy,) = Choices(policies=("vtc",)).tried(Config(), "")
    fleet = SimulatedFleet(
        engine=NAME, coefficients=ENGINE, engines=2, batching="chunked-prefill", block_tokens=16,
        requests_running_max=64,
    )  # fmt: skip
    watched = replace(policy, make_scheduler=lambda: Recorder(policy.make_scheduler(), entries.append))
    figures = simulate(watched, arrivals(), fleet=fleet, tenant_of=Tenant).figures
    assert all(step_time.is_sure for step_time in steps_told(entries)[-2:])
    assert figures.bound_used_ratio == figures.difference_max / figures.difference_bound
