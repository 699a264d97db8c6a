"""`make bench-decision` prints a figure in every row, whatever the pool is full of."""

import importlib.util
import re
import sys
from math import isfinite
from pathlib import Path

import pytest

pytestmark = pytest.mark.long  # of a benchmark: no mechanism of the product is held here

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "tests/benchmarks/decision/bench.py"
FULL_OF = ["seats", "KV tokens", "steps", "prompts"]


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("decision_bench", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(bench, monkeypatch, capsys):
    """Runs it with these arguments; the rows of figures that it prints, by what the pool is full of."""

    def run(*args: str) -> dict[str, list[list[float]]]:
        monkeypatch.setattr(sys, "argv", ["bench.py", *args])
        bench.main()
        tables = re.split(r"^.*full of (.+)$\n.*\n", capsys.readouterr().out, flags=re.MULTILINE)[1:]
        names, rows = tables[::2], tables[1::2]
        return {
            name: [[float(figure) for figure in row.split()] for row in text.splitlines()]
            for name, text in zip(names, rows, strict=True)
        }

    return run


def test_one_decision_at_a_time_has_a_row_for_every_load(run, bench):
    tables = run("--tenants", "10", "300", "--decisions", "60", "--backends", "2")
    assert list(tables) == FULL_OF == list(bench.LOADS)
    for rows in tables.values():
        assert [row[0] for row in rows] == [10, 300]
        assert all(len(row) == 2 + len(bench.COLUMNS) and all(map(isfinite, row)) for row in rows)


@pytest.mark.parametrize("backends", [1, 4])
def test_bursts_have_a_row_for_every_load(run, backends):
    tables = run("--burst", "32", "--bursts", "2", "--tenants", "10", "100", "--backends", str(backends))
    assert list(tables) == FULL_OF
    for rows in tables.values():
        assert [row[0] for row in rows] == [10, 100]
        for _, *figures in rows:
            assert all(figure > 0.0 for figure in figures)
            for p50, p99, most in (figures[:3], figures[3:]):
                assert p50 <= p99 <= most
