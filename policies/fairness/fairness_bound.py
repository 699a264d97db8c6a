"""FairnessBound: how far the service of two tenants may differ under one policy (bounds.py defines the bounds)."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FairnessBound:
    """The bounds that one fairness policy sets to the difference in service between two tenants. `both_wait`,
    `one_waits` and `until_sent` are three bounds for different cases (bounds.py), each as a multiple of U + K. U is the
    price of all that may be in flight at once; K is how far the policy lets a tenant run ahead. `ahead` names the
    policy's parameter that is K; None: K = 0.

    The other two fields are flags for policies with deficits (DRR, DLPM); a policy sets at most one. A tenant gets a
    refund if a prompt was estimated too long, or its backend failed. In VTC, a refund moves the counter back, and U
    includes that. With deficits, the tenant also keeps the quanta that it got before the refund. So U + K grows by all
    that can be refunded at once (`plus_refunds`), or the bounds hold only until the first refund (`until_refund`).
    """

    ahead: str | None = None
    both_wait: float = 2.0
    one_waits: float = 4.0
    until_sent: float = 2.0
    plus_refunds: bool = False
    until_refund: bool = False

    def ahead_service(self, parameters: Mapping[str, object]) -> float:
        """The value of K under these parameters of the policy."""
        ahead = 0.0 if self.ahead is None else parameters[self.ahead]
        assert isinstance(ahead, int | float), self.ahead
        return float(ahead)
