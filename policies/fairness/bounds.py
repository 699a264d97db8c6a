"""Bounds on the difference in service between two tenants, per policy: one table for checkers, reports and docs.

There are three bounds, each a multiple of U + K over any interval of constant configuration, in service over weight:
- two tenants that wait throughout receive amounts that differ by at most `both_wait` (U + K);
- a tenant that comes and goes receives at most `one_waits` (U + K) more than one that waits throughout;
- the first request of a tenant that had nothing here is sent before the n - 1 others together have received more than
  `until_sent` (n - 1) (U + K), plus the U that was in flight when it arrived.

U, the exposure, is the error of an account although every choice was right: the charges and refunds still to come for
all that is in flight at once. In an engine that is w_p * L_in or w_q * M (VTC, Sheng et al., OSDI 2024,
Theorems 4.4, 4.9, 4.11). At a gateway it is the price of what was sent and has not ended: at most w_q * F for F tokens
that may be in flight, plus the tokens by which prompts were estimated too short. K is how far the policy itself lets a
tenant run ahead: its slack or quantum.

Four rules are the gateway's own. With a cap on a tenant's share of what is in flight (`share_ratio_max` below 1), a
tenant over its cap is passed over while it is behind by no more than G, the price of all tokens that it has in flight
if all were outputs: U + K + G replaces U + K. Tiers keep the first bound among each other, by their own weights, with
K = 0; reserves suspend it. Tokens that are reported late, because no decision depends on them, add nothing.

The fourth is backfilling: a request that fits nowhere is passed over by others while one backend is held for it
(policies/pool/backfill.py). Without it, a tenant that is sent a request is ahead of no waiting tenant by more than K,
by the order, and what it has in flight adds at most U: this gives the bounds. With it, that tenant may be ahead of the
passed one by H, the price of all tokens that were in flight at the held backend if all were outputs, and by its own G
where there is a cap. U + K + H replaces U + K, and U + K + G + H replaces U + K + G: as much may be in flight as with
one more backend. In a pool of one backend there is no other to go to, but a tenant with nothing in flight may take what
the request leaves free there: H is then the price of all tokens of the passed request.

With a placement on arrival the bounds hold for each backend's own queue: with D backends they are D times as large.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FairnessBound:
    """One policy's bounds, in multiples of U + K. `ahead` names the policy's parameter that is K; None: K = 0.

    VTC's accounts move when a request is refunded (its prompt was estimated too long, or its backend failed), and U
    includes that. Deficits were refilled meanwhile and keep the refill. A bound then grows by all that can be refunded
    at once (`plus_refunds`), or holds only until a refund (`until_refund`).
    """

    ahead: str | None = None
    both_wait: float = 2.0
    one_waits: float = 4.0
    until_sent: float = 2.0
    plus_refunds: bool = False
    until_refund: bool = False

    @property
    def formula(self) -> str:
        """`both_wait` as a formula to read, such as "2 (U + K)"."""
        return f"{self.both_wait:g} {'U' if self.ahead is None else '(U + K)'}"


BOUNDS: Mapping[str, FairnessBound | None] = {
    "vtc": FairnessBound(),
    "slack": FairnessBound(ahead="slack_service"),
    "dlpm": FairnessBound(ahead="quantum_service", one_waits=2.0, plus_refunds=True),  # DLPM, Theorems 4.1, 4.2 and A.2
    "drr": FairnessBound(ahead="quantum_service", until_refund=True),
    "lcf": None,  # never lifts, so a tenant that stays away accumulates credit
    "fifo": None,
    "equinox": None,  # experimental
    "justitia": None,  # fair to agents, not to tenants; experimental
}
"""By name of the policy; None: it has no bound."""
