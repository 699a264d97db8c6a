"""Deficit round robin, adapted to service that is known only afterwards (VTC App. C.2).

Tenants are visited in a circle. A tenant whose deficit is spent gets a quantum at its visit; a tenant with credit sends
until the credit is spent. Prompts are charged at dispatch and tokens as they are decoded, so a deficit may fall far
below zero and is then paid off over several visits. As the quantum shrinks, the order tends to VTC's.

Visits are computed, not made one by one. The next tenant to send is the first one in the circle that has credit after
its visit; all tenants passed on the way have none, so each of them gets a quantum. A tenant's deficit is therefore one
sum: its deficit before all visits, plus a quantum per visit since the start. Each charge tells the visit at which the
tenant may send again. A heap of these visits takes the place of the circle.
"""

from collections.abc import Collection
from math import floor
from typing import ClassVar, Self

from policies.accounts.ledger import InFlight
from policies.fairness.base import Account, Eligible, Fairness, Waiting
from policies.fairness.circle import Circle, Spot
from policies.fairness.fairness_bound import FairnessBound
from policies.fairness.heap import TenantHeap
from policies.types import Request

QUANTUM_SERVICE = 500.0  # the authors' K = M / 20 for a pool of 10,000 tokens


class _Turn(Spot):
    """A waiting tenant's place in the circle, and its deficit before all visits."""

    __slots__ = ("account", "deficit_at_0")

    def __init__(self, account: Account) -> None:
        super().__init__(account.tenant_id)
        self.account = account
        self.deficit_at_0 = 0.0


class DeficitRoundRobin(Fairness):
    """The fairness policy deficit round robin. Waiting tenants take turns in a circle. At each turn a tenant gets a
    quantum of service over weight, and sends requests until this credit is used up.
    """

    bound: ClassVar[FairnessBound | None] = FairnessBound(ahead="quantum_service", until_refund=True)
    reads_counters = True  # a token is charged when it is decoded
    follows_requests = True

    def __init__(self, quantum_service: float = QUANTUM_SERVICE) -> None:
        super().__init__()
        self._quantum = quantum_service
        self._deficits: dict[str, float] = {}  # of tenants that do not wait
        self._turns: dict[str, _Turn] = {}
        self._circle: Circle[_Turn] = Circle(self._moved)
        self._heap: TenantHeap[_Turn] = TenantHeap(self._due)
        self._rounds = 0  # completed, from the first of the circle to its last
        self._visited: _Turn | None = None  # the tenant of the present visit
        self._refilled = False  # it has had its quantum at this visit

    def joined(self, tenant_id: str, waiting: Waiting) -> None:
        turn = self._turns[tenant_id] = _Turn(self._began(tenant_id, waiting))
        self._circle.enter(turn, self._visited)
        if self._visited is None:
            self._visited = turn
        turn.deficit_at_0 = self._deficits.pop(tenant_id, 0.0) - self._quantum * self._visits(turn)
        self._heap.push(turn, self._waiting)

    def left(self, tenant_id: str) -> None:
        self._ended(tenant_id)
        turn = self._turns.pop(tenant_id)
        self._deficits[tenant_id] = self._deficit(turn)
        turn.stamp = 0
        if turn is self._visited:
            self._refilled = False
            following: _Turn = turn.following
            self._rounds += following is self._circle.first
            self._visited = None if following is turn else following
        self._circle.leave(turn)

    def charged(self, tenant_id: str, service: float, outstanding: float) -> None:
        super().charged(tenant_id, service, outstanding)
        turn = self._turns.get(tenant_id)
        if turn is None:
            self._deficits[tenant_id] = self._deficits.get(tenant_id, 0.0) - service
            return
        turn.deficit_at_0 -= service
        if service < 0.0:
            self._moved(turn)

    def deficit(self, tenant_id: str) -> float:
        """Service that the tenant may still receive before its turn ends; negative: its debt."""
        turn = self._turns.get(tenant_id)
        return self._deficits.get(tenant_id, 0.0) if turn is None else self._deficit(turn)

    def lag(self, tenant_id: str, other_id: str) -> float:
        # Not by counters: service that one got while the other was away is no debt to the other.
        return self.deficit(tenant_id) - self.deficit(other_id)

    def pick(self, eligible: Eligible, besides: Collection[str] = ()) -> Request | None:
        # The circle stands still until the tenant sends: a full backend stops it where it is.
        turn = self._heap.first_of(lambda turn: eligible(turn.account.head()), besides)
        return turn.account.head() if turn else None

    def dispatched(self, entry: InFlight) -> None:
        """Take the turn, and visit every tenant on the way to it. A tenant may send before its turn, because others may
        not send now. That does not move the circle: the tenant pays from its next turns.
        """
        if entry.is_prepaid:
            return
        turn = self._turns[entry.request.tenant_id]
        if self._heap.first() is not turn:
            return
        rounds, _ = self._due(turn)
        if self._deficit(turn) > 0.0 and not self._is_refilled(turn):
            turn.deficit_at_0 -= self._quantum  # a visit to a tenant with credit adds none
        self._rounds, self._visited, self._refilled = rounds, turn, True

    def hand_over(self, tenant_id: str, to: Self, now: float) -> None:
        deficit = self.deficit(tenant_id)
        super().hand_over(tenant_id, to, now)
        to._deficits[tenant_id] = deficit

    def forget(self, tenant_id: str) -> None:
        super().forget(tenant_id)
        self._deficits.pop(tenant_id, None)

    def _is_refilled(self, turn: _Turn) -> bool:
        return turn is self._visited and self._refilled

    def _visits(self, turn: _Turn) -> int:
        """The number of visits to this place of the circle since the start."""
        assert self._visited is not None, "while a tenant waits, one is visited"
        return self._rounds + (turn.mark < self._visited.mark or self._is_refilled(turn))

    def _deficit(self, turn: _Turn) -> float:
        return turn.deficit_at_0 + self._quantum * self._visits(turn)

    def _due(self, turn: _Turn) -> tuple[int, int]:
        """The visit at which the tenant may send, as the round and the place in it."""
        if turn is self._visited and self._deficit(turn) > 0.0:
            return self._rounds, turn.mark
        return max(self._visits(turn), floor(-turn.deficit_at_0 / self._quantum)), turn.mark

    def _moved(self, turn: _Turn) -> None:
        """Update the heap: the turn may come sooner than before, or its place has a new mark."""
        if self._due(turn) < turn.entry_key:
            self._heap.push(turn, self._waiting)
