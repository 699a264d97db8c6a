"""`make bench-check` notices what it is for."""

import importlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long  # of a benchmark: no mechanism of the product is held here

CHECK = Path(__file__).parents[1] / "benchmarks" / "relay" / "check.py"


WITHIN, DEARER = {"chunk": 1.1, "answer": 1.1}, {"chunk": 1.2, "answer": 1.2}


@pytest.mark.parametrize(
    ("tries", "missed"),
    [
        ([WITHIN], []),
        ([DEARER, DEARER, WITHIN], []),
        ([{"chunk": 1.1, "answer": 1.2}, {"chunk": 1.2, "answer": 1.1}], []),  # each within once
        ([DEARER, DEARER, DEARER], ["chunk", "answer"]),
        ([{"answer": 1.1}, {"answer": 1.1}, {"chunk": 1.2, "answer": 1.1}], ["chunk"]),  # chunks in lumps tell nothing
    ],
)
def test_one_try_of_three_within_15_percent_is_enough(monkeypatch, tries, missed):
    monkeypatch.syspath_prepend(CHECK.parent)
    check = importlib.import_module("check")
    found = check.dearer({"chunk": 1.0, "answer": 1.0}, iter(tries))
    assert [text.split()[1].rstrip(":") for text in found] == missed


def test_the_median_of_the_tries_is_recorded_and_nothing_where_other_programs_took_the_cpu(monkeypatch):
    monkeypatch.syspath_prepend(CHECK.parent)
    check = importlib.import_module("check")
    tries = [{"chunk": 1.0, "answer": 1.2}, {"answer": 1.1}, {"answer": 1.5}]
    assert check.median(tries) == {"chunk": 1.0, "answer": 1.2}
    with pytest.raises(SystemExit, match="chunk"):
        check.median(tries[1:])


def test_five_percent_more_calls_are_noticed(monkeypatch):
    monkeypatch.syspath_prepend(CHECK.parent)
    check = importlib.import_module("check")
    recorded = {"answer_calls": 1000.0, "chunk_calls": 9.0}
    assert check.more_calls(recorded, {"answer_calls": 1050.0, "chunk_calls": 9.0}) == []
    assert check.more_calls(recorded, {"answer_calls": 1051.0, "chunk_calls": 10.0}) == [
        "MORE answer_calls: 1051.0, recorded 1000.0",
        "MORE chunk_calls: 10.0, recorded 9.0",
    ]


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("cc") is None or shutil.which("taskset") is None, reason="its lab needs both")
def test_a_gateway_that_takes_30_percent_more_cpu_is_noticed():
    """It is 15 % above the recorded ratio in each of three tries, which noise alone is not."""
    done = subprocess.run([sys.executable, CHECK, "--slowed", "0.3"], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "DEARER chunk" in done.stdout or "DEARER answer" in done.stdout
