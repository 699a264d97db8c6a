"""Which tenants have series of their own? The ones with the most traffic; all others together are "other".

There may be a hundred thousand tenants, and whoever sends keys at random in open mode makes them up. So at most
`tenants_max` are shown. While there is room everybody is; then a tenant that receives clearly more than the one that
receives least takes its place, and that one's series go. Those of a tenant that is gone, go.
"""

from collections.abc import Callable, Mapping
from heapq import nlargest
from math import exp
from typing import Final

OTHER: Final = "other"
TRAFFIC_S: Final = 300.0  # traffic of so long ago counts a third
AHEAD_RATIO: Final = 2.0  # or two that are alike would take turns
CHANGES_MAX: Final = 8  # at once


class TenantSeries:
    """Chooses who is shown. Mutable."""

    def __init__(self, tenants_max: int, on_gone: Callable[[str], None]) -> None:
        """`on_gone` is told whose series are to be dropped."""
        self._tenants_max = tenants_max
        self._on_gone = on_gone
        self._shown: set[str] = set()
        self._traffic: dict[str, float] = {}  # decayed service
        self._services: Mapping[str, float] = {}
        self._at = 0.0

    @property
    def shown(self) -> int:
        return len(self._shown)

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

    def observe(self, now: float, services: Mapping[str, float]) -> None:
        """These are all tenants there are, and what they have received in all."""
        decay = exp((self._at - now) / TRAFFIC_S)
        before, traffic = self._services, self._traffic
        self._traffic = {
            tenant_id: traffic.get(tenant_id, 0.0) * decay + max(0.0, service - before.get(tenant_id, 0.0))
            for tenant_id, service in services.items()
        }
        self._at, self._services = now, services
        for tenant_id in self._shown - services.keys():
            self._drop(tenant_id)
        for tenant_id in services:
            if len(self._shown) >= self._tenants_max:
                self._exchange()
                break
            self.label(tenant_id, is_known=True)

    def _exchange(self) -> None:
        """Those that are hidden and receive the most, for those that are shown and receive the least."""
        traffic = self._traffic
        hidden = [tenant_id for tenant_id in traffic if tenant_id not in self._shown and tenant_id != OTHER]
        rising = nlargest(CHANGES_MAX, hidden, key=lambda each: (traffic[each], each))
        falling = nlargest(CHANGES_MAX, self._shown, key=lambda each: (-traffic[each], each))
        for up, down in zip(rising, falling, strict=False):
            if traffic[up] <= AHEAD_RATIO * traffic[down]:
                return
            self._drop(down)
            self._shown.add(up)

    def _drop(self, tenant_id: str) -> None:
        self._shown.discard(tenant_id)
        self._on_gone(tenant_id)
