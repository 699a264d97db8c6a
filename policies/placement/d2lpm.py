"""D2LPM (Alg. 2): the backend that holds the longest beginning of the prompt, while the tenant has credit there.

Following the cache alone would send a tenant to one backend forever, at the cost of the other tenants there. So every
tenant has a deficit counter at every backend. The service that the backend computes for the tenant is subtracted. Only
when all of the tenant's counters are spent, a quantum is added to each. While the tenant has credit at the backend of
the cached prefix, that backend is chosen; otherwise, of the backends with credit, the one with the shortest queue. The
quantum bounds how unevenly one tenant may load the backends. The pool's fairness policy orders the requests at each
backend.

Extend tokens, the prompt tokens that are not cached there, are charged at assignment, as estimated then; outputs are
charged at the end. A request that was never sent is refunded.
"""

from collections.abc import Sequence
from math import floor

from policies.placement.base import Worker
from policies.placement.locality import LocalPlacement
from policies.types import Request, Usage

WORKER_QUANTUM_SERVICE = 10_000.0  # K_w; the paper's sweep goes from 2,000 to 40,000
EXTEND_PRICE = 1.0  # service per token of the prompt that must be computed
OUTPUT_PRICE = 2.0  # service per token of output
WORKERS_MAX = 1024  # deficits of one tenant; beyond it, those of removed backends are dropped


class D2lpm(LocalPlacement):
    """The arrival placement D2LPM (it chooses a backend when a request arrives): a backend that holds the longest
    beginning of the prompt, if the tenant has credit there; otherwise any backend where the tenant has credit. Among
    several, the shortest queue decides. The credit (deficit) is the service that the tenant may still receive at a
    backend, in service units. It starts at zero. When the tenant has no credit at any backend, it gets the same number
    of quanta at each. Mutable.
    """

    def __init__(self, *, quantum_service: float = WORKER_QUANTUM_SERVICE) -> None:
        super().__init__()
        assert quantum_service > 0, "without a quantum no tenant ever has credit"
        self._quantum = quantum_service
        self._deficits: dict[str, dict[str, float]] = {}  # tenant -> backend -> deficit
        self._charged: dict[str, float] = {}  # by request that waits

    def assign(self, request: Request, workers: Sequence[Worker]) -> str:
        deficits = self._refilled(request.tenant_id, workers)
        matched, holders = self._locality.longest(request, workers)
        with_credit = [worker for worker in holders if deficits[worker.id] > 0.0]
        if not with_credit:
            with_credit = [worker for worker in workers if deficits[worker.id] > 0.0]
        chosen = min(with_credit, key=_queue)
        if chosen not in holders:
            matched = self._locality.matched_blocks(request, chosen.id)
        extend_tokens = max(0.0, request.prompt_tokens - matched * request.prefix_block_tokens)
        self._charged[request.id] = EXTEND_PRICE * extend_tokens
        deficits[chosen.id] -= self._charged[request.id]
        self._locality.waits(request, chosen.id)
        return chosen.id

    def unassigned(self, request: Request, backend_id: str) -> None:
        self._locality.left(request, backend_id)
        self._charge(request.tenant_id, backend_id, -self._charged.pop(request.id))

    def ended(self, request: Request, backend_id: str, usage: Usage) -> None:
        del self._charged[request.id]
        self._charge(request.tenant_id, backend_id, OUTPUT_PRICE * usage.output_tokens)

    def forget(self, tenant_id: str) -> None:
        self._deficits.pop(tenant_id, None)

    def deficit(self, tenant_id: str, backend_id: str) -> float:
        """Service that may still be computed for the tenant at the backend before the tenant's requests go to another
        backend; negative: overdrawn.
        """
        return self._deficits.get(tenant_id, {}).get(backend_id, 0.0)

    def _refilled(self, tenant_id: str, workers: Sequence[Worker]) -> dict[str, float]:
        """The tenant's deficits, refilled until one of these workers has a positive one."""
        deficits = self._deficits.setdefault(tenant_id, {})
        for worker in workers:
            deficits.setdefault(worker.id, 0.0)
        while len(deficits) > max(WORKERS_MAX, len(workers)):
            gone = next(name for name in deficits if all(worker.id != name for worker in workers))
            del deficits[gone]
        largest = max(deficits[worker.id] for worker in workers)
        if largest <= 0.0:
            quanta = floor(-largest / self._quantum) + 1
            for worker in workers:
                deficits[worker.id] += quanta * self._quantum
        return deficits

    def _charge(self, tenant_id: str, backend_id: str, service: float) -> None:
        deficits = self._deficits.get(tenant_id, {})
        if backend_id in deficits:
            deficits[backend_id] -= service


def _queue(worker: Worker) -> tuple[int, float, str]:
    # Under light load all queues are empty, so what runs breaks the tie.
    return worker.queued_requests, worker.capacity.reserved_ratio, worker.id
