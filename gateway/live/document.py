"""LiveDocument: all that the live page shows of the gateway now, as one JSON object.

It is made from the latest look at the schedulers (record.py), the calls that ended lately (ended.py) and the backends'
polls. Making it takes some ten microseconds a tenant, so it is made in slices, with turns of the event loop between
them. What takes a long window is computed anew only when that window has moved.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from math import inf
from typing import Any, Final, Protocol

from backends.pool import BackendPool
from gateway.live.ended import EndedView, Quantiles
from gateway.live.merge_patch import Document
from gateway.live.record import LiveRecord, PoolRecord
from gateway.live.shares import WindowShares, shares_of
from policies.types import BackendView, Tenant, TenantView, Tier

SLICE_TENANTS: Final = 100
SHORT, LONG = 0, -1  # windows by number


class PaceOf(Protocol):
    """How long a backend really takes for a token of one sequence, in seconds; None: not known."""

    def __call__(self, backend_id: str) -> float | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What the document is made of, besides the record. All are read anew each time."""

    gateway: Callable[[], Document]
    cluster: Callable[[], Document]
    policy_of: Callable[[str], str]
    tiers: Mapping[str, Tier]
    backends: BackendPool
    pace_of: PaceOf
    ended: EndedView
    wall_clock: Callable[[], float]


