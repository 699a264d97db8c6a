"""Deficit round robin, adapted to service that is known only afterwards (VTC App. C.2).

Tenants are visited in a circle. One whose deficit is spent gets a quantum at its visit; one with credit sends
until the credit is gone. Prompts are charged at dispatch and tokens as they are decoded, so a deficit may fall
far below zero and is then paid off over several visits. As the quantum shrinks the order tends to VTC's.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import floor

from policies.fairness.base import Accounts
from policies.types import Request

QUANTUM_SERVICE = 500.0  # the authors' K = M / 20 for a pool of 10,000 tokens


@dataclass(frozen=True, slots=True)
class _Turn:
    """Whose turn comes next, and the refills that are given on the way to it."""

    tenant_id: str
    refills: dict[str, int]


class DeficitRoundRobin(Accounts):
    """Whose turn is it in the circle of waiting tenants? Costs O(tenants waiting): a baseline."""

    reads_counters = True  # a token is paid for when it is decoded

    def __init__(self, quantum_service: float = QUANTUM_SERVICE) -> None:
        super().__init__()
        self._quantum = quantum_service
        self._deficits: dict[str, float] = {}
        self._circle: deque[str] = deque()  # the tenant whose visit it is comes first
        self._refilled = False  # it has had its quantum at this visit
        self._turn: _Turn | None = None  # picked, and taken when its tenant sends

    def joined(self, tenant_id: str, head: Request) -> None:
        self._began(tenant_id)
        self._deficits.setdefault(tenant_id, 0.0)
        self._circle.append(tenant_id)

    def advanced(self, tenant_id: str, head: Request) -> None:
        self._take_turn(tenant_id)

    def left(self, tenant_id: str) -> None:
        self._take_turn(tenant_id)
        self._ended(tenant_id)
        if self._circle[0] == tenant_id:
            self._refilled = False
        self._circle.remove(tenant_id)

    def charged(self, tenant_id: str, service: float, outstanding: float) -> None:
        super().charged(tenant_id, service, outstanding)
        self._deficits[tenant_id] = self.deficit(tenant_id) - service

    def deficit(self, tenant_id: str) -> float:
        """Service the tenant may still receive before its turn ends; negative: what it owes."""
        return self._deficits.get(tenant_id, 0.0)

    def pick(self, eligible: Callable[[str], bool]) -> str | None:
        # Nothing moves until the tenant sends: a full backend stops the circle where it is.
        self._turn = self._next_turn(eligible)
        return self._turn.tenant_id if self._turn else None

    def forget(self, tenant_id: str) -> None:
        super().forget(tenant_id)
        self._deficits.pop(tenant_id, None)

    def _next_turn(self, eligible: Callable[[str], bool]) -> _Turn | None:
        visits = [(self._visits_needed(place), place) for place, name in enumerate(self._circle) if eligible(name)]
        if not visits:
            return None
        rounds, place = min(visits)
        refills = {}
        for other, tenant_id in enumerate(self._circle):
            visited = rounds + (other <= place) - (other == 0 and self._refilled)
            refills[tenant_id] = min(visited, self._refills_needed(tenant_id))
        return _Turn(self._circle[place], refills)

    def _refills_needed(self, tenant_id: str) -> int:
        """Quanta until the deficit is positive."""
        deficit = self._deficits[tenant_id]
        return 0 if deficit > 0.0 else floor(-deficit / self._quantum) + 1

    def _visits_needed(self, place: int) -> int:
        """Full rounds before the visit at which the tenant at this place may send."""
        refills = self._refills_needed(self._circle[place])
        refilled_already = place == 0 and self._refilled and refills > 0
        return max(0, refills - 1) + refilled_already

    def _take_turn(self, tenant_id: str) -> None:
        turn, self._turn = self._turn, None
        if turn is None or turn.tenant_id != tenant_id:
            return
        for other, refills in turn.refills.items():
            self._deficits[other] += refills * self._quantum
        self._circle.rotate(-self._circle.index(tenant_id))
        self._refilled = True
