"""Deficit round robin, adapted to service that is known only afterwards (VTC App. C.2).

Tenants are visited in a circle. One whose deficit is spent gets a quantum at its visit; one with credit sends
until the credit is gone. Prompts are charged at dispatch and tokens as they are decoded, so a deficit may fall
far below zero and is then paid off over several visits. As the quantum shrinks the order tends to VTC's.
"""

from collections import deque
from math import floor
from typing import Self

from policies.fairness.base import Accounts, Eligible, Waiting
from policies.ledger import InFlight
from policies.types import Request

QUANTUM_SERVICE = 500.0  # the authors' K = M / 20 for a pool of 10,000 tokens


class DeficitRoundRobin(Accounts):
    """Whose turn is it in the circle of waiting tenants? Costs O(tenants waiting): a baseline."""

    reads_counters = True  # a token is paid for when it is decoded
    follows_requests = True

    def __init__(self, quantum_service: float = QUANTUM_SERVICE) -> None:
        super().__init__()
        self._quantum = quantum_service
        self._deficits: dict[str, float] = {}
        self._circle: deque[str] = deque()  # the tenant whose visit it is comes first
        self._refilled = False  # it has had its quantum at this visit

    def joined(self, tenant_id: str, waiting: Waiting) -> None:
        self._began(tenant_id, waiting)
        self._deficits.setdefault(tenant_id, 0.0)
        self._circle.append(tenant_id)

    def left(self, tenant_id: str) -> None:
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

    def lag(self, tenant_id: str, other_id: str) -> float:
        # Not by counters: what one got while the other was away was never owed to that one.
        return self.deficit(tenant_id) - self.deficit(other_id)

    def pick(self, eligible: Eligible) -> Request | None:
        # Nothing moves until the tenant sends: a full backend stops the circle where it is.
        visits = [
            (self._visits_needed(place), place, head)
            for place, tenant_id in enumerate(self._circle)
            if eligible(head := self._accounts[tenant_id].head())
        ]
        return min(visits)[2] if visits else None

    def dispatched(self, entry: InFlight) -> None:
        """Take the turn: refill everybody who is visited on the way to it. Who goes before his turn, because others may
        not go now, is not refilled for that: he pays for it out of his next turns.
        """
        if entry.is_prepaid:
            return
        place = self._circle.index(entry.request.tenant_id)
        rounds = self._visits_needed(place)
        if (rounds, place) > min((self._visits_needed(each), each) for each in range(len(self._circle))):
            return
        for other, tenant_id in enumerate(self._circle):
            visits = rounds + (other <= place) - (other == 0 and self._refilled)
            self._deficits[tenant_id] += min(visits, self._refills_needed(tenant_id)) * self._quantum
        self._circle.rotate(-place)
        self._refilled = True

    def hand_over(self, tenant_id: str, to: Self, now: float) -> None:
        deficit = self.deficit(tenant_id)
        super().hand_over(tenant_id, to, now)
        to._deficits[tenant_id] = deficit

    def forget(self, tenant_id: str) -> None:
        super().forget(tenant_id)
        self._deficits.pop(tenant_id, None)

    def _refills_needed(self, tenant_id: str) -> int:
        """Quanta until the deficit is positive."""
        deficit = self._deficits[tenant_id]
        return 0 if deficit > 0.0 else floor(-deficit / self._quantum) + 1

    def _visits_needed(self, place: int) -> int:
        """Full rounds before the visit at which the tenant at this place may send."""
        refills = self._refills_needed(self._circle[place])
        refilled_already = place == 0 and self._refilled and refills > 0
        return max(0, refills - 1) + refilled_already
