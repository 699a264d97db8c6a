"""Checkpoint of the service that tenants and tiers have received: taken from one scheduler, restored in the next.

After a restore it is as if all running and waiting requests had ended at the checkpoint, those of the least served
waiting tenant last. That is a history like any other, so the bounds of an order continue to hold. A returning tenant
continues from its counter, or from the level to which any returning tenant is lifted; counters below that level need
not be kept. Predicted service of requests that ended with the old scheduler is dropped.

By VTC's rule alone the first tenant to join would lift all others to its own counter, although the tenants that waited
when the process ended did not choose to leave. So for RETURNING_S seconds it is as if a tenant of the old level kept
waiting: no tenant is lifted above it. A tenant that joins at the end of that time has as much credit as others received
in it, and no more.

Queues are kept one by one (policies/queueing/fair_queues.py), by the backend that requests wait for; BEFORE_ALL is the
key of the queue before all backends.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

SHARED_QUEUE = ""
RETURNING_S = 10.0  # clients retry after about a second


@dataclass(frozen=True, slots=True)
class TierCheckpoint:
    """The saved counters of one tier in one queue. A counter is the service that a tier, group or tenant has received,
    over its weight. `counter` is the tier's own, `tenants` has those of its tenants, by id. A tenant that joins is
    lifted to `level`. If the tier has groups, `groups` has one checkpoint for each, and `tenants` only the tenants
    without a group. Groups have no groups themselves.
    """

    counter: float = 0.0
    level: float = 0.0
    tenants: Mapping[str, float] = field(default_factory=dict)
    groups: Mapping[str, "TierCheckpoint"] = field(default_factory=dict)

    @property
    def accounts(self) -> Iterator[tuple[str, str | None]]:
        """Each tenant with an account, and the id of its group."""
        yield from ((tenant_id, None) for tenant_id in self.tenants)
        for group_id, group in self.groups.items():
            yield from ((tenant_id, group_id) for tenant_id in group.tenants)


@dataclass(frozen=True, slots=True)
class QueueCheckpoint:
    """The saved counters of one queue, by tier. A tier that joins is lifted to `level`, in service over weight."""

    level: float = 0.0
    tiers: Mapping[str, TierCheckpoint] = field(default_factory=dict)


ServiceCheckpoint = Mapping[str, QueueCheckpoint]
"""The checkpoint of one pool: by backend id of each queue, or BEFORE_ALL."""

NOTHING_RECEIVED = TierCheckpoint()


def without_lifted_tenants(checkpoint: ServiceCheckpoint) -> ServiceCheckpoint:
    """The checkpoint without tenants that would be lifted to the level of their tier."""
    return {
        fair_queue: replace(
            of_fair_queue,
            tiers={tier_id: _without_lifted(tier) for tier_id, tier in of_fair_queue.tiers.items()},
        )
        for fair_queue, of_fair_queue in checkpoint.items()
    }


def of_tenants(checkpoint: ServiceCheckpoint, tenant_ids: Collection[str]) -> ServiceCheckpoint:
    """The checkpoint with the counters of these tenants alone."""

    def kept(tier: TierCheckpoint) -> TierCheckpoint:
        tenants = {each: tier.tenants[each] for each in tenant_ids if each in tier.tenants}
        return TierCheckpoint(
            tier.counter, tier.level, tenants, {group_id: kept(group) for group_id, group in tier.groups.items()}
        )

    return {
        fair_queue: QueueCheckpoint(of.level, {tier_id: kept(tier) for tier_id, tier in of.tiers.items()})
        for fair_queue, of in checkpoint.items()
    }


def keep_levels(checkpoint: ServiceCheckpoint, earlier: ServiceCheckpoint) -> ServiceCheckpoint:
    """The checkpoint with levels no higher than the earlier one's: no tenant is lifted for having left since then."""
    return {
        fair_queue: QueueCheckpoint(
            min(of_fair_queue.level, earlier[fair_queue].level),
            {
                tier_id: _at_most(tier, earlier[fair_queue].tiers.get(tier_id, tier))
                for tier_id, tier in of_fair_queue.tiers.items()
            },
        )
        if fair_queue in earlier
        else of_fair_queue
        for fair_queue, of_fair_queue in checkpoint.items()
    }


