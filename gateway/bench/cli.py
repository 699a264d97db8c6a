"""The command `fairlead bench`. It imports what it needs when it runs, so that --help is quick."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

STOPPED = 130  # the exit code of what Ctrl-C has ended

Url = Annotated[str, typer.Argument(metavar="URL", help="The server's URL, without /v1.", show_default=False)]
ModelName = Annotated[str | None, typer.Option(help="The model to call. Default: the first model of the server.")]
ApiKey = Annotated[
    str | None, typer.Option(envvar="FAIRLEAD_BENCH_API_KEY", help="The server's API key, if it needs one.")
]
Seconds = Annotated[float, typer.Option(min=1.0, max=3600.0, help="How long to measure in all.")]
Tenants = Annotated[int, typer.Option(min=2, max=64, help="The number of tenants, with the weights 1, 2, 3 ...")]
Slots = Annotated[int, typer.Option(min=1, max=4096, help="How many calls run at once. The others wait.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def bench(
    url: Url,
    *,
    model: ModelName = None,
    api_key: ApiKey = None,
    seconds: Seconds = 30.0,
    tenants: Tenants = 4,
    slots: Slots = 8,
    as_json: AsJson = False,
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
        spec = spec_of(url, None if api_key is None else SecretStr(api_key))
        plan = run.Plan(spec=spec, api_key=api_key, model=model, seconds=seconds, tenants=tenants, slots=slots)
        with bar.progress_bar() as show:
            found = asyncio.run(run.bench(plan, lambda part, stage: show(part, stage, "")))
    except (CalibrationError, OSError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=2))
    else:
        report.print_report(found)
    if not found.is_whole:
        raise typer.Exit(STOPPED)
