"""`fairlead admin`: the admin API from the shell.

Every command is one request (a list: one per page) and prints the response. On a terminal that is a table; elsewhere
it is JSON, a list as one object per line: as in gh, so that scripts need no option. An error is printed field by field,
and the exit code is 1.
"""

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlencode

import typer

from gateway.admin.command import declaring, usage
from gateway.admin.command.asking import Given, ResourceKind, TargetGroup, ask, ask_live, items, prints
from gateway.admin.command.fields import fields_of
from gateway.admin.command.output import (
    JsonOption,
    OutputForm,
    OutputOption,
    print_list,
    print_one,
    print_state,
)
from gateway.admin.command.what_if import what_if
from gateway.options import ConfigOption, fail

app = typer.Typer(
    cls=TargetGroup,
    no_args_is_help=True,
    help="Read and change a running gateway through its admin port.\n\nThe address and the key come from the "
    "configuration (admin.host, admin.port, admin.key_file), or from --url and --key-file, before or after the "
    "command. If a gateway has no configuration (make run), its own user needs none of these.",
)
app.add_typer(usage.app, name="usage")
app.command()(prints(declaring.get))
app.command()(prints(declaring.apply))
app.command()(declaring.diff)
app.command()(what_if)


KindArgument = Annotated[ResourceKind, typer.Argument(help="A kind of resource.", show_default=False)]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The id of the resource.", show_default=False)]
RequestArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The x-request-id of the request.", show_default=False)
]
FieldsArgument = Annotated[
    list[str], typer.Argument(metavar="NAME=VALUE...", help="Fields, like weight=2.", show_default=False)
]
OptionalFieldsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME=VALUE...]", help="Fields, like weight=2.", show_default=False)
]
EtagOption = Annotated[
    str | None,
    typer.Option("--if-match", metavar="ETAG", help="Only if the resource has this version ('show' prints it)."),
]
NewOption = Annotated[bool, typer.Option("--new", help="Only if no resource has this id.")]
RepeatOption = Annotated[
    str | None,
    typer.Option("--idempotency-key", metavar="KEY", help="A repeated call with the same KEY has no effect."),
]


