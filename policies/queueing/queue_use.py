"""Queue use: the requests in flight from one queue, by tenant, with their reserved tokens and the tenant's share of the
pool. A share counts by the speed of the backends (share_cap.py says why), but in a queue of one backend all have one
speed.
"""

from collections.abc import Callable
from dataclasses import dataclass

from policies.accounts.ledger import InFlight
from policies.queueing.share_cap import InFlightShare
from policies.types import Request


@dataclass(slots=True)
class TenantUse:
    """The requests of one tenant in flight from one queue, as counts. `tokens` are the KV tokens that they reserve.
    `share_tokens` and `share_sequences` are their KV tokens and sequences, each times the speed of its backend, for the
    cap on the tenant's share. Mutable.
    """

    requests: int = 0
    tokens: int = 0
    sequences: int = 0
    share_tokens: float = 0.0
    share_sequences: float = 0.0


NO_USE = TenantUse()


class QueueUse:
    """The requests in flight from one queue, counted by tenant. Mutable."""

    def __init__(
        self,
        limits: Callable[[], tuple[float, float]],
        output_tokens: Callable[[Request], float],
        *,
        counts_speed: bool,
    ) -> None:
        """`limits` gives the sequences and tokens that may be in flight from the queue. `output_tokens` gives the
        output that a request's reservation is sized for.
        """
        self.by_tenant: dict[str, TenantUse] = {}
        """The use by each tenant that has requests in flight."""
        self._output_tokens = output_tokens
        self._limits = limits
        self._counts_speed = counts_speed
        self._share_tokens = 0.0  # of all tenants

    def of(self, tenant_id: str) -> TenantUse:
        return self.by_tenant.get(tenant_id, NO_USE)

    def count(self, entry: InFlight, requests: int, sequences: int, tokens: int) -> None:
        """Add these requests, sequences and reserved tokens of the entry to its tenant's use; negative: remove."""
        tenant_id = entry.request.tenant_id
        if tenant_id not in self.by_tenant:
            self.by_tenant[tenant_id] = TenantUse()
        use = self.by_tenant[tenant_id]
        speed = entry.speed if self._counts_speed else 1.0
        use.requests += requests
        use.sequences += sequences
        use.tokens += tokens
        use.share_sequences += sequences * speed
        use.share_tokens += tokens * speed
        self._share_tokens += tokens * speed
        if not use.requests:
            assert not use.sequences, "nothing in flight is no sequence"
            del self.by_tenant[tenant_id]
            if not self.by_tenant:
                self._share_tokens = 0.0  # drop the rounding error of speeds

    def share_with(self, request: Request) -> InFlightShare:
        """The share of the requests in flight that the request's tenant would have if the request were sent to a
        backend of mean speed.
        """
        use, (sequences_max, tokens_max) = self.by_tenant.get(request.tenant_id, NO_USE), self._limits()
        tokens = request.prompt_tokens + self._output_tokens(request)
        # By "expected" and "peak" the full lengths in flight may exceed what the pool holds at any one moment.
        tokens_max = max(tokens_max, self._share_tokens + tokens)
        return InFlightShare(
            use.share_sequences + request.choices, use.share_tokens + tokens, sequences_max, tokens_max
        )
