"""Ledger of one pool: the requests in flight, and the service that each tenant was charged.

Each dispatched request has one entry. Its charge is the price of its totals so far minus what was charged before, so
the parts add up to the price of the whole, however usage arrives (per token, merged, once at the end). Its predicted
further output is outstanding service: this is part of the tenant's rank, not of its counter, and returns to exactly
zero when the request ends. A request that its backend rejects keeps its charge when it goes back to the queue: it is
prepaid, and its next dispatch costs nothing more. A request that is interrupted after some tokens keeps its charge,
too, and pays only for further tokens: the work that another backend repeats is no service to the tenant.
"""

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from policies.accounts.cost import Price
from policies.call_life import LEAVING, LIFE, Event, Life
from policies.reservation import Reservation
from policies.types import NO_USAGE, Cause, Request, Usage

Charge = tuple[float, float]
"""Changes of a tenant's service and of its outstanding service. A plain tuple: compiled, it is no object."""


@dataclass(slots=True)
class InFlight:
    """The account of one dispatched request: its backend, the service that it was charged, and the tokens that it is
    expected to produce. A request that returns to its queue keeps its account until it is dispatched again. Mutable.
    """

    request: Request
    backend_id: str
    reservation: Reservation
    expected_output: float  # output tokens predicted for the tenant's rank
    sized_output: float  # output tokens that the reservation has room for
    usage: Usage
    weight: float = 1.0  # its tenant's at dispatch
    dispatched_at: float = 0.0
    utilisation: float = 0.0  # of its backend at dispatch: sequences over the limit, 1.0: full
    speed: float = 1.0  # of its backend at dispatch, relative to the mean of all
    first_token_at: float | None = None
    life: Life = Life.SENT
    is_prepaid: bool = False  # it was dispatched before and returned
    service_before: float = 0.0  # charged for tokens of earlier dispatches
    service: float = 0.0  # charged so far
    counted: Usage = NO_USAGE  # of `usage`, what is in its tenant's sum
    outstanding: float = 0.0  # price of the predicted output still to come

    @property
    def is_leaving(self) -> bool:
        """Whether a preemption was requested and the request has neither returned nor been kept yet."""
        return self.life in LEAVING


@dataclass(slots=True)
class Served:
    """The total service of one tenant since the process started, in service units (not divided by the tenant's weight),
    and the tokens that this service was charged for.
    """

    service: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    def add(self, service: float, usage: Usage, before: Usage = NO_USAGE) -> None:
        """Add the service, and the tokens by which `usage` exceeds `before`."""
        self.service += service
        self.prompt_tokens += usage[0] - before[0]
        self.cached_tokens += usage[1] - before[1]
        self.output_tokens += usage[2] - before[2]


NOTHING_SERVED: Final = Served()


@dataclass(slots=True)
class Interruptions:
    """Counts, for one pool since its start: interrupted answers by cause, and the tokens that were sent again to
    continue these answers. Mutable.
    """

    by_cause: Counter[Cause] = field(default_factory=Counter)
    sent_again_tokens: int = 0


