"""Writes docs/reference/commands.md of the command line itself, and the tables of docs/reference/metrics.md.

    python tests/docs/reference.py    write both pages (`make reference`)

A text is the first sentence of what --help says. Options have their names here and are explained by --help, as metrics
are by the HELP lines of /metrics.
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

This page lists all commands with their options. `--help` explains them. Each command of `fairlead admin` also takes
`--config`, `--url` and `--key-file`. If it prints resources or figures, it takes `--output` and `--json`, too.

"""


def commands(command: Any, path: str, context: typer.Context) -> Iterator[tuple[str, Any]]:
    """This command and every one below it, with how it is called; of groups those that do something by themselves."""
    if not is_group(command) or command.invoke_without_command:
        yield path, command
    for name in command.list_commands(context) if is_group(command) else ():
        each = command.get_command(context, name)
        yield from commands(each, f"{path} {name}", typer.Context(each, parent=context, info_name=name))


def sentence(text: str | None) -> str:
    """The first one, in one line, as a cell of Markdown may have it."""
    line = " ".join((text or "").split("\n\n")[0].split())
    return re.split(r"(?<=[a-z)'\"`\d])\. (?=[A-Z`'])", line)[0].removesuffix(".").replace("|", "\\|")


def is_group(command: Any) -> bool:
    return hasattr(command, "list_commands")


def is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def written(argument: Any) -> str:
    """An argument as one types it."""
    name: str = argument.metavar or argument.name.upper()
    return name if argument.required or name.startswith("[") else f"[{name}]"


def options(command: Any) -> list[tuple[str, ...]]:
    """The names of each option of a command."""
    return [tuple(each.opts) for each in command.params if not is_argument(each)]


def page() -> str:
    group: Any = typer.main.get_command(app)
    context = typer.Context(group, info_name="fairlead")
    of_admin = options(group.get_command(context, "admin"))
    page_text = HEAD
    for path, command in commands(group, "fairlead", context):
        called = " ".join([path, *(written(each) for each in command.params if is_argument(each))])
        said = of_admin if path.startswith("fairlead admin ") else []
        own = [max(names, key=len) for names in options(command) if names not in said]
        page_text += f"- **`{called}`**: {sentence(command.help)}.\n"
        page_text += f"  Options: {', '.join(f'`{name}`' for name in own)}.\n" if own else ""
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
