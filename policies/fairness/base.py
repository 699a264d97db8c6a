"""The question every order answers, and the accounts that all of them keep.

An order is asked for requests and sees what waits: of each tenant its queue, live and oldest first. Most orders
choose a tenant and send its oldest request; an order may choose among a tenant's requests too. What is charged
arrives already divided by the tenant's weight, in service units. Accounts are kept by every order, also by those that
do not look at them, so that an operator can change the order on a running gateway and nobody's past is forgotten.

An order lives in one queue (policies/queueing/fair_queue.py). What it does not want to hear it leaves to `Accounts`.
"""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, Protocol, Self

from policies.accounts.ledger import InFlight
from policies.fairness.heap import Place
from policies.types import Request

Waiting = dict[str, Request]
"""A tenant's waiting requests by id, oldest first. It changes as they come and go: to read, not to keep longer than
the tenant waits."""

Eligible = Callable[[Request], bool]

CachedBlocks = Callable[[Request], int]
Changes = Callable[[int], tuple[int, Collection[int] | None]]
"""What the number of now is, and the last blocks of the prompts of which more or less is cached since that of another
number; None: of any.
"""

NOTHING: Waiting = {}


def anything_changes(_: int) -> tuple[int, Collection[int] | None]:
    """Nobody says what has changed: all is looked up for every decision."""
    return 0, None


class ServiceRecord(NamedTuple):
    """A tenant's account: service received, and service that what it has in flight is predicted to receive yet."""

    counter: float = 0.0
    outstanding: float = 0.0

    @property
    def key(self) -> float:
        """What tenants are ordered by (VTC with length prediction, Alg. 3)."""
        return self.counter + self.outstanding


class Fairness(Protocol):
    """Which waiting request is served next?"""

    reads_counters: bool
    """Whether service that moves from outstanding to counter, and leaves the key as it was, may change the order."""

    follows_requests: bool
    """Whether it wants to hear what becomes of requests: `queued`, `dropped`, `dispatched` and `ended`."""

    reads_prefixes: bool
    """Whether it asks what is cached; `look_up_in` is called before anything else then."""

    is_fair: bool
    """Whether who has received what matters. Only then may a tenant be passed over for what it has in flight."""

    def look_up_in(self, cached_blocks: CachedBlocks, changes: Changes = anything_changes) -> None:
        """`cached_blocks` tells how many leading blocks of a request are cached where it may go, as of now, and
        `changes` of which prompts that may be different since.
        """
        ...

    def queued(self, request: Request, waiting: Waiting, now: float) -> None:
        """The request has joined its tenant's queue, `waiting`: at its end, or where it had been if it came back.
        Its tenant may send it or not: `joined` and `left` tell.
        """
        ...

    def dropped(self, request: Request, now: float) -> None:
        """The request has left the queue for good without ever being sent."""
        ...

    def joined(self, tenant_id: str, waiting: Waiting) -> None:
        """The tenant, which was not waiting, is."""
        ...

    def left(self, tenant_id: str) -> None:
        """The tenant has nothing waiting any more (that it may send)."""
        ...

    def charged(self, tenant_id: str, service: float, outstanding: float) -> None:
        """The tenant's counter and outstanding change by these amounts; either may be negative."""
        ...

    def dispatched(self, entry: InFlight) -> None:
        """The request of the entry was sent, and is charged and leaves the queue next. With `entry.is_prepaid` it was
        sent before, came back, and is charged nothing new.
        """
        ...

    def ended(self, entry: InFlight, now: float) -> None:
        """A request that was sent is over, and has used `entry.usage`. `entry.service` is what it was charged for in
        the end: nothing where it was not served.
        """
        ...

    def pick(self, eligible: Eligible) -> Request | None:
        """The request that is next among the eligible of those who wait; asking twice gives the same answer."""
        ...

    def waiting_count(self) -> int:
        """How many tenants wait."""
        ...

    def standing(self, tenant_id: str) -> ServiceRecord:
        """The tenant's account; zeros for one never seen."""
        ...

    def lag(self, tenant_id: str, other_id: str) -> float:
        """Service over weight by which the one, which waits, is behind the other, which does too; negative: ahead."""
        ...

    def adopt(self, tenant_id: str, standing: ServiceRecord) -> None:
        """Take over the account of a tenant that is not waiting here yet."""
        ...

    def hand_over(self, tenant_id: str, to: Self, now: float) -> None:
        """The tenant, which is not waiting, has its account in another order of this kind from now on. It is there what
        it was here: ahead of or behind those that wait by as much, and nothing else is known of it.
        """
        ...

    def forget(self, tenant_id: str) -> None:
        """Drop the account of a tenant that is not waiting."""
        ...

    def received(self) -> Mapping[str, float]:
        """What every tenant with an account has received, over its weight."""
        ...

    def level(self) -> float:
        """The counter that a tenant back from idleness is lifted to, nothing being outstanding; 0.0: nobody is."""
        ...

    def begin_at(self, level: float, *, returning: bool) -> None:
        """Nobody has waited here yet: the first to join is lifted to this level. With `returning` all are, until
        `all_returned`: as if somebody of this level went on waiting.
        """
        ...

    def all_returned(self) -> None:
        """Who has not come back by now was away."""
        ...


