"""Who asks for what, and when: traces read from files and patterns made up by rule.

Every workload is a stream of arrivals in order of time, made lazily, so that a long one costs no
memory; several are merged into one. Chance comes from the `rng` that is passed in, and from nowhere else.
"""

import csv
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import merge
from random import Random

from policies.types import SloEnvelope

MODEL = "simulated"

Rate = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request to come. Its answer has `output_tokens`, which nobody is told beforehand.

    `prefix` are chained hashes of the prompt's leading KV blocks; after `patience_s` without a last token
    its client goes away.
    """

    tenant_id: str
    at_s: float
    prompt_tokens: int
    output_tokens: int
    output_tokens_max: int
    prefix: tuple[int, ...] = ()
    patience_s: float | None = None
    model: str = MODEL
    endpoint: str = ""
    program_id: str | None = None
    uses_tools: bool = False
    envelope: SloEnvelope | None = None


def from_csv(lines: Iterable[str], *, output_tokens_max: int | None = None, speed: float = 1.0) -> Iterator[Arrival]:
    """Read a trace with the columns client, arrival_s, prompt_tokens, output_tokens, in order of time.

    `output_tokens_max` is what every request allows (default: its own length); `speed` divides times.
    """
    for row in csv.DictReader(lines):
        output_tokens = int(row["output_tokens"])
        yield Arrival(
            tenant_id=row["client"],
            at_s=float(row["arrival_s"]) / speed,
            prompt_tokens=int(row["prompt_tokens"]),
            output_tokens=output_tokens,
            output_tokens_max=max(output_tokens, output_tokens_max or output_tokens),
        )


def even(
    tenant_id: str,
    rate_per_s: float,
    *,
    duration_s: float,
    prompt_tokens: int,
    output_tokens: int,
    rng: Random,
    output_tokens_max: int | None = None,
) -> Iterator[Arrival]:
    """Equal requests at equal distances, from a phase drawn within the first distance."""
    phase_s = rng.uniform(0.0, 1.0 / rate_per_s)
    for number in range(int(rate_per_s * duration_s)):
        yield Arrival(
            tenant_id=tenant_id,
            at_s=phase_s + number / rate_per_s,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            output_tokens_max=max(output_tokens, output_tokens_max or output_tokens),
        )


def poisson(
    tenant_id: str,
    rate: Rate,
    *,
    rate_per_s_max: float,
    duration_s: float,
    prompt_tokens: tuple[int, int],
    output_tokens: tuple[int, int],
    rng: Random,
    patience_s: float | None = None,
) -> Iterator[Arrival]:
    """Random requests at `rate(t)` per second (thinned from `rate_per_s_max`), lengths uniform in the two ranges."""
    at_s = rng.expovariate(rate_per_s_max)
    while at_s < duration_s:
        if rng.random() * rate_per_s_max < rate(at_s):
            yield Arrival(
                tenant_id=tenant_id,
                at_s=at_s,
                prompt_tokens=rng.randint(*prompt_tokens),
                output_tokens=rng.randint(*output_tokens),
                output_tokens_max=output_tokens[1],
                patience_s=patience_s,
            )
        at_s += rng.expovariate(rate_per_s_max)


def merged(*streams: Iterable[Arrival]) -> Iterator[Arrival]:
    """All streams as one, by time; equal times by tenant."""
    return merge(*streams, key=lambda arrival: (arrival.at_s, arrival.tenant_id))
