"""Accounts of a run, computed from the calls on a Scheduler and its decisions, independently of its own accounts.

Every request is queued, in flight or gone, and every action is about a queued request (a preemption: about one in
flight). A charge is the price of the reported usage: a dispatch charges the estimated prompt, a returned or interrupted
request keeps its charge, and a request that leaves the queue for good or fails before its first token is refunded.

A Recorder feeds the accounts. They raise ViolationError at the entry that breaks conservation; the checks in
checkers.py read them.
"""

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from policies.accounts.cost import LinearPrice, Price
from policies.facts import (
    Adopted,
    Cancelled,
    Finished,
    Interrupted,
    LoadChanged,
    Measured,
    Parked,
    Progressed,
    Readmitted,
    Returned,
    Spent,
    Submitted,
    TenantsChanged,
    Undelivered,
)
from policies.types import (
    DEFAULT_TIER,
    NO_USAGE,
    BackendLoad,
    Dispatch,
    Group,
    Outcome,
    Preempt,
    Request,
    Snapshot,
    Tenant,
    Tier,
    Usage,
)
from tests.simulation.recording import Entry, Polled

RELATIVE_TOLERANCE = 1e-9  # floats are summed in another order
ABSOLUTE_TOLERANCE = 1e-3


class ViolationError(AssertionError):
    """A rule that holds for every run was broken."""


def require(holds: object, rule: str, *values: object) -> None:
    """Raise ViolationError with this rule, formatted with these values, unless it holds. Rules hold by the ten thousand
    in a run, so none is written out that does.
    """
    if not holds:
        raise ViolationError(rule.format(*values) if values else rule)


@dataclass(slots=True)
class TenantAccounts:
    """Accounts of one tenant: queued requests (oldest first), requests in flight, service charged and refunded."""

    tenant: Tenant
    queued: OrderedDict[str, Request] = field(default_factory=OrderedDict)
    in_flight: dict[str, Request] = field(default_factory=dict)
    service: float = 0.0
    given_back: float = 0.0


@dataclass(slots=True)
class RequestAccounts:
    """Accounts of one live request; without a backend it is queued."""

    request: Request
    backend_id: str | None = None
    output_tokens: int = 0
    service: float = 0.0
    has_used: bool = True
    """Whether anything was computed for it, by the usage told last."""
    usage: Usage = NO_USAGE
    """As told last; before that, as its dispatch assumed."""
    output_before: int = 0
    """Output that it had when it was interrupted last."""


