"""urgency_of: the slack of the requests of one pool, for the admin API: seconds until a request's next token is due.

The scheduler's snapshot has the slack, too, but in one piece, which takes tens of milliseconds with thousands of
requests. A lease also knows its SLO envelope and the tokens that have passed, so the leases are read in slices, with a
turn of the event loop between them.
"""

import asyncio
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice
from math import inf
from typing import Final

from gateway.scheduling.dispatcher import Dispatcher, Lease
from policies.slo.timeliness import Timeliness
from policies.types import RequestView

REQUESTS_MAX: Final = 100
SLICE_LEASES: Final = 500


@dataclass(slots=True)
class TierUrgency:
    """The urgency of one tier in one pool: its numbers of requests, and the least slack of them in seconds. The slack
    is the time until a request's next token is due; it is infinite if no request has latency targets.
    """

    queued_requests: int = 0
    in_flight_requests: int = 0
    slack_s_min: float = inf


@dataclass(slots=True)
class Urgency:
    """The urgency of one pool's requests, by slack: the seconds until a request's next token is due, below 0 if it is
    late. `tenants` has the least slack of each tenant with latency targets. `requests` has at most REQUESTS_MAX of the
    most urgent requests by id, the least slack first.
    """

    tiers: dict[str, TierUrgency]
    tenants: dict[str, float] = field(default_factory=dict)
    requests: dict[str, RequestView] = field(default_factory=dict)


async def urgency_of(dispatcher: Dispatcher, tier_ids: list[str]) -> Urgency:
    """The urgency of all requests of the pool. `tier_ids`: the tiers to report."""
    found = Urgency({tier_id: TierUrgency() for tier_id in tier_ids})
    tier_of = {tenant.id: tenant.tier_id for tenant in dispatcher.tenants()}
    slacks: list[tuple[float, str, Lease]] = []
    rest = iter(list(dispatcher.leases.values()))
    while part := list(islice(rest, SLICE_LEASES)):
        now = dispatcher.now()
        for lease in part:
            slack = slack_s(lease, now)
            _count(found, lease, tier_of.get(lease.request.tenant_id), slack)
            if slack < inf:
                slacks.append((slack, lease.request.id, lease))
        await asyncio.sleep(0)
    for slack, request_id, lease in nsmallest(REQUESTS_MAX, slacks):
        output = lease.timeliness.timing().tokens if lease.timeliness is not None else 0
        found.requests[request_id] = RequestView(lease.request.tenant_id, lease.backend_id or None, output, slack)
    return found


def _count(found: Urgency, lease: Lease, tier_id: str | None, slack: float) -> None:
    tier = found.tiers.get(tier_id or "")
    if tier is not None:
        if lease.backend_id:
            tier.in_flight_requests += 1
        else:
            tier.queued_requests += 1
        tier.slack_s_min = min(tier.slack_s_min, slack)
    if slack < inf:
        tenant_id = lease.request.tenant_id
        found.tenants[tenant_id] = min(found.tenants.get(tenant_id, inf), slack)


def slack_s(lease: Lease, now: float) -> float:
    """Seconds until the next token is due; infinite without an SLO envelope."""
    if lease.request.envelope is None:
        return inf
    return (lease.timeliness or Timeliness(lease.request)).slack_s(now)
