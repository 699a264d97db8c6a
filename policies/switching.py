"""Another fairness or placement on a running pool: counters stay, everything else starts anew.

The new lanes take over what every tenant and tier was charged: the sum over the old lanes, in equal parts. What is
in flight stays outstanding, and is charged where it runs; what waits, waits in the new lanes, and what a backend did
not take before stays prepaid. Deficits and virtual times start as if all had just been refilled: nobody has any credit
or debt. A placement on arrival is asked again about all that waits, and hears nothing of what was sent before its time.

Nobody may gain by the change, so tenants join the new orders from the least served up: VTC lifts whoever joins to the
least among those that wait, which is then himself.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from policies.fairness import Standing
from policies.lane import Lane, TenantState
from policies.lanes import Lanes
from policies.ledger import Charge, InFlight, Ledger
from policies.queues import Queues
from policies.types import PolicyChoice

T = TypeVar("T")


def chosen(table: Mapping[str, Callable[..., T]], choice: PolicyChoice) -> Callable[[], T]:
    """What makes the policy of this choice. Raises ValueError where the table has none of this name, or it has no such
    parameters.
    """
    if choice.name not in table:
        raise ValueError(f"no policy {choice.name!r}: there are {', '.join(table)}")
    make: Callable[..., Any] = partial(table[choice.name], **choice.parameters)
    try:
        make()
    except TypeError as error:
        raise ValueError(f"{choice.name}: {error}") from error
    return make


def rearrange(
    before: Lanes, after: Lanes, *, ledger: Ledger, queues: Queues, states: Mapping[str, TenantState], now: float
) -> None:
    """Let everything that is in the old lanes be in the new, which are empty. There is a place for all that waits."""
    _carry_counters(list(before.all()), list(after.all()), list(states.values()))
    for entry in ledger.in_flight.values():
        lane = after.at(entry.backend_id)
        lane.holds(entry)
        _expect(lane, entry)
    not_taken = [request_id for lane in before.all() for request_id in lane.first]
    homes: dict[str, Lane] = {}
    for request in queues.oldest_first():
        before.leave(request, sent=False)
        lane = homes[request.id] = after.enter(request, now)
        lane.queued(request, now)
        prepaid = ledger.prepaid(request.id)
        if prepaid is not None:
            prepaid.backend_id = lane.backend_id or prepaid.backend_id
            _expect(lane, prepaid)
    for request_id in not_taken:
        homes[request_id].first[request_id] = None
    for lane in after.all():
        _join(lane, states.values())


def _carry_counters(before: list[Lane], after: list[Lane], states: list[TenantState]) -> None:
    for state in states:
        total = sum(lane.order.standing(state.tenant).counter for lane in before)
        for lane in after:
            lane.order.adopt(state.tenant, Standing(total / len(after)))
    for tier_id in {state.tenant.tier_id for state in states}:
        total = sum(lane.order.tier_standing(tier_id).counter for lane in before)
        for lane in after:
            lane.order.adopt_tier(tier_id, Standing(total / len(after)))


def _expect(lane: Lane, entry: InFlight) -> None:
    """What is outstanding of the entry belongs to this lane."""
    lane.charged(entry.request.tenant_id, Charge(0.0, entry.outstanding))


def _join(lane: Lane, states: Iterable[TenantState]) -> None:
    def key(state: TenantState) -> tuple[float, float, str]:
        tenant = state.tenant
        return lane.order.tier_standing(tenant.tier_id).key, lane.key(tenant.id), tenant.id

    for state in sorted(states, key=key):
        lane.refresh(state)
