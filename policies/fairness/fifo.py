"""First come, first served over all tenants: what an engine does by itself, and the baseline to beat."""

from collections.abc import Callable

from policies.fairness.base import Account, Accounts
from policies.fairness.heap import TenantHeap
from policies.types import Request


class Fifo(Accounts):
    """The tenant whose head arrived first; equal arrivals by tenant id."""

    is_fair = False

    def __init__(self) -> None:
        super().__init__()
        self._arrived_at: dict[str, float] = {}  # of the heads
        self._heap = TenantHeap(self._head_arrived_at)

    def joined(self, tenant_id: str, head: Request) -> None:
        self._arrived_at[tenant_id] = head.arrived_at
        self._heap.push(self._began(tenant_id), self._waiting)

    def advanced(self, tenant_id: str, head: Request) -> None:
        self._arrived_at[tenant_id] = head.arrived_at
        self._heap.push(self._account(tenant_id), self._waiting)

    def left(self, tenant_id: str) -> None:
        self._ended(tenant_id)
        del self._arrived_at[tenant_id]

    def pick(self, eligible: Callable[[str], bool]) -> str | None:
        account = self._heap.first_of(eligible)
        return account.tenant_id if account else None

    def _head_arrived_at(self, account: Account) -> float:
        return self._arrived_at[account.tenant_id]
