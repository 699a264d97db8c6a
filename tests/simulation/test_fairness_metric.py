"""The metric recomputes every row of the VTC paper's tables 2 to 6 from the logs its authors published.

Those logs (one row per request of 20 runs) and the printed rows ship with `make tables`.
"""

import csv
import gzip
import json
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from backends.simulation.requests import RequestRecord
from gateway.simulate.report.tally import window_gap
from policies.accounts.cost import LinearPrice, ProfiledQuadraticPrice
from tests.simulation.fairness_metric import (
    Windows,
    accumulated_difference,
    accumulated_service,
    mean_ttft_s,
    service_difference,
    tenants_by_requests,
    throughput,
)

DATA = Path(__file__).parents[2] / "tests/evidence/data"
GOLDEN = json.loads((DATA / "golden_tables.json").read_text())
PRICES = {"linear": LinearPrice(), "profile": ProfiledQuadraticPrice()}


@cache
def published_runs():
    """Run name -> (records, wall seconds)."""
    records, wall_s = defaultdict(list), {}
    with gzip.open(DATA / "vtc_artifact_response_logs.csv.gz", "rt") as lines:
        for row in csv.DictReader(lines):
            first, total = float(row["first_token_latency_s"]), float(row["request_latency_s"])
            wall_s[row["run"]] = float(row["total_time_s"])
            records[row["run"]].append(
                RequestRecord(
                    tenant_id=row["client"],
                    arrived_at=float(row["arrival_s"]),
                    prompt_tokens=int(row["prompt_tokens"]),
                    output_tokens=int(row["output_tokens"]),
                    first_token_latency_s=None if first < 0 else first,
                    total_latency_s=None if total < 0 else total,
                )
            )
    return records, wall_s


@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: f"table{row['table']}-{row['run']}")
def test_every_printed_row_is_recomputed_from_the_published_logs(row):
    records, wall_s = published_runs()
    run = records[row["run"]]
    found = service_difference(run, price=PRICES[row["cost"]])
    assert found.maximum == pytest.approx(row["max"], abs=0.006)
    assert found.average == pytest.approx(row["avg"], abs=0.006)
    assert found.variance == pytest.approx(row["var"], abs=0.006)
    assert throughput(run, wall_s[row["run"]]) == pytest.approx(row["thr"], abs=0.51)


def test_all_25_rows_of_the_paper_are_there():
    assert len(GOLDEN) == 25


@pytest.mark.parametrize(("demand_b", "gap"), [(50.0, 10.0), (200.0, 60.0)])
def test_a_tenant_is_owed_no_more_than_it_asked_for(demand_b, gap):
    assert window_gap({"a": 100.0, "b": 40.0}, {"a": 100.0, "b": demand_b}) == gap


def test_a_tenant_that_got_nothing_in_a_window_is_owed_its_demand():
    assert window_gap({"a": 100.0}, {"a": 100.0, "b": 30.0}) == 30.0


def test_the_windows_of_the_paper_are_60_s_wide_and_start_every_28_5_s():
    spans = Windows().spans()
    assert spans == [(pytest.approx(28.5 * j), pytest.approx(28.5 * j + 60)) for j in range(1, 20)]


def test_a_run_in_compressed_time_differs_by_the_factor_alone():
    records, _ = published_runs()
    run = records["T2_vtc_real"]
    factor = 0.1
    compressed = [
        RequestRecord(
            tenant_id=r.tenant_id,
            arrived_at=r.arrived_at * factor,
            prompt_tokens=r.prompt_tokens,
            output_tokens=r.output_tokens,
            first_token_latency_s=r.first_token_latency_s * factor,
            total_latency_s=r.total_latency_s * factor,
        )
        for r in run
    ]
    found = service_difference(compressed, windows=Windows().scaled(factor))
    assert found.average * factor == pytest.approx(service_difference(run).average)


def test_accumulated_service_ends_at_the_price_of_all_that_was_served():
    records = [
        RequestRecord("a", 0.0, 10, 20, 1.0, 3.0),
        RequestRecord("b", 1.0, 5, 5, None, None),
        RequestRecord("b", 2.0, 4, 6, 1.0, 2.0),
    ]
    assert accumulated_service(records, [0.0, 2.0, 3.5, 9.0]) == {"a": [0.0, 25.0, 50.0, 50.0], "b": [0, 0, 8.0, 16.0]}
    assert accumulated_difference(records, [2.0, 3.5, 9.0]) == [0.0, 17.0, 9.0]


def test_ranks_and_latencies_are_per_tenant():
    records = [RequestRecord(t, 0.0, 1, 1, latency, 9.0) for t, latency in (("a", 1.0), ("b", 2.0), ("b", 4.0))]
    assert tenants_by_requests(records) == ["b", "a"]
    assert mean_ttft_s(records) == {"a": 1.0, "b": 3.0}
