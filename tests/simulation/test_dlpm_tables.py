"""The DLPM paper's experiments: they can be made as named, and the direction of its first table comes out in one run.

All rows take minutes and are run by `make tables`.
"""

from dataclasses import replace

import pytest

from backends.simulation.requests import RequestRecord
from gateway.simulate.choices import Choices
from tests.evidence import dlpm_tables
from tests.evidence.lab import judge
from tests.evidence.prefix_pool import PATIENT, PrefixOutcome, PrefixRun, TreeCount

EXPERIMENTS = {each: None for target in dlpm_tables.TARGETS.values() for row in target.rows for each in row.experiments}
RUNS = [each for each in EXPERIMENTS if isinstance(each, PrefixRun)]


def outcome(*services: float, difference: float = 0.0) -> PrefixOutcome:
    """Tenants that each received so much, in prompt tokens, evenly from 20 to 100 s."""
    records = tuple(
        RequestRecord(f"t{number}", 0.0, int(service), 0, 20.0, 100.0) for number, service in enumerate(services)
    )
    return PrefixOutcome(records, wall_s=200.0, asks_s=100.0, hit_ratio=0.5, difference=difference, kv_tokens=1000)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.workload} {run.fairness} {run.placement}")
def test_every_experiment_names_policies_that_there_are(run):
    choices = Choices(policies=(run.fairness,), placements=(run.placement,), predictions=("none",), price="extend")
    (policy,) = choices.tried(PATIENT, "")
    assert policy.make_scheduler().poll(0.0) == []


def test_tree_workloads_have_the_papers_sizes():
    results = {each: [each.run(0)] for each in EXPERIMENTS if isinstance(each, TreeCount)}
    findings = [judge("D3", row, results) for row in dlpm_tables.TARGETS["D3"].rows]
    assert [(finding.ours, finding.verdict) for finding in findings] == [(340.0, "in"), (30.0, "in")]


@pytest.mark.long  # three runs of a published experiment
def test_dlpm_serves_more_than_vtc_from_the_cache_and_is_fairer_than_lpm():
    dlpm, vtc, lpm = (dlpm_tables.ONE[name].run(0) for name in ("DLPM", "VTC", "LPM"))
    assert dlpm.hit_ratio > 4 * vtc.hit_ratio
    assert dlpm_tables.speed(dlpm) > 1.2 * dlpm_tables.speed(vtc)
    assert vtc.difference < dlpm.difference < lpm.difference
    assert dlpm_tables.part_of_bound(dlpm, engines=1) < 1


def test_a_run_of_a_number_comes_out_the_same_and_of_another_does_not():
    run = replace(dlpm_tables.D2LPM, until_s=5.0)
    assert run.run(1) == run.run(1) != run.run(2)


def test_figures_are_what_they_are_called():
    assert dlpm_tables.equality(outcome(100, 100, 100)) == pytest.approx(1.0)
    assert dlpm_tables.equality(outcome(200, 100, 100)) == pytest.approx(0.8889, abs=1e-4)
    assert dlpm_tables.speed(outcome(200, 100)) == pytest.approx(300 / 200.0)
    assert dlpm_tables.latency_s(outcome(1, 1)) == pytest.approx(100.0)
    # U is 2 x 1,000 output tokens, K_u 8,000.
    assert dlpm_tables.part_of_bound(outcome(1, difference=10_000.0), engines=1) == pytest.approx(0.5)
    assert dlpm_tables.part_of_bound(outcome(1, difference=10_000.0), engines=4) == pytest.approx(0.125)
