"""The question every order of tenants answers, and the counters that all of them keep.

An order sees tenants, never requests beyond the head of each queue. What is charged arrives already divided
by the tenant's weight, in service units. Counters are kept by every order, also by those that do not look at
them, so that an operator can change the order on a running gateway and nobody's past is forgotten.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from policies.types import Request


class Standing(NamedTuple):
    """A tenant's account: service received, and service that what it has in flight is predicted to receive yet."""

    counter: float = 0.0
    outstanding: float = 0.0

    @property
    def key(self) -> float:
        """What tenants are ordered by (VTC with length prediction, Alg. 3)."""
        return self.counter + self.outstanding


class Fairness(Protocol):
    """Which waiting tenant is served next?"""

    reads_counters: bool
    """Whether service that moves from outstanding to counter, and leaves the key as it was, may change the order."""

    is_fair: bool
    """Whether who has received what matters. Only then may a tenant be passed over for what it has in flight."""

    def joined(self, tenant_id: str, head: Request) -> None:
        """The tenant, which was not waiting, is: `head` is its oldest request."""
        ...

    def advanced(self, tenant_id: str, head: Request) -> None:
        """The tenant goes on waiting with another head."""
        ...

    def left(self, tenant_id: str) -> None:
        """The tenant has nothing waiting any more (that it may send)."""
        ...

    def charged(self, tenant_id: str, service: float, outstanding: float) -> None:
        """The tenant's counter and outstanding change by these amounts; either may be negative."""
        ...

    def pick(self, eligible: Callable[[str], bool]) -> str | None:
        """The waiting tenant that is next among the eligible; asking twice gives the same answer."""
        ...

    def waiting_count(self) -> int:
        """How many tenants wait."""
        ...

    def standing(self, tenant_id: str) -> Standing:
        """The tenant's account; zeros for one never seen."""
        ...

    def adopt(self, tenant_id: str, standing: Standing) -> None:
        """Take over the account of a tenant that is not waiting here yet."""
        ...

    def forget(self, tenant_id: str) -> None:
        """Drop the account of a tenant that is not waiting."""
        ...


class Account:
    """One tenant's account inside an order.

    `stamp` names its current entry in the order's heap (0: none), `entry_key` the key which that entry has.
    """

    __slots__ = ("counter", "entry_key", "outstanding", "stamp", "tenant_id", "waiting")

    def __init__(self, tenant_id: str) -> None:
        self.tenant_id = tenant_id
        self.counter = 0.0
        self.outstanding = 0.0
        self.waiting = False
        self.stamp = 0
        self.entry_key = 0.0


class Accounts:
    """The accounts of all tenants: the part that every order shares."""

    reads_counters = False
    is_fair = True

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self._waiting = 0

    def charged(self, tenant_id: str, service: float, outstanding: float) -> None:
        account = self._account(tenant_id)
        account.counter += service
        account.outstanding += outstanding

    def waiting_count(self) -> int:
        return self._waiting

    def standing(self, tenant_id: str) -> Standing:
        account = self._accounts.get(tenant_id)
        return Standing(account.counter, account.outstanding) if account else Standing()

    def adopt(self, tenant_id: str, standing: Standing) -> None:
        account = self._account(tenant_id)
        assert not account.waiting, "an account is adopted before its tenant joins"
        account.counter, account.outstanding = standing

    def forget(self, tenant_id: str) -> None:
        account = self._accounts.pop(tenant_id, None)
        assert account is None or not account.waiting, "a waiting tenant is not forgotten"

    def _account(self, tenant_id: str) -> Account:
        account = self._accounts.get(tenant_id)
        if account is None:
            account = self._accounts[tenant_id] = Account(tenant_id)
        return account

    def _began(self, tenant_id: str) -> Account:
        account = self._account(tenant_id)
        assert not account.waiting, "joined twice"
        account.waiting = True
        self._waiting += 1
        return account

    def _ended(self, tenant_id: str) -> Account:
        account = self._account(tenant_id)
        assert account.waiting, "left without waiting"
        account.waiting = False
        account.stamp = 0  # disowns what the heap still holds of it
        self._waiting -= 1
        return account
