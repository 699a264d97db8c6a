"""The rules of the shared order stand at the head of gateway/cluster. All that are cited are defined, and the
other way round.
"""

import re
from pathlib import Path

import gateway.cluster

ROOT = Path(__file__).parents[4]
HEAD = ROOT / "gateway/cluster/__init__.py"
CITED = re.compile(r"\b[Rr]ules? (\d+(?:(?:, | and | to )\d+)*)")


def numbers(text):
    """Of "1", "22 and 27", "1, 4, 25" and "18 to 21"."""
    for part in re.split(r", | and ", text):
        first, _, last = part.partition(" to ")
        yield from range(int(first), int(last or first) + 1)


def test_every_rule_is_defined_once_and_cited():
    defined = [int(number) for number in re.findall(r"^(\d+)\. ", gateway.cluster.__doc__, re.MULTILINE)]
    assert defined == list(range(1, len(defined) + 1))
    sources = [path for folder in ("gateway", "tests") for path in (ROOT / folder).rglob("*.py") if path != HEAD]
    cited = {
        number
        for path in sources
        if path != Path(__file__)
        for found in CITED.findall(path.read_text(encoding="utf-8"))
        for number in numbers(found)
    }
    assert cited - set(defined) == set(), "cited, and not defined"
    assert set(defined) - cited == set(), "defined, and not cited"


def test_citations_are_read_as_they_are_written():
    assert [list(numbers(text)) for text in ("7", "22 and 27", "1, 4, 25", "18 to 21")] == [
        [7],
        [22, 27],
        [1, 4, 25],
        [18, 19, 20, 21],
    ]
