"""The command `fairlead top`. It imports its modules when it runs, so that --help is quick."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.admin.command.output import JsonOption, OutputForm, OutputOption, form_of, print_one
from gateway.options import ConfigOption, fail

if TYPE_CHECKING:
    from gateway.admin.command.target import AdminTarget

WIDE = 1000  # columns of a terminal that all columns of a view fit
INTERRUPTED = 130  # the exit code of what Ctrl-C has ended


def top(
    config: ConfigOption = None,
    url: Annotated[
        str | None, typer.Option(help="The admin port, like http://127.0.0.1:8081, or a one-time link to its page.")
    ] = None,
    key_file: Annotated[Path | None, typer.Option(metavar="FILE", help="A file with a key of the admin port.")] = None,
    *,
    once: Annotated[bool, typer.Option("--once", help="Print the present state, and exit.")] = False,
    output: OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    """Watch tenants, tiers, backends and the queue of a running gateway. ? shows the keys.

    The admin port and the key to it come from the configuration (admin.host, admin.port, admin.key_file), or from
    --url and --key-file. A viewer's key is enough. With the key of a group's administrator, you see that group. A
    gateway without a configuration (make run) needs neither.
    """
    from gateway.admin.command.client import UnreachableError  # noqa: PLC0415
    from gateway.admin.command.target import find_admin  # noqa: PLC0415

    try:
        target = find_admin(config, url=url, key_file=key_file)
        if once or as_json or output is not None:
            _print_once(_first_document(target), form_of(output, as_json=as_json))
        else:
            _watch(target)
    except UnreachableError as error:
        fail(str(error))
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _watch(target: "AdminTarget") -> None:
    try:
        from gateway.top.terminal import TerminalError, watch  # noqa: PLC0415
    except ImportError as error:
        fail(f"this Python has no curses ({error}); for scripts: fairlead top --once --json")
    try:
        watch(target.connect)
    except TerminalError as error:
        fail(str(error))


def _first_document(target: "AdminTarget") -> Any:
    from gateway.top.feed import SILENCE_S_MAX  # noqa: PLC0415

    client = target.connect()
    events = client.events(client.live_path(), silence_s_max=SILENCE_S_MAX)
    document = next((data for event, data in events if event == "state"), None)
    events.close()
    if document is None:
        fail("the gateway has closed the connection without a state")
    return document


def _print_once(document: Any, form: OutputForm | None) -> None:
    if form in (OutputForm.JSON, OutputForm.YAML):
        print_one(document, form)
        return
    from gateway.top.picture import listing  # noqa: PLC0415

    typer.echo(listing(document, width=WIDE if form is OutputForm.WIDE else shutil.get_terminal_size().columns))
