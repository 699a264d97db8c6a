"""First come, first served over all tenants: what an engine does by itself, and the baseline to beat."""

from collections.abc import Callable
from heapq import heappop, heappush

from policies.fairness.base import Accounts
from policies.types import Request


class Fifo(Accounts):
    """The tenant whose head arrived first; equal arrivals by tenant id."""

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[tuple[float, str, int]] = []

    def joined(self, tenant_id: str, head: Request) -> None:
        self._began(tenant_id)
        self._enter(tenant_id, head)

    def advanced(self, tenant_id: str, head: Request) -> None:
        self._enter(tenant_id, head)

    def left(self, tenant_id: str) -> None:
        self._ended(tenant_id)

    def pick(self, eligible: Callable[[str], bool]) -> str | None:
        passed_over = []
        while self._heap:
            _, tenant_id, stamp = self._heap[0]
            current = self._accounts.get(tenant_id)
            if current is None or stamp != current.stamp:
                heappop(self._heap)
            elif eligible(tenant_id):
                break
            else:
                passed_over.append(heappop(self._heap))
        picked = self._heap[0][1] if self._heap else None
        for entry in passed_over:
            heappush(self._heap, entry)
        return picked

    def _enter(self, tenant_id: str, head: Request) -> None:
        account = self._account(tenant_id)
        account.stamp += 1
        heappush(self._heap, (head.arrived_at, tenant_id, account.stamp))
