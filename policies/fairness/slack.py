"""Slack counter: among the tenants whose rank is within Q of the smallest, take the best request by a second key.

VTC always serves the tenant with the smallest rank. Here all tenants whose rank is within a slack Q of the smallest are
level, and a second key chooses among their waiting requests: the longest cached prefix, the nearest deadline, or the
oldest arrival. Q = 0 is VTC; Q = infinity is the second key alone: longest prefix match, earliest deadline first, first
come first served. Two tenants that both wait over an interval receive amounts of service that differ by at most
2 (U + Q), U being VTC's.

A second key that is fixed per request (arrival, deadline) takes two more heaps, so a decision costs O(log n): tenants
that are too far ahead, by rank, and tenants that are level, by their best request. Tenants change heaps as the smallest
rank rises; a tenant that has got ahead goes back when it surfaces. Cached prefixes change with every dispatch: they are
kept up to date for a limited number of requests (cached.py).
"""

from collections.abc import Collection, Iterator, Mapping
from itertools import count
from types import MappingProxyType
from typing import ClassVar

from policies.accounts.ledger import InFlight
from policies.due_times import urgency_at
from policies.fairness.base import (
    Account,
    CachedBlocks,
    Changes,
    Eligible,
    Fairness,
    Waiting,
    anything_changes,
    of_others,
)
from policies.fairness.cached import LongestCached
from policies.fairness.fairness_bound import FairnessBound
from policies.fairness.heap import Place, TenantHeap
from policies.fairness.ranked import Rank, Ranked
from policies.fairness.vtc import VirtualTokenCounter, fell, rank_of
from policies.types import Request

SLACK_SERVICE = 2_000.0  # Q: two or three requests of some hundred tokens
PREFIX = "prefix"


RANKS: Mapping[str, Rank] = MappingProxyType(
    {
        "arrival": lambda request: request.arrived_at,
        "deadline": urgency_at,  # the least slack, deadline - now, is always that of the earliest deadline
    }
)
SECOND_KEYS = (*RANKS, PREFIX)
"""The second keys, which order the requests of level tenants."""


class SlackCounter(VirtualTokenCounter):
    """A fairness policy: VTC with a tolerance Q (its slack), in service over weight. All tenants whose rank is at most
    Q above the least rank are candidates. Of their waiting requests, the next one is the best by a second key: the
    longest cached prefix, the nearest deadline or the earliest arrival.
    """

    bound: ClassVar[FairnessBound | None] = FairnessBound(ahead="slack_service")

    def __init__(self, slack_service: float = SLACK_SERVICE, second_key: str = PREFIX) -> None:
        """`slack_service` is Q, in service over weight; `second_key` one of SECOND_KEYS."""
        super().__init__()
        assert second_key in SECOND_KEYS, second_key
        self._slack = slack_service
        self._levels = _Levels(RANKS[second_key]) if slack_service and second_key in RANKS else None
        self._cached: LongestCached | None = None
        if second_key == PREFIX and slack_service > 0:
            self._heap = self._cached = LongestCached(rank_of)
        self.reads_prefixes = self._cached is not None
        self.follows_requests = self.reads_prefixes or self._levels is not None

    def look_up_in(self, cached_blocks: CachedBlocks, changes: Changes = anything_changes) -> None:
        if self._cached is not None:
            self._cached.look_up_in(cached_blocks, changes)

    def queued(self, request: Request, waiting: Waiting, now: float) -> None:
        if self._levels is not None:
            self._levels.queued(request, waiting, self._waiting)
        if self._cached is not None:
            self._cached.queued(request, waiting)

    def dropped(self, request: Request, now: float) -> None:
        if self._cached is not None:
            self._cached.gone(request)

    def dispatched(self, entry: InFlight) -> None:
        if self._cached is not None:
            self._cached.gone(entry.request)

    def ended(self, entry: InFlight, now: float) -> None:
        if self._cached is not None:
            self._cached.gone(entry.request)  # it may wait again

    def joined(self, tenant_id: str, waiting: Waiting) -> None:
        super().joined(tenant_id, waiting)
        if self._levels is not None:
            self._levels.joined(self._accounts[tenant_id], self._waiting)

    def left(self, tenant_id: str) -> None:
        super().left(tenant_id)
        if self._levels is not None:
            self._levels.left(tenant_id)
        if self._cached is not None:
            self._cached.remove(self._accounts[tenant_id])

    def charged(self, tenant_id: str, service: float, outstanding: float) -> None:
        super().charged(tenant_id, service, outstanding)
        if self._levels is not None:
            self._levels.charged(tenant_id, self._waiting)
        if self._cached is not None:
            self._cached.rose(self._accounts[tenant_id])

    def pick(self, eligible: Eligible, besides: Collection[str] = ()) -> Request | None:
        if not self._slack:
            return super().pick(eligible, besides)
        least = self._heap.first_of(lambda account: eligible(account.head()), besides)
        if least is None:
            return None
        eligible = of_others(eligible, besides)
        rank_max = rank_of(least) + self._slack
        if self._cached is not None:
            best = self._cached.best(rank_max, eligible)
        else:
            assert self._levels is not None, "there is a second key"
            best = self._levels.best(rank_max, eligible, self._waiting)
        return best or least.head()

    def heads(self, besides: Collection[str]) -> Iterator[Request]:
        return Fairness.heads(self, besides) if self._slack else super().heads(besides)

    def forget(self, tenant_id: str) -> None:
        super().forget(tenant_id)
        if self._levels is not None:
            self._levels.forget(tenant_id)


