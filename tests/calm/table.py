"""The table of the 64 checks, and the pages made of it: the promises, and the figures that their tests measured."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import ge, gt, le, lt
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "tests/calm/checks.toml"
FIGURES = ROOT / "build/calm/figures.json"
PROMISES_PAGE = ROOT / "docs/security.md"
FIGURES_PAGE = ROOT / "docs/results/calm.md"
BEGIN, END = "<!-- promises: made by `make calm-page` -->\n", "<!-- end of promises -->\n"
MISSED = "missed"  # in a row beside the target, and in the margin of its check
BEYOND = {"<=": gt, "<": ge, ">=": lt, ">": le}  # when a value is beyond its limit
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
    """A promise and the tests that hold it. `margin` says what they assert where that is less than the target, and why
    a figure misses it; `open` what no test holds yet.
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
        text += f"- {check.number}. {check.promise}{missing}\n"
    return text.lstrip("\n") + "\n"


def with_promises(page: str, checks: Iterable[Check]) -> str:
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + "\n" + promises(checks) + END + rest.partition(END)[2]


def figures_page(checks: Sequence[Check], run: Mapping[str, Any]) -> str:
    """docs/results/calm.md, of what `make test-calm` (or a part of it) recorded."""
    lines = [
        "# 64 checks, with the figures of their tests",
        "",
        f"Last run: {run['day']}, commit {run['commit']}. Machine: {run['machine']}.",
        "",
        "Does the gateway keep its [promises](../security.md)?",
        "",
        "- Tests assert the targets of tests/calm/checks.toml, and pass unless the row says otherwise.",
        "- The target of a figure is in brackets. A figure that equals its target is left out.",
        "- *Own time* leaves out the time in which a process waited for a CPU core.",
        "- Tests 2 and 10 also pass if the gateway adds at most 1.5 times what a naive relay adds. Test 11: 1.2 times.",
        "",
    ]
    measured = {check.number: "; ".join(_measured(check, run)) for check in checks}
    lines += [f"Met, without a figure: {', '.join(str(number) for number, said in measured.items() if not said)}.", ""]
    lines += ["| # | measured |", "|---|---|", *(f"| {number} | {said} |" for number, said in measured.items() if said)]
    lines += ["", "## What is missed or tested less, by check", ""]
    margins: dict[str, list[str]] = {}
    for check in checks:
        margins.setdefault(check.margin, []).append(str(check.number))
    lines += [f"- {', '.join(numbers)}: {margin}." for margin, numbers in margins.items() if margin]
    return "\n".join([*lines, *_mutants(run.get("mutants", {}))]) + "\n"


def _mutants(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """How many mechanisms are missed by a test, and which by none, of what `make test-calm-mutants` recorded."""
    if not found:
        return []
    missed = sorted((mutant["check"], mechanism) for mechanism, mutant in found.items() if mutant["test"] is None)
    noticed = f"{len(found) - len(missed)} of {len(found)}"
    return [
        "",
        "## Mechanisms removed",
        "",
        "`make test-calm-mutants` removes one mechanism at a time from a copy of the source (`tests/mutants/calm.py`).",
        f"In {noticed} cases, a test of its check fails.",
        *(f"- **No test fails without:** {mechanism} ({number})." for number, mechanism in missed),
    ]


def _measured(check: Check, run: Mapping[str, Any]) -> list[str]:
    """What a row says: tests that do not pass or are missing, and figures."""
    ours = [outcome for name, outcome in run["outcomes"].items() if any(covers(test, name) for test in check.tests)]
    passed = ours.count("passed")
    said = [] if ours else ["**not run**"]
    if passed < len(ours):
        said.append(f"**{passed} of {len(ours)} tests pass**")
    if check.open:
        said.append(f"**open:** {check.open}")
    return said + _figures(figure for figure in run["figures"] if figure["number"] == check.number)


def covers(test: str, node: str) -> bool:
    """Whether the node id is a test of that file, that test, or a case of it."""
    return node == test or node.startswith((f"{test}::", f"{test}["))


def _figures(found: Iterable[Mapping[str, Any]]) -> list[str]:
    """The judged figures that do not equal their targets, or all where none is judged. Cases are one figure, from
    the lowest to the highest: their names are alike up to a comma, and they have one target.
    """
    found = sorted(found, key=lambda figure: figure["name"])
    kinds: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    judged = [figure for figure in found if figure["target"]]
    for figure in [figure for figure in judged or found if not _is_target(figure)]:
        alike = figure["name"].partition(", ")[0]
        kinds.setdefault((alike, figure["unit"], figure["target"]), []).append(figure)
    return [_figure(alike if len(cases) > 1 else cases[0]["name"], cases) for (alike, *_), cases in kinds.items()]


def _is_target(figure: Mapping[str, Any]) -> bool:
    """Whether the value is its target: a number, or "all" of those that its name or its target counts."""
    shown, target = _shown(figure["value"]).replace(",", ""), figure["target"]
    return shown == target or (target.startswith("all") and shown in f"{figure['name']} {target}".split())


def unsaid_misses(checks: Iterable[Check], run: Mapping[str, Any]) -> list[int]:
    """The checks with a figure beyond its target of which `margin` does not say that it is missed."""
    said = {check.number for check in checks if MISSED in check.margin.lower()}
    return sorted({figure["number"] for figure in run["figures"] if _is_missed(figure)} - said)


def _is_missed(figure: Mapping[str, Any]) -> bool:
    """Whether the value is beyond a target that is one limit. Of other targets, only the test knows."""
    sign, _, limit = figure["target"].partition(" ")
    try:
        return sign in BEYOND and BEYOND[sign](figure["value"], float(limit))
    except ValueError:  # a limit of two parts
        return False


def _figure(name: str, cases: list[Mapping[str, Any]]) -> str:
    low, high = (_shown(limit(case["value"] for case in cases)) for limit in (min, max))
    unit, target = cases[0]["unit"], cases[0]["target"].replace("<= ", "≤").replace(">= ", "≥").replace("< ", "<")
    shown = low if low == high else f"{low} to {high}"
    missed = f", {MISSED}" * any(map(_is_missed, cases))
    return f"{name} **{shown}**{' ' * bool(unit)}{unit}{f' ({target}{missed})' if target else ''}"


def _shown(value: float) -> str:
    return f"{value:,.3g}" if isinstance(value, float) and abs(value) < 1000 else f"{value:,.0f}"
