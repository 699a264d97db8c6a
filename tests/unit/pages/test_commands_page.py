"""docs/reference/commands.md is what the command line makes of itself."""

from tests.docs import reference


def test_the_page_of_commands_is_that_of_the_command_line():
    assert reference.PAGE.read_text(encoding="utf-8") == reference.page(), "make reference"


def test_a_text_is_its_first_sentence_in_one_line():
    assert reference.sentence("Print what\n changed. The exit code is 1.\n\nMore.") == "Print what changed"
    assert reference.sentence("Default: a, b. Not c") == "Default: a, b"
    assert reference.sentence(None) == ""
