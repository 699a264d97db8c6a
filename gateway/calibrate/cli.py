"""The command `fairlead calibrate`. It imports modules when it runs, so that --help is quick."""

from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.options import fail

if TYPE_CHECKING:
    from pydantic import SecretStr

    from gateway.calibrate.run import Calibration

BackendUrl = Annotated[
    str, typer.Option("--backend", metavar="URL", help="The server's URL, without /v1.", show_default=False)
]
ModelName = Annotated[str | None, typer.Option(help="The model to call. Default: the first model of the server.")]
OutFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Store the coefficients here, for step_time_file.")]
Seconds = Annotated[float, typer.Option(min=1.0, max=3600.0, help="The shortest time to measure.")]
SecondsMax = Annotated[
    float, typer.Option(min=1.0, max=36_000.0, help="The longest time, if there is too little to learn from.")
]
PlotFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the predicted step times here (SVG).")]
KeyFile = Annotated[Path | None, typer.Option(metavar="FILE", help="A file with the server's API key.")]


def calibrate(
    *,
    backend: BackendUrl,
    model: ModelName = None,
    out: OutFile = None,
    seconds: Seconds = 120.0,
    seconds_max: SecondsMax = 600.0,
    plot: PlotFile = None,
    api_key_file: KeyFile = None,
) -> None:
    """Learn how long the steps of a backend take, from its counters, under a mixed load.

    The command prints the coefficients, and their error on measurements that they were not learnt from. A gateway
    learns the same while it serves. With these coefficients, it knows them from the start. The command ends when it has
    enough measurements. Ctrl-C ends it with the present result. If the measurements were too few, --out keeps them
    beside its file, and the next run continues with them.
    """
    import asyncio  # noqa: PLC0415

    from gateway.calibrate import bar, kept_windows, run  # noqa: PLC0415
    from gateway.calibrate.asking import spec_of  # noqa: PLC0415
    from gateway.calibrate.calls import CalibrationError  # noqa: PLC0415

    if plot is not None and find_spec("matplotlib") is None:
        fail("There is no plot without matplotlib. Get it with: pip install 'fairlead[simulate]'")
    try:
        spec = spec_of(backend, _key(api_key_file))
        plan = run.CalibrationPlan(spec, model, seconds, seconds_max)
        seen_before = None if out is None else partial(kept_windows.read_windows, out, spec.url)
        with bar.progress_bar() as show:
            found = asyncio.run(run.calibrate(plan, lambda now: show(now.part(seconds), *now.status()), seen_before))
        _print(found)
        _store(found, out, plot)
    except run.TooFewWindowsError as error:
        if out is None or not error.windows:
            fail(f"{error}: give it more --seconds-max")
        kept_at = kept_windows.write_windows(out, spec.url, error.model, error.windows)
        fail(f"{error}. They are kept in {kept_at}: the same command goes on from them.")
    except (CalibrationError, ValueError) as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}")


def _store(found: "Calibration", out: Path | None, plot: Path | None) -> None:
    """Write the coefficients and the plot, where they are asked for. Raises OSError."""
    from gateway.calibrate.kept_windows import delete_windows  # noqa: PLC0415
    from gateway.config.step_time import write_step_time  # noqa: PLC0415

    if out is not None:
        write_step_time(out, found.step_time)
        delete_windows(out)
        typer.echo(f"Stored in {out}. In the backend's configuration: step_time_file: {out}")
    if plot is not None:
        from gateway.calibrate.plot import draw  # noqa: PLC0415

        plot.write_text(draw(found), encoding="utf-8")


def _print(found: "Calibration") -> None:
    from gateway.calibrate.run import equation  # noqa: PLC0415

    seen = f"{found.windows} windows of {found.steps} steps in {found.seconds:g} s, {found.calls} calls answered"
    typer.echo(f"{found.model}: {seen}")
    typer.echo(f"a step takes {equation(found.step_time.model)}")
    typer.echo(
        f"error of every second window, predicted from the others:"
        f" {found.step_time.error_ratio:.1%} in the median, {found.error_ratio_p90:.1%} in the 90th percentile"
    )


def _key(file: Path | None) -> "SecretStr | None":
    """Raises ValueError."""
    from pydantic import SecretStr  # noqa: PLC0415

    from gateway.config.sections import file_text  # noqa: PLC0415

    return None if file is None else SecretStr(file_text(file))
