"""Writes docs/reference/commands.md of the command line itself: each command, its arguments and its options.

    python tests/docs/reference.py    write the page (`make reference`)

A text is the first sentence of what --help says. What several commands have with the same text stands once, at the
top.
"""

import argparse
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from gateway.cli import app

PAGE = Path(__file__).parents[2] / "docs/reference/commands.md"
HEAD = """# Commands

Made from the command line by `make reference`. `--help` of each command says more. Several commands have these
arguments and options:

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
    line = " ".join((text or "").split("\n\n")[0].replace("...", "…").split())
    return re.split(r"(?<=[a-z)'\"`\d])\. (?=[A-Z`'])", line)[0].removesuffix(".").replace("|", "\\|")


def is_group(command: Any) -> bool:
    return hasattr(command, "list_commands")


def is_only_a_group(command: Any) -> bool:
    return is_group(command) and not command.invoke_without_command


def is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def written(parameter: Any, context: typer.Context) -> str:
    """An argument or option as one types it, with what it takes."""
    if is_argument(parameter):
        name: str = parameter.metavar or parameter.name.upper()
        return name if parameter.required or name.startswith("[") else f"[{name}]"
    takes = (
        "" if parameter.is_flag else f" {parameter.metavar or parameter.display_type(context).replace(' range', '')}"
    )
    return ", ".join([*parameter.opts, *parameter.secondary_opts]) + takes


def row(parameter: Any, context: typer.Context) -> str:
    needed = " (needed)" if parameter.required and not is_argument(parameter) else ""
    return f"- `{written(parameter, context)}`: {sentence(parameter.help)}{needed}\n"


def groups_above(context: typer.Context) -> Iterator[Any]:
    """The contexts of the groups whose options every command below takes."""
    above: Any = context.parent
    while above is not None:
        if is_only_a_group(above.command):
            yield above
        above = above.parent


def page() -> str:
    group: Any = typer.main.get_command(app)
    found = list(commands(group, "fairlead", typer.Context(group, info_name="fairlead")))
    rows = Counter(
        (each.opts[-1], row(each, context))
        for _, command, context in found for each in command.params if each.help
    )  # fmt: skip
    often: dict[str, str] = {}
    for (name, text), number in rows.most_common():
        if number > 1:
            often.setdefault(name, text)
    shared = set(often.values())
    page_text = HEAD + "".join(sorted(shared))
    for path, command, context in found:
        called = " ".join([path, *(written(each, context) for each in command.params if is_argument(each))])
        of_groups = {row(each, above) for above in groups_above(context) for each in above.command.params}
        also = ", ".join(
            f"`{each.opts[0]}`"
            for each in command.params
            if not is_argument(each) and (line := row(each, context)) in shared and line not in of_groups
        )
        here = "Its commands, too: " if is_only_a_group(command) else "Also "
        page_text += f"\n## `{called}`\n\n{sentence(command.help)}.{f' {here}{also}.' if also else ''}\n"
        described = [row(each, context) for each in command.params if each.help]
        if own := "".join(each for each in described if each not in shared):
            page_text += f"\n{own}"
    return page_text


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
