"""Deficit round robin, adapted to service that is known only afterwards (VTC App. C.2).

Tenants are visited in a circle. One whose deficit is spent gets a quantum at its visit; one with credit sends
until the credit is gone. Prompts are charged at dispatch and tokens as they are decoded, so a deficit may fall
far below zero and is then paid off over several visits. As the quantum shrinks the order tends to VTC's.
"""

from collections import deque
from collections.abc import Callable
from math import floor

from policies.fairness.base import Accounts
from policies.types import Request

QUANTUM_SERVICE = 500.0  # the authors' K = M / 20 for a pool of 10,000 tokens


class DeficitRoundRobin(Accounts):
    """Whose turn is it in the circle of waiting tenants?"""

    def __init__(self, quantum_service: float = QUANTUM_SERVICE) -> None:
        super().__init__()
        self._quantum = quantum_service
        self._deficits: dict[str, float] = {}
        self._circle: deque[str] = deque()
        self._refilled_at_this_visit = False

    def joined(self, tenant_id: str, head: Request) -> None:
        self._began(tenant_id)
        self._deficits.setdefault(tenant_id, 0.0)
        self._circle.append(tenant_id)

    def advanced(self, tenant_id: str, head: Request) -> None: ...

    def left(self, tenant_id: str) -> None:
        self._ended(tenant_id)
        if self._circle[0] == tenant_id:
            self._refilled_at_this_visit = False
        self._circle.remove(tenant_id)

    def charged(self, tenant_id: str, service: float, outstanding: float) -> None:
        super().charged(tenant_id, service, outstanding)
        self._deficits[tenant_id] = self._deficits.get(tenant_id, 0.0) - service

    def deficit(self, tenant_id: str) -> float:
        """Service the tenant may still receive before its turn ends; negative: what it owes."""
        return self._deficits.get(tenant_id, 0.0)

    def pick(self, eligible: Callable[[str], bool]) -> str | None:
        candidates = [tenant_id for tenant_id in self._circle if eligible(tenant_id)]
        if not candidates:
            return None
        self._skip_fruitless_rounds(candidates)
        while True:
            tenant_id = self._circle[0]
            if not self._refilled_at_this_visit and self._deficits[tenant_id] <= 0.0:
                self._deficits[tenant_id] += self._quantum
            self._refilled_at_this_visit = True
            if self._deficits[tenant_id] > 0.0 and eligible(tenant_id):
                return tenant_id
            self._circle.rotate(-1)
            self._refilled_at_this_visit = False

    def forget(self, tenant_id: str) -> None:
        super().forget(tenant_id)
        self._deficits.pop(tenant_id, None)

    def _skip_fruitless_rounds(self, candidates: list[str]) -> None:
        """Give everybody at once the quanta of the rounds in which nobody could send: they change no order."""
        rounds = floor(-max(self._deficits[tenant_id] for tenant_id in candidates) / self._quantum) - 1
        if rounds > 0:
            for tenant_id in self._circle:
                owed = -self._deficits[tenant_id]
                self._deficits[tenant_id] += self._quantum * min(rounds, max(0, floor(owed / self._quantum)))
