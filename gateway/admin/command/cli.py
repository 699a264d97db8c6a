"""`fairlead admin`: the admin API from the shell.

Every command is one request (a list: one per page) and prints the response. On a terminal that is a table; elsewhere,
and with --json, it is JSON, a list as one object per line: as in gh, so that scripts need no option. Fields are given
as name=value, where a dot goes inside (envelope.ttft_ms=500) and a value is JSON or else text. An error is printed
field by field, and the exit code is 1.
"""

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NoReturn
from urllib.parse import quote, urlencode

import typer

from gateway.admin.command.client import AdminClient, AdminReply, UnreachableError
from gateway.admin.command.target import AdminTarget, find_admin
from gateway.options import ConfigOption

PAGE_ROWS = 1000  # per request

app = typer.Typer(
    no_args_is_help=True,
    help="Ask and change a running gateway by its admin port.\n\nWhere that is and the key to it come from the "
    "configuration (admin.host, admin.port, admin.key_file), or from --url and --key-file. A gateway without a "
    "configuration (make run) is found by itself, by the user that started it.",
)


class ResourceName(StrEnum):
    TENANTS = "tenants"
    GROUPS = "groups"
    TIERS = "tiers"
    KEYS = "keys"
    BACKENDS = "backends"
    POOLS = "pools"
    PRICES = "prices"
    ALIASES = "aliases"


class AuditedName(StrEnum):
    TENANTS = "tenants"
    GROUPS = "groups"
    TIERS = "tiers"
    KEYS = "keys"
    BACKENDS = "backends"
    POOLS = "pools"
    PRICES = "prices"
    ALIASES = "aliases"
    NOTICES = "notices"
    NOTES = "notes"
    REQUESTS = "requests"


class ExportFormat(StrEnum):
    CSV = "csv"
    PARQUET = "parquet"


class ListedState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"


usage_app = typer.Typer(invoke_without_command=True)
app.add_typer(usage_app, name="usage")

FirstDayOption = Annotated[str | None, typer.Option(metavar="YYYY-MM-DD", help="Default: today, in UTC.")]
LastDayOption = Annotated[str | None, typer.Option(metavar="YYYY-MM-DD", help="Included.")]
UsersOption = Annotated[str | None, typer.Option("--tenant", help="This tenant's alone.")]
KindArgument = Annotated[ResourceName, typer.Argument(help="What sort of thing.", show_default=False)]
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
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON; that is what is printed if not to a terminal.")]


@dataclass(frozen=True)
class _Target:
    """Where the admin port is, and the file with a key to it."""

    config: Path | None
    url: str | None
    key_file: Path | None

    @property
    def target(self) -> AdminTarget:
        """Raises UnreachableError."""
        return find_admin(self.config, url=self.url, key_file=self.key_file)

    @cached_property  # a one-time link is opened once, also for a list of many pages
    def client(self) -> AdminClient:
        """Raises UnreachableError."""
        return self.target.connect()


@app.callback()
def _admin(
    context: typer.Context,
    config: ConfigOption = None,
    url: Annotated[str | None, typer.Option(help="The admin port, like http://127.0.0.1:8081.")] = None,
    key_file: Annotated[Path | None, typer.Option(metavar="FILE", help="The file that holds a key to it.")] = None,
) -> None:
    context.obj = _Target(config, url, key_file)


