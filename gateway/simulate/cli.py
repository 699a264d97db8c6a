"""`fairlead simulate`: its commands. Each command imports its modules when it runs, so that --help is quick."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.options import fail, takes
from gateway.simulate.options import AgentOptions, RunOptions

if TYPE_CHECKING:
    from gateway.simulate.compare import PolicyComparison

app = typer.Typer(no_args_is_help=True, help="See the effect of a policy on your own traffic, before you use it.")


@app.command()
@takes(RunOptions)
def run(
    *,
    report: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write an HTML page with plots to this folder.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
    **options: Any,
) -> None:
    """Replay a trace with one or more policies, and print the result of each (docs/simulate.md)."""
    from gateway.simulate.compare import PolicyComparison  # noqa: PLC0415

    _run(PolicyComparison(**options), report, json=json)


@app.command()
@takes(AgentOptions)
def agents(**options: Any) -> None:
    """Print a trace of agents: each next turn of a session comes a gap after the answer.

    Other values are drawn from published quantiles (gateway/simulate/trace/agents.py): prompts of about 50,000
    tokens, answers of 350, gaps of up to 10 s.
    """
    import orjson  # noqa: PLC0415

    from gateway.simulate.trace.agents import trace_lines  # noqa: PLC0415

    try:
        lines = trace_lines(AgentOptions(**options))
    except ValueError as error:
        fail(str(error))
    for line in lines:
        typer.echo(orjson.dumps(line))


def _run(comparison: "PolicyComparison", folder: Path | None, *, json: bool) -> None:
    import orjson  # noqa: PLC0415

    from gateway.config import ConfigError  # noqa: PLC0415
    from gateway.simulate.report import report, table  # noqa: PLC0415
    from gateway.simulate.trace.traces import TraceError  # noqa: PLC0415

    try:
        with nullcontext() if folder is None else report.prepared(folder) as draft, _progress() as progress:
            setting, runs = comparison.run(progress)
            plotted = draft is None or report.write(draft, setting, runs)
    except (TraceError, ConfigError, ValueError) as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename or folder}: {error.strerror}")
    if json:
        typer.echo(orjson.dumps(table.as_json(setting, runs), option=orjson.OPT_INDENT_2))
        return
    for name, text in setting.facts.items():
        typer.echo(f"{name}: {text}")
    typer.echo(f"\n{table.markdown(table.rows(runs))}")
    if sessions := table.session_rows(runs):
        typer.echo(f"\n{table.markdown(sessions)}")
    for each in runs:
        if each.groups:
            typer.echo(f"\n{table.markdown(table.group_rows(each))}")
    if folder is not None:
        typer.echo(f"\nThe report is {folder / 'index.html'}.")
        if not plotted:
            typer.echo(report.NO_PLOTS)


@contextmanager
def _progress() -> Iterator[Callable[[str, int], Callable[[int], None]]]:
    """A progress bar per policy, only on a terminal. `begin(label, total)` returns the function that advances it."""
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import Progress  # noqa: PLC0415

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:

        def begin(label: str, total: int) -> Callable[[int], None]:
            bar = bars.add_task(label, total=total)
            return lambda advanced: bars.advance(bar, advanced)

        yield begin
