"""Snapshot of a pool for people and metrics: every tenant's queue, account and SLO attainment at one time."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf

from policies.capacity.views import backend_view
from policies.pool.scheduler_parts import SchedulerParts
from policies.pool.wait_views import first_waits_for
from policies.slo.slack_view import slacks
from policies.types import Snapshot, TenantView, TierView


def take_snapshot(parts: SchedulerParts, now: float, tenant_ids: Iterable[str] | None) -> Snapshot:
    """A snapshot of the pool, in time in proportion to tenants and requests; the accounts must be settled. With
    `tenant_ids` (None: all), the time is in proportion to these, and there are no tiers, requests and slack; unless it
    is empty, there are no backends either.
    """
    queues, ledger, tenants, fleet = parts.queues, parts.ledger, parts.tenants, parts.fleet
    sessions = parts.sessions
    tenant_ids = None if tenant_ids is None else list(tenant_ids)
    tokens_max = fleet.limits.sums()[1]
    overview = Snapshot(
        now=now,
        queued_requests=len(queues),
        queued_bytes=queues.body_bytes,
        in_flight_requests=len(ledger.in_flight),
        backends={} if tenant_ids else {id_: backend_view(each) for id_, each in fleet.backends.items()},
        attainment={tier_id: parts.attainment.of_tier(tier_id) for tier_id in parts.tiers},
        service_in_flight_max=ledger.price.service(0, 0, tokens_max) if tokens_max < inf else inf,
        interruptions=dict(ledger.interruptions.by_cause),
        sent_again_tokens=ledger.interruptions.sent_again_tokens,
        sessions=None if sessions is None or tenant_ids else sessions.view(now),
    )
    waits = first_waits_for(queues, tenants.states, fleet, now)
    if tenant_ids is not None:
        views = tenants.views(tenant_ids, slacks_s={}, waits=waits)
        views = views if sessions is None else sessions.shown_in(views)
        return replace(overview, tenants=views)
    left = slacks(queues.waiting(), ledger.in_flight.values(), tier_id=tenants.tier_id, now=now)
    views = tenants.views(None, slacks_s=left.tenants, waits=waits)
    views = views if sessions is None else sessions.shown_in(views)
    return replace(overview, tenants=views, tiers=_tier_views(parts, views, left.tiers), requests=left.requests)


def _tier_views(
    parts: SchedulerParts, tenants: Mapping[str, TenantView], slacks_s: Mapping[str, float]
) -> dict[str, TierView]:
    """The sums over the tenants of each tier, and its least slack."""
    members: dict[str, list[TenantView]] = {tier_id: [] for tier_id in parts.tiers}
    for tenant_id, view in tenants.items():
        members[parts.tenants.tier_id(tenant_id)].append(view)
    return {
        tier_id: TierView(
            queued_requests=sum(each.queued_requests for each in of_tier),
            in_flight_requests=sum(each.in_flight_requests for each in of_tier),
            service=sum(each.service for each in of_tier),
            slack_s_min=slacks_s.get(tier_id),
        )
        for tier_id, of_tier in members.items()
    }
