"""The virtual clock: instants are whole, steps take the time the engine says, and chance is only in the workload."""

from random import Random

import pytest
from simulated_pool import ENGINE, TRACE

from backends.engine.coefficients import COEFFICIENTS
from backends.engine.engine import Engine
from backends.engine.fair_batching import FairBatching
from backends.simulation.requests import Arrival
from backends.simulation.world import KnownSteps, World
from policies.facts import LoadChanged, Measured, Progressed, Submitted
from policies.prediction import NoPrediction, Oracle
from policies.scheduler import Scheduler
from policies.types import Reason, SloEnvelope, Tenant
from tests.evidence.slo_measures import is_inside
from tests.simulation.arrivals import even, from_csv, merged, poisson
from tests.simulation.recording import Polled, Recorder

A10G = COEFFICIENTS[ENGINE]


def arrival(tenant_id="a", at_s=0.0, **sizes):
    return Arrival(tenant_id, at_s, **{"prompt_tokens": 100, "output_tokens": 3, "output_tokens_max": 10} | sizes)


def make_world(listener=lambda _: None, **options):
    scheduler = Scheduler(tenants=[Tenant("a"), Tenant("b")], **options)
    return World(Recorder(scheduler, listener), {"x": Engine(A10G)})


def test_a_lone_request_takes_one_prefill_step_and_one_step_per_further_token():
    engine = Engine(A10G)
    scheduler = Scheduler(tenants=[Tenant("a")])
    (record,) = World(scheduler, {"x": engine}).run([arrival(at_s=2.0)])
    steps_s = [
        A10G.mixed_s(new_tokens=new, context_tokens=context, requests=1)
        for new, context in ((100, 100), (1, 101), (1, 102))
    ]
    assert record.first_token_latency_s == pytest.approx(steps_s[0])
    assert record.total_latency_s == pytest.approx(sum(steps_s))
    assert (record.tenant_id, record.arrived_at, record.output_tokens) == ("a", 2.0, 3)


def test_all_that_happens_in_one_instant_is_told_before_the_one_poll_of_that_instant():
    entries = []
    list(make_world(entries.append).run([arrival("a"), arrival("b"), arrival("a", 5.0), arrival("b", 5.0)]))
    polls = [entry.now for entry in entries if isinstance(entry, Polled)]
    assert len(polls) == len(set(polls))
    for now in (0.0, 5.0):
        calls = [type(entry) for entry in entries if entry.now == now]
        assert calls.count(Submitted) == 2
        assert calls.index(Polled) == len(calls) - 1


def test_metrics_are_fed_once_a_second_while_anything_lives():
    entries = []
    list(make_world(entries.append).run([arrival(output_tokens=200, output_tokens_max=200)]))
    times = [entry.now for entry in entries if isinstance(entry, LoadChanged)]
    assert times == pytest.approx([float(second) for second in range(len(times))])
    assert len(times) >= 4


def test_every_step_ends_with_a_report_of_the_budget_and_the_calls_that_it_includes():
    """A report is told before the next decision. What was sent since is subtracted from it, not added to it again."""
    entries, envelope = [], SloEnvelope(0.5, 0.05)
    engine = Engine(A10G, batching=FairBatching(A10G.step_time_model(), tokens_max=512))
    scheduler = Recorder(Scheduler(tenants=[Tenant("a")]), entries.append)
    world = World(scheduler, {"x": engine}, steps=KnownSteps(batching="fair", budget_for=envelope))
    sizes = {"prompt_tokens": 500, "output_tokens": 40, "output_tokens_max": 40, "envelope": envelope}
    list(world.run(arrival(at_s=at_s, **sizes) for at_s in (0.0, 0.01, 0.2, 0.21, 0.5, 9.0)))
    idle_tokens = Engine(A10G).prefill_budget(0.0, envelope)
    told = [(e.now, e.load.pab_tokens, e.load.pab_dispatches[""]) for e in entries if isinstance(e, Measured)]
    assert told[0] == (0.0, idle_tokens, 0)
    assert [dispatches for now, _, dispatches in told if now in (0.2, 0.5)] == [2, 4]  # 0.01, 0.21: no step ended since
    assert all(tokens < idle_tokens for now, tokens, _ in told if now in (0.2, 0.5))
    assert told[-1][1:] == (idle_tokens, 6)


def test_a_token_alone_is_no_reason_to_poll_and_is_told_before_the_next_poll():
    entries = []
    late = arrival("b", at_s=0.93)
    list(make_world(entries.append, prediction=NoPrediction()).run([arrival(output_tokens=60), late]))
    polls = [entry.now for entry in entries if isinstance(entry, Polled)]
    assert len([now for now in polls if now < 0.9]) == 1
    told = [entry for entry in entries if isinstance(entry, Progressed) and entry.now == 0.93]
    assert [entry.usage.output_tokens > 10 for entry in told] == [True]


