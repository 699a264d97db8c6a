"""The options of `fairlead simulate`, which are also the arguments of its simulations: one field for each.

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
    """An option: whether turns of agents' sessions are held, that is, wait until an engine's KV pool has room for their
    contexts (docs/agents.md).
    """

    HELD = "held"
    FREE = "free"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOptions:
    """The options that choose the policies of a simulation, as typed. A field that is empty or None stays as in the
    configuration.
    """

    policies: Annotated[
        list[str] | None, typer.Option("--policy", metavar=CHOICE, help="A fairness policy. You may give several.")
    ] = None
    predictions: Annotated[
        list[str] | None,
        typer.Option("--prediction", metavar=CHOICE, help="A predictor of output lengths. You may give several."),
    ] = None
    placements: Annotated[
        list[str] | None, typer.Option("--placement", metavar=CHOICE, help="A placement. You may give several.")
    ] = None
    sessions: Annotated[list[Holding] | None, typer.Option(help="Whether turns wait for room. You may give both.")] = (
        None
    )
    session_room: Annotated[
        float | None, typer.Option(min=0.01, max=1.0, help="The part of the KV pool for contexts. Default: learnt.")
    ] = None
    price: Annotated[str | None, typer.Option(metavar=CHOICE, help="The price of service.")] = None
    share_ratio_max: Annotated[
        float | None,
        typer.Option("--share-ratio", min=0.0, max=1.0, help="The part of the room for one tenant while others wait."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(PolicyOptions):
    """The options of `fairlead simulate run` that define the simulation."""

    trace: Annotated[
        Path,
        typer.Option(metavar="FILE", help="The trace: CSV or JSON lines.", show_default=False),
    ]
    tenants: Annotated[
        str | None,
        typer.Option(
            metavar="RULE", help="Which tenant has a call: column[:NAME], block:K[:N[:zipf]] or random:N[:zipf]."
        ),
    ] = None
    group_by: Annotated[
        str | None,
        typer.Option(
            metavar="RULE", help="The group of a tenant: name[:SEPARATOR], or as configured. Prints groups' shares."
        ),
    ] = None
    weights: Annotated[
        list[str] | None,
        typer.Option(metavar="TENANT=WEIGHT|FILE", help="A weight, or a file of such lines. You may give several."),
    ] = None
    requests_per_minute_max: Annotated[
        int | None,
        typer.Option("--requests-per-minute", min=1, help="A limit for each tenant that is not configured."),
    ] = None
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", metavar="FILE", help="Take scheduling, tenants and tiers from this configuration."
        ),
    ] = None
    pool: Annotated[str, typer.Option(help="The pool of the configuration to simulate.")] = ""
    engine: Annotated[str, typer.Option(metavar="NAME", help="Step times: a model and a GPU.")] = "a10g-llama2-7b"
    engines: Annotated[int, typer.Option(min=1, max=1024, help="How many engines.")] = 1
    batching: Annotated[str, typer.Option(metavar="NAME", help="How an engine fills its steps.")] = "chunked-prefill"
    kv_tokens_max: Annotated[
        int | None, typer.Option("--kv-tokens", min=16, help="The KV pool of an engine. Default: by --engine.")
    ] = None
    block_tokens: Annotated[
        int | None, typer.Option(min=1, max=65_536, help="Tokens of a KV block. Default: as in the trace, or 16.")
    ] = None
    requests_running_max: Annotated[int, typer.Option(min=1, help="An engine's --max-num-seqs.")] = 256
    output_tokens_max: Annotated[
        int, typer.Option(min=1, help="The largest output of a call that does not give it.")
    ] = 1024
    model: Annotated[str | None, typer.Option(help="Only calls for this model.")] = None
    speed: Annotated[float, typer.Option(min=1e-6, help="2 lets calls arrive twice as fast.")] = 1.0
    seed: Annotated[int, typer.Option(help="The seed of all random values.")] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """The options of `fairlead simulate agents`, which writes a trace of agents' calls. A distribution that is None is
    drawn from published quantiles of real agents (gateway/simulate/trace/agents.py).
    """

    agents: Annotated[
        list[str],
        typer.Option(
            "--agents", metavar="TENANT=COUNT", help="Agents of a tenant. You may give several.", show_default=False
        ),
    ]
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Sessions of an agent, one after the other.")] = 3
    turns: Annotated[
        str | None, typer.Option(metavar=QUANTILES, help="Turns of a session. Default: published, 43 in the median.")
    ] = None
    gap_s: Annotated[
        str | None, typer.Option(metavar=QUANTILES, help="Seconds before the next turn. Default: published.")
    ] = None
    first_prompt: Annotated[str | None, typer.Option(metavar=QUANTILES, help="Tokens of the first turn.")] = None
    added: Annotated[str | None, typer.Option(metavar=QUANTILES, help="Tokens of a later turn.")] = None
    output: Annotated[str | None, typer.Option(metavar=QUANTILES, help="Tokens of an answer.")] = None
    shared_tokens: Annotated[
        int | None, typer.Option(min=0, help="Tokens that all sessions of a tenant begin with.")
    ] = None
    starts_within_s: Annotated[float, typer.Option(min=0.0, help="Agents start within so many seconds.")] = 60.0
    tell_ends: Annotated[bool, typer.Option("--tell-ends", help="Mark the last turn of each session.")] = False
    seed: Annotated[int, typer.Option(help="The seed of all random values.")] = 0
