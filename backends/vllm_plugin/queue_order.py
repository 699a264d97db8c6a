"""Queue order: the order of the waiting queue inside the engine, by tenant, with the gateway's own fairness policies.

The gateway in front decides which requests enter the engine. This order is for engines that hold more waiting requests
than the gateway sends at once, or that serve other clients too. Tiers share by weighted VTC; the tenants of a tier by
`vtc`, or by `dlpm`, which follows the prefix cache as far as every tenant's deficit allows (policies/fairness). The
weights are those of a tenant's latest request. A prompt is charged when it is chosen, without its cached part; the
charge is corrected when its computation begins. Outputs are charged as they are produced.

A chosen request stays ahead of any later choice, so only as many are chosen as a step can begin.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from backends.vllm_plugin.request_envelope import RequestOwner
from policies.accounts.cost import ExtendPrice
from policies.accounts.ledger import Charge, InFlight, Ledger
from policies.fairness.base import Fairness, any_request
from policies.fairness.dlpm import DeficitLongestPrefix
from policies.fairness.tree import FairTree
from policies.fairness.vtc import VirtualTokenCounter
from policies.queues import TenantQueues
from policies.reservation import Reservation
from policies.types import Request, Tenant, Tier, Usage

TENANT_ORDERS: Final[Mapping[str, Callable[[], Fairness]]] = {
    "vtc": VirtualTokenCounter,
    "dlpm": DeficitLongestPrefix,
}
TENANTS_MAX: Final = 10_000  # above this, a tenant's account is dropped with its last request
TIERS_MAX: Final = 100  # above this, new tiers count as NO_TIER
NO_TIER: Final = ""


class TenantOrder:
    """The order of the waiting requests of one engine by tenant, with the tenants' accounts. `cached_tokens` returns
    the number of a waiting request's prompt tokens that are in the prefix cache now. Mutable.
    """

    def __init__(self, order: str, cached_tokens: Callable[[str], int]) -> None:
        self._cached_tokens = cached_tokens
        self._tiers = {NO_TIER: Tier(NO_TIER)}
        self._order = FairTree(TENANT_ORDERS[order], self._tiers.values(), lambda request: cached_tokens(request.id))
        self._ledger = Ledger(ExtendPrice())
        self._queues = TenantQueues()
        self._tenants: dict[str, Tenant] = {}
        self._requests: dict[str, int] = {}  # of each tenant, waiting or running
        self._waiting: dict[str, Request] = {}
        self._chosen: dict[str, None] = {}

    def arrived(self, request_id: str, owner: RequestOwner, *, prompt_tokens: int, arrived_at: float) -> None:
        """Record a waiting request."""
        tenant = self._tenant(owner)
        self._tenants[tenant.id] = tenant
        self._requests[tenant.id] = self._requests.get(tenant.id, 0) + 1
        # Blocks of one token, because `cached_tokens` counts tokens.
        request = Request(request_id, tenant.id, "", arrived_at, prompt_tokens, 0, prefix_block_tokens=1.0)
        self._waiting[request_id] = request
        had_none = not self._queues.of(tenant.id).requests
        self._queues.add(request)
        if had_none:
            self._order.leaf(tenant).joined(tenant.id, self._queues.of(tenant.id).requests)

    def choices(self) -> Iterator[str]:
        """Yield the chosen requests that have not begun; then choose more while the caller iterates."""
        yield from list(self._chosen)
        while (request := self._order.root.pick(any_request)) is not None:
            self._choose(request)
            yield request.id

    def has_begun(self, request_id: str) -> bool:
        """Whether the request has begun and not ended."""
        return request_id in self._ledger.in_flight and request_id not in self._chosen

    def begun(self, request_id: str, computed_tokens: int) -> None:
        """Record that this many tokens of a request's prompt, all that were not cached, will be computed."""
        waiting = self._waiting.get(request_id)
        if waiting is not None:  # the engine passed over the chosen request
            self._choose(waiting)
        self._chosen.pop(request_id, None)
        entry = self._ledger.in_flight[request_id]
        prompt_tokens = entry.request.prompt_tokens
        self._charge(entry, Usage(prompt_tokens, max(0, prompt_tokens - computed_tokens), entry.usage.output_tokens))

    def produced(self, request_id: str, output_tokens: int) -> None:
        """Record the total number of output tokens of a request."""
        entry = self._ledger.in_flight.get(request_id)
        if entry is not None:
            prompt_tokens, cached_tokens, _ = entry.usage
            self._charge(entry, Usage(prompt_tokens, cached_tokens, output_tokens))

    def forget(self, request_id: str) -> None:
        """Drop a request that has ended. If it has not begun, its charge is refunded."""
        request = self._waiting.get(request_id)
        if request is None:
            entry = self._ledger.in_flight[request_id]
            request = entry.request
            charge = self._ledger.closed(entry, is_served=request_id not in self._chosen)
            self._order.charged(self._tenants[request.tenant_id], charge)
            self._chosen.pop(request_id, None)
        else:
            self._leave(request)
        self._requests[request.tenant_id] -= 1
        if not self._requests[request.tenant_id] and len(self._tenants) > TENANTS_MAX:
            tenant = self._tenants.pop(request.tenant_id)
            del self._requests[tenant.id]
            self._ledger.forget(tenant.id)
            self._order.forget(tenant.tier_id, tenant.id)

    def rank(self, owner: RequestOwner) -> float:
        """Return the tenant's rank: its service over its weight, with its lift."""
        return self._order.service_record(self._tenant(owner)).rank

    def _tenant(self, owner: RequestOwner) -> Tenant:
        """Return the tenant of this owner, which has a separate account in each tier that its requests name."""
        is_known = owner.tier in self._tiers or len(self._tiers) < TIERS_MAX
        tier = Tier(owner.tier, owner.tier_weight) if is_known else self._tiers[NO_TIER]
        if self._tiers.get(tier.id) != tier:
            self._tiers[tier.id] = tier
            self._order.set_tiers([tier])
        return Tenant(f"{tier.id}\n{owner.tenant}", owner.weight, tier.id)

    def _choose(self, request: Request) -> None:
        """Choose a request and charge it, so that the next choice includes its charge."""
        tenant = self._tenants[request.tenant_id]
        cached_tokens = min(self._cached_tokens(request.id), request.prompt_tokens)
        usage = Usage(request.prompt_tokens, cached_tokens, 0)
        entry = InFlight(request, "", Reservation(tenant.tier_id, 1, 0), 0.0, 0.0, usage, tenant.weight)
        charge = self._ledger.opened(entry)
        self._order.leaf(tenant).order.dispatched(entry)
        self._order.charged(tenant, charge)
        self._leave(request)
        self._chosen[request.id] = None

    def _leave(self, request: Request) -> None:
        """Remove a request from the queue of its tenant."""
        del self._waiting[request.id]
        self._queues.take(request.tenant_id, request.id)
        if not self._queues.of(request.tenant_id).requests:
            self._order.leaf(self._tenants[request.tenant_id]).left(request.tenant_id)

    def _charge(self, entry: InFlight, usage: Usage) -> None:
        charge: Charge = self._ledger.charge(entry, usage)
        self._order.charged(self._tenants[entry.request.tenant_id], charge)
