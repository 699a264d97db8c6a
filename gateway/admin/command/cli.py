"""`fairlead admin`: the admin API from the shell.

Every command is one request (a list: one per page) and prints the response. On a terminal that is a table; elsewhere
it is JSON, a list as one object per line: as in gh, so that scripts need no option. An error is printed field by field,
and the exit code is 1.
"""

from itertools import islice
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote, urlencode

import typer

from gateway.admin.command import declaring, usage
from gateway.admin.command.asking import Given, ResourceKind, TargetGroup, ask, ask_live, fail, items, prints
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
from gateway.options import ConfigOption

app = typer.Typer(
    cls=TargetGroup,
    no_args_is_help=True,
    help="Ask and change a running gateway by its admin port.\n\nWhere that is and the key to it come from the "
    "configuration (admin.host, admin.port, admin.key_file), or from --url and --key-file, before or after the "
    "command. A gateway without a configuration (make run) is found by itself, by the user that started it.",
)
app.add_typer(usage.app, name="usage")
app.command()(prints(declaring.get))
app.command()(prints(declaring.apply))
app.command()(declaring.diff)
app.command()(what_if)


KindArgument = Annotated[ResourceKind, typer.Argument(help="What sort of thing.", show_default=False)]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Its id.", show_default=False)]
RequestArgument = Annotated[str, typer.Argument(metavar="ID", help="Its x-request-id.", show_default=False)]
FieldsArgument = Annotated[
    list[str], typer.Argument(metavar="NAME=VALUE...", help="Its fields, like weight=2.", show_default=False)
]
OptionalFieldsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME=VALUE...]", help="Its fields, like weight=2.", show_default=False)
]
EtagOption = Annotated[
    str | None, typer.Option("--if-match", metavar="ETAG", help="Only if it is still this version (see 'show').")
]
NewOption = Annotated[bool, typer.Option("--new", help="Only if there is none of this id yet.")]
RepeatOption = Annotated[
    str | None,
    typer.Option("--idempotency-key", metavar="KEY", help="Sent again with the same key it is done once."),
]


