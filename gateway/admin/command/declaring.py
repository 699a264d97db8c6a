"""`get`, `apply` and `diff`: resources as a file, as kubectl has them.

The file has fields by kind and id, as the configuration file writes tenants and tiers. `get -o yaml` prints the
declared entries in this form, `diff` prints the changes that a file would make, and `apply` makes them: entries are
created, or merged by field, and other entries and fields stay. The gateway applies all of a file or nothing.
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

import typer

from gateway.admin.command.asking import FAILED, ResourceKind, ask, items
from gateway.admin.command.output import OutputForm, print_list, print_one, yaml_of
from gateway.options import fail

DIFFERS, NO_DIFF = 1, 2  # exit codes of `diff`: that something differs, and that this is not known
FILE_BYTES_MAX = 1 << 20  # the API takes as much


FileOption = Annotated[
    Path,
    typer.Option(
        "-f", "--file", metavar="FILE", help="Kinds, ids and fields in YAML or JSON; - is standard input.",
        show_default=False, allow_dash=True,
    ),
]  # fmt: skip


def get(
    context: typer.Context,
    kind: Annotated[
        Literal[ResourceKind, "all"],
        typer.Argument(help="A kind of resource, or all.", show_default=False),
    ],
    id_: Annotated[str | None, typer.Argument(metavar="[ID]", help="Only this resource.", show_default=False)] = None,
) -> None:
    """Print the resources of a kind, or one resource. With -o yaml, the output is a file for 'apply'."""
    form = context.obj.form
    if kind == "all" or (form is OutputForm.YAML and kind != "keys"):
        declared = items(context, "/resources", {"kind": None if kind == "all" else kind})
        found = [each for each in declared if id_ in (None, each["id"])]
        if id_ is not None and not found:
            fail(f"nothing is declared of {kind}/{id_}")
        if form is OutputForm.YAML:
            typer.echo(yaml_of(_as_file(found)), nl=False)
        else:
            print_list(found, form, "resources")
    elif id_ is None:
        print_list(items(context, f"/{kind}", {}), form, kind)
    else:
        print_one(ask(context, "GET", f"/{kind}/{quote(id_, safe='')}").body, form)


def apply(
    context: typer.Context,
    file: FileOption,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the changes, and change nothing.")] = False,
) -> None:
    """Create the entries of a file, or merge their fields into existing entries. All changes are made, or none."""
    found = _send(context, file, is_dry=dry_run, exit_code=FAILED)
    if context.obj.as_json or context.obj.output in (OutputForm.JSON, OutputForm.YAML):
        print_list(found, context.obj.form, "")
        return
    for each in found:
        typer.echo(f"{each['kind']}/{each['id']} {each['change']}{' (dry run)' if dry_run else ''}")


def diff(context: typer.Context, file: FileOption) -> None:
    """Print what 'apply' would change. The exit code is 1 if something differs, and 2 after an error."""
    found = _send(context, file, is_dry=True, exit_code=NO_DIFF)
    changed = [each for each in found if each["change"] != "unchanged"]
    for each in changed:
        typer.echo("".join(_difference(each)), nl=False)
    if changed:
        raise typer.Exit(DIFFERS)


def _difference(change: Mapping[str, Any]) -> Iterator[str]:
    from difflib import unified_diff  # noqa: PLC0415

    name = f"{change['kind']}/{change['id']}"
    before, after = (
        [] if each is None else yaml_of(each).splitlines(keepends=True) for each in (change["before"], change["after"])
    )
    return unified_diff(before, after, f"{name} now", f"{name} in the file")


def _as_file(found: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    kinds: dict[str, dict[str, Any]] = {}
    for each in found:
        kinds.setdefault(each["kind"], {})[each["id"]] = each["fields"]
    return kinds


def _send(context: typer.Context, file: Path, *, is_dry: bool, exit_code: int) -> list[dict[str, Any]]:
    resources = _read(file, exit_code)
    body = {"resources": resources, "dry_run": is_dry}
    found: list[dict[str, Any]] = ask(context, "POST", "/resources", body, exit_code=exit_code).body["items"]
    return found


def _read(file: Path, exit_code: int) -> dict[str, Any]:
    """The file as JSON has it. Exits with all that is wrong with its form."""
    from gateway.config.problems import read_yaml  # noqa: PLC0415

    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        fail(f"{file}: the file cannot be read: {getattr(error, 'strerror', None) or 'it is not UTF-8'}", exit_code)
    if len(text) > FILE_BYTES_MAX:
        fail(f"{file}: a file has at most {FILE_BYTES_MAX} bytes", exit_code)
    data, _, problems = read_yaml(text)
    if problems:
        fail("\n".join(problem.describe(file) for problem in problems), exit_code)
    return {kind: _entries(entries) for kind, entries in data.items() if entries is not None}


def _entries(entries: Any) -> Any:
    """Entries of a kind, where one without fields has none set."""
    if not isinstance(entries, Mapping):
        return _as_json(entries)
    return {name: {} if fields is None else _as_json(fields) for name, fields in entries.items()}


def _as_json(value: Any, *, is_money: bool = False) -> Any:
    """A value of YAML as the API takes it: a day as text, and of money no floating-point number."""
    if isinstance(value, Mapping):
        return {
            name: _as_json(each, is_money=is_money or name.startswith("cost_") or name == "periods")
            for name, each in value.items()
        }
    if isinstance(value, list):
        return [_as_json(each, is_money=is_money) for each in value]
    if isinstance(value, date | datetime):
        return value.isoformat()
    if isinstance(value, float) and (is_money or not math.isfinite(value)):
        return repr(value)  # as text: the API says what it must be
    return value
