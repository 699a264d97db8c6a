"""The table of the 64 checks, and the pages made of it: the promises, and the figures that their tests measured."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "tests/calm/checks.toml"
FIGURES = ROOT / "build/calm/figures.json"
PROMISES_PAGE = ROOT / "docs/security.md"
FIGURES_PAGE = ROOT / "docs/results/calm.md"
BEGIN, END = "<!-- promises: made by `make calm-page` -->\n", "<!-- end of promises -->\n"
GROUPS = {
    "load": "Under load",
    "faults": "When something fails",
    "bad input": "Against bad input",
    "security": "Identity and secrets",
    "durability": "State that lasts",
    "upgrade": "Upgrades and drains",
}


@dataclass(frozen=True)
class Check:
    """A promise and the tests that hold it. `margin` says what they assert where that is less than the target; `open`
    what no test holds yet.
    """

    number: int
    group: str
    promise: str
    target: str
    tests: tuple[str, ...]
    margin: str = ""
    open: str = ""


def read_table() -> list[Check]:
    rows = tomllib.loads(TABLE.read_text(encoding="utf-8"))["check"]
    return [Check(**{**row, "tests": tuple(row["tests"])}) for row in rows]


def promises(checks: Iterable[Check]) -> str:
    """The list of promises for docs/security.md."""
    text, group = "", ""
    for check in checks:
        if check.group != group:
            group = check.group
            text += f"\n### {GROUPS[group]}\n\n"
        missing = f" Not tested yet: {check.open}." if check.open else ""
        tests = "".join(f"\n    - `{test}`" for test in check.tests)
        text += f"- {check.number}. {check.promise}{missing}{tests}\n"
    return text.lstrip("\n") + "\n"


def with_promises(page: str, checks: Iterable[Check]) -> str:
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + "\n" + promises(checks) + END + rest.partition(END)[2]


def figures_page(checks: Iterable[Check], run: Mapping[str, Any]) -> str:
    """docs/results/calm.md, of what `make test-calm` (or a part of it) recorded."""
    lines = [
        "# 64 checks, with the figures of their tests",
        "",
        f"Last run: {run['day']}, commit {run['commit']}. Machine: {run['machine']}.",
        "",
        "`make test-calm test-calm-mutants test-soak calm-page` writes this page from what was recorded. Tests assert",
        "the target. The fourth column is all that they assert less, with the reason: a shorter run, and the command",
        "of the whole one, or what is not held.",
        "",
        "A machine that others use disturbs times. *Own time* leaves out the time in which a process was ready to run",
        "and had no core. Where a time is that of several processes, the naive relay of the benchmarks takes the",
        "gateway's place in the same run: it is disturbed alike, and 1.5 times what it adds is allowed where that is",
        "more than the target.",
        "",
        "| # | target | measured | asserted less, and why | tests |",
        "|---|---|---|---|---|",
    ]
    outcomes, figures = run["outcomes"], run["figures"]
    for check in checks:
        ours = [outcome for name, outcome in outcomes.items() if any(covers(test, name) for test in check.tests)]
        passed = f"{ours.count('passed')} of {len(ours)} pass" if ours else "not run"
        if check.open:
            passed += f"; open: {check.open}"
        found = [figure for figure in figures if figure["number"] == check.number]
        measured = "; ".join(_figure(figure) for figure in sorted(found, key=lambda figure: figure["name"]))
        lines.append(f"| {check.number} | {check.target} | {measured} | {check.margin} | {passed} |")
    return "\n".join([*lines, *_mutants(run.get("mutants", {}))]) + "\n"


def _mutants(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The section on mechanisms that were taken out, of what `make test-calm-mutants` recorded."""
    if not found:
        return []
    rows = sorted((mutant["check"], mechanism, mutant["test"]) for mechanism, mutant in found.items())
    return [
        "",
        "## Mechanisms taken out",
        "",
        "`make test-calm-mutants` takes one mechanism at a time out of a copy of the source. A test of its check has",
        "to fail then.",
        "",
        "| # | mechanism | test that fails without it |",
        "|---|---|---|",
        *(f"| {number} | {mechanism} | {f'`{test}`' if test else '**none**'} |" for number, mechanism, test in rows),
    ]


def covers(test: str, node: str) -> bool:
    """Whether the node id is a test of that file, that test, or a case of it."""
    return node == test or node.startswith((f"{test}::", f"{test}["))


def _figure(figure: Mapping[str, Any]) -> str:
    value = figure["value"]
    shown = f"{value:,.3g}" if isinstance(value, float) and abs(value) < 1000 else f"{value:,.0f}"
    target = f" (target {figure['target']})" if figure["target"] else ""
    return f"{figure['name']} **{shown}**{' ' * bool(figure['unit'])}{figure['unit']}{target}"
