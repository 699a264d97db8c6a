"""The command `fairlead bench`. It imports modules when it runs, so that --help is quick."""

import json
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from gateway.options import fail, takes

STOPPED = 130  # the exit code of what Ctrl-C has ended


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """The options of the command `fairlead bench`, from which the Plan of the bench is made."""

    model: Annotated[str | None, typer.Option(help="The model to call. Default: the first model of the server.")] = None
    api_key: Annotated[
        str | None, typer.Option(envvar="FAIRLEAD_BENCH_API_KEY", help="The server's API key, if it needs one.")
    ] = None
    seconds: Annotated[float, typer.Option(min=1.0, max=3600.0, help="How long to measure in all.")] = 30.0
    tenants: Annotated[int, typer.Option(min=2, max=64, help="The number of tenants, with the weights 1, 2, 3 ...")] = 4
    slots: Annotated[int, typer.Option(min=1, max=4096, help="How many calls run at once. The others wait.")] = 8


@takes(BenchOptions)
def bench(
    url: Annotated[str, typer.Argument(metavar="URL", help="The server's URL, without /v1.", show_default=False)],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    **options: Any,
) -> None:
    """Measure what a gateway costs in front of a server, and how it shares that server among tenants.

    The command starts its own gateway in front of the server, and sends calls to both in turns. Then tenants of
    different weights send more calls than the server can run. The server is under load during this time. Ctrl-C ends
    the command with the present result.
    """
    import asyncio  # noqa: PLC0415

    from pydantic import SecretStr  # noqa: PLC0415

    from gateway.bench import report, run  # noqa: PLC0415
    from gateway.calibrate import bar  # noqa: PLC0415
    from gateway.calibrate.asking import spec_of  # noqa: PLC0415
    from gateway.calibrate.calls import CalibrationError  # noqa: PLC0415

    try:
        key = options["api_key"]
        plan = run.Plan(spec=spec_of(url, None if key is None else SecretStr(key)), **options)
        with bar.progress_bar() as show:
            found = asyncio.run(run.bench(plan, lambda part, stage: show(part, stage, "")))
    except (CalibrationError, OSError) as error:
        fail(str(error))
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=2))
    else:
        report.print_report(found)
    if not found.is_whole:
        raise typer.Exit(STOPPED)
