"""If this request were let in now, when would it have its first token?

It waits for what is sent before it, in the order in which it will really be served, and then for its prompt. Before it
go its own tenant's requests; meanwhile all others get their shares, and where the tenant is ahead of who is next
they catch up first. That is fluid, and never more than all that waits. What has to end before there is room for
so much is the fleet's to say, by the model of its steps (Fleet.predicted_ttft_s).

A queue that holds only what has arrived since the last decision is no queue: most of it may go at once.
"""

from collections.abc import Callable
from dataclasses import dataclass

from policies.cost import Price
from policies.fleet import Ahead, Fleet
from policies.lanes import Lanes
from policies.queues import Queues
from policies.types import Request, Tenant


@dataclass(slots=True)
class Outlook:
    """What waits, what runs, and what that means for one more. `output_tokens` is what a request is sized at."""

    queues: Queues
    fleet: Fleet
    price: Price
    output_tokens: Callable[[Request], float]
    lanes: Lanes
    _stuck_tiers: frozenset[str] = frozenset()
    _is_asked: bool = False

    def polled(self) -> None:
        """What waits now did not find room."""
        if not self._is_asked:
            return
        restricted = len(self.queues.restricted)  # waits for some backends, and says nothing of all of them
        if len(self.queues) > restricted:
            self._stuck_tiers = frozenset().union(*(lane.order.waiting_tiers() for lane in self.lanes.all()))
        else:
            self._stuck_tiers = frozenset()

    def ttft_s(self, request: Request, tenant: Tenant, now: float) -> float | None:
        """Seconds from now until the first token of a request that arrives now; None where nobody can be sure."""
        self._is_asked = True  # from now on it is worth following
        output_tokens = self.output_tokens(request)
        ahead = self._ahead(request, tenant, output_tokens)
        return self.fleet.predicted_ttft_s(request, now, output_tokens=output_tokens, ahead=ahead)

    def _ahead(self, request: Request, tenant: Tenant, output_tokens: float) -> Ahead | None:
        """What is sent before the request; None where it may go at once, as far as its tier is concerned."""
        if tenant.tier_id not in self._stuck_tiers or not self.queues:
            return None
        queue, waiting = self.queues.of(tenant.id), len(self.queues)
        own_tokens = queue.prompt_tokens + len(queue.requests) * output_tokens
        lane = min(self.lanes.all(), key=lambda lane: lane.lead_service(tenant))
        price = self.price.service(request.prompt_tokens, 0, output_tokens)
        lead_tokens = lane.lead_service(tenant) * (request.prompt_tokens + output_tokens) / price if price else 0.0
        tokens = (own_tokens + lead_tokens) / lane.share_ratio(tenant)
        all_tokens = self.queues.prompt_tokens + waiting * self.fleet.mean_output_tokens()
        ratio = min(1.0, tokens / max(1.0, all_tokens))
        return Ahead(ratio * waiting, ratio * all_tokens)
