"""Slack view: the slack of every request with an SLO envelope, for the admin API and metrics."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import nsmallest
from math import inf

from policies.accounts.ledger import InFlight
from policies.due_times import slack_s
from policies.types import Request, RequestView

REQUESTS_SHOWN_MAX = 100


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
