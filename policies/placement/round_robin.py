"""Round robin: backends in turn, regardless of their prefixes and load; the baselines of the locality papers.

There is one circle of backends for all requests, or one for each tenant. With its own circle a tenant spreads evenly
over all backends, however its requests are mixed with those of others. So D backends that each keep a fairness bound
keep D times that bound together (DLPM paper: VTC with round robin per client).
"""

from bisect import bisect_right
from collections.abc import Sequence

from policies.placement.base import ArrivalPlacement, Worker
from policies.types import Request


class RoundRobin(ArrivalPlacement):
    """An arrival placement (it chooses a backend when a request arrives) on the next backend in circular order of id.
    Backends may come and go.
    """

    def __init__(self) -> None:
        self._last = ""

    def assign(self, request: Request, workers: Sequence[Worker]) -> str:
        self._last = _after(self._last, workers)
        return self._last


class TenantRoundRobin(ArrivalPlacement):
    """An arrival placement (it chooses a backend when a request arrives) on the backend that follows the tenant's last
    one in circular order of id.
    """

    def __init__(self) -> None:
        self._last: dict[str, str] = {}  # by tenant

    def assign(self, request: Request, workers: Sequence[Worker]) -> str:
        last = self._last[request.tenant_id] = _after(self._last.get(request.tenant_id, ""), workers)
        return last

    def forget(self, tenant_id: str) -> None:
        self._last.pop(tenant_id, None)


def _after(last: str, workers: Sequence[Worker]) -> str:
    ids = sorted(worker.id for worker in workers)
    return ids[bisect_right(ids, last) % len(ids)]
