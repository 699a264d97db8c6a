"""What every policy promises about the difference of two tenants: one table, for judges, reports and documentation.

Three promises, each a multiple of U + K over any interval of constant configuration, in service over weight:
- two tenants that both wait all the time receive amounts that differ by at most `both_wait` (U + K);
- one that comes and goes receives at most `one_waits` (U + K) more than one that waits all the time;
- a tenant that had nothing here is sent the first of its requests before the n - 1 others together have received more
  than `until_sent` (n - 1) (U + K), and the U that was in flight when it arrived.

U, the exposure, is how far an account can be off although everybody was chosen rightly: what all that is in flight at
once may yet be charged, or given back. In an engine that is w_p * L_in or w_q * M (VTC, Sheng et al., OSDI 2024,
Theorems 4.4, 4.9, 4.11). At a gateway it is the price of what was sent and has not ended: at most w_q * F for F tokens
that may be in flight, and what prompts may have been estimated too short by. K is by how much the policy itself lets
a tenant run ahead: its slack or quantum.

Four things are the gateway's own. Where a tenant may hold only a part of what is in flight (`share_ratio_max` below
1), it is passed over while it is behind by no more than G, the price of all tokens that it has in flight, were they
all outputs: U + K + G takes the place of U + K. Tiers keep the first promise among each other, by their own weights,
with K = 0; reserves suspend it. Tokens that are told late only because no decision depends on them add nothing.

And one whose request fits nowhere is passed over for others while one backend is held for it
(policies/pool/backfill.py). Without that whoever is sent something is, by the order, ahead of nobody who waits by more
than K; what it has in flight takes it further, by U at most: so the promise. With it whoever is sent something may be
ahead of the one that is passed by H, the price of all tokens that were in flight at the held backend, were they all
outputs, and by its own G where there is a cap. U + K + H takes the place of U + K, and U + K + G + H that of U + K + G:
what may be in flight is as if there were one backend more. A pool of one backend has no other to go to, but a tenant
with nothing in flight may take what the request leaves there: H is then the price of all tokens of the request that is
passed.

With a placement on arrival all of this holds of every backend's own queue: D backends promise D times as much.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FairnessBound:
    """One policy's promises, in multiples of U + K. `ahead` is the parameter that is its K; None: K = 0.

    VTC's accounts move when a request is given back what it was charged (its prompt was estimated too long, its backend
    failed), and U covers that. Deficits were refilled meanwhile and do not forget it: a promise is then larger by all
    that may be given back at once (`plus_refunds`), or holds only as long as nothing is (`until_refund`).
    """

    ahead: str | None = None
    both_wait: float = 2.0
    one_waits: float = 4.0
    until_sent: float = 2.0
    plus_refunds: bool = False
    until_refund: bool = False

    @property
    def formula(self) -> str:
        """The first promise, to be read."""
        return f"{self.both_wait:g} {'U' if self.ahead is None else '(U + K)'}"


BOUNDS: Mapping[str, FairnessBound | None] = {
    "vtc": FairnessBound(),
    "slack": FairnessBound(ahead="slack_service"),
    "dlpm": FairnessBound(ahead="quantum_service", one_waits=2.0, plus_refunds=True),  # DLPM, Theorems 4.1, 4.2 and A.2
    "drr": FairnessBound(ahead="quantum_service", until_refund=True),
    "lcf": None,  # who stays away saves up
    "fifo": None,
    "equinox": None,  # experimental
    "justitia": None,  # fair to agents, not to tenants; experimental
}
"""By name of the policy; None: it promises nothing."""