@app.command("list")
def list_(
    context: typer.Context,
    kind: KindArgument,
    tenant: Annotated[str | None, typer.Option(help="Of keys: this tenant's.")] = None,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Print all of one kind."""
    _print_list(context, f"/{kind}", {"tenant": tenant}, as_json=as_json)


@app.command()
def show(context: typer.Context, kind: KindArgument, id_: IdArgument, as_json: JsonOption = False) -> None:  # noqa: FBT002
    """Print one, and its version (to standard error)."""
    answer = _ask(context, "GET", _path(kind, id_))
    _print(answer.body, as_json=as_json)
    if answer.etag is not None:
        typer.echo(f"version: {answer.etag}", err=True)


@app.command()
def create(
    context: typer.Context,
    kind: KindArgument,
    fields: FieldsArgument,
    *,
    idempotency_key: RepeatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create one, like: create tenants id=alice weight=2. The secret of a key is printed this once."""
    answer = _ask(context, "POST", f"/{kind}", _fields(fields), idempotency_key=idempotency_key)
    _print(answer.body, as_json=as_json)


@app.command()
def put(
    context: typer.Context,
    kind: KindArgument,
    id_: IdArgument,
    fields: OptionalFieldsArgument = None,
    *,
    if_match: EtagOption = None,
    new: NewOption = False,
    as_json: JsonOption = False,
) -> None:
    """Create or replace one, like: put tenants alice weight=2. Fields that are not given get their defaults.

    The command is idempotent. Keys are made by 'create' and changed by 'set'.
    """
    condition = "*" if new else None
    answer = _ask(context, "PUT", _path(kind, id_), _fields(fields or []), if_match=if_match, if_none_match=condition)
    _print(answer.body, as_json=as_json)


@app.command("set")
def set_(
    context: typer.Context,
    kind: KindArgument,
    id_: IdArgument,
    fields: FieldsArgument,
    *,
    if_match: EtagOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change fields of one; null resets a field to its default. A pool is given all its policies at once."""
    method = "PUT" if kind is ResourceName.POOLS else "PATCH"
    _print(_ask(context, method, _path(kind, id_), _fields(fields), if_match=if_match).body, as_json=as_json)


@app.command()
def delete(context: typer.Context, kind: KindArgument, id_: IdArgument, if_match: EtagOption = None) -> None:
    """Delete one: a tenant's queued requests are rejected, running ones end. A backend is drained first."""
    _ask(context, "DELETE", _path(kind, id_), if_match=if_match)


@app.command()
def rotate(
    context: typer.Context,
    key: IdArgument,
    *,
    overlap_s: Annotated[int, typer.Option(min=0, help="Seconds that the old key goes on.")] = 86_400,
    idempotency_key: RepeatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key that replaces this one, which ends after an overlap, and print it this once."""
    path = f"{_path(ResourceName.KEYS, key)}/rotate"
    answer = _ask(context, "POST", path, {"overlap_s": overlap_s}, idempotency_key=idempotency_key)
    _print(answer.body, as_json=as_json)


@app.command()
def state(
    context: typer.Context,
    *,
    tenants: Annotated[bool, typer.Option("--tenants", help="Every tenant, one a line.")] = False,
    budgets: Annotated[bool, typer.Option("--budgets", help="Every budget of tokens, one a line.")] = False,
    pool: Annotated[str | None, typer.Option(help="Of tenants: in this pool alone.")] = None,
    group: Annotated[str | None, typer.Option(help="Of budgets: of this group, its tenants and their keys.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print what is queued and runs now, in pools and at backends."""
    if budgets or group is not None:
        _print_list(context, "/state/budgets", {"group": group}, as_json=as_json)
    elif tenants or pool is not None:
        _print_list(context, "/state/tenants", {"pool": pool}, as_json=as_json)
    else:
        _print(_ask(context, "GET", "/state").body, as_json=as_json)


@app.command()
def requests(
    context: typer.Context,
    *,
    state: Annotated[ListedState | None, typer.Option(help="Default: queued and running.")] = None,
    tenant: Annotated[str | None, typer.Option(help="This tenant's alone.")] = None,
    pool: Annotated[str | None, typer.Option(help="In this pool alone.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="So many.")] = 100,
    as_json: JsonOption = False,
) -> None:
    """Print requests, the longest first, and why they wait; those that have ended, the newest first."""
    _print_list(context, "/requests", {"state": state, "tenant": tenant, "pool": pool}, limit=limit, as_json=as_json)


@app.command()
def request(context: typer.Context, id_: RequestArgument, as_json: JsonOption = False) -> None:  # noqa: FBT002
    """Print one request, by its x-request-id, also one of the last 10,000 that ended."""
    _print(_ask(context, "GET", f"/requests/{quote(id_, safe='')}").body, as_json=as_json)


@app.command()
def cancel(context: typer.Context, id_: RequestArgument) -> None:
    """Cancel a request that is queued or runs. Its client gets an error."""
    _ask(context, "DELETE", f"/requests/{quote(id_, safe='')}")


@app.command()
def cluster(context: typer.Context, as_json: JsonOption = False) -> None:  # noqa: FBT002
    """Print which processes share one order, and which of them leads, as the one that is asked sees it."""
    _print(_ask(context, "GET", "/cluster").body, as_json=as_json)


@usage_app.callback()
def usage(
    context: typer.Context,
    first_day: FirstDayOption = None,
    last_day: LastDayOption = None,
    tenant: UsersOption = None,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Print requests, tokens and their cost by day, tenant, key and model."""
    if context.invoked_subcommand is None:
        days = {"first_day": first_day, "last_day": last_day}
        _print_list(context, "/usage", {**days, "tenant": tenant}, as_json=as_json)


@usage_app.command("export")
def usage_export(
    context: typer.Context,
    *,
    first_day: FirstDayOption = None,
    last_day: LastDayOption = None,
    tenant: UsersOption = None,
    format_: Annotated[
        ExportFormat, typer.Option("--format", help="Parquet needs fairlead[export] at the gateway.")
    ] = (ExportFormat.CSV),
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Default: standard output.")] = None,
) -> None:
    """Write usage and its cost as a table with FOCUS columns, one row per meter. A file is there when it is whole."""
    given = {"first_day": first_day, "last_day": last_day, "tenant": tenant, "format": format_.value}
    query = urlencode({name: value for name, value in given.items() if value is not None})
    part = None if output is None else output.with_name(output.name + ".part")
    try:
        with contextlib.ExitStack() as stack:
            to = sys.stdout.buffer if part is None else stack.enter_context(part.open("wb"))
            context.obj.client.download(f"/usage/export?{query}", to)
        if part is not None and output is not None:
            part.rename(output)
    except (UnreachableError, OSError) as error:
        if part is not None:
            part.unlink(missing_ok=True)
        _fail(str(error))


@app.command()
def audit(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, help="So many of the newest.")] = 100,
    kind: Annotated[AuditedName | None, typer.Option(help="Of this sort alone.")] = None,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Print who changed what, and at which replica; the newest first."""
    _print_list(context, "/audit", {"kind": kind}, limit=limit, as_json=as_json)


@app.command()
def link(context: typer.Context) -> None:
    """Print the page's address with a new one-time link, of a gateway without a configuration on this machine."""
    try:
        typer.echo(context.obj.target.make_link())
    except UnreachableError as error:
        _fail(str(error))


@app.command()
def openapi(context: typer.Context) -> None:
    """Print the OpenAPI document of the API."""
    _print(_ask(context, "GET", "/openapi.json").body, as_json=True)


def _print_list(
    context: typer.Context,
    path: str,
    query: Mapping[str, str | None],
    *,
    limit: int | None = None,
    as_json: bool,
) -> None:
    given = {name: value for name, value in query.items() if value is not None}
    items = islice(_items(context, path, given), limit)
    if _is_for_people(as_json=as_json):
        from gateway.admin.command.tables import print_list  # noqa: PLC0415

        print_list(items)
        return
    for item in items:
        typer.echo(json.dumps(item))


def _items(context: typer.Context, path: str, query: dict[str, str]) -> Iterator[Any]:
    """All items of a list, page after page."""
    while True:
        page = _ask(context, "GET", f"{path}?{urlencode({**query, 'limit': PAGE_ROWS})}").body
        yield from page["items"]
        if page["next_cursor"] is None:
            return
        query["cursor"] = page["next_cursor"]


def _ask(
    context: typer.Context,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    **conditions: str | None,
) -> AdminReply:
    """Send a request with headers like if_match, where they are not None. Exits with the error where it fails."""
    headers = {name.replace("_", "-"): value for name, value in conditions.items()}
    try:
        client: AdminClient = context.obj.client
        answer = client.ask(method, path, body, headers=headers)
    except UnreachableError as error:
        _fail(str(error))
    if answer.status >= 400:
        errors = answer.body.get("errors") or []
        _fail("\n".join(f"{each['field']}: {each['reason']}" for each in errors) or answer.body["detail"])
    return answer


def _fields(given: list[str]) -> dict[str, Any]:
    """Parse NAME=VALUE arguments into an object."""
    fields: dict[str, Any] = {}
    for each in given:
        name, found, text = each.partition("=")
        if not found:
            _fail(f"'{each}': give NAME=VALUE")
        at = fields
        *path, last = name.split(".")
        for part in path:
            at = at.setdefault(part, {})
            if not isinstance(at, dict):
                _fail(f"'{each}': {part} has a value already")
        at[last] = _value(text, is_money=last.startswith("cost_") or last == "periods")
    return fields


def _value(text: str, *, is_money: bool) -> Any:
    """The text as JSON, or as it is. Of money no floating-point number is made."""
    try:
        return json.loads(text, parse_float=str if is_money else None)
    except ValueError:
        return text


def _path(kind: ResourceName, id_: str) -> str:
    return f"/{kind}/{quote(id_, safe='')}"


def _print(body: Any, *, as_json: bool) -> None:
    if _is_for_people(as_json=as_json):
        from gateway.admin.command.tables import print_one  # noqa: PLC0415

        print_one(body)
        return
    typer.echo(json.dumps(body, indent=2))


def _is_for_people(*, as_json: bool) -> bool:
    return not as_json and sys.stdout.isatty()


def _fail(text: str) -> NoReturn:
    typer.echo(text, err=True)
    raise typer.Exit(1)
