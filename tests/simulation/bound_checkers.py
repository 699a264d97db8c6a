"""Checks of fairness: a policy's bound (policies/fairness/bounds.py) holds for any two tenants over any interval, and
that of weighted VTC for any two groups of a tier and any two tiers. Tenants compare within their group; without one,
within their tier where that has no groups, and where it has, as groups of one tenant.

An interval ends when its bound no longer applies: when tenants or the policy change, or when a tenant that must wait no
longer does. U, G and H are measured in the same run, at their largest so far: the check is as strict as the theory and
uses no capacity. Tenants with an in-flight limit are owed nothing, because they do not wait for what they cannot use.
"""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import combinations

from policies.accounts.cost import LinearPrice, Price
from policies.facts import (
    Adopted,
    PolicyChanged,
    Progressed,
    Readmitted,
    Restored,
    Submitted,
    TenantsChanged,
)
from policies.fairness.bounds import AMONG_NODES
from policies.fairness.fairness_bound import FairnessBound
from policies.types import Dispatch, Request, Tenant
from tests.simulation.recording import Entry, Polled
from tests.simulation.run_accounts import RequestAccounts, RunAccounts, TenantAccounts, require

LINEAR = LinearPrice()


@dataclass(slots=True)
class Exposed:
    """Service over weight: U, its part that may be refunded (E), G, and H."""

    open: float = 0.0
    refundable: float = 0.0
    share: float = 0.0
    held: float = 0.0

    def grow(self, other: "Exposed") -> None:
        """Keep the larger value of each field."""
        self.open = max(self.open, other.open)
        self.refundable = max(self.refundable, other.refundable)
        self.share = max(self.share, other.share)
        self.held = max(self.held, other.held)


class Exposure:
    """Bounds how far the accounts can be off: among the tenants of a group or tier, among the groups of a tier, and
    among tiers, at the largest so far.

    A request in flight, or queued again and still charged, may be charged up to the price of its whole output
    allowance, and may be refunded its charge before its first token. `prompt_error_tokens` is the most by which a
    prompt's estimate may be too short.
    """

    def __init__(self, accounts: RunAccounts, *, price: Price = LINEAR, prompt_error_tokens: int = 0) -> None:
        self._accounts = accounts
        self._price = price
        self._prompt_error_tokens = prompt_error_tokens
        self.tenants: defaultdict[Peers, Exposed] = defaultdict(Exposed)
        """By group, or by tier for tenants without one, over the weights of tenants."""
        self.groups: defaultdict[str, Exposed] = defaultdict(Exposed)
        """By tier, over the weights of its groups."""
        self.among_tiers = Exposed()
        """Over the weights of tiers."""
        self.service = 0.0
        """U of the whole pool, weights left aside."""

    def look(self) -> None:
        """Take in the requests in flight now. Call it after a dispatch, when the exposure is largest."""
        tenants: defaultdict[Peers, Exposed] = defaultdict(Exposed)
        groups: defaultdict[str, Exposed] = defaultdict(Exposed)
        among, service = Exposed(), 0.0
        at_backend: defaultdict[str, float] = defaultdict(float)
        for accounts in self._accounts.requests.values():
            if accounts.backend_id is None and not accounts.service:
                continue
            tenant = self._accounts.tenants[accounts.request.tenant_id].tenant
            own, open_ = tenants[peers_of(tenant)], self._open(accounts)
            service += open_
            own.open += open_ / tenant.weight
            own.refundable += 0.0 if accounts.output_tokens else accounts.service / tenant.weight
            groups[tenant.tier_id].open += open_ / group_weight(self._accounts, tenant)
            among.open += open_ / self._accounts.tiers[tenant.tier_id].weight
            if accounts.backend_id is not None:
                at_backend[accounts.backend_id] += self._worth([accounts.request])
        if len(self._accounts.loads) > 1:
            held = max(at_backend.values(), default=0.0)
        else:
            held = max((self._worth([accounts.request]) for accounts in self._accounts.requests.values()), default=0.0)
        for each in self._accounts.tenants.values():
            worth, tenant = self._worth(each.in_flight.values()), each.tenant
            of_group, of_tier = group_weight(self._accounts, tenant), self._accounts.tiers[tenant.tier_id].weight
            tenants[peers_of(tenant)].grow(Exposed(share=worth / tenant.weight, held=held / tenant.weight))
            groups[tenant.tier_id].grow(Exposed(share=worth / of_group, held=held / of_group))
            among.grow(Exposed(share=worth / of_tier, held=held / of_tier))
        for peers, exposed in tenants.items():
            self.tenants[peers].grow(exposed)
        for tier_id, exposed in groups.items():
            self.groups[tier_id].grow(exposed)
        self.among_tiers.grow(among)
        self.service = max(self.service, service)

    def _open(self, accounts: RequestAccounts) -> float:
        request = accounts.request
        prompt_tokens = request.prompt_tokens + self._prompt_error_tokens
        whole = self._price.service(prompt_tokens, 0, request.output_tokens_max)
        return whole - accounts.service if accounts.output_tokens else whole

    def _worth(self, requests: Collection[Request]) -> float:
        """Price of all tokens that these requests may have in flight, as outputs."""
        tokens = sum(request.prompt_tokens + request.output_tokens_max for request in requests)
        tokens += self._prompt_error_tokens * len(requests)
        return self._price.service(0, 0, tokens) if tokens else 0.0


