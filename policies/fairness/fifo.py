"""First come, first served over all tenants: what an engine does by itself, and the baseline."""

from collections.abc import Collection

from policies.fairness.base import Account, Eligible, Fairness, Waiting
from policies.fairness.heap import TenantHeap
from policies.types import Request


class Fifo(Fairness):
    """A fairness policy: the oldest request of all tenants is next; ties by tenant id."""

    follows_requests = True
    is_fair = False

    def __init__(self) -> None:
        super().__init__()
        self._heap: TenantHeap[Account] = TenantHeap(lambda account: account.head().arrived_at)

    def queued(self, request: Request, waiting: Waiting, now: float) -> None:
        account = self._account(request.tenant_id)
        if account.is_waiting and request.arrived_at < account.entry_key:  # it was returned, and is the oldest
            self._heap.push(account, self._waiting)

    def joined(self, tenant_id: str, waiting: Waiting) -> None:
        self._heap.push(self._began(tenant_id, waiting), self._waiting)

    def pick(self, eligible: Eligible, besides: Collection[str] = ()) -> Request | None:
        account = self._heap.first_of(lambda account: eligible(account.head()), besides)
        return account.head() if account else None
