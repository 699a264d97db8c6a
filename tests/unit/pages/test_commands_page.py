"""docs/reference: the pages of commands and metrics are what the code makes of itself, and calls in pages are of that
command line.
"""

import re
import shlex

import pytest
import typer

from gateway.cli import app
from gateway.observability.metrics.instruments import FAMILIES, Histograms
from tests.docs import commands, reference, words


def test_the_page_of_commands_is_that_of_the_command_line():
    assert reference.PAGE.read_text(encoding="utf-8") == reference.page(), "make reference"


def test_a_command_has_its_own_options_but_not_those_of_all_admin_commands():
    _, usage = reference.page().split("`fairlead admin usage export`")
    options = usage.splitlines()[1]
    assert all(f"`{name}`" in options for name in ("--by", "--format", "--output"))
    assert not any(f"`{name}`" in options for name in ("--config", "--url", "--key-file", "--json"))


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


def command_lines(page):
    """The calls of `fairlead` in the console blocks of a page, those that are not run included."""
    for block in re.findall(r"```console\n(.*?)```", page, re.DOTALL):
        for line in block.replace("\\\n", "").splitlines():
            if line.startswith("$ fairlead "):
                yield re.split(r" [>|&]|\s# ", line.removeprefix("$ fairlead "), maxsplit=1)[0]


def fault_of(call):
    """What the command line does not take of this call, or an empty text."""
    command = typer.main.get_command(app)
    context = typer.Context(command, info_name="fairlead")
    while True:
        try:
            given, rest, _ = command.make_parser(context).parse_args(call)
        except typer.TyperException as error:
            return str(error) or repr(error)
        needed = [each.name for each in command.params if each.required and not given.get(each.name)]
        if needed and "--help" not in call:
            return f"lacks {needed}"
        if not hasattr(command, "get_command"):
            return f"takes no {rest}" if rest else ""
        if not rest:
            return ""
        name, *call = rest
        below = command.get_command(context, name)
        if below is None:
            return f"has no command {name}"
        command, context = below, typer.Context(below, parent=context, info_name=name)


def test_every_call_in_a_page_has_the_arguments_and_options_of_the_command_line():
    """Most of them need something else to run. That an option exists needs nothing."""
    files = {path for pattern in words.PAGES for path in words.ROOT.glob(pattern)}
    lines = {(page.name, line) for page in files for line in command_lines(page.read_text(encoding="utf-8"))}
    assert lines
    wrong = {each: fault for each in sorted(lines) if (fault := fault_of(shlex.split(each[1])))}
    assert not wrong


@pytest.mark.parametrize(
    "line", ["calibrate http://a", "calibrate", "calibrate --backend http://a --output b", "admin shown", "keys new"]
)
def test_a_call_that_the_command_line_does_not_take_is_found(line):
    assert fault_of(line.split())


def test_every_command_of_a_page_is_run_or_says_why_not():
    others = {path for pattern in (*words.PAGES, "helm/*.md") for path in words.ROOT.glob(pattern)} - {*commands.PAGES}
    blocks = {path.name: commands.BLOCK.findall(path.read_text(encoding="utf-8")) for path in others}
    assert [
        name for name, found in blocks.items() for why, language, _ in found if language == "console" and not why
    ] == []
