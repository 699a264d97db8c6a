"""On real traces the mixture of experts is about as good as the best of them, whichever that is."""

import importlib.util
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "benchmarks/prediction/report.py"
BEHIND_MAX = 1.05  # of the best single expert's mean error


@pytest.fixture(scope="module")
def program():
    spec = importlib.util.spec_from_file_location("prediction_report", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("count", [1_500, pytest.param(4_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("number", range(3))
def test_the_mixture_is_near_the_best_expert_on_every_trace(program, number, count):
    requests = program.read(program.SOURCES[number])[:count]
    errors = {name: program.replay(make(), requests).tokens for name, make in program.PREDICTORS.items()}
    mixture = sum(errors["**mixture**"])
    assert mixture <= BEHIND_MAX * min(sum(errors[name]) for name in errors if name.startswith("expert"))
    assert mixture < sum(errors["last-five"])
    assert mixture < sum(errors["exponential"])


def test_the_noisy_oracle_errs_by_a_quarter_in_the_mean(program):
    requests = program.read(program.SOURCES[0])
    ratios = program.replay(program.PREDICTORS["noisy-oracle"](), requests).ratios
    assert sum(ratios) / len(ratios) == pytest.approx(0.25, abs=0.02)