def test_tokens_that_no_decision_depends_on_are_told_only_when_the_engine_is_measured_and_at_the_end():
    entries = []
    late = [arrival("b", at_s=0.93 + number / 10) for number in range(20)]
    scheduler = {"prediction": Oracle()}
    list(make_world(entries.append, **scheduler).run([arrival(output_tokens=150, output_tokens_max=150), *late]))
    first = next(entry.request.id for entry in entries if isinstance(entry, Submitted))
    told = [
        entry.usage.output_tokens for entry in entries if isinstance(entry, Progressed) and entry.request_id == first
    ]
    measured = [entry.now for entry in entries if isinstance(entry, LoadChanged)]
    assert told[-1] == 150
    assert len(told) <= 1 + len(measured) + 1


def test_a_request_that_waits_too_long_is_refused_at_its_deadline_although_nothing_else_happens():
    entries = []
    blocker = arrival("a", prompt_tokens=9000, output_tokens=300, output_tokens_max=300)
    world = make_world(entries.append, wait_s_max=1.5)
    records = list(world.run([blocker, arrival("b", 0.001, prompt_tokens=800)]))
    rejected = next(record for record in records if record.rejected)
    assert (rejected.tenant_id, rejected.rejected) == ("b", Reason.QUEUE_TIMEOUT)
    assert 1.501 in [entry.now for entry in entries if isinstance(entry, Polled)]


def test_a_client_that_gives_up_frees_its_room_and_is_charged_what_it_received():
    engine = Engine(A10G)
    scheduler = Scheduler(tenants=[Tenant("a")])
    world = World(scheduler, {"x": engine})
    (record,) = world.run([arrival(output_tokens=500, output_tokens_max=500, patience_s=1.0)])
    assert record.total_latency_s is None
    assert 10 < record.output_tokens < 500
    assert engine.snapshot().requests_running == 0
    assert scheduler.snapshot(world.now).tenants["a"].service == 100 + 2 * record.output_tokens


def test_a_shared_prefix_is_found_in_the_engines_cache_and_charged_as_cached():
    scheduler = Scheduler(tenants=[Tenant("a")])
    world = World(scheduler, {"x": Engine(A10G)})
    list(world.run([arrival(prefix=(1, 2, 3, 4)), arrival(at_s=1.0, prefix=(1, 2, 3, 4))]))
    assert scheduler.snapshot(world.now).tenants["a"].service == pytest.approx((100 + 6) + (36 + 0.1 * 64 + 6))


def test_the_same_seed_gives_the_same_run():
    def run():
        rng = Random(7)
        streams = [
            poisson(
                t,
                lambda _: 2.0,
                rate_per_s_max=2.0,
                duration_s=30,
                prompt_tokens=(1, 900),
                output_tokens=(1, 90),
                rng=rng,
            )
            for t in ("a", "b")
        ]
        return list(make_world().run(merged(*streams)))

    assert run() == run()


def test_workloads_are_in_order_of_time_and_keep_their_rates():
    rng = Random(3)
    size = {"prompt_tokens": 5, "output_tokens": 6}
    steady = list(even("a", 2.0, duration_s=100, rng=rng, **size))
    assert len(steady) == 200
    assert steady[1].at_s - steady[0].at_s == pytest.approx(0.5)
    ramp = list(
        poisson(
            "b",
            lambda t: t / 50,
            rate_per_s_max=2.0,
            duration_s=100,
            prompt_tokens=(1, 2),
            output_tokens=(3, 4),
            rng=rng,
        )
    )
    assert len([a for a in ramp if a.at_s > 50]) == pytest.approx(3 * len([a for a in ramp if a.at_s <= 50]), rel=0.5)
    both = list(merged(steady, ramp))
    assert both == sorted(both, key=lambda a: (a.at_s, a.tenant_id))


def test_the_shipped_trace_is_the_papers():
    with TRACE.open() as lines:
        trace = list(from_csv(lines, speed=2.0))
    assert len(trace) == 1500
    assert len({a.tenant_id for a in trace}) == 27
    assert trace[-1].at_s == pytest.approx(300.0)
    assert sum(a.prompt_tokens for a in trace) == 204_398
    assert sum(a.output_tokens for a in trace) == 384_297
    assert all(a.output_tokens_max == a.output_tokens for a in trace)


@pytest.mark.parametrize("tpot_s", [0.030, 0.012])
def test_the_scheduler_counts_what_was_served_in_time_as_the_gateways_does(tpot_s):
    envelope = SloEnvelope(ttft_s=0.5, tpot_s=tpot_s)
    scheduler = Scheduler(tenants=[Tenant("a"), Tenant("b")])
    calls = [arrival("a", 0.1 * n, output_tokens=40, output_tokens_max=40, envelope=envelope) for n in range(30)]
    records = list(World(scheduler, {"x": Engine(A10G)}).run([*calls, arrival("b", 9.0)]))
    attainment = scheduler.snapshot(99.0).tenants["a"].attainment
    inside = [
        is_inside(envelope, ttft_s=each.first_token_latency_s, tpot_envelope_s=each.tpot_envelope_s)
        for each in records
        if each.tenant_id == "a"
    ]
    assert (attainment.requests, attainment.met) == (30, sum(inside))
    assert attainment.tokens == 30 * 40
    assert 0 < attainment.tokens_in_time <= attainment.tokens
    assert (attainment.met == 30) == (tpot_s == 0.030)
