"""The engine replays the VTC paper's real trace: 27 clients, 1,500 requests, an A10G that serves in arrival order.

The expected figures are those of an independent simulator with the same coefficients; the paper's own
testbed measured 760 and 434 for the service difference, and 777 tokens a second.
"""

import csv
from pathlib import Path

import pytest

from backends.engine.batching import SeparatePrefill
from backends.engine.coefficients import COEFFICIENTS
from backends.engine.engine import Engine, EngineRequest
from backends.engine.kv_memory import OracleMemory
from backends.simulation.requests import RequestRecord
from tests.simulation.fairness_metric import service_difference, throughput

TRACE = Path(__file__).parents[4] / "tests/evidence/data/vtc_lmsys_real_trace.csv"
KV_TOKENS_MAX = 10_000


def replay(engine: Engine, rows: list[dict[str, str]]) -> tuple[list[RequestRecord], float]:
    """Every request's record, and the second in which the last one ended."""
    now, arrived, first_token_at, ended_at = 0.0, 0, {}, {}
    while True:
        while arrived < len(rows) and float(rows[arrived]["arrival_s"]) <= now:
            row = rows[arrived]
            tokens = int(row["prompt_tokens"]), int(row["output_tokens"])
            engine.submit(EngineRequest(row["req_id"], *tokens, tenant_id=row["client"]), now)
            arrived += 1
        plan = engine.step_begin(now)
        if plan is None and arrived == len(rows):
            break
        if plan is None:
            now = float(rows[arrived]["arrival_s"])
            continue
        now += plan.duration_s
        report = engine.step_end()
        first_token_at.update(dict.fromkeys(report.prefilled, now))
        ended_at.update(dict.fromkeys(report.finished, now))
    records = [
        RequestRecord(
            tenant_id=row["client"],
            arrived_at=float(row["arrival_s"]),
            prompt_tokens=int(row["prompt_tokens"]),
            output_tokens=int(row["output_tokens"]),
            first_token_latency_s=first_token_at[row["req_id"]] - float(row["arrival_s"]),
            total_latency_s=ended_at[row["req_id"]] - float(row["arrival_s"]),
        )
        for row in rows
    ]
    return records, now


def test_the_real_trace_in_arrival_order_gives_the_figures_of_an_independent_simulator():
    with TRACE.open() as file:
        rows = list(csv.DictReader(file))
    engine = Engine(
        COEFFICIENTS["a10g-llama2-7b"],
        kv_tokens_max=KV_TOKENS_MAX,
        requests_running_max=1000,
        batching=SeparatePrefill.for_pool(KV_TOKENS_MAX),
        memory=OracleMemory(kv_tokens_max=KV_TOKENS_MAX),
    )
    records, wall_s = replay(engine, rows)
    difference = service_difference(records)
    assert throughput(records, wall_s) == pytest.approx(771, abs=0.5)
    assert difference.maximum == pytest.approx(767.25, abs=0.1)
    assert difference.average == pytest.approx(444.65, abs=0.1)
    assert difference.variance == pytest.approx(36_423, abs=40)
