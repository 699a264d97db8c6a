"""What everybody has received, as it outlives a scheduler: taken from one, kept, and told to the next.

Taken up again, it is as if all that ran and waited had ended when it was taken, whoever of those that wait had received
the least last of all. That is a history like any other, so what an order promises holds from then on, too. A tenant
that comes back goes on where it was, or at the level that anybody would be lifted to who comes back from idleness;
what would be lifted anyhow need not be kept. What was predicted of requests that ended with the old scheduler is
nobody's debt.

By VTC's rule alone whoever comes first would lift all others to where he is, and those who waited when the process
ended did not choose to leave. So for RETURNING_S it is as if somebody of the old level went on waiting: nobody is
lifted above it. Who comes at the end of that time has as much credit as others received in it, and no more.

Queues are kept one by one (policies/queueing/fair_queues.py), by the backend that requests wait for; BEFORE_ALL names
the queue before all backends.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

BEFORE_ALL = ""
RETURNING_S = 10.0  # clients try again after a second or some


@dataclass(frozen=True, slots=True)
class TierCheckpoint:
    """One tier in one lane: its own counter, those of its tenants, and the level that one who joins these is lifted to.

    All in service over weight.
    """

    counter: float = 0.0
    level: float = 0.0
    tenants: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueueCheckpoint:
    """All tiers of one lane, and the level that a tier which joins is lifted to."""

    level: float = 0.0
    tiers: Mapping[str, TierCheckpoint] = field(default_factory=dict)


ServiceCheckpoint = Mapping[str, QueueCheckpoint]
"""Of one pool, by lane."""

NOTHING_RECEIVED = TierCheckpoint()


def is_worth_keeping(checkpoint: ServiceCheckpoint) -> ServiceCheckpoint:
    """Without the tenants that would be lifted to the level of their tier."""
    return {
        fair_queue: replace(
            of_fair_queue,
            tiers={tier_id: replace(tier, tenants=_above(tier)) for tier_id, tier in of_fair_queue.tiers.items()},
        )
        for fair_queue, of_fair_queue in checkpoint.items()
    }


def keep_levels(checkpoint: ServiceCheckpoint, earlier: ServiceCheckpoint) -> ServiceCheckpoint:
    """With levels no higher than earlier: nobody is to be lifted for having left since then."""
    return {
        fair_queue: QueueCheckpoint(
            min(of_fair_queue.level, earlier[fair_queue].level),
            {
                tier_id: replace(tier, level=min(tier.level, earlier[fair_queue].tiers.get(tier_id, tier).level))
                for tier_id, tier in of_fair_queue.tiers.items()
            },
        )
        if fair_queue in earlier
        else of_fair_queue
        for fair_queue, of_fair_queue in checkpoint.items()
    }


def fit_to_queues(checkpoint: ServiceCheckpoint, fair_queues: Collection[str]) -> ServiceCheckpoint:
    """The standings for a pool that has these lanes: from many to one they are summed, from one they are shared out in
    equal parts; each of many keeps its own, also where its backend is not there yet.
    """
    if BEFORE_ALL in fair_queues and checkpoint.keys() != {BEFORE_ALL}:
        return {BEFORE_ALL: sum_queues(list(checkpoint.values()))}
    if BEFORE_ALL in checkpoint and BEFORE_ALL not in fair_queues:
        return dict.fromkeys(fair_queues, divide_queue(checkpoint[BEFORE_ALL], max(1, len(fair_queues))))
    return checkpoint


def sum_queues(fair_queues: Sequence[QueueCheckpoint]) -> QueueCheckpoint:
    """What everybody has received in all of them."""
    tier_ids = _keys(fair_queue.tiers for fair_queue in fair_queues)
    return QueueCheckpoint(
        level=sum(fair_queue.level for fair_queue in fair_queues),
        tiers={
            tier_id: _summed([fair_queue.tiers.get(tier_id, NOTHING_RECEIVED) for fair_queue in fair_queues])
            for tier_id in tier_ids
        },
    )


def divide_queue(fair_queue: QueueCheckpoint, parts: int) -> QueueCheckpoint:
    """An equal part of everything."""
    tiers = {
        tier_id: TierCheckpoint(
            tier.counter / parts, tier.level / parts, {each: counter / parts for each, counter in tier.tenants.items()}
        )
        for tier_id, tier in fair_queue.tiers.items()
    }
    return QueueCheckpoint(fair_queue.level / parts, tiers)


def _summed(tiers: Sequence[TierCheckpoint]) -> TierCheckpoint:
    return TierCheckpoint(
        counter=sum(tier.counter for tier in tiers),
        level=sum(tier.level for tier in tiers),
        tenants={
            # Who is missing in one of them was at its level, or is there when it joins.
            tenant_id: sum(tier.tenants.get(tenant_id, tier.level) for tier in tiers)
            for tenant_id in _keys(tier.tenants for tier in tiers)
        },
    )


def _above(tier: TierCheckpoint) -> Mapping[str, float]:
    level = tier.level
    return {tenant_id: counter for tenant_id, counter in tier.tenants.items() if counter > level}


def _keys(mappings: Iterable[Mapping[str, object]]) -> list[str]:
    """In a fixed order, each once."""
    return list(dict.fromkeys(key for mapping in mappings for key in mapping))
