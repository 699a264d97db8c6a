"""The tables of docs/api.md."""

import re
from pathlib import Path

API = (Path(__file__).parents[4] / "docs" / "api.md").read_text(encoding="utf-8")


def rows(title):
    """The first table below this title: its rows as lists of cells."""
    section = API.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def by_name(title: str) -> dict[str, list[str]]:
    """The cells beside each name; names that are treated alike have one row."""
    named = [(name, cells[1:]) for cells in rows(title) for name in re.findall(r"`([^`]+)`", cells[0])]
    assert len(named) == len(dict(named))
    return dict(named)
