"""Virtual Token Counter: serve the waiting tenant that has received the least.

Service is counted in priced tokens over weight. A returning tenant is lifted to the least counter of the waiting
tenants, so absence earns no credit; if none waits, to the counter of the last tenant that left the queue. Two tenants
that both wait over an interval receive amounts of service that differ by at most 2U. U is the larger of two prices: of
the longest prompt, and of the outputs that fit in the KV pool at once. (Sheng et al., "Fairness in Serving Large
Language Models", OSDI '24, Alg. 2. As in Alg. 3, tenants are ordered by rank: counter + predicted outstanding service.
With prediction "none" nothing is outstanding.)

Counters never decay, nor reset when the system idles. They only grow, and a double has room: after a year at a million
service units a second its resolution is 0.004.
"""

from collections.abc import Callable, Collection, Iterator
from operator import attrgetter
from typing import ClassVar

from policies.fairness.base import Account, Eligible, Fairness, Waiting, any_request
from policies.fairness.fairness_bound import FairnessBound
from policies.fairness.heap import ByKey, Place, TenantHeap
from policies.queues import ArrivalOrder
from policies.types import Request

_WAITING = attrgetter("waiting")
RANK_RESOLUTION_RATIO = 1e-12  # a rank that falls by less than this ratio fell by rounding


rank_of: Callable[[Account], float] = attrgetter("rank")


def any_account(account: Account) -> bool:  # noqa: ARG001
    return True


def fell(place: Place, rank: float) -> bool:
    """Whether this rank is below the key of the tenant's entry in the heap."""
    entry_key: float = place.entry_key
    return rank < entry_key - RANK_RESOLUTION_RATIO * abs(entry_key)


class LeastCounterFirst(Fairness):
    """A fairness policy: VTC (VirtualTokenCounter), but a returning tenant's counter is not lifted to the level of the
    others. It is a baseline for comparisons and has no fairness bound: a tenant that stays away saves credit (Fig. 10
    of the VTC paper).
    """

    def __init__(self) -> None:
        super().__init__()
        self._heap: ByKey[Account] = TenantHeap(rank_of)

    def joined(self, tenant_id: str, waiting: Waiting) -> None:
        self._heap.push(self._began(tenant_id, waiting), self._waiting)

    def served_at_once(self, tenant_id: str, service: float, outstanding: float) -> None:
        account = self._accounts[tenant_id] if tenant_id in self._accounts else self._account(tenant_id)
        account.counter += service
        account.outstanding += outstanding
        account.rank = account.counter + account.outstanding
        self._last_left = account

    def charged(self, tenant_id: str, service: float, outstanding: float) -> None:
        account = self._accounts[tenant_id] if tenant_id in self._accounts else self._account(tenant_id)
        account.counter += service
        account.outstanding += outstanding
        rank = account.rank = account.counter + account.outstanding
        if account.is_waiting:
            entry_key = account.entry_key  # `fell`, inlined
            if rank < entry_key - RANK_RESOLUTION_RATIO * abs(entry_key):
                self._heap.push(account, self._waiting)

    def lag(self, tenant_id: str, other_id: str) -> float:
        accounts = self._accounts
        rank = accounts[tenant_id].rank if tenant_id in accounts else 0.0
        return (accounts[other_id].rank if other_id in accounts else 0.0) - rank

    def least(self, passed_over: Collection[str]) -> str | None:
        """The id of the waiting tenant or node that has received the least, not in `passed_over`; None without one."""
        account = self._heap.first()
        if account is not None and account.tenant_id in passed_over:
            account = self._heap.first_of(any_account, passed_over)
        return account.tenant_id if account else None

    def first_such(self, wanted: Callable[[str], bool], passed_over: Collection[str]) -> str | None:
        """The `wanted` waiting id, not in `passed_over`, that has received the least; None without one."""
        account = self._heap.first_of(lambda account: wanted(account.tenant_id), passed_over)
        return account.tenant_id if account else None

    def in_order(self, passed_over: Collection[str]) -> Iterator[str]:
        """The waiting ids, least service first, except those in `passed_over` (see TenantHeap.in_order)."""
        for account in self._heap.in_order(passed_over):
            yield account.tenant_id

    def heads(self, besides: Collection[str]) -> Iterator[Request]:
        # The head of what each account has waiting, without a frame for each account: a poll of a full pool asks many.
        return map(ArrivalOrder.head, map(_WAITING, self._heap.in_order(besides)))

    def level(self) -> float:
        return 0.0

    def _least(self) -> Account:
        account = self._heap.first()
        assert account is not None, "a tenant waits"
        return account

    def pick(self, eligible: Eligible, besides: Collection[str] = ()) -> Request | None:
        if not besides:
            account = self._heap.first()
            if account is None:
                return None
            head = account.waiting.head()
            if eligible is any_request or eligible(head):
                return head
        account = self._heap.first_of(lambda account: eligible(account.head()), besides)
        return account.head() if account else None


class VirtualTokenCounter(LeastCounterFirst):
    """The fairness policy VTC (Virtual Token Counter; Alg. 2 of Sheng et al., OSDI '24): the waiting tenant with the
    least rank (its received and predicted service over its weight) is next. A tenant that returns is lifted to the
    least rank of the waiting tenants or, if none waits, to that of the tenant that left the queue last.
    """

    bound: ClassVar[FairnessBound | None] = FairnessBound()

    def level(self) -> float:
        return Fairness.level(self)

    def joined(self, tenant_id: str, waiting: Waiting) -> None:
        self._lift(tenant_id)
        super().joined(tenant_id, waiting)

    def served_at_once(self, tenant_id: str, service: float, outstanding: float) -> None:
        account = self._accounts[tenant_id] if tenant_id in self._accounts else self._account(tenant_id)
        last = self._last_left
        # `_rank_level`, inlined, where no tenant waits
        level = self._rank_level() if self._waiting or self._is_returning or last is None else last.rank
        if level > account.rank:
            account.counter += level - account.rank
        account.counter += service
        account.outstanding += outstanding
        account.rank = account.counter + account.outstanding
        self._last_left = account

    def _lift(self, tenant_id: str) -> None:
        """Lift a tenant that starts to wait."""
        account = self._accounts[tenant_id] if tenant_id in self._accounts else self._account(tenant_id)
        account.counter += max(0.0, self._rank_level() - account.rank)
        account.rank = account.counter + account.outstanding
