"""Deficit longest prefix match: follow the cache, but only for tenants that have not had their share of this refill.

Every tenant has a deficit. What it is charged is taken from it: the tokens of its prompts that are not cached (extend
tokens, as estimated at dispatch and then reported) and what it decodes. Among tenants whose deficit is positive the
request with the longest cached prefix goes; when nobody who waits has any left, all who wait are given a quantum.
Two tenants that both wait over an interval receive service that differs by at most 2 (U + K) there. A small
quantum tends to VTC, a large one to longest prefix match. (DLPM, Alg. 1; the price that it means is 1 per extend token,
nothing per cached one, and 2 per output token.)

All who wait are refilled at the same instants, so no deficit is written down while its tenant waits: the refills
since the start are one level, and a deficit is how far the level is above what the tenant has spent.
"""

from math import floor, inf, nextafter
from typing import Self

from policies.accounts.ledger import InFlight
from policies.fairness.base import Accounts, CachedBlocks, Changes, Eligible, Waiting, anything_changes
from policies.fairness.cached import LongestCached
from policies.fairness.vtc import fell
from policies.types import Request

REFILL_SERVICE = 2_000.0  # K_u


class DeficitLongestPrefix(Accounts):
    """Which request of a tenant with credit has the most of its prompt cached?"""

    reads_counters = True  # a token is paid for when it is decoded
    follows_requests = True
    reads_prefixes = True

    def __init__(self, quantum_service: float = REFILL_SERVICE, *, forgives_debt: bool = False) -> None:
        """A tenant that was away comes back with what it owes, or, as in the paper, with nothing
        (`forgives_debt`): then whoever leaves in debt and comes back gains up to U each time.
        """
        super().__init__()
        self._quantum = quantum_service
        self._forgives_debt = forgives_debt
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
        self._heap.gone(entry.request)  # if it waited again

    def deficit(self, tenant_id: str) -> float:
        """Service the tenant may still receive before the next refill; negative: what it owes."""
        spent = self._spent.get(tenant_id, 0.0)
        account = self._accounts.get(tenant_id)
        return self._level - spent if account is not None and account.is_waiting else -spent

    def lag(self, tenant_id: str, other_id: str) -> float:
        # Not by counters: what one got while the other was away was never owed to that one.
        return self.deficit(tenant_id) - self.deficit(other_id)

    def joined(self, tenant_id: str, waiting: Waiting) -> None:
        # Credit is not kept while away.
        owed = 0.0 if self._forgives_debt else max(0.0, -self.deficit(tenant_id))
        self._spent[tenant_id] = self._level + owed
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

    def pick(self, eligible: Eligible) -> Request | None:
        best = self._heap.best(nextafter(self._next_level(), -inf), eligible)
        if best is not None:
            return best
        # Those with credit may not go, and are not refilled for that: of the others, whoever owes least.
        account = self._heap.first_of(lambda account: eligible(account.head()))
        return account.head() if account else None

    def hand_over(self, tenant_id: str, to: Self, now: float) -> None:
        deficit = self.deficit(tenant_id)
        super().hand_over(tenant_id, to, now)
        to._spent[tenant_id] = -deficit

    def forget(self, tenant_id: str) -> None:
        super().forget(tenant_id)
        self._spent.pop(tenant_id, None)

    def _next_level(self) -> float:
        """The level at which somebody who waits has credit: as it is, or after the refills that this takes."""
        least = self._heap.first()
        owed = 0.0 if least is None else self._spent[least.tenant_id] - self._level
        if least is None or owed < 0.0:
            return self._level
        return self._level + (floor(owed / self._quantum) + 1) * self._quantum