@dataclass(slots=True)
class _Span:
    """Range of one tenant's lead over another since an interval began."""

    low: float
    high: float
    rise: float = 0.0  # largest rise within the interval

    def look(self, ahead: float) -> None:
        self.low, self.high = min(self.low, ahead), max(self.high, ahead)
        self.rise = max(self.rise, ahead - self.low)


@dataclass(slots=True)
class _Arrival:
    """A request of a tenant that had none here, and every tenant's service when it came."""

    tenant_id: str
    services: dict[str, float] = field(default_factory=dict)


Pair = tuple[str, str]
Peers = tuple[str, str | None]
"""The tier and group of tenants that compare with each other."""


def peers_of(tenant: Tenant) -> Peers:
    return tenant.tier_id, tenant.group_id


def group_weight(accounts: RunAccounts, tenant: Tenant) -> float:
    """The weight of the tenant's group; a tenant without one is a group by itself."""
    return tenant.weight if tenant.group_id is None else accounts.groups[tenant.group_id].weight


class ServiceBound:
    """Check a policy's bounds among the tenants of each group or tier without groups, and those of weighted VTC among
    groups and among tiers; the policy's K is `ahead_service`.

    `is_capped`: a tenant may hold only a part of what is in flight. Runs at most every `every_s` seconds of the run.
    """

    def __init__(
        self,
        accounts: RunAccounts,
        bound: FairnessBound,
        *,
        ahead_service: float = 0.0,
        is_capped: bool = True,
        exposure: Exposure | None = None,
        every_s: float = 0.0,
    ) -> None:
        self._accounts = accounts
        self._bound = bound
        self._ahead_service = ahead_service
        self._is_capped = is_capped
        self._every_s = every_s
        self._judged_at = float("-inf")
        self._both_wait: dict[Pair, _Span] = {}
        self._one_waits: dict[Pair, _Span] = {}
        self._tiers: dict[Pair, _Span] = {}
        self._groups: dict[Pair, _Span] = {}
        self._grouped: set[str] = set()  # tiers in which some tenant has a group
        self._arrivals: dict[str, _Arrival] = {}  # by waiting request
        self._given_back: dict[str, float] = {}
        self.exposure = Exposure(accounts) if exposure is None else exposure
        self.spread_max = 0.0
        """The largest difference of two tenants that both waited, in service over weight."""
        self.used_ratio_max = 0.0
        """The part of what is promised that the worst interval used up."""

    def allowed(self, tenant: Tenant) -> float:
        """U + K among the tenant and its peers, plus what a held backend, a cap or refunds add."""
        return self._sum(self.exposure.tenants[peers_of(tenant)], self._ahead_service)

    def __call__(self, entry: Entry) -> None:
        match entry:
            case Progressed():
                return
            case Polled():
                if any(isinstance(action, Dispatch) for action in entry.actions):
                    self.exposure.look()
            case TenantsChanged() | PolicyChanged() | Restored():
                for each in (self._both_wait, self._one_waits, self._tiers, self._groups, self._arrivals):
                    each.clear()
            case Submitted():
                self._arrived(entry)
            case Adopted() | Readmitted():
                self.exposure.look()
        self._forget_what_ended()
        if isinstance(entry, Polled) and entry.now - self._judged_at >= self._every_s:
            self._judged_at = entry.now
            self._judge()

    # -- intervals -------------------------------------------------------------------------------------------

    def _arrived(self, entry: Submitted) -> None:
        request = entry.request
        tenants = self._accounts.tenants
        accounts = tenants.get(request.tenant_id)
        if accounts is None or len(accounts.queued) > 1 or accounts.in_flight or not self._is_owed(accounts):
            return
        self._look_at_groups()
        if not self._compare(accounts, accounts):
            return  # it competes with groups only
        services = {other_id: other.service for other_id, other in tenants.items() if self._compare(other, accounts)}
        self._arrivals[request.id] = _Arrival(request.tenant_id, services)

    def _forget_what_ended(self) -> None:
        if not self._one_waits and not self._tiers and not self._groups:
            return
        tenants = self._accounts.tenants
        waiting = {tenant_id for tenant_id, accounts in tenants.items() if self._waits(accounts)}
        self._both_wait = {pair: span for pair, span in self._both_wait.items() if waiting.issuperset(pair)}
        self._one_waits = {pair: span for pair, span in self._one_waits.items() if pair[1] in waiting}
        tiers = {tenants[tenant_id].tenant.tier_id for tenant_id in waiting}
        self._tiers = {pair: span for pair, span in self._tiers.items() if tiers.issuperset(pair)}
        groups = {self._group(tenants[tenant_id].tenant) for tenant_id in waiting}
        self._groups = {pair: span for pair, span in self._groups.items() if groups.issuperset(pair)}
        if self._bound.until_refund:
            self._end_at_refunds()

    def _end_at_refunds(self) -> None:
        for tenant_id, accounts in self._accounts.tenants.items():
            if accounts.given_back != self._given_back.get(tenant_id, 0.0):
                self._given_back[tenant_id] = accounts.given_back
                for spans in (self._both_wait, self._one_waits):
                    for pair in [pair for pair in spans if tenant_id in pair]:
                        del spans[pair]

    # -- bounds ----------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        self._look_at_groups()
        tenants = self._accounts.tenants
        waiting = [accounts for accounts in tenants.values() if self._waits(accounts)]
        for one, other in combinations(waiting, 2):
            if self._compare(one, other):
                span = _looked(self._both_wait, one, other)
                spread = span.high - span.low
                self.spread_max = max(self.spread_max, spread)
                self._require(spread, self._bound.both_wait, one, f"{_names(one, other)}, which both wait, differ")
        for one in tenants.values():
            for other in waiting:
                if one is not other and self._compare(one, other):
                    rise = _looked(self._one_waits, one, other).rise
                    self._require(rise, self._bound.one_waits, other, f"{_names(one, other)}, which waits, differ")
        self._judge_groups(waiting)
        self._judge_tiers({accounts.tenant.tier_id for accounts in waiting})
        for request_id, arrival in list(self._arrivals.items()):
            self._judge_arrival(request_id, arrival)

    def _judge_groups(self, waiting: list[TenantAccounts]) -> None:
        """The groups of each tier that has any, of which some tenant waits."""
        for tier_id in sorted(self._grouped):
            leads = {
                self._group(each.tenant): self._group_service(each) / group_weight(self._accounts, each.tenant)
                for each in waiting
                if each.tenant.tier_id == tier_id
            }
            for pair in combinations(sorted(leads), 2):
                ahead = leads[pair[0]] - leads[pair[1]]
                span = self._groups.setdefault(pair, _Span(ahead, ahead))
                span.look(ahead)
                promised = AMONG_NODES.both_wait * self._sum(self.exposure.groups[tier_id], 0.0)
                self._within(span.high - span.low, promised, f"the groups {pair} differ")

    def _judge_tiers(self, tier_ids: set[str]) -> None:
        if any(tier.reserve_ratio for tier in self._accounts.tiers.values()):
            return
        for pair in combinations(sorted(tier_ids), 2):
            one, other = (self._accounts.tier_services[each] / self._accounts.tiers[each].weight for each in pair)
            ahead = one - other
            span = self._tiers.setdefault(pair, _Span(ahead, ahead))
            span.look(ahead)
            promised = AMONG_NODES.both_wait * self._sum(self.exposure.among_tiers, 0.0)
            self._within(span.high - span.low, promised, f"the tiers {pair} differ")

    # -- what is compared ------------------------------------------------------------------------------------

    def _look_at_groups(self) -> None:
        tenants = self._accounts.tenants.values()
        self._grouped = {each.tenant.tier_id for each in tenants if each.tenant.group_id is not None}

    def _compare(self, one: TenantAccounts, other: TenantAccounts) -> bool:
        """Whether the two are of one group, or of one tier without groups. In a tier with groups, tenants without one
        compare as groups do.
        """
        peers = peers_of(one.tenant)
        return peers == peers_of(other.tenant) and (peers[1] is not None or peers[0] not in self._grouped)

    def _group(self, tenant: Tenant) -> str:
        return f"={tenant.id}" if tenant.group_id is None else tenant.group_id

    def _group_service(self, accounts: TenantAccounts) -> float:
        group_id = accounts.tenant.group_id
        return accounts.service if group_id is None else self._accounts.group_services[group_id]

    def _waits(self, accounts: TenantAccounts) -> bool:
        return bool(accounts.queued) and self._is_owed(accounts)

    def _is_owed(self, accounts: TenantAccounts) -> bool:
        """Whether no limit of requests in flight, of its own or its group, may keep the tenant from service."""
        group_id = accounts.tenant.group_id
        limit = None if group_id is None else self._accounts.groups[group_id].in_flight_max
        return accounts.tenant.in_flight_max is None and limit is None

    def _judge_arrival(self, request_id: str, arrival: _Arrival) -> None:
        """Check while the tenant gets no dispatch, and once more when it does: an order may dispatch another of its
        requests before this one.
        """
        accounts, tenants = self._accounts.requests.get(request_id), self._accounts.tenants
        if accounts is None:
            del self._arrivals[request_id]
            return
        own = tenants[arrival.tenant_id]
        if accounts.backend_id is not None or own.service > arrival.services[own.tenant.id]:
            del self._arrivals[request_id]
        received, weights = 0.0, 0.0
        for tenant_id, before in arrival.services.items():
            if tenant_id != arrival.tenant_id and tenant_id in tenants and tenants[tenant_id].service > before:
                received += tenants[tenant_id].service - before
                weights += tenants[tenant_id].tenant.weight
        promised = self._bound.until_sent * weights * self.allowed(own.tenant) + self.exposure.service
        self._within(received, promised, f"{request_id} of {arrival.tenant_id} waits while others receive more")

    def _require(self, difference: float, multiple: float, accounts: TenantAccounts, what: str) -> None:
        self._within(difference, multiple * self.allowed(accounts.tenant), what)

    def _within(self, amount: float, promised: float, what: str) -> None:
        if promised:
            self.used_ratio_max = max(self.used_ratio_max, amount / promised)
        require(amount <= promised * (1 + 1e-9) + 1e-6, f"{what}: by {amount:.1f}, promised is {promised:.1f}")

    def _sum(self, exposed: Exposed, ahead_service: float) -> float:
        cap = exposed.share if self._is_capped else 0.0
        refunds = exposed.refundable if self._bound.plus_refunds else 0.0
        return exposed.open + ahead_service + exposed.held + cap + refunds


def _looked(spans: dict[Pair, _Span], one: TenantAccounts, other: TenantAccounts) -> _Span:
    ahead = one.service / one.tenant.weight - other.service / other.tenant.weight
    span = spans.setdefault((one.tenant.id, other.tenant.id), _Span(ahead, ahead))
    span.look(ahead)
    return span


def _names(one: TenantAccounts, other: TenantAccounts) -> str:
    return f"{one.tenant.id} and {other.tenant.id}"
