"""Workloads whose prompts share beginnings: trees of thoughts, and long shared beginnings with short ends.

Prompts consist of whole blocks of `BLOCK_TOKENS`, the engine's, except for their ends. Each block has a random id,
which only the prompts that share it contain.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from backends.engine.engine import BLOCK_TOKENS
from backends.simulation.requests import Arrival


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree of thoughts: every node below the root is one request, whose prompt is the root's text and the thoughts on
    the path to it. The nodes of a level arrive within `level_s` seconds, the next level's after that.
    """

    branch: int
    height: int
    root_tokens: int
    thought_tokens: int
    level_s: float

    @property
    def requests(self) -> int:
        return sum(self.branch**depth for depth in range(1, self.height + 1))


@dataclass(frozen=True, slots=True)
class Beginnings:
    """Poisson requests. Each begins with one of a tenant's `count` texts (system prompts, documents, examples), all
    equally likely, and ends with a part of its own whose length is uniform in `end_tokens`.
    """

    count: int
    tokens: int
    end_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    rate_per_s: float


def tree(tenant_id: str, shape: Tree, *, at_s: float, output_tokens: tuple[int, int], rng: Random) -> Iterator[Arrival]:
    """Yield the requests of one tree that a tenant begins at `at_s`, level by level, in order of time."""
    level = [_blocks(shape.root_tokens, rng)]
    for depth in range(1, shape.height + 1):
        level = [node + _blocks(shape.thought_tokens, rng) for node in level for _ in range(shape.branch)]
        begins_s = at_s + (depth - 1) * shape.level_s
        times = sorted(begins_s + rng.uniform(0.0, shape.level_s) for _ in level)
        for time, prefix in zip(times, rng.sample(level, len(level)), strict=True):
            yield Arrival(
                tenant_id=tenant_id,
                at_s=time,
                prompt_tokens=shape.root_tokens + depth * shape.thought_tokens,
                output_tokens=rng.randint(*output_tokens),
                output_tokens_max=output_tokens[1],
                prefix=prefix,
            )


def beginnings(tenant_id: str, shape: Beginnings, *, duration_s: float, rng: Random) -> Iterator[Arrival]:
    """Yield one tenant's requests from 0 to `duration_s`."""
    texts = [_blocks(shape.tokens, rng) for _ in range(shape.count)]
    at_s = rng.expovariate(shape.rate_per_s)
    while at_s < duration_s:
        text, end_tokens = rng.choice(texts), rng.randint(*shape.end_tokens)
        yield Arrival(
            tenant_id=tenant_id,
            at_s=at_s,
            prompt_tokens=len(text) * BLOCK_TOKENS + end_tokens,
            output_tokens=rng.randint(*shape.output_tokens),
            output_tokens_max=shape.output_tokens[1],
            prefix=text + _blocks(end_tokens, rng),
        )
        at_s += rng.expovariate(shape.rate_per_s)


def _blocks(tokens: int, rng: Random) -> tuple[int, ...]:
    """Return new ids for the whole blocks of so many tokens."""
    return tuple(rng.getrandbits(64) for _ in range(tokens // BLOCK_TOKENS))
