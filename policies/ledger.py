"""What is in flight, and what everybody has received.

Each dispatched request has one entry. Its charge is the price of its totals so far minus what was charged
before, so however usage arrives (per token, merged, once at the end) the parts add up to the price of the
whole. What it is predicted to produce yet is outstanding: part of its tenant's key, not of its counter, and it
returns to exactly zero when the request ends. A request that its backend would not take goes back to the queue
as charged as it was: it is prepaid, and its next dispatch costs nothing more.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from policies.cost import Price
from policies.reservation import Reservation
from policies.types import Request, Usage


class Charge(NamedTuple):
    """Changes of a tenant's service and outstanding service."""

    service: float
    outstanding: float


NOT_PREPAID = ("", Charge(0.0, 0.0))


@dataclass(slots=True)
class TenantUse:
    """What a tenant has in flight now and has received since start; tokens are reserved ones."""

    requests: int = 0
    tokens: int = 0
    sequences: int = 0
    service: float = 0.0


@dataclass(slots=True)
class InFlight:
    """A dispatched request: where it runs, what it was charged, what it still may need."""

    request: Request
    backend_id: str
    reservation: Reservation
    expected_output: float  # tokens that its tenant's key expects
    sized_output: float  # tokens that its reservation has room for
    usage: Usage
    service: float = 0.0  # charged so far
    outstanding: float = 0.0  # service its predicted, unproduced output will cost


@dataclass(slots=True)
class Ledger:
    """All entries of one pool and the sums over them."""

    price: Price
    in_flight: dict[str, InFlight] = field(default_factory=dict)
    _uses: dict[str, TenantUse] = field(default_factory=dict)
    _prepaid: dict[str, tuple[str, Charge]] = field(default_factory=dict)  # request id -> tenant id, charged so far

    def use(self, tenant_id: str) -> TenantUse:
        use = self._uses.get(tenant_id)
        if use is None:
            use = self._uses[tenant_id] = TenantUse()
        return use

    def in_flight_worth(self, tenant_id: str) -> float:
        """Service that the tokens which the tenant has reserved can turn out to be: all of them outputs (the
        w_q * M of VTC's U); 0 where nothing is in flight.
        """
        use = self.use(tenant_id)
        return use.requests and self.price.service(0, 0, use.tokens / use.requests) * use.requests

    def opened(self, entry: InFlight) -> Charge:
        """The request was dispatched: charge its prompt (before prefill: otherwise one tenant would be
        chosen for the whole batch, VTC Alg. 2) and expect its output.
        """
        request = entry.request
        self.in_flight[request.id] = entry
        use = self.use(request.tenant_id)
        use.requests += 1
        use.sequences += entry.reservation.sequences
        use.tokens += entry.reservation.tokens
        _, (entry.service, entry.outstanding) = self._prepaid.pop(request.id, NOT_PREPAID)
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
        self._uses[entry.request.tenant_id].service += charge.service
        return charge

    def resized(self, entry: InFlight, tokens: int) -> None:
        """The entry's reservation is about to become this many tokens."""
        self._uses[entry.request.tenant_id].tokens += tokens - entry.reservation.tokens

    def forgiven(self, entry: InFlight) -> Charge:
        """The request was not served: take back what it was charged."""
        charge = Charge(-entry.service, 0.0)
        self._uses[entry.request.tenant_id].service -= entry.service
        entry.service = 0.0
        return charge

    def closed(self, entry: InFlight) -> Charge:
        """The request ended: nothing more is expected of it."""
        self._remove(entry)
        return Charge(0.0, -entry.outstanding)

    def returned(self, entry: InFlight) -> None:
        """The request waits again, prepaid."""
        self._remove(entry)
        request = entry.request
        self._prepaid[request.id] = (request.tenant_id, Charge(entry.service, entry.outstanding))

    def refund(self, request: Request) -> Charge:
        """A waiting request leaves the queue for good: what it had prepaid was never worked for."""
        _, (service, outstanding) = self._prepaid.pop(request.id, NOT_PREPAID)
        self.use(request.tenant_id).service -= service
        return Charge(-service, -outstanding)

    def spent(self, tenant_id: str, usage: Usage) -> Charge:
        """A call that was never in flight here used this much."""
        charge = Charge(self.price.service(*usage), 0.0)
        self.use(tenant_id).service += charge.service
        return charge

    def outstanding_by_tenant(self) -> dict[str, float]:
        """Service that each tenant's requests, in flight or waiting prepaid, are expected to cost yet."""
        sums: dict[str, float] = {}
        for entry in self.in_flight.values():
            tenant_id = entry.request.tenant_id
            sums[tenant_id] = sums.get(tenant_id, 0.0) + entry.outstanding
        for tenant_id, charge in self._prepaid.values():
            sums[tenant_id] = sums.get(tenant_id, 0.0) + charge.outstanding
        return sums

    def forget(self, tenant_id: str) -> None:
        use = self._uses.pop(tenant_id, None)
        assert use is None or not use.requests, "a tenant with requests in flight is not forgotten"

    def _remove(self, entry: InFlight) -> None:
        del self.in_flight[entry.request.id]
        use = self._uses[entry.request.tenant_id]
        use.requests -= 1
        use.sequences -= entry.reservation.sequences
        use.tokens -= entry.reservation.tokens
        assert use.requests >= 0, "closed more than was opened"
