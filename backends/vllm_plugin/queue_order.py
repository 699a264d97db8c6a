"""Whose prompt is begun next, among those that wait inside the engine? By the orders of the gateway's own queues.

The gateway in front decides who enters the engine; this is for engines that let more wait than the gateway sends at
once, or that others use too. Tiers share by weighted VTC and the tenants of a tier by `vtc`, or by `dlpm`, which
follows the prefix cache as far as every tenant's deficit allows (policies/fairness). Weights are those that came with
the latest request. A prompt is charged when it is chosen, without what is cached, and put right when it is begun;
outputs are charged as they are produced.

What was chosen goes before any new choice. So only as many are chosen as a step can begin.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from backends.vllm_plugin.request_envelope import RequestOwner
from policies.accounts.cost import ExtendPrice
from policies.accounts.ledger import Charge, InFlight, Ledger
from policies.fairness.base import Fairness
from policies.fairness.dlpm import DeficitLongestPrefix
from policies.fairness.tiers import TieredFairness
from policies.fairness.vtc import VirtualTokenCounter
from policies.queues import TenantQueues
from policies.reservation import Reservation
from policies.types import Request, Tenant, Tier, Usage

TENANT_ORDERS: Final[Mapping[str, Callable[[], Fairness]]] = {
    "vtc": VirtualTokenCounter,
    "dlpm": DeficitLongestPrefix,
}
TENANTS_MAX: Final = 10_000  # beyond, an account is dropped with its tenant's last request
TIERS_MAX: Final = 100  # beyond, what comes is of the tier without a name
NO_TIER: Final = ""


class TenantOrder:
    """One engine's accounts, and who of those that wait is next. `cached_tokens` tells how much of the prompt of a
    request that waits is in the prefix cache now.
    """

    def __init__(self, order: str, cached_tokens: Callable[[str], int]) -> None:
        self._cached_tokens = cached_tokens
        self._tiers = {NO_TIER: Tier(NO_TIER)}
        self._order = TieredFairness(
            TENANT_ORDERS[order], self._tiers.values(), lambda request: cached_tokens(request.id)
        )
        self._ledger = Ledger(ExtendPrice())
        self._queues = TenantQueues()
        self._tenants: dict[str, Tenant] = {}
        self._requests: dict[str, int] = {}  # of each tenant, waiting or running
        self._waiting: dict[str, Request] = {}
        self._chosen: dict[str, None] = {}

    def arrived(self, request_id: str, owner: RequestOwner, *, prompt_tokens: int, arrived_at: float) -> None:
        """A request waits."""
        tenant = self._tenant(owner)
        self._tenants[tenant.id] = tenant
        self._requests[tenant.id] = self._requests.get(tenant.id, 0) + 1
        # One token for a block: `cached_tokens` counts tokens.
        request = Request(request_id, tenant.id, "", arrived_at, prompt_tokens, 0, prefix_block_tokens=1.0)
        self._waiting[request_id] = request
        had_none = not self._queues.of(tenant.id).requests
        self._queues.add(request)
        if had_none:
            self._order.joined(tenant.tier_id, tenant.id, self._queues.of(tenant.id).requests)

    def choices(self) -> Iterator[str]:
        """The requests that were chosen and are not begun yet; then choose more, for as long as they are asked for."""
        yield from list(self._chosen)
        while (tier_id := self._order.pick_tier(())) is not None:
            request = self._order.pick(tier_id, _any_request)
            assert request is not None, "somebody of the tier waits"
            self._choose(request)
            yield request.id

    def has_begun(self, request_id: str) -> bool:
        """Whether it was begun before, and is not over."""
        return request_id in self._ledger.in_flight and request_id not in self._chosen

    def begun(self, request_id: str, computed_tokens: int) -> None:
        """So much of a request's prompt, all that was not cached, will be computed."""
        waiting = self._waiting.get(request_id)
        if waiting is not None:  # the engine passed over who was chosen
            self._choose(waiting)
        self._chosen.pop(request_id, None)
        entry = self._ledger.in_flight[request_id]
        prompt_tokens = entry.request.prompt_tokens
        self._charge(entry, Usage(prompt_tokens, max(0, prompt_tokens - computed_tokens), entry.usage.output_tokens))

    def produced(self, request_id: str, output_tokens: int) -> None:
        """A request has produced so many tokens in all."""
        entry = self._ledger.in_flight.get(request_id)
        if entry is not None:
            prompt_tokens, cached_tokens, _ = entry.usage
            self._charge(entry, Usage(prompt_tokens, cached_tokens, output_tokens))

    def forget(self, request_id: str) -> None:
        """The request is over. One that was not begun costs nothing."""
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

    def key(self, owner: RequestOwner) -> float:
        """What the tenant has received over its weight, and was lifted to."""
        return self._order.standing(self._tenant(owner)).key

    def _tenant(self, owner: RequestOwner) -> Tenant:
        """A tenant has an account in each tier that it comes with."""
        is_known = owner.tier in self._tiers or len(self._tiers) < TIERS_MAX
        tier = Tier(owner.tier, owner.tier_weight) if is_known else self._tiers[NO_TIER]
        if self._tiers.get(tier.id) != tier:
            self._tiers[tier.id] = tier
            self._order.set_tiers([tier])
        return Tenant(f"{tier.id}\n{owner.tenant}", owner.weight, tier.id)

    def _choose(self, request: Request) -> None:
        """It is next: charge it, so that the one after it is chosen by that."""
        tenant = self._tenants[request.tenant_id]
        cached_tokens = min(self._cached_tokens(request.id), request.prompt_tokens)
        usage = Usage(request.prompt_tokens, cached_tokens, 0)
        entry = InFlight(request, "", Reservation(tenant.tier_id, 1, 0), 0.0, 0.0, usage, tenant.weight)
        charge = self._ledger.opened(entry)
        self._order.dispatched(tenant.tier_id, entry)
        self._order.charged(tenant, charge)
        self._leave(request)
        self._chosen[request.id] = None

    def _leave(self, request: Request) -> None:
        """It waits for no choice any more."""
        del self._waiting[request.id]
        self._queues.take(request)
        if not self._queues.of(request.tenant_id).requests:
            self._order.left(self._tenants[request.tenant_id].tier_id, request.tenant_id)

    def _charge(self, entry: InFlight, usage: Usage) -> None:
        charge: Charge = self._ledger.charge(entry, usage)
        self._order.charged(self._tenants[entry.request.tenant_id], charge)


def _any_request(request: Request) -> bool:  # noqa: ARG001
    return True
