"""What is in flight, and what everybody has received.

Each dispatched request has one entry. Its charge is the price of its totals so far minus what was charged
before, so however usage arrives (per token, merged, once at the end) the parts add up to the price of the
whole. What it is predicted to produce yet is outstanding: part of its tenant's key, not of its counter, and it
returns to exactly zero when the request ends. A request that its backend would not take goes back to the queue
as charged as it was: it is prepaid, and its next dispatch costs nothing more.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from policies.accounts.cost import Price
from policies.reservation import Reservation
from policies.types import Request, Usage


class Charge(NamedTuple):
    """Changes of a tenant's service and outstanding service."""

    service: float
    outstanding: float


@dataclass(slots=True)
class InFlight:
    """A dispatched request: where it runs, what it was charged, what it still may need.

    One that came back keeps its entry while it waits, until it is dispatched again.
    """

    request: Request
    backend_id: str
    reservation: Reservation
    expected_output: float  # tokens that its tenant's key expects
    sized_output: float  # tokens that its reservation has room for
    usage: Usage
    weight: float = 1.0  # its tenant's at dispatch
    dispatched_at: float = 0.0
    utilisation: float = 0.0  # how full its backend was then, 1.0: full
    speed: float = 1.0  # of its backend then, 1.0: as the mean of all
    first_token_at: float | None = None
    is_preempted: bool = False  # its backend was asked to give it back, and has not answered
    is_prepaid: bool = False  # it was dispatched before and came back
    service: float = 0.0  # charged so far
    outstanding: float = 0.0  # service its predicted, unproduced output will cost


@dataclass(slots=True)
class Ledger:
    """All entries of one pool, and what its tenants were charged since start."""

    price: Price
    in_flight: dict[str, InFlight] = field(default_factory=dict)
    _at: dict[str, dict[str, InFlight]] = field(default_factory=dict)  # the same by backend
    _services: dict[str, float] = field(default_factory=dict)
    _prepaid: dict[str, InFlight] = field(default_factory=dict)  # waiting requests that were dispatched before

    def at(self, backend_id: str) -> Collection[InFlight]:
        """What is in flight at this backend."""
        running = self._at.get(backend_id)
        return () if running is None else running.values()

    def service(self, tenant_id: str) -> float:
        """What the tenant was charged."""
        return self._services.get(tenant_id, 0.0)

    def opened(self, entry: InFlight) -> Charge:
        """The request was dispatched: charge its prompt (before prefill: otherwise one tenant would be
        chosen for the whole batch, VTC Alg. 2) and expect its output.
        """
        request_id, backend_id = entry.request.id, entry.backend_id
        self.in_flight[request_id] = entry
        running = self._at.get(backend_id)
        if running is None:
            running = self._at[backend_id] = {}
        running[request_id] = entry
        before = self._prepaid.pop(request_id, None)
        if before is not None:
            entry.is_prepaid, entry.service, entry.outstanding = True, before.service, before.outstanding
        return self.charge(entry, entry.usage)

    def charge(self, entry: InFlight, usage: Usage) -> Charge:
        """Charge the difference to what the entry was charged before; negative if an estimate was too high."""
        price = self.price.service
        prompt, cached, output = usage
        service = price(prompt, cached, output)
        expected = entry.expected_output
        outstanding = price(prompt, cached, expected) - service if expected > output else 0.0
        charge = Charge(service - entry.service, outstanding - entry.outstanding)
        entry.usage, entry.service, entry.outstanding = usage, service, outstanding
        self._add(entry.request.tenant_id, charge.service)
        return charge

    def closed(self, entry: InFlight, *, is_served: bool) -> Charge:
        """The request ended: nothing more is expected of it, and one that was not served is charged nothing."""
        self._ended(entry)
        return self._written_off(entry, 0.0 if is_served else entry.service)

    def returned(self, entry: InFlight) -> None:
        """The request waits again, prepaid."""
        self._ended(entry)
        self._prepaid[entry.request.id] = entry

    def prepaid(self, request_id: str) -> InFlight | None:
        """The entry of a waiting request that was dispatched before."""
        return self._prepaid.get(request_id)

    def refunded(self, entry: InFlight) -> Charge:
        """A prepaid request leaves the queue for good: what it was charged was never worked for."""
        del self._prepaid[entry.request.id]
        return self._written_off(entry, entry.service)

    def spent(self, tenant_id: str, usage: Usage) -> Charge:
        """A call that was never in flight here used this much."""
        charge = Charge(self.price.service(*usage), 0.0)
        self._add(tenant_id, charge.service)
        return charge

    def forget(self, tenant_id: str) -> None:
        self._services.pop(tenant_id, None)

    def _ended(self, entry: InFlight) -> None:
        """The entry is not in flight any more."""
        request_id, backend_id = entry.request.id, entry.backend_id
        del self.in_flight[request_id]
        running = self._at[backend_id]
        del running[request_id]
        if not running:
            del self._at[backend_id]

    def _written_off(self, entry: InFlight, service: float) -> Charge:
        charge = Charge(-service, -entry.outstanding)
        entry.service, entry.outstanding = entry.service - service, 0.0
        self._add(entry.request.tenant_id, -service)
        return charge

    def _add(self, tenant_id: str, service: float) -> None:
        self._services[tenant_id] = self._services.get(tenant_id, 0.0) + service
