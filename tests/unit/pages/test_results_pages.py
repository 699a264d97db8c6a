"""The list of what was measured is whole, and a figure that is not what its command prints is found."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = ROOT / "docs/results"
SPEC = importlib.util.spec_from_file_location("results", ROOT / "tests/docs/results.py")
assert SPEC is not None
assert SPEC.loader is not None
results = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(results)


def test_every_page_is_listed_with_its_command_and_the_commit_it_was_last_run_at():
    listed = (PAGES / "README.md").read_text(encoding="utf-8")
    assert {path.name for path in PAGES.glob("*.md")} - {"README.md"} == set(re.findall(r"\]\(([a-z-]+\.md)\)", listed))
    dear = listed.partition("last run at |")[2].splitlines()[2:]
    assert dear
    for line in dear:
        assert re.search(r"\| ([0-9a-f]{7,}|with the section) \|$", line), line


@pytest.mark.parametrize("target", ["R3", "R9", "D2", "F4", "P1"])
def test_a_figure_of_a_target_that_is_another_is_found(target, capsys):
    page = results.PAGE_OF[target[0]]
    lines = (PAGES / page).read_text(encoding="utf-8").splitlines()
    rows = next(rows for name, rows in results.targets(lines) if name == target)
    came = [f"{target}  title", *(lines[number] for number in rows), ""]
    assert results.compare(page, came, write=False)
    figure = max(re.findall(r"\d+\.\d+", came[3]))
    came[3] = came[3].replace(figure, f"{float(figure) + 1:.3f}")
    assert not results.compare(page, came, write=False)
    assert f"{target} is not what came out" in capsys.readouterr().out
    del came[4:6]
    assert not results.compare(page, came, write=False)


def test_a_row_of_the_predictions_that_is_another_is_found():
    came = (PAGES / results.PREDICTION).read_text(encoding="utf-8").splitlines()
    assert results.compare(results.PREDICTION, came, find=results.tables, write=False)
    number = next(number for number, line in enumerate(came) if line.startswith("| **mixture**"))
    came[number] = came[number].replace(".", "9.", 1)
    assert not results.compare(results.PREDICTION, came, find=results.tables, write=False)
