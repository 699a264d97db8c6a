"""`fairlead admin usage`: what was used and what it cost, in rows, in sums with their total, or as a file."""

import contextlib
import sys
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlencode

import typer

from gateway.admin.command.asking import fail, items, pages, prints
from gateway.admin.command.output import OutputForm, print_list, print_one

app = typer.Typer(invoke_without_command=True)


OF_ROWS = frozenset({"first_day", "last_day", "tenant"})  # what rows are asked for by; all else is of sums


FirstDayOption = Annotated[
    str | None,
    typer.Option(metavar="YYYY-MM-DD", help="A day in UTC. Default: today; for sums, the first of this month."),
]
LastDayOption = Annotated[
    str | None, typer.Option(metavar="YYYY-MM-DD", help="The last day, included. Default: today.")
]
ByOption = Annotated[
    Literal["group", "tenant", "key", "model"] | None, typer.Option("--by", help="Print one sum for each of these.")
]
PeriodOption = Annotated[
    Literal["day", "month"] | None, typer.Option("--period", help="Print one sum for each of these.")
]
GroupOption = Annotated[str | None, typer.Option("--group", help="Only tenants of this group.")]
UsersOption = Annotated[str | None, typer.Option("--tenant", help="Only this tenant.")]
KeyOption = Annotated[str | None, typer.Option("--key", metavar="ID", help="Only this API key.")]
ModelOption = Annotated[str | None, typer.Option("--model", help="Only this model.")]


@app.callback()
@prints
def usage(
    context: typer.Context,
    *,
    first_day: FirstDayOption = None,
    last_day: LastDayOption = None,
    by: ByOption = None,
    period: PeriodOption = None,
    group: GroupOption = None,
    tenant: UsersOption = None,
    key: KeyOption = None,
    model: ModelOption = None,
) -> None:
    """Print usage, its cost and the total: --by tenant --period month. Without these two, print every row of a day.

    Summed, it is of this month, unless days are given.
    """
    if context.invoked_subcommand is not None:
        return
    form = context.obj.form
    given = _query(
        first_day=first_day, last_day=last_day, by=by, period=period, group=group, tenant=tenant, key=key, model=model
    )
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


def _query(**given: str | None) -> dict[str, str]:
    """What is asked for, of what may be."""
    return {name: str(value) for name, value in given.items() if value is not None}


@app.command("last-days")
@prints
def last_days(context: typer.Context) -> None:
    """Print every tenant that was ever served, and the last day on which it was served."""
    print_list(items(context, "/usage/last-days", {}), context.obj.form, "last-days")


@app.command("export")
def usage_export(
    context: typer.Context,
    *,
    first_day: FirstDayOption = None,
    last_day: LastDayOption = None,
    by: ByOption = None,
    period: PeriodOption = None,
    group: GroupOption = None,
    tenant: UsersOption = None,
    key: KeyOption = None,
    model: ModelOption = None,
    format_: Annotated[
        Literal["csv", "parquet"], typer.Option("--format", help="Parquet needs fairlead[export] at the gateway.")
    ] = "csv",
    file: Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Default: standard output.")] = None,
) -> None:
    """Write usage and its cost as a table with FOCUS columns. With --by and --period, write sums.

    If the command fails, it leaves no file.
    """
    from gateway.admin.command.client import UnreachableError  # noqa: PLC0415

    query = _query(
        first_day=first_day, last_day=last_day, by=by, period=period, group=group, tenant=tenant, key=key, model=model
    ) | {"format": format_}
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
