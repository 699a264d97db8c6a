"""LiveDocument: all that the live page shows of the gateway now, as one JSON object.

It is made from the latest look at the schedulers (record.py), the calls that ended lately (ended.py) and the backends'
polls. Making it takes some ten microseconds a tenant, so it is made in slices, with turns of the event loop between
them. What takes a long window is computed anew only when that window has moved.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from math import inf
from typing import Final

from backends.pool import BackendPool
from gateway.live.bottleneck import BackendsSeen
from gateway.live.changes import Document
from gateway.live.ended import EndedView
from gateway.live.gaps import LiveGaps
from gateway.live.record import LiveRecord, PoolRecord
from gateway.live.shares import ASKS, LIMIT, WindowShares, shares_of
from gateway.live.windows import (
    CACHED_TOKENS,
    NOTHING,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    SERVICE,
    SLO_MET,
    SLO_REQUESTS,
    Amounts,
)
from gateway.observability.metrics.scheduler_metrics import TierGap
from policies.types import BackendView, Group, Snapshot, Tenant, TenantView, Tier, Wait

SLICE_TENANTS: Final = 100
SHORT, LONG = 0, -1  # windows by number
FOR_BACKENDS: Final = (Wait.NO_ROOM, Wait.BACKENDS_HELD, Wait.NO_BACKEND)
"""Reasons to wait that lie in the backends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What the document is made of, besides the record. All are read anew each time. `gaps` are by tier of a pool;
    `pace_of` is how long a backend really takes for a token of one sequence, in seconds, None where that is not known.
    """

    gateway: Callable[[], Document]
    cluster: Callable[[], Document]
    policy_of: Callable[[str], str]
    tiers: Mapping[str, Tier]
    groups: Mapping[str, Group]
    backends: BackendPool
    gaps: Callable[[str], Mapping[str, TierGap]]
    pace_of: Callable[[str], float | None]
    ended: EndedView
    wall_clock: Callable[[], float]


@dataclass(slots=True)
class _Lately:
    """What is kept of one pool for documents to come."""

    backends: BackendsSeen = field(default_factory=BackendsSeen)
    gaps: LiveGaps = field(default_factory=LiveGaps)


class LiveDocument:
    """Makes documents. Mutable: it keeps the shares of windows that have not moved, and what was seen lately."""

    def __init__(self, record: LiveRecord, sources: Sources) -> None:
        self._record = record
        self._from = sources
        self._shares_of: dict[str, list[tuple[int, WindowShares]]] = {}  # by pool; with the reading that they are of
        self._lately: dict[str, _Lately] = {}  # by pool

    async def make(self) -> Document:
        """The document as of the latest looks."""
        pools = {}
        for pool, record in list(self._record.pools.items()):
            if record.snapshot is not None:
                pools[pool] = await self._pool(pool, record, record.snapshot)
        self._shares_of = {pool: each for pool, each in self._shares_of.items() if pool in pools}
        self._lately = {pool: each for pool, each in self._lately.items() if pool in pools}
        return {
            "at": round(self._from.wall_clock(), 1),
            "gateway": self._from.gateway(),
            "cluster": self._from.cluster(),
            "pools": pools,
        }

    async def _pool(self, pool: str, record: PoolRecord, snapshot: Snapshot) -> Document:
        found, short, long = record.tenants, record.windows[SHORT], record.windows[LONG]
        tiers = {tier_id: self._from.tiers.get(tier_id, Tier(tier_id)) for tier_id in snapshot.attainment}
        shares = await self._shares(pool, record, {tier_id: each.weight for tier_id, each in tiers.items()})
        grouped: dict[str, list[int]] = {}
        rows, counts, tokens, oldest_at = {}, {tier_id: [0, 0] for tier_id in tiers}, 0.0, None
        waiting, waits_for_backends = dict.fromkeys(tiers, 0), False
        members, per_s = iter(found.items()), 1 / (short.covered_s or inf)
        got, due = [each.got for each in shares], [each.due for each in shares]
        while part := list(islice(members, SLICE_TENANTS)):
            for tenant_id, (tenant, view) in part:
                if not view.queued_requests and not view.in_flight_requests and tenant_id not in long.amounts:
                    continue
                count, lately = counts[tenant.tier_id], short.amounts.get(tenant_id, NOTHING)
                count[0] += view.queued_requests
                count[1] += view.in_flight_requests
                waiting[tenant.tier_id] += view.waiting_spell > 0
                waits_for_backends |= view.waits in FOR_BACKENDS
                if tenant.group_id is not None:
                    of_group = grouped.setdefault(tenant.group_id, [0, 0])
                    of_group[0] += view.queued_requests
                    of_group[1] += view.in_flight_requests
                tokens += lately[PROMPT_TOKENS] + lately[OUTPUT_TOKENS]
                if view.oldest_at is not None and (oldest_at is None or view.oldest_at < oldest_at):
                    oldest_at = view.oldest_at
                row = rows[tenant_id] = _tenant(tenant, view, lately, per_s)
                row["oldest_wait_s"] = _age(view.oldest_at, snapshot.now)
                # Tuples, which the garbage collector leaves out for good once it has seen that they hold numbers.
                row["share"] = tuple([of.get(tenant_id, 0.0) for of in got])
                row["due"] = tuple([of.get(tenant_id, 0.0) for of in due])
                row["backlogged"] = tuple([tenant_id in each.backlogged for each in shares])
                row["by_weight"] = tuple([each.by_weight.get(tenant_id, 0.0) for each in shares])
                row["due_by"] = tuple([_due_by(tenant_id, view, each) for each in shares])
                self._add_ended(row, pool, tenant_id, long.amounts.get(tenant_id, NOTHING))
            await asyncio.sleep(0)
        kept = self._lately.setdefault(pool, _Lately())
        kept.gaps.saw(self._from.gaps(pool), waiting, snapshot.now)
        backends = self._backends(snapshot, kept.backends, waits=waits_for_backends)
        return {
            "policy": self._from.policy_of(pool),
            "queued": snapshot.queued_requests,
            "in_flight": snapshot.in_flight_requests,
            "oldest_wait_s": _age(oldest_at, snapshot.now),
            "tokens_per_s": round(max(0.0, tokens * per_s), 1),
            **_not_served(self._from.ended, pool),
            "tiers": {
                tier_id: {
                    "weight": tier.weight,
                    "queued": counts[tier_id][0],
                    "in_flight": counts[tier_id][1],
                    **_tier_shares(tier_id, shares),
                    **kept.gaps.shown(tier_id, snapshot.now),
                    "attainment": asdict(snapshot.attainment[tier_id]),
                }
                for tier_id, tier in tiers.items()
            },
            "groups": {
                group_id: {
                    "tier": group.tier_id,
                    "weight": group.weight,
                    "queued": queued,
                    "in_flight": in_flight,
                    **_group_shares(group_id, shares),
                }
                for group_id, (queued, in_flight) in grouped.items()
                if (group := self._from.groups.get(group_id)) is not None
            },
            **backends,
            "tenants": rows,
        }

    async def _shares(self, pool: str, record: PoolRecord, tier_weights: Mapping[str, float]) -> list[WindowShares]:
        """The shares of every window; those of a window that was not read since are as they were."""
        known = self._shares_of.get(pool, [])
        group_weights = {group_id: each.weight for group_id, each in self._from.groups.items()}
        found = []
        for number, window in enumerate(record.windows):
            if number < len(known) and known[number][0] == window.readings:
                found.append(known[number])
            else:
                found.append((window.readings, shares_of(window, record.tenants, tier_weights, group_weights)))
                await asyncio.sleep(0)
        self._shares_of[pool] = found
        return [shares for _, shares in found]

    def _backends(self, snapshot: Snapshot, seen: BackendsSeen, *, waits: bool) -> Document:
        """The backends of a pool, how they compare, and which of them limits it."""
        known = self._from.backends.states()
        shown = {
            backend_id: self._backend(backend_id, view, is_known=backend_id in known)
            for backend_id, view in snapshot.backends.items()
        }
        seen.saw(shown, waits=waits, now=snapshot.now)
        compared = seen.compared()
        for backend_id, fields in compared.items():
            shown[backend_id] |= fields
        return {"bottleneck": seen.bottleneck(compared), "backends": shown}

    def _add_ended(self, row: Document, pool: str, tenant_id: str, longer: Amounts) -> None:
        """Add what is known of calls that have ended."""
        ended = self._from.ended
        row["ttft_s"], row["tpot_s"] = ended.latencies(pool, tenant_id)
        row["cached_ratio"] = _ratio(longer[CACHED_TOKENS], longer[PROMPT_TOKENS])
        row["attainment_ratio"] = _ratio(longer[SLO_MET], longer[SLO_REQUESTS])
        row["refused"] = ended.refused_of(pool, tenant_id)

    def _backend(self, backend_id: str, view: BackendView, *, is_known: bool) -> Document:
        backends = self._from.backends
        live = backends[backend_id] if is_known else None
        is_draining = live is not None and live.draining
        return {
            "available": view.available,
            "draining": is_draining,
            "trouble": None if live is None else live.last_error or None,
            "in_flight": view.in_flight_requests,
            "requests_limit": view.requests_limit,
            "size": view.size,
            "tokens": view.reserved_tokens,
            "tokens_limit": view.tokens_limit,
            "queued_there": backends.load(backend_id).requests_waiting or 0 if is_known else 0,
            "external_requests": view.external_requests,
            "external_tokens": view.external_tokens,
            "step_s": None if view.steps is None else _rounded(view.steps.step_s, 5),
            "step_measured_s": _rounded(self._from.pace_of(backend_id), 5),
            "bound_by": "draining" if is_draining else view.bound_by,
            "reserves": {tier_id: each.sequences for tier_id, each in view.reserves.items() if each.sequences},
        }


def _tenant(tenant: Tenant, view: TenantView, lately: Amounts, per_s: float) -> Document:
    return {
        "tier": tenant.tier_id,
        "group": tenant.group_id,
        "weight": tenant.weight,
        "queued": view.queued_requests,
        "in_flight": view.in_flight_requests,
        "service_per_s": round(max(0.0, lately[SERVICE] * per_s), 1),
        "output_tokens_per_s": round(max(0.0, lately[OUTPUT_TOKENS] * per_s), 1),
        "waits": view.waits,
    }


def _tier_shares(tier_id: str, shares: Sequence[WindowShares]) -> Document:
    return {
        "share": [each.tier_got.get(tier_id, 0.0) for each in shares],
        "due": [each.tier_due.get(tier_id, 0.0) for each in shares],
        "by_weight": [each.tier_by_weight.get(tier_id, 0.0) for each in shares],
        "asks": [each.tier_asks.get(tier_id, 0.0) for each in shares],
        "due_by": [each.tier_due_by(tier_id) for each in shares],
    }


def _group_shares(group_id: str, shares: Sequence[WindowShares]) -> Document:
    return {
        "share": [each.group_got.get(group_id, 0.0) for each in shares],
        "due": [each.group_due.get(group_id, 0.0) for each in shares],
        "by_weight": [each.group_by_weight.get(group_id, 0.0) for each in shares],
        "asks": [each.group_asks.get(group_id, 0.0) for each in shares],
        "due_by": [each.group_due_by(group_id) for each in shares],
    }


def _not_served(ended: EndedView, pool: str) -> Document:
    """The calls of the last minute that the pool did not serve, by reason."""
    return {"refused": ended.refused(pool), "passed_on": ended.passed_on(pool)}


def _due_by(tenant_id: str, view: TenantView, shares: WindowShares) -> str:
    """Why the tenant is due its share; one that waits for its own limit alone would ask for more."""
    due_by = shares.due_by(tenant_id)
    return LIMIT if due_by == ASKS and view.waits in (Wait.KEY_LIMIT, Wait.TENANT_LIMIT) else due_by


def _age(at: float | None, now: float) -> float | None:
    return None if at is None else round(max(0.0, now - at), 1)


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 3) if whole > 0 else None


def _rounded(value: float | None, digits: int = 1) -> float | None:
    return None if value is None or value == inf else round(value, digits)
