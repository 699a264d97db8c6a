"""TenantSeries: the choice of the tenants that have metric series of their own, by traffic; all others share "other".

There may be a hundred thousand tenants, and in open mode a client that sends random keys creates them at will. So at
most `tenants_max` are shown. While there is room every tenant is shown. Then a hidden tenant that receives clearly more
than the shown tenant that receives least replaces that tenant. The series of replaced and removed tenants are dropped.

No step takes time in proportion to all tenants: tenants are seen one by one, and of the hidden tenants only those that
have just received service are compared.
"""

from collections.abc import Callable, Collection
from heapq import nlargest, nsmallest
from math import exp
from typing import Final

OTHER: Final = "other"
TRAFFIC_S: Final = 300.0  # the time constant of decay: traffic of so long ago counts 1/e, about a third
EXPONENT_MAX: Final = 300.0  # of the scale: reached after about one day
AHEAD_RATIO: Final = 2.0  # two tenants with similar traffic would replace each other in turns otherwise
CHANGES_MAX: Final = 8  # replacements in one look


class TenantSeries:
    """The choice of the tenants that have metric series of their own: those with the most traffic. Mutable. In each
    sample of the metrics, call `saw` for each tenant, and `looked` at the end.
    """

    def __init__(self, tenants_max: int, on_gone: Callable[[str], object]) -> None:
        """`on_gone` is called with the id of a tenant whose series are to be dropped."""
        self._tenants_max = tenants_max
        self._on_gone = on_gone
        self._shown: set[str] = set()
        # Old traffic is not decayed; new traffic is scaled up instead, which costs less.
        self._traffic: dict[str, float] = {}
        self._seen: dict[str, float] = {}  # in this look
        self._used: dict[str, float] = {}  # by calls that have ended since the tenant's last look
        self._missing: set[str] = set()  # shown, and not seen in the last look
        self._rising: set[str] = set()  # hidden, and received service in this look
        self._scaled_at: float | None = None
        self._scale = 1.0

    @property
    def shown(self) -> int:
        return len(self._shown)

    @property
    def names(self) -> Collection[str]:
        """The tenants that have series of their own."""
        return frozenset(self._shown)

    @property
    def known(self) -> int:
        """The number of tenants at the last look."""
        return len(self._traffic)

    def shows(self, tenant_id: str) -> bool:
        return tenant_id in self._shown

    def label(self, tenant_id: str, *, is_known: bool) -> str:
        """The tenant's label in series: its id or "other". A name that a client made up never gets series. `is_known`:
        the tenant has been in a pool, so looks will notice its removal.
        """
        if tenant_id in self._shown:
            return tenant_id
        if is_known and len(self._shown) < self._tenants_max and tenant_id != OTHER:
            self._shown.add(tenant_id)
            return tenant_id
        return OTHER

    def used(self, tenant_id: str, amount: float) -> None:
        """Record the usage of a call of this tenant that ended in this process."""
        self._used[tenant_id] = self._used.get(tenant_id, 0.0) + amount

    def saw(self, tenant_id: str, received: float | None = None) -> str:
        """Count the service that a tenant received since the last look, and return its label. None: another process
        knows the service, so the usage of the tenant's calls in this process counts instead.
        """
        used = self._used.pop(tenant_id, 0.0)
        received = used if received is None else received
        before = self._seen.get(tenant_id)
        if before is None:
            before = self._traffic.get(tenant_id, 0.0)
        self._seen[tenant_id] = before + received * self._scale
        label = self.label(tenant_id, is_known=True)
        if received and label == OTHER and tenant_id != OTHER:
            self._rising.add(tenant_id)
        return label

    def looked(self, now: float) -> None:
        """End a look, in which all present tenants were seen. `now` is in seconds."""
        before, self._traffic, self._seen = self._traffic, self._seen, {}
        missing = self._shown - self._traffic.keys()
        # A tenant that was never seen may have arrived during this look: it is dropped if the next look misses it, too.
        for tenant_id in [each for each in missing if each in before or each in self._missing]:
            self._drop(tenant_id)
        self._missing = missing & self._shown
        for tenant_id in [each for each in self._used if each not in self._traffic]:
            del self._used[tenant_id]  # it is gone
        self._exchange()
        self._rising.clear()
        self._rescale(now)

    def _exchange(self) -> None:
        """Replace the shown tenants that receive least by the hidden ones that receive most. Tenants that this look has
        missed have no traffic yet, and wait for the next look.
        """
        traffic = self._traffic
        rising = nlargest(CHANGES_MAX, self._rising, key=lambda each: (traffic[each], each))
        seen = self._shown - self._missing if rising else ()
        falling = nsmallest(CHANGES_MAX, seen, key=lambda each: (traffic[each], each))
        for up, down in zip(rising, falling, strict=False):
            if traffic[up] <= AHEAD_RATIO * traffic[down]:
                return
            self._drop(down)
            self._shown.add(up)

    def _rescale(self, now: float) -> None:
        """Set the scale of traffic from now on; all traffic is rescaled before the scale grows too far."""
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
