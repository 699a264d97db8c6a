"""`fairlead admin what-if`: the recorded calls of the last minutes, simulated with other settings.

The changed settings are given as fields, as in the other commands: first the fields of the what-if itself, then each
entry as KIND/ID with its own fields. A table compares the simulation with the asked settings (`instead`) and the
simulation with the present ones (`replayed`); the measured values (`happened`) show how good a simulation is.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from gateway.admin.command.asking import ask, prints
from gateway.admin.command.fields import fields_of
from gateway.admin.command.output import OutputForm, is_terminal, print_one
from gateway.options import fail

POLL_S: Final = 0.3
KINDS: Final = ("tenants", "groups", "tiers", "aliases")
OF_CHANGES: Final = "engines"  # the one change that is of no entry


@prints
def what_if(
    context: typer.Context,
    asked: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=VALUE...] [KIND/ID NAME=VALUE...]...",
            help="First engines, policy, minutes, pool, sessions.kv_scale, sessions.held or sessions.room_ratio. Then "
            "entries with their settings, like tiers/batch weight=2.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Simulate the calls of the last minutes with other settings. Example: what-if engines=1 tenants/chat weight=2.

    engines=1 is one engine more, engines=-1 one less. The command changes nothing. If the simulation differs too much
    from what was measured, the command warns you not to trust its seconds.
    """
    id_ = ask(context, "POST", "/what-ifs", body_of(asked or [])).body["id"]
    path = f"/what-ifs/{quote(id_, safe='')}"
    try:
        found = _when_over(context, path)
    except KeyboardInterrupt:
        ask(context, "DELETE", path)
        raise
    if found["state"] != "done":
        fail(found["error"])
    form = context.obj.form
    if form in (OutputForm.JSON, OutputForm.YAML):
        print_one(found, form)
    else:
        from gateway.admin.command.tables import print_runs  # noqa: PLC0415

        print_runs(found, is_wide=form is OutputForm.WIDE)
    if (why := distrust(found)) is not None:
        typer.echo(f"Do not trust the seconds: {why}", err=True)


def body_of(asked: Sequence[str]) -> dict[str, Any]:
    """The request body of the what-if. Exits where an argument is neither a field nor an entry."""
    own: list[str] = []
    entries: dict[str, dict[str, list[str]]] = {}
    fields = own
    for each in asked:
        kind, slash, name = each.partition("/")
        if slash and kind in KINDS and "=" not in each:
            fields = entries.setdefault(kind, {}).setdefault(name, [])
        else:
            fields.append(each)
    body = fields_of(own)
    changes = {kind: {name: fields_of(given) for name, given in of.items()} for kind, of in entries.items()}
    if OF_CHANGES in body:
        changes[OF_CHANGES] = body.pop(OF_CHANGES)
    return {**body, "changes": changes}


def distrust(found: Mapping[str, Any]) -> str | None:
    """The reason why the simulation cannot be trusted; None where it can."""
    trust = found["trust"]
    if trust is None or trust["is_trusted"]:
        return None
    if trust["figure"] == "too_few_calls":
        return "fewer than 20 calls of every tenant were recorded."
    figure = "tokens written per second" if trust["tenant"] is None else f"the median TTFT of {trust['tenant']}"
    return f"replayed is {trust['factor']:.3g} times off what happened in {figure}."


def _when_over(context: typer.Context, path: str) -> Mapping[str, Any]:
    """The what-if once it runs no more. A terminal shows how far it is."""
    shows = is_terminal() and sys.stderr.isatty()
    while True:
        found: Mapping[str, Any] = ask(context, "GET", path).body
        if shows:
            typer.echo(f"\rsimulated: {found['progress']:.0%} ", err=True, nl=found["state"] != "running")
        if found["state"] != "running":
            return found
        time.sleep(POLL_S)
