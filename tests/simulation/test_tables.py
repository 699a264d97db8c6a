"""`make tables`: its workloads are the published ones, its verdicts follow its tolerances, and the shape
of the paper's table 2 comes out within a few runs. (All rows take minutes and are run by the command itself.)
"""

import json
from functools import cache

import pytest
from typer.testing import CliRunner

from tests.evidence import lab, measures
from tests.evidence.__main__ import app
from tests.evidence.command import chosen, shown
from tests.evidence.experiment import (
    Row,
    Target,
    at_least,
    at_most,
    between,
    more_than,
    percent,
    plus_minus,
)
from tests.evidence.lab import judge
from tests.evidence.numpy_draws import NumpyDraws
from tests.evidence.published import logs
from tests.evidence.targets import TARGETS
from tests.evidence.vtc_pool import VtcRun
from tests.evidence.workloads import WORKLOADS

NUMPY = {  # numpy 2.4: seed -> randint(16, 512, 6), randint(5, 6, 3), rand(), gamma(1, 0.105, 3), randint(0, 2, 8)
    0: (
        [188, 63, 133, 208, 339, 267],
        [5, 5, 5],
        0.5448831829968969,
        [0.057860091565027416, 0.10900672596907898, 0.06042951591270718],
        [0, 0, 0, 0, 0, 1, 0, 1],
    ),
    42: (
        [118, 451, 364, 286, 122, 87],
        [5, 5, 5],
        0.5986584841970366,
        [0.01781061139854636, 0.017807610651033545, 0.006283070703911471],
        [1, 0, 1, 1, 1, 0, 1, 0],
    ),
}


@pytest.mark.parametrize("seed", NUMPY)
def test_draws_are_numpys(seed):
    draws = NumpyDraws(seed)
    found = (draws.integers(16, 512, 6), draws.integers(5, 6, 3), draws.uniform(), draws.gaps(0.105, 3))
    assert (*found, draws.integers(0, 2, 8)) == NUMPY[seed]


@pytest.mark.parametrize(
    ("workload", "log"),
    [("overload", "T5_vtc_overload"), ("overload-long", "T4_fcfs_overload"), ("multi", "T6_vtc_multi")],
)
def test_generated_workloads_are_those_of_the_published_logs(workload, log):
    def key(request):
        return request[0], request[1]

    made = sorted(((a.at_s, a.tenant_id[1:], a.prompt_tokens, a.output_tokens) for a in arrivals(workload)), key=key)
    logged = sorted(
        ((r.arrived_at, r.tenant_id[1:], r.prompt_tokens, r.output_tokens) for r in logs()[log].records), key=key
    )
    assert [each[1:] for each in made] == [each[1:] for each in logged]
    assert [each[0] for each in made] == pytest.approx([each[0] for each in logged], abs=1e-9)


def test_the_real_trace_is_that_of_the_published_logs():
    logged = sorted(record.arrived_at for record in logs()["T2_vtc_real"].records)
    assert [arrival.at_s for arrival in arrivals("lmsys")] == pytest.approx(logged, abs=1e-6)


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_are_in_order_of_time_and_never_expect_less_than_they_take(name):
    made = arrivals(name)
    assert made == sorted(made, key=lambda arrival: arrival.at_s)
    assert all(arrival.output_tokens_max >= 1.5 * arrival.output_tokens for arrival in made)


def arrivals(workload):
    return WORKLOADS[workload].arrivals()


@cache
def table_2(fairness):
    return VtcRun(workload="lmsys", fairness=fairness).run(2)


@pytest.mark.long  # a published trace twice
def test_table_2_comes_out_of_the_production_scheduler():
    vtc, fifo = table_2("vtc"), table_2("fifo")
    assert measures.throughput_of(vtc) == pytest.approx(779, rel=0.03)
    assert measures.average(fifo) == pytest.approx(433.53, rel=0.15)
    assert 0.48 <= measures.average(vtc) / measures.average(fifo) <= 0.66


