"""Snapshot of a pool for people and metrics: every tenant's queue, account and SLO attainment at one time."""

from collections.abc import Collection, Iterable
from dataclasses import replace
from math import inf

from policies.accounts.ledger import Ledger
from policies.fleet.fleet import Fleet
from policies.pool.interruptions import Interruptions
from policies.pool.session_gate import SessionGate
from policies.pool.tenants import Tenants
from policies.pool.wait_reasons import first_waits_for
from policies.queues import PoolQueues
from policies.slo.attainment import AttainmentCounts
from policies.slo.slack_view import slacks
from policies.types import Snapshot, TenantView, TierView


def take_snapshot(
    *,
    queues: PoolQueues,
    ledger: Ledger,
    tenants: Tenants,
    tier_ids: Collection[str],
    fleet: Fleet,
    attainment: AttainmentCounts,
    now: float,
    tenant_ids: Iterable[str] | None,
    interruptions: Interruptions,
    sessions: SessionGate | None,
) -> Snapshot:
    """A snapshot of the pool, in time in proportion to tenants and requests; the accounts must be settled. With
    `tenant_ids` (None: all), the time is in proportion to these, and there are no tiers, requests and slack; unless it
    is empty, there are no backends either.
    """
    tenant_ids = None if tenant_ids is None else list(tenant_ids)
    tokens_max = fleet.limits.sums()[1]
    overview = Snapshot(
        now=now,
        queued_requests=len(queues),
        queued_bytes=queues.body_bytes,
        in_flight_requests=len(ledger.in_flight),
        backends={} if tenant_ids else fleet.views(),
        attainment={tier_id: attainment.of_tier(tier_id) for tier_id in tier_ids},
        service_in_flight_max=ledger.price.service(0, 0, tokens_max) if tokens_max < inf else inf,
        interruptions=dict(interruptions.by_cause),
        sent_again_tokens=interruptions.sent_again_tokens,
        sessions=None if sessions is None or tenant_ids else sessions.view(),
    )
    waits = first_waits_for(queues, tenants.states, fleet, now)
    if tenant_ids is not None:
        views = tenants.views(ledger, tenant_ids, slacks_s={}, attainment=attainment.of_tenant, waits=waits)
        views = views if sessions is None else sessions.shown_in(views, now)
        return replace(overview, tenants=views)
    left = slacks(queues.waiting(), ledger.in_flight.values(), tier_id=tenants.tier_id, now=now)
    views = tenants.views(ledger, None, slacks_s=left.tenants, attainment=attainment.of_tenant, waits=waits)
    views = views if sessions is None else sessions.shown_in(views, now)
    members: dict[str, list[TenantView]] = {tier_id: [] for tier_id in tier_ids}
    for tenant_id, view in views.items():
        members[tenants.tier_id(tenant_id)].append(view)
    return replace(
        overview,
        tenants=views,
        tiers={
            tier_id: TierView(
                queued_requests=sum(each.queued_requests for each in of_tier),
                in_flight_requests=sum(each.in_flight_requests for each in of_tier),
                service=sum(each.service for each in of_tier),
                slack_s_min=left.tiers.get(tier_id),
            )
            for tier_id, of_tier in members.items()
        },
        requests=left.requests,
    )
