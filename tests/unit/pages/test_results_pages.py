"""The list of what was measured is whole, and a figure that is not what its command prints is found."""

import re
from datetime import date, timedelta
from pathlib import Path

import pytest

from tests.docs import results

ROOT = Path(__file__).parents[3]
PAGES = ROOT / "docs/results"


def test_every_page_is_listed_with_its_command():
    listed = (PAGES / "README.md").read_text(encoding="utf-8")
    assert {path.name for path in PAGES.glob("*.md")} - {"README.md"} == set(re.findall(r"\]\(([a-z-]+\.md)\)", listed))


def test_every_page_begins_with_the_day_and_the_commit_of_its_last_run():
    first = date.fromisoformat("2026-11-20")  # of the first commit
    is_whole = results.commits_since("7f11971") is not None
    for path in PAGES.glob("*.md"):
        if path.name != "README.md":
            day, commit = results.last_run(path.read_text(encoding="utf-8"))
            assert day >= first, path.name
            assert not is_whole or results.commits_since(commit) is not None, f"{path.name}: no commit {commit}"


@pytest.mark.parametrize(("days", "commits", "is_named"), [(60, 300, False), (61, 0, True), (0, 301, True)])
def test_a_page_whose_run_is_long_ago_is_named(days, commits, is_named):
    pages = {"a.md": "# A\n\nLast run: 2026-11-20, commit 7f11971. On two cores.\n"}
    today = date(2026, 11, 20) + timedelta(days)
    assert bool(list(results.old_pages(pages, today=today, commits=lambda _commit: commits))) is is_named


def test_a_page_of_a_commit_that_this_checkout_does_not_have_goes_by_its_day():
    pages = {"a.md": "# A\n\nLast run: 2026-11-20, commit 7f11971.\n"}
    assert not list(results.old_pages(pages, today=date(2026, 11, 30), commits=lambda _commit: None))
    assert list(results.old_pages(pages, today=date(2027, 11, 30), commits=lambda _commit: None))


@pytest.mark.parametrize(
    "page", ["# A\n\nText.\n", "# A\n\nLast run: today.\n", "Last run: 2026-11-20, commit 7f11971.\n"]
)
def test_a_page_that_does_not_say_when_it_was_run_is_an_error(page):
    with pytest.raises(ValueError, match="Last run"):
        results.last_run(page)


@pytest.mark.parametrize("target", ["R3", "R5", "D4", "F4"])
def test_a_figure_of_a_target_that_is_another_is_found(target, capsys):
    page = results.TABLES
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


def test_the_page_of_tables_counts_its_judged_rows():
    judged = (PAGES / results.TABLES).read_text(encoding="utf-8").splitlines()
    counts = {}
    for name, rows in results.targets(judged):
        verdicts = [verdict[1] for number in rows if (verdict := results.JUDGED.search(judged[number]))]
        counts[name] = (verdicts.count("in"), len(verdicts))
    page = (PAGES / "tables.md").read_text(encoding="utf-8")
    said = re.findall(r"^\| ([A-Z]\d+) \|[^|]*\| (\d+)/(\d+) \|", page, re.MULTILINE)
    assert {name: (int(passed), int(rows)) for name, passed, rows in said} == counts
    passed, rows = (sum(count[column] for count in counts.values()) for column in (0, 1))
    assert f"{passed} of {rows} judged rows" in page


def test_a_row_of_the_predictions_that_is_another_is_found():
    came = (PAGES / results.PREDICTION).read_text(encoding="utf-8").splitlines()
    assert results.compare(results.PREDICTION, came, find=results.tables, write=False)
    number = next(number for number, line in enumerate(came) if line.startswith("| **mixture**"))
    came[number] = came[number].replace(".", "9.", 1)
    assert not results.compare(results.PREDICTION, came, find=results.tables, write=False)
