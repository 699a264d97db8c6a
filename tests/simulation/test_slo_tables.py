"""The tables of envelopes: they can be made as named, a run of a number comes out the same, and what they argue with
comes out in one short run. All rows take minutes and are run by `make tables ONLY=F,B`.
"""

from dataclasses import replace

import pytest

from backends.engine.coefficients import COEFFICIENTS
from backends.simulation.fairness_metric import RequestRecord
from policies.types import Reason, SloEnvelope
from tests.evidence import slo_measures, slo_scenes, slo_tables
from tests.evidence.command import chosen
from tests.evidence.slo_cluster import SCENES, SYSTEMS, ClusterRun
from tests.evidence.slo_engines import ModelError, make_engine, tuned_budget
from tests.evidence.slo_pool import ROUTERS, SloOutcome, TraceRun
from tests.evidence.targets import TARGETS

A800 = "a800-llama3.1-8b"
ENVELOPE = SloEnvelope(0.5, 0.05)
OURS = {**slo_tables.TARGETS, **slo_scenes.TARGETS}
EXPERIMENTS = {each: None for target in OURS.values() for row in target.rows for each in row.experiments}


def record(ttft_s, tpot_envelope_s, *, tpot_s=None, refused=None) -> RequestRecord:
    total_s = None if refused else 9.0
    return RequestRecord("t", 0.0, 10, 10, ttft_s, total_s, refused, tpot_s, tpot_envelope_s)


def test_a_letter_names_all_of_its_tables_and_without_names_they_are_not_run():
    assert list(chosen(TARGETS, "F,B")) == ["F1", "F2", "F3", "F4", "F5", "F6", "B1", "B2", "B3"]
    assert list(chosen(TARGETS, "B,R1")) == ["R1", "B1", "B2", "B3"]
    assert {name[0] for name in chosen(TARGETS, None)} == {"R", "D"}


def test_every_experiment_names_what_there_is():
    for each in EXPERIMENTS:
        match each:
            case TraceRun():
                assert each.router in ROUTERS
                make_engine(each.coefficients, each.order if each.order != "fair-tokens" else "fair", ENVELOPE)
            case ClusterRun():
                assert SYSTEMS[each.system].make(SCENES[each.scene], 0).poll(0.0) == []
            case _:
                assert isinstance(each, ModelError)


def test_the_budget_of_a_step_keeps_the_target_and_one_unit_more_does_not():
    model = COEFFICIENTS[A800].step_time_model()
    tokens = tuned_budget(COEFFICIENTS[A800], ENVELOPE)
    assert model.step_s(new_tokens=tokens, context_tokens=32_000, requests=1) <= 0.05
    assert model.step_s(new_tokens=tokens + 16, context_tokens=32_000, requests=1) > 0.05


def test_a_request_counts_only_where_all_of_its_tokens_were_in_time():
    records = (
        record(0.4, 0.05, tpot_s=0.2),
        record(0.6, 0.01, tpot_s=0.01),
        record(0.4, 0.06, tpot_s=0.01),
        record(None, None, refused=Reason.SHED),
    )
    outcome = SloOutcome(records, {"t": ENVELOPE}, asks_s=2.0)
    assert slo_measures.effective_per_s(outcome) == 0.5
    assert slo_measures.attainment(outcome) == 0.25
    assert slo_measures.strict_attainment(outcome) == 0.0


def test_a_run_of_a_number_comes_out_the_same_and_of_another_does_not():
    run = TraceRun(trace="burst", load_ratio=0.8, order="fair", router="pab-admission", asks_s=20.0)
    assert run.run(1) == run.run(1) != run.run(2)


def test_fair_batches_keep_their_pace_and_a_budget_keeps_the_first_token():
    run = TraceRun(trace="qwen", load_ratio=0.65, order="fair", coefficients=A800, asks_s=60.0)
    others = replace(run, order="vllm"), replace(run, router="pab-admission")
    fair, vllm, admitted = (each.run(0) for each in (run, *others))
    assert slo_measures.tpot_envelope_ms(fair, 0.99) <= 51.0 < slo_measures.tpot_envelope_ms(vllm, 0.99)
    assert slo_measures.attainment(fair) > slo_measures.attainment(vllm)
    assert slo_measures.ttft_ms(admitted, 0.99) <= 525.0


def test_what_is_known_of_context_makes_the_error_smaller():
    errors = [ModelError(reads_context=reads, coefficients=A800).run(0) for reads in (True, False)]
    assert errors[0] < 0.02 < errors[1]


@pytest.mark.long
def test_more_is_in_time_behind_the_scheduler_than_behind_a_gateway_that_sends_at_once():
    ours, theirs = (
        ClusterRun(scene="three tiers", system=system, load_ratio=1.3, asks_s=15.0).run(0)
        for system in ("fairlead", "least requests")
    )
    assert slo_measures.effective_per_s(ours) > slo_measures.effective_per_s(theirs)
    assert slo_scenes.tier_attainment(ours) > slo_scenes.tier_attainment(theirs)
