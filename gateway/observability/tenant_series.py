"""Which tenants have series of their own? The ones with the most traffic; all others together are "other".

There may be a hundred thousand tenants, and whoever sends keys at random in open mode makes them up. So at most
`tenants_max` are shown. While there is room everybody is; then a tenant that receives clearly more than the one that
receives least takes its place, and that one's series go. Those of a tenant that is gone, go.

Nothing here takes time in proportion to all tenants at once: they are seen one by one, and of the hidden ones only
those that have just received something are looked at.
"""

from collections.abc import Callable
from heapq import nlargest, nsmallest
from math import exp
from typing import Final

OTHER: Final = "other"
TRAFFIC_S: Final = 300.0  # traffic of so long ago counts a third
EXPONENT_MAX: Final = 300.0  # of the scale: one day
AHEAD_RATIO: Final = 2.0  # or two that are alike would take turns
CHANGES_MAX: Final = 8  # at once


class TenantSeries:
    """Chooses who is shown. Mutable: told of all tenants by `saw`, and of the end of such a look by `looked`."""

    def __init__(self, tenants_max: int, on_gone: Callable[[str], None]) -> None:
        """`on_gone` is told whose series are to be dropped."""
        self._tenants_max = tenants_max
        self._on_gone = on_gone
        self._shown: set[str] = set()
        # Instead of making all old traffic smaller, new traffic counts for more and more.
        self._traffic: dict[str, float] = {}
        self._seen: dict[str, float] = {}  # in this look
        self._missing: set[str] = set()  # shown, and never seen yet
        self._rising: set[str] = set()  # hidden, and received something in this look
        self._scaled_at: float | None = None
        self._scale = 1.0

    @property
    def shown(self) -> int:
        return len(self._shown)

    @property
    def known(self) -> int:
        """How many tenants there were at the last look."""
        return len(self._traffic)

    def shows(self, tenant_id: str) -> bool:
        return tenant_id in self._shown

    def label(self, tenant_id: str, *, is_known: bool) -> str:
        """What the tenant is called in series. `is_known`: it has been in a pool, so that somebody will say when it is
        gone; a name that anybody made up takes no room.
        """
        if tenant_id in self._shown:
            return tenant_id
        if is_known and len(self._shown) < self._tenants_max and tenant_id != OTHER:
            self._shown.add(tenant_id)
            return tenant_id
        return OTHER

    def saw(self, tenant_id: str, received: float) -> str:
        """The tenant is there, and has received so much service since the last look; returns what it is called."""
        before = self._seen.get(tenant_id)
        if before is None:
            before = self._traffic.get(tenant_id, 0.0)
        self._seen[tenant_id] = before + received * self._scale
        label = self.label(tenant_id, is_known=True)
        if received and label == OTHER and tenant_id != OTHER:
            self._rising.add(tenant_id)
        return label

    def looked(self, now: float) -> None:
        """All tenants that there are were seen."""
        before, self._traffic, self._seen = self._traffic, self._seen, {}
        missing = self._shown - self._traffic.keys()
        # One that was never seen may have come during this look: the next one will see it, if anybody does.
        for tenant_id in [each for each in missing if each in before or each in self._missing]:
            self._drop(tenant_id)
        self._missing = missing & self._shown
        self._exchange()
        self._rising.clear()
        self._rescale(now)

    def _exchange(self) -> None:
        """Those that are hidden and receive the most, for those that are shown and receive the least."""
        traffic = self._traffic
        rising = nlargest(CHANGES_MAX, self._rising, key=lambda each: (traffic[each], each))
        falling = nsmallest(CHANGES_MAX, self._shown, key=lambda each: (traffic[each], each)) if rising else []
        for up, down in zip(rising, falling, strict=False):
            if traffic[up] <= AHEAD_RATIO * traffic[down]:
                return
            self._drop(down)
            self._shown.add(up)

    def _rescale(self, now: float) -> None:
        """What is received from now on counts for so much."""
        if self._scaled_at is None:
            self._scaled_at = now
        exponent = (now - self._scaled_at) / TRAFFIC_S
        if exponent > EXPONENT_MAX:
            self._traffic = {tenant_id: each / self._scale for tenant_id, each in self._traffic.items()}
            self._scaled_at, exponent = now, 0.0
        self._scale = exp(exponent)

    def _drop(self, tenant_id: str) -> None:
        self._shown.discard(tenant_id)
        self._on_gone(tenant_id)