@dataclass(slots=True)
class Ledger:
    """The accounts of a pool's dispatched requests, and the total service of each tenant since the start. Mutable."""

    price: Price
    interruptions: Interruptions = field(default_factory=Interruptions)
    in_flight: dict[str, InFlight] = field(default_factory=dict)
    _at: dict[str, dict[str, InFlight]] = field(default_factory=dict)  # the same entries by backend
    _served: defaultdict[str, Served] = field(default_factory=lambda: defaultdict(Served))
    prepaid: dict[str, InFlight] = field(default_factory=dict)
    """Waiting requests that were dispatched before. To read."""

    def at(self, backend_id: str) -> Collection[InFlight]:
        """The entries in flight at this backend."""
        running = self._at.get(backend_id)
        return () if running is None else running.values()

    def served(self, tenant_id: str) -> Served:
        """The service and tokens that the tenant was charged for since start, to read only."""
        return self._served.get(tenant_id) or NOTHING_SERVED

    def opened(self, entry: InFlight) -> Charge:
        """The request was dispatched: charge its prompt and expect its output. The prompt is charged before prefill,
        otherwise one tenant would be chosen for the whole batch (VTC Alg. 2).
        """
        request_id, backend_id = entry.request.id, entry.backend_id
        self.in_flight[request_id] = entry
        if backend_id not in self._at:
            self._at[backend_id] = {}
        self._at[backend_id][request_id] = entry
        before = self.prepaid.pop(request_id, None) if self.prepaid else None
        if before is not None:
            entry.is_prepaid, entry.service, entry.outstanding = True, before.service, before.outstanding
            entry.counted = before.counted
            if produced := before.request.produced_tokens:  # it is continued
                entry.usage = before.usage._replace(output_tokens=produced)
                entry.service_before = before.service
        return self.charge(entry, entry.usage)

    def adopted(self, entry: InFlight) -> Charge:
        """Open the entry of a request that another scheduler dispatched and charged; only further output is charged."""
        entry.is_prepaid, entry.service, entry.counted = True, _charged_before(self.price, entry.usage), entry.usage
        return self.opened(entry)

    def prepay(self, entry: InFlight) -> None:
        """A waiting request was charged for this usage by another scheduler."""
        entry.life, entry.service, entry.counted = Life.QUEUED, _charged_before(self.price, entry.usage), entry.usage
        self.prepaid[entry.request.id] = entry

    def charge(self, entry: InFlight, usage: Usage) -> Charge:
        """Charge the price of this usage minus the entry's earlier charges; negative if an estimate was too high."""
        price = self.price.service
        prompt, cached, output = usage
        service = price(prompt, cached, output)
        expected = entry.expected_output
        outstanding = price(prompt, cached, expected) - service if expected > output else 0.0
        charged, expected_more = service - entry.service, outstanding - entry.outstanding
        entry.usage, entry.service, entry.outstanding = usage, service, outstanding
        served, counted = self._served[entry.request.tenant_id], entry.counted
        served.service += charged  # `Served.add`, inlined
        served.prompt_tokens += prompt - counted[0]
        served.cached_tokens += cached - counted[1]
        served.output_tokens += output - counted[2]
        entry.counted = usage
        return charged, expected_more

    def closed(self, entry: InFlight, *, is_served: bool) -> Charge:
        """The request ended: its outstanding service is dropped, and its charge too if it was not served."""
        entry.life = LIFE[entry.life, Event.ENDED]
        request_id, running = entry.request.id, self._at[entry.backend_id]  # as in `returned`: inlined
        del self.in_flight[request_id], running[request_id]
        if not running:
            del self._at[entry.backend_id]
        if not is_served:
            return self._written_off(entry, entry.service)
        outstanding, entry.outstanding = entry.outstanding, 0.0
        return 0.0, -outstanding

    def returned(self, entry: InFlight) -> None:
        """The request was returned: it waits again, prepaid."""
        entry.life = LIFE[entry.life, Event.RETURNED]
        request_id, running = entry.request.id, self._at[entry.backend_id]
        del self.in_flight[request_id], running[request_id]
        if not running:
            del self._at[entry.backend_id]
        self.prepaid[request_id] = entry

    def delivered_tokens(self, request_id: str) -> int:
        """The tokens of a waiting request's prompt and of the answer that its client has so far; 0 without any."""
        entry = self.prepaid.get(request_id)
        produced = 0 if entry is None else entry.request.produced_tokens
        return 0 if entry is None or not produced else entry.usage[0] + produced

    def refunded(self, entry: InFlight) -> Charge:
        """A prepaid request left the queue for good: refund its charge, unless its client has a part of the answer."""
        del self.prepaid[entry.request.id]
        entry.life = LIFE[entry.life, Event.ENDED]
        return self._written_off(entry, 0.0 if entry.request.produced_tokens else entry.service)

    def spent(self, tenant_id: str, usage: Usage) -> Charge:
        """Charge a call that was never in flight here."""
        service = self.price.service(*usage)
        self._served[tenant_id].add(service, usage)
        return service, 0.0

    def forget(self, tenant_id: str) -> None:
        self._served.pop(tenant_id, None)

    def _written_off(self, entry: InFlight, service: float) -> Charge:
        outstanding = entry.outstanding
        entry.service, entry.outstanding = entry.service - service, 0.0
        if service:
            self._served[entry.request.tenant_id].add(-service, NO_USAGE, entry.counted)
            entry.counted = NO_USAGE
        return -service, -outstanding


def _charged_before(price: Price, usage: Usage) -> float:
    """What another scheduler charged for this usage; nothing for none, whatever a request without tokens costs."""
    return price.service(*usage) if any(usage) else 0.0