def fit_to_queues(checkpoint: ServiceCheckpoint, fair_queues: Collection[str]) -> ServiceCheckpoint:
    """The checkpoint for a pool with these queues. Many queues are summed into one; one is divided into equal parts;
    each of many keeps its own, even if its backend is not there yet.
    """
    if SHARED_QUEUE in fair_queues and checkpoint.keys() != {SHARED_QUEUE}:
        return {SHARED_QUEUE: sum_queues(list(checkpoint.values()))}
    if SHARED_QUEUE in checkpoint and SHARED_QUEUE not in fair_queues:
        return dict.fromkeys(fair_queues, divide_queue(checkpoint[SHARED_QUEUE], max(1, len(fair_queues))))
    return checkpoint


def sum_queues(fair_queues: Sequence[QueueCheckpoint]) -> QueueCheckpoint:
    """The sum of counters and levels over these queues."""
    tier_ids = _keys(fair_queue.tiers for fair_queue in fair_queues)
    return QueueCheckpoint(
        level=sum(fair_queue.level for fair_queue in fair_queues),
        tiers={
            tier_id: _summed([fair_queue.tiers.get(tier_id, NOTHING_RECEIVED) for fair_queue in fair_queues])
            for tier_id in tier_ids
        },
    )


def divide_queue(fair_queue: QueueCheckpoint, parts: int) -> QueueCheckpoint:
    """One of `parts` equal parts of all counters and levels."""
    tiers = {tier_id: _divided(tier, parts) for tier_id, tier in fair_queue.tiers.items()}
    return QueueCheckpoint(fair_queue.level / parts, tiers)


def _divided(tier: TierCheckpoint, parts: int) -> TierCheckpoint:
    return TierCheckpoint(
        tier.counter / parts,
        tier.level / parts,
        {each: counter / parts for each, counter in tier.tenants.items()},
        {group_id: _divided(group, parts) for group_id, group in tier.groups.items()},
    )


def _summed(tiers: Sequence[TierCheckpoint]) -> TierCheckpoint:
    return TierCheckpoint(
        counter=sum(tier.counter for tier in tiers),
        level=sum(tier.level for tier in tiers),
        tenants={
            # A tenant that is missing in one queue was at its level, or will be when it joins.
            tenant_id: sum(tier.tenants.get(tenant_id, tier.level) for tier in tiers)
            for tenant_id in _keys(tier.tenants for tier in tiers)
        },
        groups={
            group_id: _summed([tier.groups.get(group_id) or TierCheckpoint(tier.level) for tier in tiers])
            for group_id in _keys(tier.groups for tier in tiers)
        },
    )


def _without_lifted(tier: TierCheckpoint) -> TierCheckpoint:
    level = tier.level
    return replace(
        tier,
        tenants={tenant_id: counter for tenant_id, counter in tier.tenants.items() if counter > level},
        groups={
            group_id: kept
            for group_id, group in tier.groups.items()
            if (kept := _without_lifted(group)).tenants or group.counter > level
        },
    )


def _at_most(tier: TierCheckpoint, earlier: TierCheckpoint) -> TierCheckpoint:
    """The tier with levels no higher than the earlier ones."""
    groups = {group_id: _at_most(group, earlier.groups.get(group_id, group)) for group_id, group in tier.groups.items()}
    return replace(tier, level=min(tier.level, earlier.level), groups=groups)


def _keys(mappings: Iterable[Mapping[str, object]]) -> list[str]:
    """All keys, each once, in a fixed order."""
    return list(dict.fromkeys(key for mapping in mappings for key in mapping))
