"""The options of `fairlead simulate`, which are what its simulations take: one field for each.

Importing this file loads no simulation, so that --help is quick.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

CHOICE = "NAME[:PARAMETER=VALUE,...]"
QUANTILES = "NUMBER|PART:VALUE,..."


class Holding(StrEnum):
    """Whether sessions are held (docs/agents.md)."""

    HELD = "held"
    FREE = "free"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOptions:
    """The policies to run, as typed. A field that is empty or None stays as in the configuration."""

    policies: Annotated[
        list[str] | None, typer.Option("--policy", metavar=CHOICE, help="A fairness policy; give several.")
    ] = None
    predictions: Annotated[
        list[str] | None, typer.Option("--prediction", metavar=CHOICE, help="Of output lengths; several.")
    ] = None
    placements: Annotated[
        list[str] | None, typer.Option("--placement", metavar=CHOICE, help="Which engine; several.")
    ] = None
    sessions: Annotated[list[Holding] | None, typer.Option(help="Whether turns wait for room; both.")] = None
    session_room: Annotated[
        float | None, typer.Option(min=0.01, max=1.0, help="Eta of docs/agents.md. Default: learnt.")
    ] = None
    price: Annotated[str | None, typer.Option(metavar=CHOICE, help="What service costs.")] = None
    share_ratio_max: Annotated[
        float | None,
        typer.Option("--share-ratio", min=0.0, max=1.0, help="What one tenant may hold in flight while others wait."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(PolicyOptions):
    """The options of `fairlead simulate run` that say what is simulated."""

    trace: Annotated[
        Path,
        typer.Option(metavar="FILE", help="The trace: CSV or JSON lines, known by its first line.", show_default=False),
    ]
    tenants: Annotated[
        str | None,
        typer.Option(metavar="RULE", help="Whose call is whose: column[:NAME], block:K[:N[:zipf]] or random:N[:zipf]."),
    ] = None
    group_by: Annotated[
        str | None,
        typer.Option(
            metavar="RULE", help="Whose group a tenant is in: name[:SEPARATOR], or as configured. Shows groups' shares."
        ),
    ] = None
    weights: Annotated[
        list[str] | None, typer.Option(metavar="TENANT=WEIGHT|FILE", help="Weights, or a file of such lines; several.")
    ] = None
    requests_per_minute_max: Annotated[
        int | None,
        typer.Option("--requests-per-minute", min=1, help="A limit of every tenant that is not configured."),
    ] = None
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help="Scheduling, tenants and tiers as the gateway has them."),
    ] = None
    pool: Annotated[str, typer.Option(help="The pool of the configuration that is simulated.")] = ""
    engine: Annotated[str, typer.Option(metavar="NAME", help="Step times: a model and a GPU.")] = "a10g-llama2-7b"
    engines: Annotated[int, typer.Option(min=1, max=1024, help="How many engines.")] = 1
    batching: Annotated[str, typer.Option(metavar="NAME", help="What an engine's step computes.")] = "chunked-prefill"
    kv_tokens_max: Annotated[
        int | None, typer.Option("--kv-tokens", min=16, help="An engine's KV cache. Default: the engine's.")
    ] = None
    block_tokens: Annotated[
        int | None, typer.Option(min=1, max=65_536, help="Of its blocks. Default: the trace's, or 16.")
    ] = None
    requests_running_max: Annotated[int, typer.Option(min=1, help="An engine's --max-num-seqs.")] = 256
    output_tokens_max: Annotated[int, typer.Option(min=1, help="What a call allows that does not say it.")] = 1024
    model: Annotated[str | None, typer.Option(help="Only calls for this model.")] = None
    speed: Annotated[float, typer.Option(min=1e-6, help="2 lets calls arrive twice as fast.")] = 1.0
    seed: Annotated[int, typer.Option(help="Of all that is drawn by lot.")] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """The options of `fairlead simulate agents`. A distribution that is None is the published one."""

    agents: Annotated[
        list[str],
        typer.Option(
            "--agents", metavar="TENANT=COUNT", help="Sessions of a tenant at once; several.", show_default=False
        ),
    ]
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Sessions of an agent, in a row.")] = 3
    turns: Annotated[
        str | None, typer.Option(metavar=QUANTILES, help="Of a session. Default: published, 43 in the median.")
    ] = None
    gap_s: Annotated[
        str | None, typer.Option(metavar=QUANTILES, help="Seconds before the next turn. Default: published.")
    ] = None
    first_prompt: Annotated[str | None, typer.Option(metavar=QUANTILES, help="Tokens of the first turn.")] = None
    added: Annotated[str | None, typer.Option(metavar=QUANTILES, help="Tokens of a later turn.")] = None
    output: Annotated[str | None, typer.Option(metavar=QUANTILES, help="Tokens of an answer.")] = None
    shared_tokens: Annotated[int | None, typer.Option(min=0, help="With which all sessions of a tenant begin.")] = None
    starts_within_s: Annotated[float, typer.Option(min=0.0, help="Seconds in which agents start.")] = 60.0
    tell_ends: Annotated[bool, typer.Option("--tell-ends", help="The last turn of a session says that it is.")] = False
    seed: Annotated[int, typer.Option(help="Of all that is drawn by lot.")] = 0
