"""Published data: the printed rows of the VTC paper's tables 2 to 6, and the logs that they were computed from."""

import csv
import gzip
import io
import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import NamedTuple

from backends.simulation.requests import RequestRecord
from tests.evidence.vtc_pool import Run

DATA = resources.files("tests.evidence").joinpath("data")


class Printed(NamedTuple):
    """A row of tables 2 to 6: service difference (service/s) and throughput (tokens/s)."""

    table: str
    run: str
    price: str
    max: float
    avg: float
    var: float
    throughput: float


@cache
def printed() -> tuple[Printed, ...]:
    rows = json.loads(DATA.joinpath("golden_tables.json").read_text(encoding="utf-8"))
    prices = {"linear": "linear", "profile": "profiled"}
    return tuple(
        Printed(row["table"], row["run"], prices[row["cost"]], row["max"], row["avg"], row["var"], row["thr"])
        for row in rows
    )


def printed_row(table: str, run: str) -> Printed:
    return next(row for row in printed() if (row.table, row.run) == (table, run))


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """One run as its authors logged it."""

    name: str
    repeats: int = 1

    def run(self, number: int) -> Run:
        return logs()[self.name]


@cache
def logs() -> dict[str, Run]:
    """Return every published run by name."""
    records: dict[str, list[RequestRecord]] = {}
    wall_s: dict[str, float] = {}
    packed = DATA.joinpath("vtc_artifact_response_logs.csv.gz").read_bytes()
    with gzip.open(io.BytesIO(packed), "rt", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            wall_s[row["run"]] = float(row["total_time_s"])
            records.setdefault(row["run"], []).append(_record(row))
    return {name: Run(tuple(records[name]), wall_s[name]) for name in records}


def _record(row: dict[str, str]) -> RequestRecord:
    first, total = float(row["first_token_latency_s"]), float(row["request_latency_s"])
    return RequestRecord(
        tenant_id=row["client"],
        arrived_at=float(row["arrival_s"]),
        prompt_tokens=int(row["prompt_tokens"]),
        output_tokens=int(row["output_tokens"]),
        first_token_latency_s=None if first < 0 else first,  # -1: it was rejected
        total_latency_s=None if total < 0 else total,
    )
