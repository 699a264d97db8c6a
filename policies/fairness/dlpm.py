"""Deficit longest prefix match (DLPM): the longest cached prefix first, among tenants with credit left of this refill.

Every tenant has a deficit, reduced by its charges: the tokens of its prompts that are not cached (extend tokens, as
estimated at dispatch and then reported) and the tokens that it decodes. Among tenants whose deficit is positive the
request with the longest cached prefix is next; when no waiting tenant has any left, every waiting tenant gets a
quantum. Two tenants that both wait over an interval receive amounts of service that differ by at most 2 (U + K). A
small quantum tends to VTC, a large one to longest prefix match. (DLPM, Alg. 1; its price is 1 per extend token, 0 per
cached token and 2 per output token.)

All waiting tenants are refilled at the same instants, so their deficits are not stored: the refills since the start are
one level, and a deficit is the level minus what the tenant has spent.
"""

from collections.abc import Collection
from math import floor, inf, nextafter
from typing import ClassVar, Self

from policies.accounts.ledger import InFlight
from policies.fairness.base import CachedBlocks, Changes, Eligible, Fairness, Waiting, anything_changes, of_others
from policies.fairness.cached import LongestCached
from policies.fairness.fairness_bound import FairnessBound
from policies.fairness.vtc import fell
from policies.types import Request

REFILL_SERVICE = 2_000.0  # K_u


class DeficitLongestPrefix(Fairness):
    """The fairness policy DLPM. A tenant has credit while it has received less than its quanta (refills) allow. Among
    the requests of tenants with credit, the one with the most cached prompt tokens is next.
    """

    # Theorems 4.1, 4.2 and A.2
    bound: ClassVar[FairnessBound | None] = FairnessBound(ahead="quantum_service", one_waits=2.0, plus_refunds=True)
    reads_counters = True  # a token is charged when it is decoded
    follows_requests = True
    reads_prefixes = True

    def __init__(self, quantum_service: float = REFILL_SERVICE) -> None:
        """A returning tenant keeps its debt (the paper drops it: a tenant that leaves in debt and returns would gain up
        to U each time). `quantum_service` is the refill, in service over weight.
        """
        super().__init__()
        self._quantum = quantum_service
        self._level = 0.0  # refills since start
        self._spent: dict[str, float] = {}  # by tenant; of those that wait, in terms of the level
        self._heap = LongestCached(lambda account: self._spent[account.tenant_id])

    def look_up_in(self, cached_blocks: CachedBlocks, changes: Changes = anything_changes) -> None:
        self._heap.look_up_in(cached_blocks, changes)

    def queued(self, request: Request, waiting: Waiting, now: float) -> None:
        self._heap.queued(request, waiting)

    def dropped(self, request: Request, now: float) -> None:
        self._heap.gone(request)

    def ended(self, entry: InFlight, now: float) -> None:
        self._heap.gone(entry.request)  # it may wait again

    def deficit(self, tenant_id: str) -> float:
        """Service that the tenant may still receive before the next refill; negative: its debt."""
        spent = self._spent.get(tenant_id, 0.0)
        account = self._accounts.get(tenant_id)
        return self._level - spent if account is not None and account.is_waiting else -spent

    def lag(self, tenant_id: str, other_id: str) -> float:
        # Not by counters: service that one got while the other was away is no debt to the other.
        return self.deficit(tenant_id) - self.deficit(other_id)

    def joined(self, tenant_id: str, waiting: Waiting) -> None:
        # An absent tenant keeps no credit.
        self._spent[tenant_id] = self._level + max(0.0, -self.deficit(tenant_id))
        self._heap.push(self._began(tenant_id, waiting), self._waiting)

    def left(self, tenant_id: str) -> None:
        self._spent[tenant_id] = -self.deficit(tenant_id)
        self._heap.remove(self._ended(tenant_id))

    def charged(self, tenant_id: str, service: float, outstanding: float) -> None:
        super().charged(tenant_id, service, outstanding)
        spent = self._spent[tenant_id] = self._spent.get(tenant_id, 0.0) + service
        account = self._accounts[tenant_id]
        if account.is_waiting and fell(account, spent):
            self._heap.push(account, self._waiting)
        else:
            self._heap.rose(account)

    def dispatched(self, entry: InFlight) -> None:
        self._heap.gone(entry.request)
        if not entry.is_prepaid:
            self._level = self._next_level()

    def pick(self, eligible: Eligible, besides: Collection[str] = ()) -> Request | None:
        best = self._heap.best(nextafter(self._next_level(), -inf), of_others(eligible, besides))
        if best is not None:
            return best
        # Tenants with credit may not send, and are not refilled for that: take the tenant with the least debt.
        account = self._heap.first_of(lambda account: eligible(account.head()), besides)
        return account.head() if account else None

    def hand_over(self, tenant_id: str, to: Self, now: float) -> None:
        deficit = self.deficit(tenant_id)
        super().hand_over(tenant_id, to, now)
        to._spent[tenant_id] = -deficit

    def forget(self, tenant_id: str) -> None:
        super().forget(tenant_id)
        self._spent.pop(tenant_id, None)

    def _next_level(self) -> float:
        """The level at which some waiting tenant has credit: the present one, or the one after the refills needed."""
        least = self._heap.first()
        owed = 0.0 if least is None else self._spent[least.tenant_id] - self._level
        if least is None or owed < 0.0:
            return self._level
        return self._level + (floor(owed / self._quantum) + 1) * self._quantum
