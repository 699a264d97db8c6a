"""Pages lead to each other: every link arrives, and every page is in the index."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "helm/**/*.md", "tests/**/*.md", "backends/**/*.md")
    for page in ROOT.glob(pattern)
    if "node_modules" not in page.parts  # installed, not ours
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def links_of(page: Path) -> set[str]:
    return {link for link in LINK.findall(FENCED.sub("", page.read_text())) if "://" not in link}


def anchors_of(page: Path) -> set[str]:
    """As GitHub makes them of the headings."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_arrives(page):
    for link in links_of(page):
        path, _, anchor = link.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), link
        assert not anchor or anchor in anchors_of(there), link


def test_every_page_of_the_documentation_is_in_the_index():
    listed = {(ROOT / "docs" / link.partition("#")[0]).resolve() for link in links_of(ROOT / "docs/index.md")}
    assert set((ROOT / "docs").rglob("*.md")) - listed == {ROOT / "docs/index.md"}