@app.callback()
def _admin(
    context: typer.Context,
    *,
    config: ConfigOption = None,
    url: Annotated[str | None, typer.Option(help="The admin port, like http://127.0.0.1:8081.")] = None,
    key_file: Annotated[Path | None, typer.Option(metavar="FILE", help="The file that holds a key to it.")] = None,
    output: OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    context.obj = Given(config, url, key_file, output, as_json)


@app.command("list")
@prints
def list_(
    context: typer.Context,
    kind: KindArgument,
    tenant: Annotated[str | None, typer.Option(help="Of keys: this tenant's.")] = None,
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
    """Print one resource, and its version (to standard error)."""
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
    """Create a resource, like: create tenants id=alice weight=2. The secret of a key is printed this once."""
    answer = ask(context, "POST", f"/{kind}", fields_of(fields), idempotency_key=idempotency_key)
    print_one(answer.body, context.obj.form)


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
    """Create or replace a resource, like: put tenants alice weight=2. Fields that are not given get their defaults.

    The command is idempotent. Keys are made by 'create' and changed by 'set'.
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
    """Change fields of a resource; null resets a field to its default. A pool is given all its policies at once."""
    method = "PUT" if kind == "pools" else "PATCH"
    print_one(
        ask(context, method, _path(kind, id_), fields_of(fields), if_match=if_match).body,
        context.obj.form,
    )


@app.command()
def delete(context: typer.Context, kind: KindArgument, id_: IdArgument, if_match: EtagOption = None) -> None:
    """Delete a resource: a tenant's queued requests are rejected, running ones end. A backend is drained first."""
    ask(context, "DELETE", _path(kind, id_), if_match=if_match)


@app.command()
@prints
def rotate(
    context: typer.Context,
    key: IdArgument,
    *,
    overlap_s: Annotated[int, typer.Option(min=0, help="Seconds that the old key goes on.")] = 86_400,
    idempotency_key: RepeatOption = None,
) -> None:
    """Make a key that replaces this one, which ends after an overlap, and print it this once."""
    path = f"{_path('keys', key)}/rotate"
    answer = ask(context, "POST", path, {"overlap_s": overlap_s}, idempotency_key=idempotency_key)
    print_one(answer.body, context.obj.form)


@app.command()
@prints
def state(
    context: typer.Context,
    *,
    tenants: Annotated[bool, typer.Option("--tenants", help="Every tenant, one a line.")] = False,
    budgets: Annotated[bool, typer.Option("--budgets", help="Every budget of tokens, one a line.")] = False,
    pool: Annotated[str | None, typer.Option(help="Of tenants: in this pool alone.")] = None,
    group: Annotated[str | None, typer.Option(help="Of budgets: of this group, its tenants and their keys.")] = None,
) -> None:
    """Print what is queued and runs now, in pools and at backends."""
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
        Literal["queued", "running", "ended"] | None, typer.Option(help="Default: queued and running.")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="This tenant's alone.")] = None,
    pool: Annotated[str | None, typer.Option(help="In this pool alone.")] = None,
    model: Annotated[str | None, typer.Option(help="Of this model alone.")] = None,
    backend: Annotated[str | None, typer.Option(help="At this backend alone.")] = None,
    key: Annotated[str | None, typer.Option(help="With the API key of this id alone.")] = None,
    outcome: Annotated[str | None, typer.Option(help="Of those that ended, with this outcome alone.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="So many.")] = 100,
) -> None:
    """Print requests, the longest first, and why they wait; those that have ended, the newest first."""
    asked = {"state": state, "tenant": tenant, "key": key, "pool": pool, "model": model, "backend": backend}
    found = items(context, "/requests", {**asked, "outcome": outcome})
    print_list(islice(found, limit), context.obj.form, "requests")


@app.command()
@prints
def request(context: typer.Context, id_: RequestArgument) -> None:
    """Print one request, by its x-request-id, also one of the last 10,000 that ended."""
    print_one(ask(context, "GET", f"/requests/{quote(id_, safe='')}").body, context.obj.form)


@app.command()
@prints
def sessions(
    context: typer.Context,
    tenant: Annotated[str | None, typer.Option(help="This tenant's alone.")] = None,
    pool: Annotated[str | None, typer.Option(help="In this pool alone.")] = None,
) -> None:
    """Print agents' sessions: of each tenant those that are held, and until when at the latest, then the last used."""
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
    """Cancel a request that is queued or runs. Its client gets an error."""
    ask(context, "DELETE", f"/requests/{quote(id_, safe='')}")


@app.command("try")
@prints
def try_(
    context: typer.Context,
    tenant: Annotated[str, typer.Argument(help="Whose limits hold, and which pays.", show_default=False)],
    model: Annotated[str, typer.Argument(help="A model, or an alias.", show_default=False)],
    prompt: Annotated[str, typer.Argument(help="What to ask.", show_default=False)],
    *,
    max_tokens: Annotated[int, typer.Option(min=1, help="The longest answer.")] = 256,
) -> None:
    """Send one prompt to one model as a tenant, and print the answer with its waits, its cost and its trace."""
    asked = {"tenant": tenant, "model": model, "prompt": prompt, "max_tokens": max_tokens}
    print_one(ask(context, "POST", "/trials", asked).body, context.obj.form)


@app.command()
@prints
def cluster(context: typer.Context) -> None:
    """Print which processes share one order, and which of them leads, as the one that is asked sees it."""
    print_one(ask(context, "GET", "/cluster").body, context.obj.form)


@app.command()
@prints
def audit(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, help="So many of the newest.")] = 100,
    kind: Annotated[
        Literal[ResourceKind, "notices", "notes", "requests"] | None, typer.Option(help="Of this sort alone.")
    ] = None,
) -> None:
    """Print who changed what, and at which replica; the newest first."""
    found = items(context, "/audit", {"kind": kind})
    print_list(islice(found, limit), context.obj.form, "audit")


@app.command()
def history(
    context: typer.Context,
    of: Annotated[
        str, typer.Argument(metavar="KIND:NAME", help="Such as tenant:alice; also a pool, tier, group or backend.")
    ] = "",
    range_: Annotated[
        Literal["15m", "1h", "6h", "24h"], typer.Option("--range", help="How long ago it begins.")
    ] = "1h",
    at: Annotated[
        float | None, typer.Option(help="Instead, one minute of all: a time in it, in seconds since 1970.")
    ] = None,
) -> None:
    """Print, as JSON, what was of one thing in the last 24 hours, or of all in one minute of them."""
    if at is not None:
        print_one(ask(context, "GET", f"/history/minute?{urlencode({'at': at})}").body, OutputForm.JSON)
    elif of:
        print_one(ask(context, "GET", f"/history?{urlencode({'of': of, 'range': range_})}").body, OutputForm.JSON)
    else:
        fail("name a thing, such as tenant:alice, or a minute by --at")


@app.command()
def note(context: typer.Context, text: Annotated[str, typer.Argument(help="What was deployed, or begun.")]) -> None:
    """Note something in the history, such as a deploy. Charts and the audit log show it."""
    ask(context, "POST", "/notes", {"text": text})


@app.command()
def link(context: typer.Context) -> None:
    """Print the page's address with a new one-time link, of a gateway without a configuration on this machine."""
    from gateway.admin.command.client import UnreachableError  # noqa: PLC0415

    try:
        typer.echo(context.obj.target.make_link())
    except UnreachableError as error:
        fail(str(error))


@app.command()
def openapi(context: typer.Context) -> None:
    """Print the OpenAPI document of the API."""
    print_one(ask(context, "GET", "/openapi.json").body, OutputForm.JSON)


def _path(kind: ResourceKind, id_: str) -> str:
    return f"/{kind}/{quote(id_, safe='')}"
