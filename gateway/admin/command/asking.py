"""Requests of a command to the admin port: the address and the key that it uses, and its exit after an error.

--config, --url, --key-file and the output form stand before a command or after it: the group gives these options to
each of its commands, where they override those before it. A command imports the client when it asks, so that --help is
quick.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import urlencode

import typer
from typer.core import TyperGroup

from gateway.admin.command.output import OutputForm, form_of
from gateway.options import fail

if TYPE_CHECKING:
    from gateway.admin.command.client import AdminClient, AdminReply
    from gateway.admin.command.target import AdminTarget

PAGE_ROWS = 1000  # per request
FAILED = 1  # the exit code

C = TypeVar("C", bound=Callable[..., None])

ResourceKind = Literal["tenants", "groups", "tiers", "keys", "backends", "pools", "prices", "aliases"]


@dataclass(frozen=True)
class Given:
    """The common options of the admin commands, as they were given with one command: where the admin port is, the file
    with a key for it, and the output form.
    """

    config: Path | None
    url: str | None
    key_file: Path | None
    output: OutputForm | None
    as_json: bool

    @property
    def form(self) -> OutputForm | None:
        """The form to print in; None: a table that fits the terminal."""
        return form_of(self.output, as_json=self.as_json)

    @property
    def target(self) -> "AdminTarget":
        """The admin port to ask, with its key. Raises UnreachableError."""
        from gateway.admin.command.target import find_admin  # noqa: PLC0415

        return find_admin(self.config, url=self.url, key_file=self.key_file)

    @cached_property  # a one-time link is opened once, also for a list of many pages
    def client(self) -> "AdminClient":
        """A client of the admin port. Raises UnreachableError."""
        return self.target.connect()


def prints(command: C) -> C:
    """Mark a command whose output has the form that its options ask for."""
    vars(command)["prints"] = True
    return command


class TargetGroup(TyperGroup):
    """A group of commands with common options (see Given), which may stand before a command or after it. After a
    command, the options that choose the output form (OutputForm) are allowed only if the command is marked with
    `prints`.
    """

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        given = {each.name: _after(each) for each in self.params if each.name in Given.__dataclass_fields__}
        form = [given.pop(name) for name in ("output", "as_json")]
        _give(form, list(given.values()), self)


def _after(option: Any) -> Any:
    """The option of the group as one of its commands has it: it says something only where it is given."""
    given = copy.copy(option)
    given.expose_value, given.envvar, given.callback, given.default = False, None, _override, None
    return given


def _give(form: list[Any], target: list[Any], group: Any) -> None:
    for command in group.commands.values():
        options = form if hasattr(command.callback, "prints") else []
        command.params = [*command.params, *options, *target]
        if hasattr(command, "commands"):
            _give(form, target, command)


def _override(context: typer.Context, option: Any, value: Any) -> None:
    if value is not None:
        context.obj = replace(context.obj, **{option.name: value})


def ask(
    context: typer.Context,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    *,
    exit_code: int = FAILED,
    **conditions: str | None,
) -> "AdminReply":
    """Send a request, with `conditions` that are not None (like if_match) as headers. Exits if the request fails."""
    from gateway.admin.command.client import UnreachableError  # noqa: PLC0415

    headers = {name.replace("_", "-"): value for name, value in conditions.items()}
    try:
        client: AdminClient = context.obj.client
        answer = client.ask(method, path, body, headers=headers)
    except UnreachableError as error:
        fail(str(error), exit_code)
    if answer.status >= 400:
        errors = answer.body.get("errors") or []
        said = [f"{_as_given(each['field'])}: {each['reason']}" for each in errors]
        fail("\n".join(said) or answer.body["detail"], exit_code)
    return answer


def ask_live(context: typer.Context) -> Any:
    """The live document, or the part of it that the key may see. Exits with the error where the request fails."""
    from gateway.admin.command.client import UnreachableError  # noqa: PLC0415

    try:
        path = context.obj.client.live_path()
    except UnreachableError as error:
        fail(str(error))
    return ask(context, "GET", path).body


def _as_given(field: str) -> str:
    """A field as a command names it: that it is in a body is the API's affair."""
    return field.removeprefix("body.")


def pages(context: typer.Context, path: str, query: Mapping[str, str]) -> Iterator[Any]:
    """The pages of a list."""
    asked = dict(query)
    while True:
        page = ask(context, "GET", f"{path}?{urlencode({**asked, 'limit': PAGE_ROWS})}").body
        yield page
        if page["next_cursor"] is None:
            return
        asked["cursor"] = page["next_cursor"]


def items(context: typer.Context, path: str, query: Mapping[str, str | None]) -> Iterator[Any]:
    """All items of a list, page after page; `query` entries that are None are left out."""
    given = {name: value for name, value in query.items() if value is not None}
    for page in pages(context, path, given):
        yield from page["items"]
