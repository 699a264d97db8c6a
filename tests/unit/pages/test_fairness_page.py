"""docs/fairness.md says of every policy what the table of bounds says."""

from pathlib import Path

import pytest

from policies.fairness.bounds import BOUNDS

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "fairness.md").read_text()


@pytest.mark.parametrize("policy", BOUNDS)
def test_the_first_table_promises_what_the_policy_promises(policy):
    bound = BOUNDS[policy]
    rows = [line for line in PAGE.split("\n## ")[0].splitlines() if line.startswith("|") and f"[`{policy}`]" in line]
    assert rows
    promise = "none" if bound is None else f"{bound.both_wait:g} {'U' if bound.ahead is None else '(U + K)'}"
    assert all(row.endswith(f"| {promise} |") for row in rows)


@pytest.mark.parametrize("policy", BOUNDS)
def test_every_policy_has_its_paragraph_and_its_plot(policy):
    section = PAGE.split(f"\n### {policy}\n")[1].split("\n###")[0]
    assert "**Choose it**" in section
    assert f"](results/policies/{policy}.svg)" in section
    assert (DOCS / "results" / "policies" / f"{policy}.svg").exists()
