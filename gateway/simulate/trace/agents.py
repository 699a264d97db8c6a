"""Agents: sessions drawn from published quantiles of real agents; each turn sends all earlier turns.

An agent is a closed loop. Its next turn comes a gap after the answer to the previous turn, so a slow pool gets fewer
turns; after the last turn of a session it begins another session.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count, pairwise, takewhile
from math import exp, log
from random import Random
from typing import Any, Final, NamedTuple

from gateway.simulate.options import AgentOptions

Quantiles = tuple[tuple[float, float], ...]
"""Points (part, value) of a distribution, between which the logarithm of the value is linear."""

# vllm-project/router #285: 86.46 % of the next turns within 1 s, 95.12 % within 10 s.
GAPS_S: Final[Quantiles] = ((0.0, 0.02), (0.8646, 1.0), (0.9512, 10.0), (1.0, 10.0))
# vLLM AgentX: a median of 43 turns.
TURNS: Final[Quantiles] = ((0.0, 10.0), (0.25, 28.0), (0.5, 43.0), (0.75, 66.0), (1.0, 120.0))
# llm-d-router #2964: prompts of about 50,000 tokens in the mean, answers of 350.
FIRST_PROMPT: Final[Quantiles] = ((0.0, 4_000.0), (0.5, 12_000.0), (1.0, 30_000.0))
ADDED: Final[Quantiles] = ((0.0, 100.0), (0.5, 300.0), (1.0, 2500.0))
OUTPUT: Final[Quantiles] = ((0.0, 80.0), (0.5, 280.0), (1.0, 1000.0))
SHARED_TOKENS: Final = 8192  # chosen: a system prompt and the tools of one client
AGENTS_MAX: Final = 10_000  # of a tenant, as typed
DRAWN: Final = ("turns", "gap_s", "first_prompt", "added", "output")
"""The options that are quantiles."""


def drawn(quantiles: Quantiles, rng: Random) -> float:
    """A random value of this distribution."""
    part = rng.random()
    for (before, low), (after, high) in pairwise(quantiles):
        if part <= after:
            return low if low == high else exp(log(low) + (log(high) - log(low)) * (part - before) / (after - before))
    return quantiles[-1][1]


def always(value: float) -> Quantiles:
    return ((0.0, value), (1.0, value))


def read_quantiles(text: str) -> Quantiles:
    """Quantiles typed as one number, or as PART:VALUE,PART:VALUE,... from part 0 to part 1. Raises ValueError."""
    try:
        points = tuple(tuple(map(float, each.split(":"))) for each in text.split(",")) if ":" in text else None
        found = always(float(text)) if points is None else tuple((part, value) for part, value in points)
    except ValueError:
        found = ()
    parts = [part for part, _ in found]
    if parts[:1] != [0.0] or parts[-1:] != [1.0] or parts != sorted(set(parts)):
        raise ValueError(f"'{text}' must be a number, or like 0:10,0.5:43,1:120")
    if any(not 0.0 < value < float("inf") for _, value in found):
        raise ValueError(f"'{text}' must have values above 0")
    return found


def read_counts(texts: Iterable[str]) -> dict[str, int]:
    """Numbers of agents by tenant, typed as TENANT=COUNT. Raises ValueError."""
    counts: dict[str, int] = {}
    for text in texts:
        tenant, _, number = text.rpartition("=")
        if not tenant or not number.isdecimal() or not 1 <= int(number) <= AGENTS_MAX:
            raise ValueError(f"'{text}' must be like TENANT=COUNT, with a count from 1 to {AGENTS_MAX}")
        counts[tenant] = int(number)
    return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Agents:
    """The agents of one tenant in a generated trace. They run `sessions` sessions at once; when a session ends, another
    one begins. A turn's prompt is the previous prompt and answer, and `added` new tokens. Lengths and gaps are
    distributions.
    """

    tenant_id: str
    sessions: int
    first_prompt: Quantiles = FIRST_PROMPT
    added: Quantiles = ADDED
    output: Quantiles = OUTPUT
    turns: Quantiles = TURNS
    gap_s: Quantiles = GAPS_S
    shared_tokens: int = 0
    """The beginning of each prompt that all of the tenant's sessions share."""
    starts_within_s: float = 1.0
    context_max: int = 1 << 30


class PlannedTurn(NamedTuple):
    """One planned turn (a call) of an agent in a generated trace. `session` is the number of its session, from 0.
    `gap_s` is the time in seconds since the end of the agent's previous turn, even if that was in another session.
    """

    session: int
    is_first: bool
    is_last: bool
    prompt_tokens: int
    output_tokens: int
    gap_s: float


def turns_of(agents: Agents, rng: Random) -> Iterator[PlannedTurn]:
    """Yield the turns of one of these agents, without end. The gap of the very first turn is its start time."""
    gap_s = rng.uniform(0.0, agents.starts_within_s)
    for session in count():
        turns = max(1, round(drawn(agents.turns, rng)))
        prompt = agents.shared_tokens + round(drawn(agents.first_prompt, rng))
        for number in count(1):
            output = max(1, round(drawn(agents.output, rng)))
            grown = prompt + output + round(drawn(agents.added, rng))
            is_last = number >= turns or grown > agents.context_max
            yield PlannedTurn(session, number == 1, is_last, prompt, output, gap_s)
            prompt, gap_s = grown, drawn(agents.gap_s, rng)
            if is_last:
                break


def trace_lines(options: AgentOptions) -> Iterator[dict[str, Any]]:
    """The lines of a trace in which each of these agents has some sessions, one after another. Raises ValueError."""
    texts = {name: getattr(options, name) for name in DRAWN}
    quantiles: dict[str, Any] = {name: read_quantiles(text) for name, text in texts.items() if text is not None}
    shared_tokens = SHARED_TOKENS if options.shared_tokens is None else options.shared_tokens
    return _trace_lines(
        [
            Agents(
                tenant_id=tenant,
                sessions=count,
                shared_tokens=shared_tokens,
                starts_within_s=options.starts_within_s,
                **quantiles,
            )
            for tenant, count in read_counts(options.agents).items()
        ],
        options,
    )


def _trace_lines(all_agents: Iterable[Agents], options: AgentOptions) -> Iterator[dict[str, Any]]:
    for agents in all_agents:
        for number in range(agents.sessions):
            rng = Random(f"agents {options.seed} {agents.tenant_id} {number}")  # noqa: S311 - a simulation draws lots
            name, in_session = f"{agents.tenant_id}-{number}", 0
            for turn in takewhile(lambda each: each.session < options.rounds, turns_of(agents, rng)):
                in_session = 1 if turn.is_first else in_session + 1
                is_next = turn.is_first and turn.session > 0
                yield {
                    "gap_s" if is_next or not turn.is_first else "arrival_s": round(turn.gap_s, 3),
                    **({"after": f"{name}-{turn.session - 1}"} if is_next else {}),
                    "tenant": agents.tenant_id,
                    "program": f"{name}-{turn.session}",
                    "turn": in_session,
                    "prompt_tokens": turn.prompt_tokens,
                    "output_tokens": turn.output_tokens,
                    **({"shared_tokens": agents.shared_tokens} if agents.shared_tokens else {}),
                    **({"final": True} if options.tell_ends and turn.is_last else {}),
                }
