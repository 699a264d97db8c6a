"""docs/reference: the pages of commands and metrics are what the code makes of itself."""

import re

from gateway.observability.metrics.instruments import FAMILIES, Histograms
from tests.docs import reference


def test_the_page_of_commands_is_that_of_the_command_line():
    assert reference.PAGE.read_text(encoding="utf-8") == reference.page(), "make reference"


def test_a_text_is_its_first_sentence_in_one_line():
    assert reference.sentence("Print what\n changed. The exit code is 1.\n\nMore.") == "Print what changed"
    assert reference.sentence("Default: a, b. Not c") == "Default: a, b"
    assert reference.sentence(None) == ""


def test_the_page_of_metrics_has_each_of_them_with_its_labels():
    page = reference.METRICS_PAGE.read_text(encoding="utf-8")
    assert reference.BEGIN in page
    assert page == reference.with_metrics(page), "make reference"
    listed = {
        name: tuple(re.findall(r"`(\w+)`", labels))
        for labels, names in re.findall(r"^\| (none|`.+`) \| (`(?:fairlead|gen_ai)_.+`) \|$", page, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", names)
    }
    assert listed == {each.name: each.labels for each in (*FAMILIES, *Histograms().families())}
