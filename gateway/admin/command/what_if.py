"""`fairlead admin what-if`: the recorded calls of the last minutes, simulated with other settings.

What differs is given as the other commands take fields: those of the what-if itself first, then each entry as KIND/ID
with its own. A table compares what is simulated with the asked settings (`instead`) with the simulation of the present
ones (`replayed`); what was measured (`happened`) tells how far a simulation is to be trusted.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from gateway.admin.command.asking import ask, fail, prints
from gateway.admin.command.fields import fields_of
from gateway.admin.command.output import OutputForm, is_terminal, print_one

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
    """The what-if as the API takes it. Exits where an argument is neither a field nor an entry."""
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
    """Why the simulation is no judge of what would have been; None where it is one."""
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
