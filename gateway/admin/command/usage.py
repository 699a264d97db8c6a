"""`fairlead admin usage`: tokens and their cost, in rows, in sums with their total, or as a file."""

import contextlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlencode

import typer

from gateway.admin.command.asking import items, pages, prints
from gateway.admin.command.output import OutputForm, print_list, print_one
from gateway.options import fail, takes

app = typer.Typer(invoke_without_command=True)


OF_ROWS = frozenset({"first_day", "last_day", "tenant"})  # what rows are asked for by; all else is of sums


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageOptions:
    """The options of the usage command: which usage it shows, and by what the usage is summed. Their names are those of
    the parameters of the admin API.
    """

    first_day: Annotated[
        str | None,
        typer.Option(metavar="YYYY-MM-DD", help="A day in UTC. Default: today; for sums, the first of this month."),
    ] = None
    last_day: Annotated[
        str | None, typer.Option(metavar="YYYY-MM-DD", help="The last day, included. Default: today.")
    ] = None
    by: Annotated[
        Literal["group", "tenant", "key", "model"] | None, typer.Option("--by", help="Print one sum for each of these.")
    ] = None
    period: Annotated[
        Literal["day", "month"] | None, typer.Option("--period", help="Print one sum for each of these.")
    ] = None
    group: Annotated[str | None, typer.Option("--group", help="Only tenants of this group.")] = None
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant.")] = None
    key: Annotated[str | None, typer.Option("--key", metavar="ID", help="Only this API key.")] = None
    model: Annotated[str | None, typer.Option("--model", help="Only this model.")] = None


@app.callback()
@prints
@takes(UsageOptions)
def usage(context: typer.Context, **asked: str | None) -> None:
    """Print usage, its cost and the total. Example: --by tenant --period month.

    Without --by and --period, the command prints every row of a day. Sums are of this month, unless you give days.
    """
    if context.invoked_subcommand is not None:
        return
    form = context.obj.form
    given = _given(asked)
    if given.keys() <= OF_ROWS:
        print_list(items(context, "/usage", given), form, "usage")
        return
    found = list(pages(context, "/usage/sums", given))
    whole = {**found[0], "items": [each for page in found for each in page["items"]]}
    if form in (OutputForm.JSON, OutputForm.YAML):
        whole.pop("next_cursor")
        print_one(whole, form)
        return
    from gateway.admin.command.tables import print_sums  # noqa: PLC0415

    print_sums(whole["total"], whole["items"], is_wide=form is OutputForm.WIDE)


def _given(asked: Mapping[str, str | None]) -> dict[str, str]:
    """The options that were given."""
    return {name: str(value) for name, value in asked.items() if value is not None}


@app.command("last-days")
@prints
def last_days(context: typer.Context) -> None:
    """Print every tenant that was ever served, and the last day on which it was served."""
    print_list(items(context, "/usage/last-days", {}), context.obj.form, "last-days")


@app.command("export")
@takes(UsageOptions)
def usage_export(
    context: typer.Context,
    *,
    format_: Annotated[
        Literal["csv", "parquet"], typer.Option("--format", help="Parquet needs fairlead[export] at the gateway.")
    ] = "csv",
    file: Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Default: standard output.")] = None,
    **asked: str | None,
) -> None:
    """Write usage and its cost as a table with FOCUS columns. With --by and --period, write sums.

    If the command fails, it leaves no file.
    """
    from gateway.admin.command.client import UnreachableError  # noqa: PLC0415

    query = _given(asked) | {"format": format_}
    part = None if file is None else file.with_name(file.name + ".part")
    try:
        with contextlib.ExitStack() as stack:
            to = sys.stdout.buffer if part is None else stack.enter_context(part.open("wb"))
            context.obj.client.download(f"/usage/export?{urlencode(query)}", to)
        if part is not None and file is not None:
            part.rename(file)
    except (UnreachableError, OSError) as error:
        if part is not None:
            part.unlink(missing_ok=True)
        fail(str(error))
