"""LiveGaps: the service gap of each tier of one pool for the live document, and why there may be none.

A gap is between two tenants that both wait throughout an interval: VTC bounds the gap only for such tenants (Sheng et
al., OSDI 2024, Theorem 4.4). If the queues of two tenants run empty between requests, both have requests queued in most
samples, but no gap. The latest result is shown for KEPT_S, so that it does not change with each sample.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from gateway.live.schema import MEASURED, NONE_WAITS, NOT_THROUGHOUT, ONE_WAITS
from gateway.observability.metrics.scheduler_metrics import TierGap

KEPT_S: Final = 60.0  # the longest interval but one that gaps are measured over (service_gap.py)


@dataclass(slots=True)
class _SeenTier:
    gap: TierGap | None = None
    gap_at: float = -inf
    two_at: float = -inf  # when two tenants waited
    one_at: float = -inf  # when any did


class LiveGaps:
    """The latest service gap of each tier of one pool, for the live document (the data of the live page): the largest
    difference in service over weight between two waiting tenants. Mutable.
    """

    def __init__(self) -> None:
        self._tiers: dict[str, _SeenTier] = {}

    def saw(self, gaps: Mapping[str, TierGap], waiting: Mapping[str, int], now: float) -> None:
        """Record the latest measured gaps, and the number of waiting tenants in each tier."""
        self._tiers = {tier_id: self._tiers.get(tier_id) or _SeenTier() for tier_id in waiting}
        for tier_id, count in waiting.items():
            seen, gap = self._tiers[tier_id], gaps.get(tier_id)
            if gap is not None:
                seen.gap, seen.gap_at = gap, now
            if count:
                seen.one_at = now
            if count > 1:
                seen.two_at = now

    def shown(self, tier_id: str, now: float) -> dict[str, Any]:
        """The gap's members of a tier in the live document."""
        seen = self._tiers.get(tier_id) or _SeenTier()
        since = now - KEPT_S
        if seen.gap is not None and seen.gap_at >= since:
            gap, state = seen.gap, MEASURED
            shown = {"gap": rounded(gap.gap), "bound": rounded(gap.bound), "jain": rounded(gap.jain_index, 4)}
            return {**shown, "gap_state": state, "gap_age_s": round(now - seen.gap_at)}
        state = NOT_THROUGHOUT if seen.two_at >= since else ONE_WAITS if seen.one_at >= since else NONE_WAITS
        return {"gap": None, "bound": None, "jain": None, "gap_state": state, "gap_age_s": None}


def rounded(value: float | None, digits: int = 1) -> float | None:
    return None if value is None or value == inf else round(value, digits)
