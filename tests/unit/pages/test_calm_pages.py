"""Every one of the 64 checks names tests that exist, and docs/security.md says what the table of checks says."""

import ast
import re
from dataclasses import replace

import pytest

from tests.calm.table import (
    BEGIN,
    FIGURES_PAGE,
    PROMISES_PAGE,
    ROOT,
    figures_page,
    read_table,
    unsaid_misses,
    with_promises,
)

CHECKS = read_table()


def test_there_are_64_checks_in_order():
    assert [check.number for check in CHECKS] == list(range(1, 65))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.number)
def test_every_test_of_a_check_exists(check):
    assert check.tests or check.open
    for test in check.tests:
        path, _, name = test.partition("::")
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert name in names if name else any(each.startswith("test_") for each in names), test


def test_every_file_of_the_checks_is_named_after_one_and_listed_there():
    listed = {test.partition("::")[0]: check.number for check in CHECKS for test in check.tests}
    for path in (ROOT / "tests/calm").glob("test_*.py"):
        number = re.fullmatch(r"test_(\d\d)_[a-z0-9_]+\.py", path.name)
        assert number, path
        assert listed[str(path.relative_to(ROOT))] == int(number[1])


def test_the_page_of_promises_is_that_of_the_table():
    page = PROMISES_PAGE.read_text(encoding="utf-8")
    assert BEGIN in page
    assert page == with_promises(page, CHECKS), "make calm-page"


def test_the_page_of_figures_has_every_check():
    table = FIGURES_PAGE.read_text(encoding="utf-8").partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| \S", table, re.MULTILINE)
    others = re.findall(r"\d+", re.findall(r"^Met, without a figure: (.+)\.$", table, re.MULTILINE)[0])
    assert sorted(map(int, rows + others)) == [check.number for check in CHECKS], "make test-calm calm-page"


def test_a_check_whose_tests_pass_without_a_figure_is_in_one_line_with_its_like():
    check = next(check for check in CHECKS if check.tests and not check.open)
    run = {"day": "", "commit": "", "machine": "", "outcomes": {check.tests[0]: "passed"}, "figures": []}
    page = figures_page([check], run)
    assert f"Met, without a figure: {check.number}.\n" in page
    assert f"\n| {check.number} |" not in page


def test_figures_and_outcomes_are_shown_at_their_check():
    check = next(check for check in CHECKS if check.tests)
    outcomes = {check.tests[0]: "passed", f"{check.tests[0]}[case]": "failed", f"{check.tests[0]}_other": "failed"}
    told = {"number": check.number, "name": "ratio", "value": 0.98765, "unit": "", "target": ">= 0.9", "test": "t"}
    run = {"day": "today", "commit": "abc", "machine": "2 cores", "outcomes": outcomes, "figures": [told]}
    page = figures_page([check], run)
    assert "ratio **0.988** (≥0.9)" in page
    assert " | **1 of 2 tests pass**; ratio **0.988**" in page


def test_cases_of_one_figure_are_shown_as_their_range_and_what_says_nothing_is_not():
    told = {"number": CHECKS[0].number, "unit": "ms", "target": "<= 2"}
    cases = [("own time, to a", 1.25), ("own time, to b", 0.5), ("own time, to c", 1.0)]
    figures = [
        told | {"name": name, "value": value} for name, value in [*cases, ("calls of a", 3.0), ("bytes of b", 4.0)]
    ]
    figures.append(told | {"name": "context", "value": 9.0, "target": ""})
    figures.append(told | {"name": "as it is to be", "value": 2.0, "target": "2"})
    figures.append(told | {"name": "whole streams, of 500", "value": 500, "target": "all"})
    figures.append(told | {"name": "calls answered, of 500", "value": 0, "target": "all"})
    page = figures_page(CHECKS[:1], {"day": "", "commit": "", "machine": "", "outcomes": {}, "figures": figures})
    shown = "bytes of b **4** ms (≤2, missed); calls answered, of 500 **0** ms (all); "
    shown += "calls of a **3** ms (≤2, missed); own time **0.5 to 1.25** ms (≤2)"
    assert f" | **not run**; {shown} |\n" in page
    unjudged = [figure | {"target": ""} for figure in figures[:3]]
    page = figures_page(CHECKS[:1], {"day": "", "commit": "", "machine": "", "outcomes": {}, "figures": unjudged})
    assert "; own time **0.5 to 1.25** ms |\n" in page


def test_a_figure_beyond_its_target_is_missed_and_its_check_says_why():
    check = next(check for check in CHECKS if not check.margin)
    told = {"number": check.number, "name": "lag", "unit": "ms", "test": "t"}
    for value, target, is_missed in [
        (2.1, "<= 2", True), (2.0, "< 2", True), (0.8, ">= 0.9", True), (0.0, "> 0", True),
        (1.9, "<= 2", False), (1.9, "< 2", False), (0.91, ">= 0.9", False), (1.0, "> 0", False),
        (1.0, "<= 0.2, or 3", False), (1.0, "few", False),
    ]:  # fmt: skip
        figures = [told | {"value": value, "target": target}]
        run = {"day": "", "commit": "", "machine": "", "outcomes": {}, "figures": figures}
        assert (", missed)" in figures_page([check], run)) is is_missed, target
        assert unsaid_misses([check], run) == [check.number] * is_missed, target
        assert unsaid_misses([replace(check, margin="missed, because of a reason")], run) == []


def test_the_page_says_why_a_figure_is_missed():
    table, _, notes = FIGURES_PAGE.read_text(encoding="utf-8").partition("\n## ")
    missed = {row.split()[1] for row in table.splitlines() if ", missed)" in row}
    said = re.findall(r"^- ([\d, ]+): .*missed", notes, re.MULTILINE | re.IGNORECASE)
    assert missed <= {number for numbers in said for number in numbers.split(", ")}, "make test-calm calm-page"
