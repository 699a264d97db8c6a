"""`fairlead simulate`: its commands. Each command imports its modules when it runs, so that --help is quick."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from gateway.simulate.compare import PolicyComparison

SIMULATE = "See what a policy would do to your own traffic, before you turn it on."
CHOICE = "NAME[:PARAMETER=VALUE,...]"


class Holding(StrEnum):
    """Whether sessions are held (docs/agents.md)."""

    HELD = "held"
    FREE = "free"


app = typer.Typer(no_args_is_help=True, help=SIMULATE)


# The options of `run`, in the order of its help.
TraceFile = Annotated[
    Path,
    typer.Option(metavar="FILE", help="The trace: CSV or JSON lines, known by its first line.", show_default=False),
]
Policies = Annotated[list[str] | None, typer.Option(metavar=CHOICE, help="A fairness policy; give several.")]
Predictions = Annotated[list[str] | None, typer.Option(metavar=CHOICE, help="Of output lengths; several.")]
Placements = Annotated[list[str] | None, typer.Option(metavar=CHOICE, help="Which engine; several.")]
Holdings = Annotated[list[Holding] | None, typer.Option("--sessions", help="Whether turns wait for room; both.")]
SessionRoom = Annotated[
    float | None,
    typer.Option(min=0.01, max=1.0, help="Eta of docs/agents.md. Default: learnt."),
]
PriceChoice = Annotated[str | None, typer.Option(metavar=CHOICE, help="What service costs.")]
ShareRatio = Annotated[
    float | None, typer.Option(min=0.0, max=1.0, help="What one tenant may hold in flight while others wait.")
]
TenantRule = Annotated[
    str | None,
    typer.Option(metavar="RULE", help="Whose call is whose: column[:NAME], block:K[:N[:zipf]] or random:N[:zipf]."),
]
GroupRule = Annotated[
    str | None,
    typer.Option(
        metavar="RULE", help="Whose group a tenant is in: name[:SEPARATOR], or as configured. Shows groups' shares."
    ),
]
Weights = Annotated[
    list[str] | None, typer.Option(metavar="TENANT=WEIGHT|FILE", help="Weights, or a file of such lines; several.")
]
PerMinute = Annotated[int | None, typer.Option(min=1, help="A limit of every tenant that is not configured.")]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="Scheduling, tenants and tiers as the gateway has them."),
]
PoolName = Annotated[str, typer.Option(help="The pool of the configuration that is simulated.")]
EngineName = Annotated[str, typer.Option(metavar="NAME", help="Step times: a model and a GPU.")]
EngineCount = Annotated[int, typer.Option(min=1, max=1024, help="How many engines.")]
Batching = Annotated[str, typer.Option(metavar="NAME", help="What an engine's step computes.")]
KvTokens = Annotated[int | None, typer.Option(min=16, help="An engine's KV cache. Default: the engine's.")]
BlockTokens = Annotated[int | None, typer.Option(min=1, max=65_536, help="Of its blocks. Default: the trace's, or 16.")]
RunningMax = Annotated[int, typer.Option(min=1, help="An engine's --max-num-seqs.")]
OutputMax = Annotated[int, typer.Option(min=1, help="What a call allows that does not say it.")]
ModelName = Annotated[str | None, typer.Option(help="Only calls for this model.")]
Speed = Annotated[float, typer.Option(min=1e-6, help="2 lets calls arrive twice as fast.")]
Seed = Annotated[int, typer.Option(help="Of all that is drawn by lot.")]
ReportFolder = Annotated[Path | None, typer.Option(metavar="DIR", help="Write an HTML page with plots there.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON in the place of the table.")]


@app.command()
def run(
    *,
    trace: TraceFile,
    policy: Policies = None,
    prediction: Predictions = None,
    placement: Placements = None,
    sessions: Holdings = None,
    session_room: SessionRoom = None,
    price: PriceChoice = None,
    share_ratio: ShareRatio = None,
    tenants: TenantRule = None,
    group_by: GroupRule = None,
    weights: Weights = None,
    requests_per_minute: PerMinute = None,
    config: ConfigFile = None,
    pool: PoolName = "",
    engine: EngineName = "a10g-llama2-7b",
    engines: EngineCount = 1,
    batching: Batching = "chunked-prefill",
    kv_tokens: KvTokens = None,
    block_tokens: BlockTokens = None,
    requests_running_max: RunningMax = 256,
    output_tokens_max: OutputMax = 1024,
    model: ModelName = None,
    speed: Speed = 1.0,
    seed: Seed = 0,
    report: ReportFolder = None,
    json: AsJson = False,
) -> None:
    """Play a trace against one policy or several, and print what each would have done (docs/simulate.md)."""
    from gateway.simulate.compare import PolicyComparison  # noqa: PLC0415

    comparison = PolicyComparison(
        trace=trace,
        tenants=tenants,
        group_by=group_by,
        policies=policy or (),
        predictions=prediction or (),
        placements=placement or (),
        sessions=sessions or (),
        session_room=session_room,
        price=price,
        share_ratio_max=share_ratio,
        weights=weights or (),
        requests_per_minute_max=requests_per_minute,
        config=config,
        pool=pool,
        engine=engine,
        engines=engines,
        batching=batching,
        kv_tokens_max=kv_tokens,
        block_tokens=block_tokens,
        requests_running_max=requests_running_max,
        output_tokens_max=output_tokens_max,
        model=model,
        speed=speed,
        seed=seed,
    )
    _run(comparison, report, json=json)


# The options of `agents`.
QUANTILES = "NUMBER|PART:VALUE,..."
AgentCounts = Annotated[
    list[str],
    typer.Option("--agents", metavar="TENANT=COUNT", help="Sessions of a tenant at once; several.", show_default=False),
]
Rounds = Annotated[int, typer.Option(min=1, max=1000, help="Sessions of an agent, in a row.")]
Turns = Annotated[
    str | None, typer.Option(metavar=QUANTILES, help="Of a session. Default: published, 43 in the median.")
]
Gap = Annotated[str | None, typer.Option(metavar=QUANTILES, help="Seconds before the next turn. Default: published.")]
FirstPrompt = Annotated[str | None, typer.Option(metavar=QUANTILES, help="Tokens of the first turn.")]
AddedTokens = Annotated[str | None, typer.Option(metavar=QUANTILES, help="Tokens of a later turn.")]
OutputTokens = Annotated[str | None, typer.Option(metavar=QUANTILES, help="Tokens of an answer.")]
SharedTokens = Annotated[int | None, typer.Option(min=0, help="With which all sessions of a tenant begin.")]
StartsWithin = Annotated[float, typer.Option(min=0.0, help="Seconds in which agents start.")]
TellEnds = Annotated[bool, typer.Option("--tell-ends", help="The last turn of a session says that it is.")]


@app.command()
def agents(
    *,
    agents: AgentCounts,
    rounds: Rounds = 3,
    turns: Turns = None,
    gap_s: Gap = None,
    first_prompt: FirstPrompt = None,
    added: AddedTokens = None,
    output: OutputTokens = None,
    shared_tokens: SharedTokens = None,
    starts_within_s: StartsWithin = 60.0,
    tell_ends: TellEnds = False,
    seed: Seed = 0,
) -> None:
    """Print a trace of agents: sessions whose next turn comes a gap after the answer.

    What is not given is drawn from published quantiles (gateway/simulate/trace/agents.py): prompts of about 50,000
    tokens, answers of 350, gaps of up to 10 s.
    """
    import orjson  # noqa: PLC0415

    from gateway.simulate.trace.agents import (  # noqa: PLC0415
        SHARED_TOKENS,
        Agents,
        read_counts,
        read_quantiles,
        trace_lines,
    )

    shared = SHARED_TOKENS if shared_tokens is None else shared_tokens
    given = {"turns": turns, "gap_s": gap_s, "first_prompt": first_prompt, "added": added, "output": output}
    try:
        drawn: dict[str, Any] = {name: read_quantiles(text) for name, text in given.items() if text is not None}
        all_agents = [
            Agents(tenant_id=tenant, sessions=count, shared_tokens=shared, starts_within_s=starts_within_s, **drawn)
            for tenant, count in read_counts(agents).items()
        ]
        lines = trace_lines(all_agents, rounds=rounds, seed=seed, tells_ends=tell_ends)
    except ValueError as error:
        _fail(str(error))
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
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename or folder}: {error.strerror}")
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


def _fail(text: str) -> NoReturn:
    typer.echo(text, err=True)
    raise typer.Exit(1)