class _Level(Place):
    """A waiting tenant's place in one of the two heaps."""

    __slots__ = ("account", "is_level")

    def __init__(self, account: Account) -> None:
        super().__init__(account.tenant_id)
        self.account = account
        self.is_level = False


class _Levels:
    """Two heaps of tenants: the level ones by their best request, the others by rank."""

    def __init__(self, rank: Rank) -> None:
        self._ranked = Ranked(rank)
        self._places: dict[str, _Level] = {}
        stamps = count(1)  # shared: a place leaves one heap by entering the other
        self._ahead: TenantHeap[_Level] = TenantHeap(lambda place: rank_of(place.account), stamps)
        self._level: TenantHeap[_Level] = TenantHeap(lambda place: self._best(place)[0], stamps)

    def queued(self, request: Request, waiting: Waiting, tenants: int) -> None:
        rank = self._ranked.queued(request, waiting)
        place = self._places.get(request.tenant_id)
        if place is not None and place.is_level and rank < place.entry_key:
            self._level.push(place, tenants)

    def joined(self, account: Account, tenants: int) -> None:
        place = self._places[account.tenant_id] = _Level(account)
        self._ahead.push(place, tenants)

    def left(self, tenant_id: str) -> None:
        self._places.pop(tenant_id).stamp = 0

    def charged(self, tenant_id: str, tenants: int) -> None:
        place = self._places.get(tenant_id)
        if place is not None and not place.is_level and fell(place, rank_of(place.account)):
            self._ahead.push(place, tenants)

    def best(self, rank_max: float, eligible: Eligible, tenants: int) -> Request | None:
        """The best eligible request of the tenants whose rank is at most `rank_max`."""

        def may_go(place: _Level) -> bool:
            return rank_of(place.account) <= rank_max and eligible(self._best(place)[1])

        while (place := self._ahead.first()) is not None and rank_of(place.account) <= rank_max:
            place.is_level = True
            self._level.push(place, tenants)
        while (place := self._level.first()) is not None and rank_of(place.account) > rank_max:
            place.is_level = False
            self._ahead.push(place, tenants)
        place = self._level.first_of(may_go)
        return self._best(place)[1] if place else None

    def forget(self, tenant_id: str) -> None:
        self._ranked.forget(tenant_id)

    def _best(self, place: _Level) -> tuple[float, Request]:
        return self._ranked.best(place.tenant_id, place.account.waiting)
