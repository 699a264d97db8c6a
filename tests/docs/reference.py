"""Writes docs/reference/commands.md of the command line itself, and the tables of docs/reference/metrics.md.

    python tests/docs/reference.py    write both pages (`make reference`)

A text is the first sentence of what --help says. Options are named alone: --help explains
them, as the HELP lines of /metrics explain metrics.
"""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from gateway.cli import app
from gateway.observability.metrics.instruments import FAMILIES, Histograms

REFERENCE = Path(__file__).parents[2] / "docs/reference"
PAGE = REFERENCE / "commands.md"
METRICS_PAGE = REFERENCE / "metrics.md"
BEGIN, END = "<!-- metrics: made by `make reference` -->\n", "<!-- end of metrics -->\n"
HEAD = """# Commands

`make reference` makes this page from the command line: each command, what it does, and its options.
`--help` of a command explains these.

"""


def commands(command: Any, path: str, context: typer.Context) -> Iterator[tuple[str, Any, typer.Context]]:
    """This command and every one below it, with how it is called; of groups those that have options or do something."""
    if not is_only_a_group(command) or (command.params and context.parent):
        yield path, command, context
    for name in command.list_commands(context) if is_group(command) else ():
        each = command.get_command(context, name)
        yield from commands(each, f"{path} {name}", typer.Context(each, parent=context, info_name=name))


def sentence(text: str | None) -> str:
    """The first one, in one line, as a cell of Markdown may have it."""
    line = " ".join((text or "").split("\n\n")[0].split())
    return re.split(r"(?<=[a-z)'\"`\d])\. (?=[A-Z`'])", line)[0].removesuffix(".").replace("|", "\\|")


def is_group(command: Any) -> bool:
    return hasattr(command, "list_commands")


def is_only_a_group(command: Any) -> bool:
    return is_group(command) and not command.invoke_without_command


def is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def written(parameter: Any, context: typer.Context) -> str:
    """An argument or option as one types it; what an option takes only where that is one of several words."""
    if is_argument(parameter):
        name: str = parameter.metavar or parameter.name.upper()
        return name if parameter.required or name.startswith("[") else f"[{name}]"
    takes = "" if parameter.is_flag else parameter.metavar or parameter.display_type(context)
    return f"{parameter.opts[0]} {takes}" if takes.startswith("<") and "|" in takes else parameter.opts[0]


def options(command: Any, context: typer.Context) -> list[str]:
    return [f"`{written(each, context)}`" for each in command.params if each.help and not is_argument(each)]


def options_above(context: typer.Context) -> Iterator[str]:
    """The options that every command of a group takes."""
    above: Any = context.parent
    while above is not None:
        if is_only_a_group(above.command):
            yield from options(above.command, above)
        above = above.parent


def page() -> str:
    group: Any = typer.main.get_command(app)
    page_text = HEAD
    for path, command, context in commands(group, "fairlead", typer.Context(group, info_name="fairlead")):
        called = " ".join([path, *(written(each, context) for each in command.params if is_argument(each))])
        above = set(options_above(context))
        own = ", ".join(each for each in options(command, context) if each not in above)
        of = " (options of its commands)" if own and is_only_a_group(command) else ""
        page_text += f"- **`{called}`**: {sentence(command.help)}.{f' {own}{of}' if own else ''}\n"
    return page_text


def metrics() -> str:
    """Tables of all metrics by their labels."""
    tables = ""
    for title, families in (("counters and gauges", FAMILIES), ("histograms", Histograms().families())):
        by_labels: dict[str, list[str]] = {}
        for each in families:
            by_labels.setdefault(", ".join(f"`{label}`" for label in each.labels) or "none", []).append(each.name)
        rows = "".join(
            f"| {labels} | {', '.join(f'`{name}`' for name in names)} |\n" for labels, names in by_labels.items()
        )
        tables += f"\n| labels | {title} |\n|---|---|\n{rows}"
    return tables + "\n"


def with_metrics(page_text: str) -> str:
    before, _, rest = page_text.partition(BEGIN)
    return before + BEGIN + metrics() + END + rest.partition(END)[2]


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    PAGE.write_text(page(), encoding="utf-8")
    METRICS_PAGE.write_text(with_metrics(METRICS_PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
