"""docs/slo.md shows what it explains, and its pictures say what the gateway's code says."""

import html
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/slo.md").read_text()
SCRIPT = ROOT / "tests/benchmarks/slo_page/plots.py"


@pytest.fixture(scope="module")
def plots():
    spec = importlib.util.spec_from_file_location("slo_page_plots", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def texts(svg):
    """All that is written in a picture."""
    return {html.unescape(text) for text in re.findall(r"<text[^>]*>([^<]+)</text>", svg)}


def test_the_page_explains_model_limit_and_envelope_with_a_picture_each(plots):
    pictures = re.findall(r"^!\[[^]]+\]\((\S+\.svg)\)$", PAGE, re.MULTILINE)
    assert pictures == ["results/step-time.svg", "results/slo/limit.svg", "results/slo/envelope.svg"]
    assert all((ROOT / "docs" / picture).exists() for picture in pictures)
    assert {f"results/slo/{name}.svg" for name in plots.PLOTS} < set(pictures)


def test_what_the_picture_says_of_its_answers_is_how_they_are_judged(plots):
    judged = {plots.says(answer) for answer in plots.ANSWERS}
    assert judged <= texts((plots.OUT / "envelope.svg").read_text())
    assert judged <= texts(plots.draw("envelope"))


def test_less_context_and_wider_targets_let_in_more_and_the_knee_the_most(plots):
    by_target = [[plots.admitted(context, tpot_s) for context in plots.CONTEXTS] for tpot_s in plots.TARGETS_S]
    for admitted in by_target:
        assert admitted == sorted(admitted, reverse=True)
    assert all(few < more < most for few, more, most in zip(*by_target, strict=True))
