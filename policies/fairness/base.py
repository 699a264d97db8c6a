"""Fairness: the base of an order of requests (the fairness policy of one queue), with the accounts that every order
keeps.

An order reads each tenant's queue as it is now, oldest request first, and picks requests from it. Most orders choose a
tenant and send its oldest request; an order may also choose among a tenant's requests. Charges are in service units
over the tenant's weight. Every order keeps accounts, even one that does not read them, so that an operator can change
the order of a running gateway without losing what each tenant has received.

An order belongs to one queue (policies/queueing/fair_queue.py).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import ClassVar, NamedTuple, Self

from policies.accounts.ledger import InFlight
from policies.fairness.fairness_bound import FairnessBound
from policies.fairness.heap import Place
from policies.queues import ArrivalOrder
from policies.types import Request

Waiting = ArrivalOrder
"""A tenant's waiting requests by id, oldest first. A live view: read it, and do not keep it longer than the tenant
waits."""

Eligible = Callable[[Request], bool]

CachedBlocks = Callable[[Request], int]
Changes = Callable[[int], tuple[int, Collection[int] | None]]
"""A function of an earlier version number. It returns the present number, and the last blocks of the prompts whose
cached part has changed since then; None: any prompt.
"""

NOTHING: Waiting = ArrivalOrder()


def any_request(request: Request) -> bool:  # noqa: ARG001
    return True


def of_others(eligible: Eligible, besides: Collection[str]) -> Eligible:
    """A filter for eligible requests of tenants that are not in `besides`."""
    return (lambda request: request.tenant_id not in besides and eligible(request)) if besides else eligible


def anything_changes(_: int) -> tuple[int, Collection[int] | None]:
    """Report that any lookup may have changed (a `changes` function), so that every decision repeats all lookups."""
    return 0, None


class ServiceRecord(NamedTuple):
    """A tenant's account in one queue: the service that the tenant has received, and the service that its requests in
    flight are still predicted to receive (`outstanding`). Both are in service over weight.
    """

    counter: float = 0.0
    outstanding: float = 0.0

    @property
    def rank(self) -> float:
        """The tenant's rank: tenants are ordered by it, least first (VTC with length prediction, Alg. 3)."""
        return self.counter + self.outstanding


class Account(Place):
    """A tenant's account in a fairness policy, with the tenant's queue of waiting requests (`waiting`) and its place in
    the policy's heap. `counter`, `outstanding` and `rank` are in service over weight. Mutable.
    """

    __slots__ = ("counter", "is_waiting", "outstanding", "rank", "waiting")

    def __init__(self, tenant_id: str) -> None:
        super().__init__(tenant_id)
        self.counter = 0.0
        self.outstanding = 0.0
        self.rank = 0.0
        """The sum of both, which every change of either sets anew: it is asked for far more often than it changes."""
        self.is_waiting = False
        self.waiting = NOTHING

    def head(self) -> Request:
        """The oldest request of a waiting tenant."""
        return self.waiting.head()