@app.callback()
def _admin(
    context: typer.Context,
    *,
    config: ConfigOption = None,
    url: Annotated[str | None, typer.Option(help="The admin port, like http://127.0.0.1:8081.")] = None,
    key_file: Annotated[Path | None, typer.Option(metavar="FILE", help="A file with a key of the admin port.")] = None,
    output: OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    context.obj = Given(config, url, key_file, output, as_json)


@app.command("list")
@prints
def list_(
    context: typer.Context,
    kind: KindArgument,
    tenant: Annotated[str | None, typer.Option(help="Only keys of this tenant.")] = None,
) -> None:
    """Print all resources of one kind."""
    print_list(items(context, f"/{kind}", {"tenant": tenant}), context.obj.form, kind)


@app.command()
@prints
def show(
    context: typer.Context,
    kind: KindArgument,
    id_: IdArgument,
) -> None:
    """Print one resource, and its version to standard error."""
    answer = ask(context, "GET", _path(kind, id_))
    print_one(answer.body, context.obj.form)
    if answer.etag is not None:
        typer.echo(f"version: {answer.etag}", err=True)


@app.command()
@prints
def create(
    context: typer.Context,
    kind: KindArgument,
    fields: FieldsArgument,
    *,
    idempotency_key: RepeatOption = None,
) -> None:
    """Create a resource, like: create tenants id=alice weight=2. The secret of a key is printed only now."""
    answer = ask(context, "POST", f"/{kind}", fields_of(fields), idempotency_key=idempotency_key)
    _print_made(answer.body, context.obj.form)


@app.command()
@prints
def put(
    context: typer.Context,
    kind: KindArgument,
    id_: IdArgument,
    fields: OptionalFieldsArgument = None,
    *,
    if_match: EtagOption = None,
    new: NewOption = False,
) -> None:
    """Create or replace a resource, like: put tenants alice weight=2. Other fields get their defaults.

    You may repeat the command. For keys, use 'create' and 'set' instead.
    """
    condition = "*" if new else None
    answer = ask(context, "PUT", _path(kind, id_), fields_of(fields or []), if_match=if_match, if_none_match=condition)
    print_one(answer.body, context.obj.form)


@app.command("set")
@prints
def set_(
    context: typer.Context,
    kind: KindArgument,
    id_: IdArgument,
    fields: FieldsArgument,
    *,
    if_match: EtagOption = None,
) -> None:
    """Change fields of a resource; null resets a field to its default. For a pool, give all policies at once."""
    method = "PUT" if kind == "pools" else "PATCH"
    print_one(
        ask(context, method, _path(kind, id_), fields_of(fields), if_match=if_match).body,
        context.obj.form,
    )


@app.command()
def delete(context: typer.Context, kind: KindArgument, id_: IdArgument, if_match: EtagOption = None) -> None:
    """Delete a resource. Queued requests of a tenant are rejected, and running ones end. A backend is drained first."""
    ask(context, "DELETE", _path(kind, id_), if_match=if_match)


@app.command()
@prints
def rotate(
    context: typer.Context,
    key: IdArgument,
    *,
    overlap_s: Annotated[int, typer.Option(min=0, help="Seconds for which the old key stays valid.")] = 86_400,
    idempotency_key: RepeatOption = None,
) -> None:
    """Make a new key in place of an old key, and print the new one. The old key ends after an overlap."""
    path = f"{_path('keys', key)}/rotate"
    answer = ask(context, "POST", path, {"overlap_s": overlap_s}, idempotency_key=idempotency_key)
    _print_made(answer.body, context.obj.form)


@app.command()
@prints
def state(
    context: typer.Context,
    *,
    tenants: Annotated[bool, typer.Option("--tenants", help="Print every tenant, one a line.")] = False,
    budgets: Annotated[bool, typer.Option("--budgets", help="Print every budget, one a line.")] = False,
    pool: Annotated[str | None, typer.Option(help="Print only tenants of this pool.")] = None,
    group: Annotated[
        str | None, typer.Option(help="Print only budgets of this group, its tenants and their keys.")
    ] = None,
) -> None:
    """Print the queued and running requests of pools and backends."""
    form = context.obj.form
    if budgets or group is not None:
        print_list(items(context, "/state/budgets", {"group": group}), form, "budgets")
    elif tenants or pool is not None:
        print_list(items(context, "/state/tenants", {"pool": pool}), form, "tenant states")
    else:
        print_state(ask(context, "GET", "/state").body, form)


@app.command()
@prints
def requests(
    context: typer.Context,
    *,
    state: Annotated[
        Literal["queued", "running", "ended"] | None, typer.Option(help="Which requests. Default: queued and running.")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Only of this tenant.")] = None,
    pool: Annotated[str | None, typer.Option(help="Only in this pool.")] = None,
    model: Annotated[str | None, typer.Option(help="Only of this model.")] = None,
    backend: Annotated[str | None, typer.Option(help="Only at this backend.")] = None,
    key: Annotated[str | None, typer.Option(help="Only with the API key of this id.")] = None,
    outcome: Annotated[str | None, typer.Option(help="Only with this outcome. For --state ended.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="The largest number of rows.")] = 100,
) -> None:
    """Print requests and why they wait, the longest first. Ended requests are sorted by time, the newest first."""
    asked = {"state": state, "tenant": tenant, "key": key, "pool": pool, "model": model, "backend": backend}
    found = items(context, "/requests", {**asked, "outcome": outcome})
    print_list(islice(found, limit), context.obj.form, "requests")


@app.command()
@prints
def request(context: typer.Context, id_: RequestArgument) -> None:
    """Print one request by its x-request-id. It may be one of the last 10,000 that ended."""
    print_one(ask(context, "GET", f"/requests/{quote(id_, safe='')}").body, context.obj.form)


@app.command()
@prints
def sessions(
    context: typer.Context,
    tenant: Annotated[str | None, typer.Option(help="Only of this tenant.")] = None,
    pool: Annotated[str | None, typer.Option(help="Only in this pool.")] = None,
) -> None:
    """Print the sessions of agents, by tenant. Held sessions are first, each with the latest end of its wait."""
    pools = ask_live(context)["pools"].items()
    found = (
        {**each, "tenant": tenant_id, "pool": name}
        for name, shown in pools
        for tenant_id, row in shown["tenants"].items()
        for each in row.get("sessions", ())
        if pool in (None, name) and tenant in (None, tenant_id)
    )
    print_list(found, context.obj.form, "sessions")


@app.command()
def cancel(context: typer.Context, id_: RequestArgument) -> None:
    """Cancel a queued or running request. Its client gets an error."""
    ask(context, "DELETE", f"/requests/{quote(id_, safe='')}")


@app.command("try")
@prints
def try_(
    context: typer.Context,
    tenant: Annotated[str, typer.Argument(help="The tenant that pays. Its limits apply.", show_default=False)],
    model: Annotated[str, typer.Argument(help="A model, or an alias.", show_default=False)],
    prompt: Annotated[str, typer.Argument(help="The text of the prompt.", show_default=False)],
    *,
    max_tokens: Annotated[int, typer.Option(min=1, help="The largest number of output tokens.")] = 256,
) -> None:
    """Send one prompt to a model as a tenant. Print the answer, the waits, the cost and the trace."""
    asked = {"tenant": tenant, "model": model, "prompt": prompt, "max_tokens": max_tokens}
    print_one(ask(context, "POST", "/trials", asked).body, context.obj.form)


@app.command()
@prints
def cluster(context: typer.Context) -> None:
    """Print which processes share one order, and which one leads, as seen by the process that answers."""
    print_one(ask(context, "GET", "/cluster").body, context.obj.form)


@app.command()
@prints
def audit(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, help="The largest number of entries.")] = 100,
    kind: Annotated[
        Literal[ResourceKind, "notices", "notes", "requests"] | None, typer.Option(help="Only changes of this kind.")
    ] = None,
) -> None:
    """Print the audit log, the newest change first: author, replica, and values before and after."""
    found = items(context, "/audit", {"kind": kind})
    print_list(islice(found, limit), context.obj.form, "audit")


@app.command()
def history(
    context: typer.Context,
    of: Annotated[
        str, typer.Argument(metavar="KIND:NAME", help="A pool, tier, group, tenant or backend, like tenant:alice.")
    ] = "",
    range_: Annotated[
        Literal["15m", "1h", "6h", "24h"], typer.Option("--range", help="How long the history is.")
    ] = "1h",
    at: Annotated[
        float | None, typer.Option(help="Print this minute of all things. A time in seconds since 1970.")
    ] = None,
) -> None:
    """Print the history of one thing, such as a tenant, as JSON. With --at, print one minute of all things."""
    if at is not None:
        print_one(ask(context, "GET", f"/history/minute?{urlencode({'at': at})}").body, OutputForm.JSON)
    elif of:
        print_one(ask(context, "GET", f"/history?{urlencode({'of': of, 'range': range_})}").body, OutputForm.JSON)
    else:
        fail("name a thing, such as tenant:alice, or a minute by --at")


@app.command()
def note(context: typer.Context, text: Annotated[str, typer.Argument(help="What happened.")]) -> None:
    """Add a note to the history, such as a deploy. Charts and the audit log show it."""
    ask(context, "POST", "/notes", {"text": text})


@app.command()
def link(context: typer.Context) -> None:
    """Print a new one-time link to the page. The gateway must run on this machine, without a configuration."""
    from gateway.admin.command.client import UnreachableError  # noqa: PLC0415

    try:
        typer.echo(context.obj.target.make_link())
    except UnreachableError as error:
        fail(str(error))


@app.command()
def openapi(context: typer.Context) -> None:
    """Print the OpenAPI document of the admin API."""
    print_one(ask(context, "GET", "/openapi.json").body, OutputForm.JSON)


def _print_made(made: Mapping[str, Any], form: OutputForm | None) -> None:
    """Print what was made. Where that fails, say which key has a secret that nobody knows."""
    try:
        print_one(made, form)
    except OSError:
        if "secret" in made:
            typer.echo(f"the key {made['id']} was made, and its secret is lost: delete the key", err=True)
        raise


def _path(kind: ResourceKind, id_: str) -> str:
    return f"/{kind}/{quote(id_, safe='')}"
