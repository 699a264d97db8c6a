"""Whose prompt is begun next, among those that wait inside the engine? By VTC: its tenant's that received the least.

The gateway in front decides who enters the engine; this is for engines that let more wait than the gateway sends at
once, or that others use too. Counters are those of policies/fairness/vtc.py, of tenants of equal weight: prompts are
charged when they are begun, without what was cached, and outputs as they are produced.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from policies.fairness.base import NOTHING
from policies.fairness.vtc import VirtualTokenCounter

PROMPT_TOKEN_PRICE: Final = 1.0
OUTPUT_TOKEN_PRICE: Final = 2.0
TENANTS_MAX: Final = 10_000  # beyond, a counter is dropped with its tenant's last request


class TenantOrder:
    """Counters per tenant. Who waits is told whole, before every order."""

    def __init__(self) -> None:
        self._counters = VirtualTokenCounter()
        self._waiting: set[str] = set()
        self._known: set[str] = set()

    def waiting(self, tenants: Iterable[str]) -> None:
        """These tenants have requests waiting, and nobody else; in the order in which they came."""
        now = dict.fromkeys(tenants)
        for tenant in [each for each in self._waiting if each not in now]:
            self._waiting.discard(tenant)
            self._counters.left(tenant)
            self._forget_beyond_limit(tenant)
        for tenant in now:
            if tenant not in self._waiting:
                self._waiting.add(tenant)
                self._known.add(tenant)
                self._counters.joined(tenant, NOTHING)

    def order(self, requests: Sequence[tuple[str, int]]) -> list[int]:
        """Return the positions of waiting requests in the order in which they are to be begun.

        A request is its tenant and its prompt tokens; each would be charged before the next one is chosen.
        """
        queues: defaultdict[str, deque[int]] = defaultdict(deque)
        for position, (tenant, _) in enumerate(requests):
            queues[tenant].append(position)
        heap = [(self._counters.standing(tenant).key, tenant) for tenant in queues]
        heapify(heap)
        ordered = []
        while heap:
            key, tenant = heappop(heap)
            position = queues[tenant].popleft()
            ordered.append(position)
            if queues[tenant]:
                heappush(heap, (key + PROMPT_TOKEN_PRICE * requests[position][1], tenant))
        return ordered

    def charge(self, tenant: str, *, prompt_tokens: int = 0, output_tokens: int = 0) -> None:
        """Count what a tenant has received."""
        self._known.add(tenant)
        service = PROMPT_TOKEN_PRICE * prompt_tokens + OUTPUT_TOKEN_PRICE * output_tokens
        self._counters.charged(tenant, service, 0.0)

    def _forget_beyond_limit(self, tenant: str) -> None:
        if len(self._known) > TENANTS_MAX:
            self._known.discard(tenant)
            self._counters.forget(tenant)