class LiveDocument:
    """Makes documents. Mutable: it keeps the shares of windows that have not moved."""

    def __init__(self, record: LiveRecord, sources: Sources) -> None:
        self._record = record
        self._from = sources
        self._shares_of: dict[str, list[WindowShares]] = {}

    async def make(self) -> Document:
        """The document as of the latest look."""
        pools = {}
        for pool, record in list(self._record.pools.items()):
            if record.snapshot is not None:
                pools[pool] = await self._pool(pool, record)
        self._shares_of = {pool: each for pool, each in self._shares_of.items() if pool in pools}
        return {
            "at": round(self._from.wall_clock(), 1),
            "gateway": self._from.gateway(),
            "cluster": self._from.cluster(),
            "pools": pools,
        }

    async def _pool(self, pool: str, record: PoolRecord) -> Document:
        snapshot = record.snapshot
        assert snapshot is not None, "checked"
        found, gaps = record.tenants, record.gaps
        tenants = {tenant_id: tenant for tenant_id, (tenant, _) in found.items()}
        tiers = {tier_id: self._from.tiers.get(tier_id, Tier(tier_id)) for tier_id in snapshot.attainment}
        shares = await self._shares(pool, record, tenants, {tier_id: each.weight for tier_id, each in tiers.items()})
        rows: Document = {}
        for part in _slices(found):
            for tenant_id, (tenant, view) in part.items():
                if view.queued_requests or view.in_flight_requests or tenant_id in record.windows[LONG]:
                    rows[tenant_id] = self._tenant(pool, record, tenant, view, shares)
            await asyncio.sleep(0)
        views = [view for _, view in found.values()]
        served = [record.windows[SHORT].amounts(tenant_id) for tenant_id in rows]
        tokens = sum(each.prompt_tokens + each.output_tokens for each in served)
        return {
            "policy": self._from.policy_of(pool),
            "queued": snapshot.queued_requests,
            "in_flight": snapshot.in_flight_requests,
            "oldest_wait_s": _age((view.oldest_at for view in views), snapshot.now),
            "tokens_per_s": _per_s(tokens, record.windows[SHORT].covered_s),
            "refused": self._from.ended.refused(pool),
            "tiers": {
                tier_id: {
                    "weight": tier.weight,
                    **_counts(view for tenant, view in found.values() if tenant.tier_id == tier_id),
                    "share": [each.tier_got.get(tier_id, 0.0) for each in shares],
                    "due": [each.tier_due.get(tier_id, 0.0) for each in shares],
                    "gap": _rounded(gaps[tier_id].gap) if tier_id in gaps else None,
                    "bound": _rounded(gaps[tier_id].bound) if tier_id in gaps else None,
                    "jain": _rounded(gaps[tier_id].jain_index, 4) if tier_id in gaps else None,
                    "attainment": asdict(snapshot.attainment[tier_id]),
                }
                for tier_id, tier in tiers.items()
            },
            "backends": {backend_id: self._backend(backend_id, view) for backend_id, view in snapshot.backends.items()},
            "tenants": rows,
        }

    async def _shares(
        self, pool: str, record: PoolRecord, tenants: Mapping[str, Tenant], tier_weights: Mapping[str, float]
    ) -> list[WindowShares]:
        """The shares of every window; those of a window that has not moved since are as they were."""
        known = self._shares_of.setdefault(pool, [])
        for number, window in enumerate(record.windows):
            if number >= len(known):
                known.append(shares_of(window, tenants, tier_weights))
            elif number in record.read:
                known[number] = shares_of(window, tenants, tier_weights)
            await asyncio.sleep(0)
        return list(known)

    def _tenant(
        self, pool: str, record: PoolRecord, tenant: Tenant, view: TenantView, shares: list[WindowShares]
    ) -> Document:
        name, ended, now = tenant.id, self._from.ended, record.snapshot.now if record.snapshot is not None else 0.0
        short, long = record.windows[SHORT], record.windows[LONG]
        lately, longer = short.amounts(name), long.amounts(name)
        ttft_s, tpot_s = ended.latencies(pool, name)
        return {
            "tier": tenant.tier_id,
            "weight": tenant.weight,
            "queued": view.queued_requests,
            "in_flight": view.in_flight_requests,
            "oldest_wait_s": _age((view.oldest_at,), now),
            "share": [each.got.get(name, 0.0) for each in shares],
            "due": [each.due.get(name, 0.0) for each in shares],
            "service_per_s": _per_s(lately.service, short.covered_s),
            "output_tokens_per_s": _per_s(lately.output_tokens, short.covered_s),
            "ttft_s": _listed(ttft_s),
            "tpot_s": _listed(tpot_s),
            "cached_ratio": _ratio(longer.cached_tokens, longer.prompt_tokens),
            "attainment_ratio": _ratio(longer.slo_met, longer.slo_requests),
            "refused": ended.refused_of(pool, name),
            "waits": view.waits,
        }

    def _backend(self, backend_id: str, view: BackendView) -> Document:
        known = backend_id in {*self._from.backends.backend_ids(), *self._from.backends.leaving_ids()}
        live = self._from.backends[backend_id] if known else None
        is_draining = live is not None and live.draining
        load = self._from.backends.load(backend_id) if known else None
        return {
            "available": view.available,
            "draining": is_draining,
            "trouble": (live.last_error or None) if live is not None else None,
            "in_flight": view.in_flight_requests,
            "requests_limit": view.requests_limit,
            "tokens": view.reserved_tokens,
            "tokens_limit": view.tokens_limit,
            "queued_there": (load.requests_waiting or 0) if load is not None else 0,
            "external_requests": view.external_requests,
            "external_tokens": view.external_tokens,
            "step_s": None if view.steps is None else _rounded(view.steps.step_s, 5),
            "step_measured_s": _rounded(self._from.pace_of(backend_id), 5),
            "bound_by": "draining" if is_draining else view.bound_by,
        }


def _slices(found: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    members = iter(found.items())
    while part := dict(islice(members, SLICE_TENANTS)):
        yield part


def _counts(views: Iterator[TenantView]) -> Document:
    queued = in_flight = 0
    for view in views:
        queued += view.queued_requests
        in_flight += view.in_flight_requests
    return {"queued": queued, "in_flight": in_flight}


def _age(at: Any, now: float) -> float | None:
    oldest = min((each for each in at if each is not None), default=None)
    return None if oldest is None else round(max(0.0, now - oldest), 1)


def _per_s(amount: float, seconds: float) -> float:
    return round(amount / seconds, 1) if seconds > 0 else 0.0


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 3) if whole > 0 else None


def _listed(quantiles: Quantiles | None) -> list[float] | None:
    return None if quantiles is None else [round(each, 4) for each in quantiles]


def _rounded(value: float | None, digits: int = 1) -> float | None:
    return None if value is None or value == inf else round(value, digits)
