"""Bounds on the difference in service between two tenants. Each policy states its own (Fairness.bound).

There are three bounds, each a multiple of U + K over any interval of constant configuration, in service over weight:
- two tenants that wait throughout receive amounts that differ by at most `both_wait` (U + K);
- a tenant that comes and goes receives at most `one_waits` (U + K) more than one that waits throughout;
- the first request of a tenant that had nothing here is sent before the n - 1 others together have received more than
  `until_sent` (n - 1) (U + K), plus the U that was in flight when it arrived.

U, the exposure, is the error of an account although every choice was right: the charges and refunds still to come for
all that is in flight at once. In an engine that is w_p * L_in or w_q * M (VTC, Sheng et al., OSDI 2024, Theorems 4.4,
4.9, 4.11). At a gateway it is the price of the requests that were sent and have not ended: at most w_q * F for F tokens
that may be in flight, plus the tokens by which prompts were estimated too short. K is how far the policy itself lets a
tenant run ahead: its slack or quantum.

Four rules are the gateway's own. With a cap on a tenant's share of the tokens in flight (`share_ratio_max` below 1), a
tenant over its cap is passed over while it is behind by no more than G, the price of all tokens that it has in flight
if all were outputs: U + K + G replaces U + K. Nodes of one parent (policies/fairness/node.py: tiers, and the groups of
a tier) keep the first bound among each other, by their own weights, with K = 0 (`AMONG_NODES`): the derivation counts
no tenants, so it holds at every depth. Tenants have their bound below their node, and a tenant's distance to its exact
share is the sum of the bounds on its path: each node above it adds its own part (docs/fairness.md). Reserves suspend
the bound of tiers. Tokens that are reported late, because no decision depends on them, add nothing.

The fourth is backfilling: a request that fits nowhere is passed over by others while one backend is held for it
(policies/pool/backfill.py). Without it, a tenant that is sent a request is ahead of no waiting tenant by more than K,
by the order, and what it has in flight adds at most U: this gives the bounds. With it, that tenant may be ahead of the
passed one by H, the price of all tokens that were in flight at the held backend if all were outputs, and by its own G
where there is a cap. U + K + H replaces U + K, and U + K + G + H replaces U + K + G: as much may be in flight as with
one more backend. In a pool of one backend there is no other to go to, but a light tenant may take what the request
leaves free there: H is then the price of all tokens of the passed request.

With a placement on arrival the bounds hold for each backend's own queue: with D backends they are D times as large.
"""

from collections.abc import Mapping

from policies.fairness import FAIRNESS
from policies.fairness.fairness_bound import FairnessBound

AMONG_NODES = FairnessBound()
"""The bound among the nodes of one parent; it only promises `both_wait`."""

BOUNDS: Mapping[str, FairnessBound | None] = {name: order.bound for name, order in FAIRNESS.items()}
"""The bound of each policy, by its name; None: it has no bound."""