def test_a_run_of_one_number_comes_out_the_same_and_another_does_not():
    again = VtcRun(workload="lmsys", prediction="noisy-oracle", requests_per_minute_max=5)
    assert again.run(1) == again.run(1)
    assert again.run(1) != again.run(2)


class Stub:
    """An experiment whose runs are given."""

    def __init__(self, *values):
        self.values = values
        self.repeats = len(values)


@pytest.mark.parametrize(
    ("tolerance", "published", "inside", "outside"),
    [
        (percent(0.03), 100.0, [97.0, 103.0], [96.9, 103.1]),
        (plus_minus(0.5), 2.0, [1.5, 2.5], [1.4, 2.6]),
        (between(0.48, 0.66), 0.58, [0.48, 0.66], [0.47, 0.67]),
        (at_most(2.0), 0.5, [-1.0, 2.0], [2.1]),
        (at_least(2.0), None, [2.0, 9.0], [1.9]),
        (more_than(1.0), None, [1.0001], [1.0, 0.5]),
    ],
)
def test_a_figure_is_in_within_its_tolerance_and_out_beyond(tolerance, published, inside, outside):
    for value in (*inside, *outside):
        stub = Stub(value)
        row = Row(says="", experiments=(stub,), measure=float, published=published, tolerance=tolerance)
        assert judge("T", row, {stub: [value]}).verdict == ("in" if value in inside else "OUT")


def test_the_median_of_the_runs_is_judged_and_their_spread_shown():
    one, other = Stub(1, 2, 9), Stub(1, 1, 3)
    row = Row(says="ratio", experiments=(one, other), measure=lambda a, b: a / b, published=2.0, tolerance=percent(0.1))
    finding = judge("T", row, {one: list(one.values), other: list(other.values)})
    assert (finding.ours, finding.least, finding.greatest, finding.verdict) == (2.0, 1.0, 3.0, "in")
    assert any("ratio" in line and "1.00 - 3.00" in line for line in shown({"T": Target("", "", (row,))}, [finding]))


def test_what_is_reported_only_has_no_verdict():
    stub = Stub(5)
    assert judge("T", Row(says="", experiments=(stub,), measure=float), {stub: [5]}).verdict == "-"


def test_targets_are_chosen_by_name_and_those_without_a_verdict_only_by_name():
    assert list(chosen(TARGETS, "R3, R1")) == ["R1", "R3"]
    assert set(chosen(TARGETS, None)) >= {f"R{number}" for number in range(1, 14)}
    assert not {"P1", "P2"} & set(chosen(TARGETS, None))
    with pytest.raises(ValueError, match="there are R1, R2"):
        chosen(TARGETS, "R99")


def test_the_command_prints_a_table_or_json_and_its_exit_code_is_the_verdict(monkeypatch):
    runner = CliRunner()
    run_all, results = lab.run_all, {}

    def run_once(experiments, *, progressed):
        """Each process that runs experiments imports them for a second."""
        return results or results.update(run_all(experiments, progressed=progressed)) or results

    monkeypatch.setattr(lab, "run_all", run_once)
    good = runner.invoke(app, ["--only", "R1", "--json"])
    assert good.exit_code == 0
    found = json.loads(good.stdout)
    assert len(found) == 100
    assert {each["verdict"] for each in found} == {"in"}
    target = TARGETS["R1"]
    wrong = Row(says="wrong", experiments=target.rows[0].experiments, measure=measures.average, tolerance=at_most(1.0))
    monkeypatch.setitem(TARGETS, "R1", Target(target.says, target.workload, (target.rows[1], wrong)))
    bad = runner.invoke(app, ["--only", "R1"])
    assert bad.exit_code == 1
    assert "1 of 2 judged rows are in, OUT:\n    R1  wrong" in bad.stdout
    unknown = runner.invoke(app, ["--only", "nothing"])
    assert unknown.exit_code == 1
    assert "there is no target 'nothing': there are R1" in unknown.output
