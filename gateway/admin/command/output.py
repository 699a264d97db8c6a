"""Output form of a command: a table of the main fields or of all fields (wide), or JSON or YAML."""

import json
import sys
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer


class OutputForm(StrEnum):
    """The form in which a command prints, like `-o` of kubectl. By default a table on a terminal, JSON elsewhere."""

    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


OutputOption = Annotated[
    OutputForm | None,
    typer.Option(
        "--output",
        "-o",
        help="All columns, JSON or YAML. Default: the main columns on a terminal, else JSON.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="The same as -o json.")]


def is_terminal() -> bool:
    return sys.stdout.isatty()


def form_of(output: OutputForm | None, *, as_json: bool) -> OutputForm | None:
    """The form to print in; None: a table that fits the terminal."""
    if as_json or (output is None and not is_terminal()):
        return OutputForm.JSON
    return output


def print_list(things: Iterable[Mapping[str, Any]], form: OutputForm | None, kind: str) -> None:
    """Print a list: JSON has one object per line."""
    if form is OutputForm.JSON:
        for each in things:
            typer.echo(json.dumps(each))
    elif form is OutputForm.YAML:
        for each in things:
            print_yaml([each])
    else:
        from gateway.admin.command import tables  # noqa: PLC0415

        tables.print_list(things, kind, is_wide=form is OutputForm.WIDE)


def print_one(thing: Mapping[str, Any], form: OutputForm | None) -> None:
    """Print one thing with all of its fields."""
    if form is OutputForm.JSON:
        typer.echo(json.dumps(thing, indent=2))
    elif form is OutputForm.YAML:
        print_yaml(thing)
    else:
        from gateway.admin.command import tables  # noqa: PLC0415

        tables.print_one(thing)


def print_state(state: Mapping[str, Any], form: OutputForm | None) -> None:
    """Print the queued and running requests, as tables of pools, tiers and backends."""
    if form in {OutputForm.JSON, OutputForm.YAML}:
        print_one(state, form)
    else:
        from gateway.admin.command import tables  # noqa: PLC0415

        tables.print_state(state, is_wide=form is OutputForm.WIDE)


def print_yaml(thing: object) -> None:
    typer.echo(yaml_of(thing), nl=False)


def yaml_of(thing: object) -> str:
    import yaml  # noqa: PLC0415

    return str(yaml.safe_dump(thing, sort_keys=False, allow_unicode=True, width=100))