class RunAccounts:
    """The accounts of one pool. `compare` them with a Scheduler's snapshot after a poll, and `conclude` at the end."""

    def __init__(
        self,
        *,
        tenants: Iterable[Tenant],
        tiers: Iterable[Tier] = (DEFAULT_TIER,),
        groups: Iterable[Group] = (),
        price: Price | None = None,
    ) -> None:
        self.tenants = {tenant.id: TenantAccounts(tenant) for tenant in tenants}
        self.tiers = {tier.id: tier for tier in tiers}
        self.groups = {group.id: group for group in groups}
        self.loads: dict[str, BackendLoad] = {}
        self.held_until: dict[str, float] = {}
        self.requests: dict[str, RequestAccounts] = {}
        self.parked: set[str] = set()
        """Ids of requests that wait outside of the queue."""
        self.requests_at: Counter[str] = Counter()
        self.sequences_at: Counter[str] = Counter()
        self.tier_services: defaultdict[str, float] = defaultdict(float)
        self.group_services: defaultdict[str, float] = defaultdict(float)
        self._price = price or LinearPrice()
        self._removed: set[str] = set()
        self._tiers_removed: set[str] = set()

    def __call__(self, entry: Entry) -> None:
        match entry:
            case Progressed():
                self._progressed(entry.request_id, entry.usage)
            case Polled():
                self._polled(entry)
            case Submitted():
                self._submitted(entry.request)
            case Finished():
                self._finished(entry.request_id, entry.outcome)
            case Returned() | Interrupted():
                self._waits_again(entry)
            case Cancelled():
                self._cancelled(entry.request_id)
            case Spent():
                self._spent(entry.tenant_id, entry.usage)
            case LoadChanged() | Measured():
                self._load_changed(entry)
            case TenantsChanged():
                self._tenants_changed(entry)
            case _:
                self._handed_over(entry)

    def _handed_over(self, entry: Entry) -> None:
        match entry:
            case Adopted():
                self._adopted(entry)
            case Readmitted():
                self._readmitted(entry)
            case Parked():
                self._parked(entry.request_id)
            case Undelivered():
                self._returned(entry.request_id, float("-inf"))

    def conclude(self, snapshot: Snapshot) -> None:
        """Check that all has ended: no request is left, and nothing is reserved or outstanding.
        Raises ViolationError.
        """
        require(not self.requests, "every request ends")
        self.compare(snapshot)
        require(snapshot.queued_bytes == 0, "empty queues hold no bytes")
        for backend in snapshot.backends.values():
            require(backend.reserved_tokens == 0, "nothing in flight reserves nothing")
        for tenant in snapshot.tenants.values():
            require(tenant.in_flight_tokens == 0, "nothing in flight holds no tokens")
            require(_equal(tenant.rank, tenant.counter), "nothing in flight leaves nothing outstanding")

    def compare(self, snapshot: Snapshot) -> None:
        """Check that the Scheduler's snapshot agrees with these accounts. A request that `submit` rejected counts until
        the next poll. Raises ViolationError.
        """
        in_flight = self.requests_at.total()
        require(
            snapshot.in_flight_requests == in_flight, "{} in flight, not {}", in_flight, snapshot.in_flight_requests
        )
        queued = len(self.requests) - in_flight - len(self.parked)
        require(snapshot.queued_requests == queued, "{} queued, not {}", queued, snapshot.queued_requests)
        for tenant_id in self._removed - snapshot.tenants.keys():
            require(not self.tenants[tenant_id].in_flight, "a tenant is forgotten when its last request has ended")
            del self.tenants[tenant_id]
            self._removed.discard(tenant_id)
        for tier_id in self._tiers_removed - {accounts.tenant.tier_id for accounts in self.tenants.values()}:
            require(tier_id not in snapshot.tiers, "{} is forgotten when its last tenant is", tier_id)
            del self.tiers[tier_id]
            self.tier_services.pop(tier_id, None)
            self._tiers_removed.discard(tier_id)
        require(snapshot.tiers.keys() == self.tiers.keys(), "the tiers are {}", sorted(self.tiers))
        for tenant_id, accounts in self.tenants.items():
            view = snapshot.tenants[tenant_id]
            require(view.queued_requests == len(accounts.queued), "{}: {} queued", tenant_id, len(accounts.queued))
            require(
                view.in_flight_requests == len(accounts.in_flight),
                "{}: {} in flight",
                tenant_id,
                len(accounts.in_flight),
            )
            require(
                _equal(view.service, accounts.service),
                "{}: charged {}, not {}",
                tenant_id,
                accounts.service,
                view.service,
            )
        for backend_id, backend in snapshot.backends.items():
            running = self.requests_at[backend_id]
            require(backend.in_flight_requests == running, "{}: {} in flight", backend_id, running)

    # -- facts -----------------------------------------------------------------------------------------------

    def _submitted(self, request: Request) -> None:
        require(request.id not in self.requests, "{} lives once", request.id)
        self.requests[request.id] = RequestAccounts(request)
        if request.tenant_id in self.tenants:
            self.tenants[request.tenant_id].queued[request.id] = request

    def _progressed(self, request_id: str, usage: Usage) -> None:
        accounts = self._running(request_id)
        if accounts is not None:
            accounts.usage, accounts.output_tokens = usage, usage.output_tokens
            accounts.has_used = usage.prompt_tokens > 0 or usage.output_tokens > 0
            self._charge(accounts, self._price.service(*usage))

    def _finished(self, request_id: str, outcome: Outcome) -> None:
        accounts = self._running(request_id)
        if accounts is None:
            return
        if not accounts.has_used or (outcome is Outcome.BACKEND_FAILED and not accounts.output_tokens):
            self._charge(accounts, 0.0)
        self._leave_backend(accounts)
        del self.requests[request_id]

    def _waits_again(self, entry: Returned | Interrupted) -> None:
        accounts = self._running(entry.request_id)
        if accounts is not None and isinstance(entry, Interrupted):
            self._progressed(entry.request_id, entry.usage)
            accounts.output_before = entry.usage.output_tokens
        self._returned(entry.request_id, entry.now + entry.hold_s)

    def _returned(self, request_id: str, held_until: float) -> None:
        accounts = self._running(request_id)
        if accounts is None:
            return
        assert accounts.backend_id is not None
        if accounts.backend_id in self.loads:  # a backend that is gone gets no dispatch anyway
            self.held_until[accounts.backend_id] = max(self.held_until.get(accounts.backend_id, 0.0), held_until)
        self._leave_backend(accounts)
        queued = self.tenants[accounts.request.tenant_id].queued
        queued[request_id] = accounts.request
        queued.move_to_end(request_id, last=False)

    def _cancelled(self, request_id: str) -> None:
        accounts = self.requests.get(request_id)
        if accounts is None:
            return
        if accounts.backend_id is None:
            self._leave_queue(accounts)
            return
        if not accounts.output_before:
            self._charge(accounts, 0.0)  # nothing was sent
        self._leave_backend(accounts)
        del self.requests[request_id]

    def _adopted(self, entry: Adopted) -> None:
        request = entry.request
        require(request.id not in self.requests, "{} lives once", request.id)
        service = self._price.service(*entry.usage)  # charged elsewhere
        self.requests[request.id] = RequestAccounts(
            request,
            entry.backend_id,
            entry.usage.output_tokens,
            service,
            usage=entry.usage,
            output_before=request.produced_tokens,
        )
        self.tenants[request.tenant_id].in_flight[request.id] = request
        self.requests_at[entry.backend_id] += 1
        self.sequences_at[entry.backend_id] += request.choices

    def _readmitted(self, entry: Readmitted) -> None:
        request, prepaid = entry.request, entry.prepaid
        require(request.id in self.parked or request.id not in self.requests, "{} lives once", request.id)
        self.parked.discard(request.id)
        accounts = self.requests.setdefault(request.id, RequestAccounts(request))
        accounts.request = request
        if prepaid is not None and not accounts.service:
            accounts.service = self._price.service(*prepaid)
            if entry.usage is not None:
                accounts.usage = entry.usage
                accounts.output_tokens = accounts.output_before = entry.usage.output_tokens
                if request.tenant_id in self.tenants:
                    self._charge(accounts, self._price.service(*entry.usage))
        if request.tenant_id in self.tenants:
            queued = self.tenants[request.tenant_id].queued
            queued[request.id] = request
            if accounts.output_before:
                queued.move_to_end(request.id, last=False)
            else:
                for later in [each for each in queued.values() if each.arrived_at > request.arrived_at]:
                    queued.move_to_end(later.id)

    def _parked(self, request_id: str) -> None:
        accounts = self.requests.get(request_id)
        if accounts is not None and accounts.backend_id is None:
            self.parked.add(request_id)
            self.tenants[accounts.request.tenant_id].queued.pop(request_id)

    def _spent(self, tenant_id: str, usage: Usage) -> None:
        if tenant_id in self.tenants.keys() - self._removed:
            service = self._price.service(*usage)
            self._received(self.tenants[tenant_id], service)

    def _load_changed(self, entry: LoadChanged | Measured) -> None:
        if isinstance(entry, Measured):
            self.loads[entry.load.backend_id] = entry.load
            return
        self.loads = {load.backend_id: load for load in entry.loads}
        self._forget_gone_backends()

    def _tenants_changed(self, entry: TenantsChanged) -> None:
        self.tiers.update((tier.id, tier) for tier in entry.tiers)
        self.groups.update((group.id, group) for group in entry.groups)
        for tenant in entry.changed:
            self.tenants.setdefault(tenant.id, TenantAccounts(tenant)).tenant = tenant
            self._removed.discard(tenant.id)
        self._removed.update(self.tenants.keys() & entry.removed)
        self._tiers_removed -= {tier.id for tier in entry.tiers} | {tenant.tier_id for tenant in entry.changed}
        self._tiers_removed |= self.tiers.keys() & entry.tiers_removed

    # -- decisions -------------------------------------------------------------------------------------------

    def _polled(self, entry: Polled) -> None:
        for action in entry.actions:
            accounts = self.requests.get(action.request_id)
            if isinstance(action, Preempt):
                may_be = accounts is not None and accounts.backend_id is not None
                require(may_be, "{} is about a request at a backend", action)
                may_be = accounts is not None and (accounts.request.is_resumable or not accounts.output_tokens)
                require(may_be, "{} is about a request that has not begun, or is resumable", action)
                continue
            if accounts is None or accounts.backend_id is not None:
                raise ViolationError(f"{action} is about a request that does not wait")
            if isinstance(action, Dispatch):
                self._dispatched(action, accounts, entry.now)
            else:
                require(action.retry_after_s >= 0, "{} must not lie in the past", action)
                self._leave_queue(accounts)

    def _dispatched(self, action: Dispatch, accounts: RequestAccounts, now: float) -> None:
        load = self.loads.get(action.backend_id)
        require(load and load.available, "{}: the backend is not there", action)
        require(now >= self.held_until.get(action.backend_id, 0.0), "{}: the backend is held", action)
        request = accounts.request
        tenant = self.tenants[request.tenant_id]
        tenant.in_flight[request.id] = tenant.queued.pop(request.id)
        accounts.backend_id = action.backend_id
        self.requests_at[action.backend_id] += 1
        self.sequences_at[action.backend_id] += request.choices
        if not accounts.output_before:
            accounts.usage = Usage(request.prompt_tokens, action.cached_tokens, 0)
            self._charge(accounts, self._price.service(*accounts.usage))

    def _leave_queue(self, accounts: RequestAccounts) -> None:
        if accounts.request.tenant_id in self.tenants and not accounts.output_before:
            self._charge(accounts, 0.0)
        del self.requests[accounts.request.id]
        self.parked.discard(accounts.request.id)
        if accounts.request.tenant_id in self.tenants:
            self.tenants[accounts.request.tenant_id].queued.pop(accounts.request.id, None)

    def _leave_backend(self, accounts: RequestAccounts) -> None:
        assert accounts.backend_id is not None
        del self.tenants[accounts.request.tenant_id].in_flight[accounts.request.id]
        self.requests_at[accounts.backend_id] -= 1
        self.sequences_at[accounts.backend_id] -= accounts.request.choices
        accounts.backend_id = None
        self._forget_gone_backends()

    def _forget_gone_backends(self) -> None:
        """Forget the holds of backends that are gone and run no request: such a backend returns as a new one,
        not held.
        """
        for backend_id in self.held_until.keys() - self.loads.keys():
            if not self.requests_at[backend_id]:
                del self.held_until[backend_id]

    def _charge(self, accounts: RequestAccounts, service: float) -> None:
        if service != accounts.service:
            tenant = self.tenants[accounts.request.tenant_id]
            self._received(tenant, service - accounts.service)
            tenant.given_back += max(0.0, accounts.service - service)
            accounts.service = service

    def _received(self, accounts: TenantAccounts, service: float) -> None:
        accounts.service += service
        self.tier_services[accounts.tenant.tier_id] += service
        if accounts.tenant.group_id is not None:
            self.group_services[accounts.tenant.group_id] += service

    def is_at_limit(self, accounts: TenantAccounts) -> bool:
        """Whether the tenant, or its group, has as many requests in flight as it may."""
        tenant = accounts.tenant
        limit = tenant.in_flight_max
        if limit is not None and len(accounts.in_flight) >= limit:
            return True
        group = None if tenant.group_id is None else self.groups[tenant.group_id]
        return group is not None and group.in_flight_max is not None and self.in_flight_of(group) >= group.in_flight_max

    def may_hold(self, accounts: TenantAccounts) -> bool:
        """Whether some of the tenant's queued requests may wait for room of their keys."""
        return any(self.key_in_flight_max(each) is not None for each in accounts.queued.values())

    def key_in_flight_max(self, request: Request) -> int | None:
        """How many requests of the request's key may be in flight."""
        accounts = self.tenants.get(request.tenant_id)
        limits = None if accounts is None else accounts.tenant.keys.get(request.key_id)
        return None if limits is None else limits.in_flight_max

    def in_flight_of(self, group: Group) -> int:
        """Number of the group's requests in flight."""
        return sum(len(each.in_flight) for each in self.tenants.values() if each.tenant.group_id == group.id)

    def _running(self, request_id: str) -> RequestAccounts | None:
        """Return the request if it is in flight: facts about one that ended, or waits, change nothing."""
        accounts = self.requests.get(request_id)
        return accounts if accounts is not None and accounts.backend_id is not None else None


def _equal(one: float, other: float) -> bool:
    return abs(one - other) <= ABSOLUTE_TOLERANCE + RELATIVE_TOLERANCE * max(abs(one), abs(other))
