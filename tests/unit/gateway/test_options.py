"""The fields of a dataclass are options of a command, and the command gets them by name."""

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from gateway.options import takes


@dataclass(frozen=True, kw_only=True)
class Base:
    size: Annotated[int, typer.Option("--size", help="How large.")] = 3


@dataclass(frozen=True, kw_only=True)
class Given(Base):
    name: Annotated[str, typer.Option(help="Whose.")]


def made():
    app, got = typer.Typer(), []

    @app.command()
    @takes(Given)
    def run(
        file: Annotated[str, typer.Argument()],
        *,
        loud: Annotated[bool, typer.Option("--loud")] = False,
        **given: object,
    ) -> None:
        got.append((file, loud, given))

    return app, got


def test_a_command_gets_them_by_name_beside_its_own():
    app, got = made()
    assert CliRunner().invoke(app, ["f", "--name", "a", "--size", "5", "--loud"]).exit_code == 0
    assert CliRunner().invoke(app, ["f", "--name", "a"]).exit_code == 0
    assert got == [("f", True, {"name": "a", "size": 5}), ("f", False, {"name": "a", "size": 3})]


def test_one_without_a_default_is_required():
    app, got = made()
    assert CliRunner().invoke(app, ["f"]).exit_code == 2
    assert got == []


def test_required_ones_come_first_in_the_help_and_the_commands_own_last():
    app, _ = made()
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).stdout
    assert text.index("--name") < text.index("--size") < text.index("--loud")
