"""Options of commands, made from the fields of a dataclass, and what commands share: --config, and how they fail.

The value of --config is the given value, else FAIRLEAD_CONFIG, else fairlead.yaml in the current folder. Importing this
file loads no server.
"""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, NoReturn, TypeVar, get_type_hints

import typer

C = TypeVar("C", bound=Callable[..., None])

CONFIG_NAME = "fairlead.yaml"


def _found_config(given: Path | None) -> Path | None:
    """The given file, else the one in the current folder, else None."""
    here = Path(CONFIG_NAME)
    return here if given is None and here.is_file() else given


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        envvar="FAIRLEAD_CONFIG",
        metavar="FILE",
        callback=_found_config,
        help=f"The YAML file. Default: {CONFIG_NAME} in this folder, if it exists.",
    ),
]


def fail(text: str, exit_code: int = 1) -> NoReturn:
    """Print this error, and end the command."""
    typer.echo(text, err=True)
    raise typer.Exit(exit_code)


def takes(options: type) -> Callable[[C], C]:
    """Give a command the fields of this dataclass as options: required options first, then the others, then the
    command's own. The command gets them as keyword arguments.
    """
    types = get_type_hints(options, include_extras=True)
    taken = [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if each.default is MISSING else each.default,
            annotation=types[each.name],
        )
        for each in sorted(fields(options), key=lambda each: each.default is not MISSING)
    ]

    def of(command: C) -> C:
        own = [each for each in inspect.signature(command).parameters.values() if each.kind is not each.VAR_KEYWORD]
        positional = [each for each in own if each.kind is not each.KEYWORD_ONLY]
        signature = inspect.Signature([*positional, *taken, *own[len(positional) :]])
        vars(command)["__signature__"] = signature  # what typer reads
        return command

    return of
