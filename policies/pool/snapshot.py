"""Snapshot of a pool for people and metrics: every tenant's queue, account and SLO attainment at one time, the slack of
requests with an SLO envelope, and the backends. No decision reads it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from math import inf

from policies.accounts.ledger import InFlight
from policies.capacity.backend import NO_TIER, BackendCapacity
from policies.capacity.tier_reserves import NOTHING
from policies.due_times import slack_s
from policies.limit.step_forecast import steps_view
from policies.pool.scheduler_parts import SchedulerParts
from policies.pool.wait_views import first_waits_for
from policies.types import (
    BackendView,
    Binding,
    Request,
    RequestView,
    SizeSource,
    Snapshot,
    TenantView,
    TierView,
)

REQUESTS_SHOWN_MAX = 100


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


@dataclass(slots=True)
class Slacks:
    """The least slack of each tenant and each tier, and the most urgent requests. Slack is the time until a request's
    next token is late, in seconds.
    """

    tenants: dict[str, float] = field(default_factory=dict)
    tiers: dict[str, float] = field(default_factory=dict)
    requests: Mapping[str, RequestView] = field(default_factory=dict)


def slacks(
    waiting: Iterable[Request], in_flight: Iterable[InFlight], *, tier_id: Callable[[str], str], now: float
) -> Slacks:
    """The slacks of waiting and running requests at `now`; `tier_id` maps a tenant's id to its tier's id."""
    views = _waiting(waiting, now) | _running(in_flight, now)
    slacks = Slacks()
    for view in views.values():
        tenant_id, tier = view.tenant_id, tier_id(view.tenant_id)
        slacks.tenants[tenant_id] = min(slacks.tenants.get(tenant_id, inf), view.slack_s)
        slacks.tiers[tier] = min(slacks.tiers.get(tier, inf), view.slack_s)
    slacks.requests = dict(nsmallest(REQUESTS_SHOWN_MAX, views.items(), key=lambda item: (item[1].slack_s, item[0])))
    return slacks


def _waiting(requests: Iterable[Request], now: float) -> dict[str, RequestView]:
    return {
        each.id: RequestView(each.tenant_id, None, 0, slack)
        for each in requests
        if each.envelope is not None and (slack := slack_s(each, output_tokens=0, first_token_at=None, now=now)) < inf
    }


def _running(entries: Iterable[InFlight], now: float) -> dict[str, RequestView]:
    views = {}
    for entry in entries:
        request, output_tokens = entry.request, entry.usage.output_tokens
        if request.envelope is not None:
            slack = slack_s(request, output_tokens=output_tokens, first_token_at=entry.first_token_at, now=now)
            if slack < inf:
                views[request.id] = RequestView(request.tenant_id, entry.backend_id, output_tokens, slack)
    return views


def backend_view(backend: BackendCapacity) -> BackendView:
    """What operators see of a backend."""
    return BackendView(
        available=backend.load.available,
        in_flight_requests=backend.requests,
        requests_limit=backend.sequences_limit,
        reserved_tokens=round(backend.tokens_held_max),
        tokens_limit=None if backend.tokens_limit == inf else int(backend.tokens_limit),
        external_requests=backend.external_requests,
        external_tokens=round(backend.external_tokens),
        step_time=backend.load.step_time,
        steps=steps_view(backend.work, backend.clock.now),
        sequences_max=None if (learnt := backend.limit.sequences_max(backend.work)) == inf else learnt,
        size=_size_source(backend),
        reserves=backend.reserves.views(backend.clock.now),
        bound_by=_binding(backend),
    )


def _size_source(backend: BackendCapacity) -> SizeSource:
    if backend.load.requests_running_max is not None:
        return SizeSource.GIVEN
    by_answers = not backend.is_sized and backend.limit.sequences_max(backend.work) < inf
    is_learnt = by_answers if backend.window is None else backend.window.is_known
    return SizeSource.LEARNT if is_learnt else SizeSource.ASSUMED


def _binding(backend: BackendCapacity) -> Binding | None:
    """The constraint that keeps out one more request of the mean size of the running ones; None where it would be
    sent.
    """
    now = backend.clock.now
    if not backend.load.available:
        return Binding.UNHEALTHY
    if backend.awaits_measurement or now < backend.held_until:
        return Binding.HELD
    if not backend.sequences:
        return None  # an idle backend always takes one
    if backend.sequences >= backend.sequences_max:
        return Binding.SLOTS
    if backend.limit.is_full(backend.work):
        return Binding.STEPS
    needed = backend.tokens_held_max + backend.tokens / backend.requests
    if needed > backend.tokens_max:
        return Binding.KV
    if backend.limit.reads_time and now < backend.work.busy_until:
        return Binding.PROMPTS
    kept = backend.reserves.kept_for_others(NO_TIER, now) if backend.reserves.has_any else NOTHING
    is_kept = backend.sequences + kept.sequences >= backend.sequences_max or needed + kept.tokens > backend.tokens_max
    return Binding.RESERVED if is_kept else None