class Fairness(ABC):
    """The base class of the fairness policies of one queue: which waiting request is served next? It keeps the accounts
    of all tenants. Its methods for facts that not every policy needs do nothing.
    """

    bound: ClassVar[FairnessBound | None] = None
    """The bound on the difference in service of two tenants under this order; None: there is no bound."""
    reads_counters = False
    """Whether service that moves from outstanding to counter, with the same rank, may change the order."""
    follows_requests = False
    """Whether the order needs the facts `queued`, `dropped`, `dispatched` and `ended`."""
    reads_prefixes = False
    """Whether the order reads the prefix cache; `look_up_in` is then called first."""
    is_fair = True
    """Whether the order follows service received. Only then may a tenant be passed over for what it has in flight."""

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self._waiting = 0
        self._last_left: Account | None = None
        self._first_level = 0.0  # used until a tenant has left
        self._is_returning = False

    def look_up_in(self, cached_blocks: CachedBlocks, changes: Changes = anything_changes) -> None:
        """Set the two functions that read the prefix cache. `cached_blocks` gives the number of leading blocks of a
        request's prompt that are cached at a backend where the request may go. `changes` gives the prompts for which
        this number may have changed.
        """
        return

    def queued(self, request: Request, waiting: Waiting, now: float) -> None:
        """The request has joined its tenant's queue, `waiting`: at the end or, if it was returned, at its old place.
        Whether the tenant may send a request now is reported by `joined` and `left`.
        """
        return

    def dropped(self, request: Request, now: float) -> None:
        """The request has left the queue for good without being dispatched."""
        return

    def dispatched(self, entry: InFlight) -> None:
        """The entry's request is dispatched. Its charge and its exit from the queue are reported afterwards. With
        `entry.is_prepaid` the request was dispatched before and returned; nothing more is charged.
        """
        return

    def ended(self, entry: InFlight, now: float) -> None:
        """A dispatched request has ended and has used `entry.usage`. `entry.service` is its final charge: 0 if it was
        not served.
        """
        return

    def charged(self, tenant_id: str, service: float, outstanding: float) -> None:
        """The tenant's counter and outstanding change by these amounts; either may be negative."""
        account = self._account(tenant_id)
        account.counter += service
        account.outstanding += outstanding
        account.rank = account.counter + account.outstanding

    @abstractmethod
    def joined(self, tenant_id: str, waiting: Waiting) -> None:
        """The tenant starts to wait: it has a waiting request, and its limits let it send it."""

    def left(self, tenant_id: str) -> None:
        """The tenant stops waiting: it has no waiting request that its limits let it send."""
        self._ended(tenant_id)

    @abstractmethod
    def pick(self, eligible: Eligible, besides: Collection[str] = ()) -> Request | None:
        """The next request: the first of the waiting and eligible ones, except those of the tenants `besides`. A second
        call without a change in between returns the same request.
        """

    def heads(self, besides: Collection[str]) -> Iterator[Request]:
        """The requests that `pick` would return one after another, if each tenant joined `besides` once its request was
        returned. The caller stops iterating when anything else changes.
        """
        while (request := self.pick(any_request, besides)) is not None:
            yield request

    def served_at_once(self, tenant_id: str, service: float, outstanding: float) -> None:
        """The tenant starts to wait while no other waits, is charged these amounts, and stops waiting, in one call. Not
        called for an order with `reads_counters` or `follows_requests`.
        """
        self.joined(tenant_id, NOTHING)
        self.charged(tenant_id, service, outstanding)
        self.left(tenant_id)

    def service_record(self, tenant_id: str) -> ServiceRecord:
        """The tenant's account; zeros for an unknown tenant."""
        account = self._accounts.get(tenant_id)
        return ServiceRecord(account.counter, account.outstanding) if account else ServiceRecord()

    def lag(self, tenant_id: str, other_id: str) -> float:
        """How far one waiting tenant is behind another, in service over weight; negative: it is ahead."""
        return self.service_record(other_id).rank - self.service_record(tenant_id).rank

    def adopt(self, tenant_id: str, record: ServiceRecord) -> None:
        """Take over the account of a tenant that does not wait here yet."""
        account = self._account(tenant_id)
        assert not account.is_waiting, "an account is adopted before its tenant joins"
        account.counter, account.outstanding = record
        account.rank = record.rank

    def hand_over(self, tenant_id: str, to: Self, now: float) -> None:
        """Move the account of a tenant that does not wait to another order of this kind. There the tenant is as far
        ahead of or behind the waiting tenants as it was here. Nothing else about the tenant is moved.
        """
        record = self.service_record(tenant_id)
        counter = record.counter + to._rank_level() - self._rank_level()
        self.forget(tenant_id)
        # A tenant that is further behind than any counter here begins as if it had received nothing.
        to.adopt(tenant_id, ServiceRecord(max(0.0, counter), record.outstanding))

    def forget(self, tenant_id: str) -> None:
        """Drop the account of a tenant that does not wait."""
        account = self._accounts.pop(tenant_id, None)
        assert account is None or not account.is_waiting, "a waiting tenant is not forgotten"

    def received(self, tenant_ids: Collection[str] | None = None) -> Mapping[str, float]:
        """The counter of every tenant with an account, or of `tenant_ids`: service over weight."""
        accounts = self._accounts
        ids = accounts if tenant_ids is None else [each for each in tenant_ids if each in accounts]
        return {tenant_id: accounts[tenant_id].counter for tenant_id in ids}

    def level(self) -> float:
        """The counter to which a returning tenant without outstanding service is lifted; 0.0: the order never lifts."""
        if self._is_returning:
            return self._first_level
        if self._waiting:
            return min(account.counter for account in self._accounts.values() if account.is_waiting)
        return self._first_level if self._last_left is None else self._last_left.counter

    def begin_at(self, level: float, *, returning: bool) -> None:
        """Set the level of an order in which no request has waited yet. The first tenant to join is lifted to it. With
        `returning`, every tenant that joins before `all_returned` is lifted to it, as if a tenant at this level kept
        waiting.
        """
        assert not self._waiting, "before any tenant waits"
        self._first_level, self._is_returning = level, returning

    def all_returned(self) -> None:
        """End `returning`: from now on, a tenant that joins is lifted as after an absence."""
        self._is_returning = False

    def _rank_level(self) -> float:
        """The least rank of the waiting tenants. If none waits, it is the present rank of the last tenant to leave. The
        rank is the present one because that tenant's requests in flight were charged since it left.
        """
        if self._is_returning:
            return self._first_level
        least = self._least() if self._waiting else self._last_left
        return self._first_level if least is None else least.rank

    def _least(self) -> Account:
        """The waiting tenant with the least rank."""
        waiting = (account for account in self._accounts.values() if account.is_waiting)
        return min(waiting, key=lambda account: account.rank)

    def _account(self, tenant_id: str) -> Account:
        account = self._accounts.get(tenant_id)
        if account is None:
            account = self._accounts[tenant_id] = Account(tenant_id)
        return account

    def _began(self, tenant_id: str, waiting: Waiting) -> Account:
        account = self._account(tenant_id)
        assert not account.is_waiting, "joined twice"
        account.is_waiting, account.waiting = True, waiting
        self._waiting += 1
        return account

    def _ended(self, tenant_id: str) -> Account:
        account = self._account(tenant_id)
        assert account.is_waiting, "left without waiting"
        account.is_waiting, account.waiting = False, NOTHING
        self._last_left = account
        account.stamp = 0  # its entry in the heap is void
        self._waiting -= 1
        return account
