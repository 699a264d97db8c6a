"""Checkpoint documents: the learnt state of a gateway, as two JSON documents with the version of their format.

    counters   service received in each pool (policies/accounts/checkpoint.py)
    models     step time models of the backends, and tokens per byte of the tenants' prompts

A document that is unreadable, from a newer gateway or too old is logged and left out: a checkpoint is useful, but not
required.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import nlargest
from typing import Any, TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError

from gateway.api.token_counts import Ratio
from policies.accounts.checkpoint import QueueCheckpoint, ServiceCheckpoint, TierCheckpoint
from policies.step_time import StepTime, StepTimeModel

VERSION = 1
COUNTERS_AGE_S_MAX = 86_400.0  # service of a day ago does not matter any more
MODELS_AGE_S_MAX = 7 * 86_400.0
ACCOUNTS_MAX = 50_000  # of all pools: those with the most service above the level


@dataclass(frozen=True, slots=True)
class PoolCounters:
    """The stored service that the tenants of one pool have received, as of `at_s` (seconds since 1970)."""

    at_s: float
    fair_queues: ServiceCheckpoint


@dataclass(frozen=True, slots=True)
class Counters:
    """The stored document with the counters of all pools, by pool."""

    pools: Mapping[str, PoolCounters] = field(default_factory=dict)
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class BackendModel:
    """The stored step time model of one backend (a formula for the seconds of an engine step): `step_time`, as learnt
    until `at_s` (seconds since 1970). `configured` is the step time model that the configuration gave then; None: it
    gave none. If it gives another one now, that one overrides the learnt one.
    """

    at_s: float
    url: str
    step_time: StepTime
    configured: StepTimeModel | None = None


@dataclass(frozen=True, slots=True)
class LearntModels:
    """The stored document with learnt models: the step time models by backend id, and the tokens per byte of recent
    tenants' prompts, the latest last.
    """

    backends: Mapping[str, BackendModel] = field(default_factory=dict)
    tokens_per_byte: tuple[Ratio, ...] = ()
    version: int = VERSION


K = TypeVar("K", Counters, LearntModels)

_READERS: Mapping[type, TypeAdapter[Any]] = {kind: TypeAdapter(kind) for kind in (Counters, LearntModels)}


class UnreadableError(Exception):
    """An error: the bytes are no valid document of a checkpoint; the text says why."""


def write_document(kept: Counters | LearntModels) -> bytes:
    """Serialize a document; equal contents give equal bytes."""
    return orjson.dumps(kept)


def read_document(kind: type[K], body: bytes) -> K:
    """Parse a document that `write_document` wrote. Raises UnreadableError."""
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise UnreadableError(f"it is not JSON: {error}") from error
    version = said.get("version") if isinstance(said, dict) else None
    if type(version) is int and version > VERSION:
        raise UnreadableError(f"it was written by a newer fairlead (version {version}, this one knows {VERSION})")
    if type(version) is not int or version != VERSION:
        raise UnreadableError("it is not what fairlead keeps")
    try:
        kept: K = _READERS[kind].validate_python(said)
    except ValidationError as error:
        wrong = error.errors()[0]
        raise UnreadableError(f"{'.'.join(map(str, wrong['loc']))}: {wrong['msg']}") from error
    return kept


def trim_accounts(pools: Mapping[str, PoolCounters], accounts_max: int = ACCOUNTS_MAX) -> Mapping[str, PoolCounters]:
    """Keep at most `accounts_max` accounts: those furthest above the level that a returning tenant is lifted to. All
    groups stay.
    """
    tiers = [
        ((pool, fair_queue, *of), tier)
        for pool, counters in pools.items()
        for fair_queue, checkpoint in counters.fair_queues.items()
        for of, tier in _levels(checkpoint)
    ]
    if sum(len(tier.tenants) for _, tier in tiers) <= accounts_max:
        return pools
    ahead = (
        (counter - tier.level, (*of, tenant_id)) for of, tier in tiers for tenant_id, counter in tier.tenants.items()
    )
    staying = {name for _, name in nlargest(accounts_max, ahead)}
    return {
        pool: replace(
            counters,
            fair_queues={
                fair_queue: QueueCheckpoint(
                    checkpoint.level,
                    {
                        each: _trimmed(tier, (pool, fair_queue, each), staying)
                        for each, tier in checkpoint.tiers.items()
                    },
                )
                for fair_queue, checkpoint in counters.fair_queues.items()
            },
        )
        for pool, counters in pools.items()
    }


def _trimmed(tier: TierCheckpoint, of: tuple[str, str, str], staying: Collection[tuple[str, ...]]) -> TierCheckpoint:
    """The tier with the tenants that stay, which are named by pool, queue, tier, group and themselves."""
    groups = {
        group_id: replace(group, tenants=_staying(group, (*of, group_id), staying))
        for group_id, group in tier.groups.items()
    }
    return replace(tier, tenants=_staying(tier, (*of, ""), staying), groups=groups)


def _levels(checkpoint: QueueCheckpoint) -> Iterator[tuple[tuple[str, str], TierCheckpoint]]:
    """Each tier and group, by the ids of both; "": the tenants of a tier without a group."""
    for tier_id, tier in checkpoint.tiers.items():
        yield (tier_id, ""), tier
        for group_id, group in tier.groups.items():
            yield (tier_id, group_id), group


def _staying(tier: TierCheckpoint, of: tuple[str, ...], staying: Collection[tuple[str, ...]]) -> dict[str, float]:
    return {tenant_id: counter for tenant_id, counter in tier.tenants.items() if (*of, tenant_id) in staying}
