"""`make tables`: reproduces the published tables, and reports for every figure whether it is within its tolerance."""

from typing import Annotated

import typer

from tests.evidence import command
from tests.evidence.targets import TARGETS

Only = Annotated[
    str | None, typer.Option(metavar="R3,F,...", help="Only these targets, or all of a letter. Default: R and D.")
]

Json = Annotated[bool, typer.Option("--json", help="JSON instead of tables.")]


def main(*, only: Only = None, json: Json = False) -> None:
    """Reproduce the published tables, and report for every figure whether it is within its tolerance.

    The exit code is 1 if a figure is out of its tolerance. docs/results/tables.md describes the targets.
    """
    try:
        targets = command.chosen(TARGETS, only)
    except ValueError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    if not command.run(targets, as_json=json):
        raise typer.Exit(1)


app = typer.Typer(add_completion=False)
app.command()(main)

if __name__ == "__main__":
    app()