class Account(Place):
    """One tenant's account inside an order."""

    __slots__ = ("counter", "is_waiting", "outstanding", "waiting")

    def __init__(self, tenant_id: str) -> None:
        super().__init__(tenant_id)
        self.counter = 0.0
        self.outstanding = 0.0
        self.is_waiting = False
        self.waiting = NOTHING

    def head(self) -> Request:
        """The oldest request of a tenant that waits."""
        return next(iter(self.waiting.values()))


class Accounts:
    """The accounts of all tenants: the part that every order shares."""

    reads_counters = False
    follows_requests = False
    reads_prefixes = False
    is_fair = True

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self._waiting = 0
        self._last_left: Account | None = None
        self._first_level = 0.0  # while nobody has left
        self._is_returning = False

    def look_up_in(self, cached_blocks: CachedBlocks, changes: Changes = anything_changes) -> None:
        return

    def queued(self, request: Request, waiting: Waiting, now: float) -> None:
        return

    def dropped(self, request: Request, now: float) -> None:
        return

    def dispatched(self, entry: InFlight) -> None:
        return

    def ended(self, entry: InFlight, now: float) -> None:
        return

    def charged(self, tenant_id: str, service: float, outstanding: float) -> None:
        account = self._account(tenant_id)
        account.counter += service
        account.outstanding += outstanding

    def waiting_count(self) -> int:
        return self._waiting

    def standing(self, tenant_id: str) -> ServiceRecord:
        account = self._accounts.get(tenant_id)
        return ServiceRecord(account.counter, account.outstanding) if account else ServiceRecord()

    def lag(self, tenant_id: str, other_id: str) -> float:
        return self.standing(other_id).key - self.standing(tenant_id).key

    def adopt(self, tenant_id: str, standing: ServiceRecord) -> None:
        account = self._account(tenant_id)
        assert not account.is_waiting, "an account is adopted before its tenant joins"
        account.counter, account.outstanding = standing

    def hand_over(self, tenant_id: str, to: Self, now: float) -> None:
        standing = self.standing(tenant_id)
        counter = standing.counter + to._key_level() - self._key_level()
        self.forget(tenant_id)
        # Where nobody has received as much as it is behind, it begins like one that has received nothing.
        to.adopt(tenant_id, ServiceRecord(max(0.0, counter), standing.outstanding))

    def forget(self, tenant_id: str) -> None:
        account = self._accounts.pop(tenant_id, None)
        assert account is None or not account.is_waiting, "a waiting tenant is not forgotten"

    def received(self) -> Mapping[str, float]:
        return {tenant_id: account.counter for tenant_id, account in self._accounts.items()}

    def level(self) -> float:
        if self._is_returning:
            return self._first_level
        if self._waiting:
            return min(account.counter for account in self._accounts.values() if account.is_waiting)
        return self._first_level if self._last_left is None else self._last_left.counter

    def begin_at(self, level: float, *, returning: bool) -> None:
        assert not self._waiting, "before anybody waits"
        self._first_level, self._is_returning = level, returning

    def all_returned(self) -> None:
        self._is_returning = False

    def _key_level(self) -> float:
        """The least key of those that wait, or that of the last to leave: its key of now, not of when it left, for it
        has gone on being served since.
        """
        if self._is_returning:
            return self._first_level
        least = self._least() if self._waiting else self._last_left
        return self._first_level if least is None else least.counter + least.outstanding

    def _least(self) -> Account:
        """Whoever of those that wait has the least key."""
        waiting = (account for account in self._accounts.values() if account.is_waiting)
        return min(waiting, key=lambda account: account.counter + account.outstanding)

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
        account.stamp = 0  # disowns what the heap still holds of it
        self._waiting -= 1
        return account
