"""Tenant directory: the configured tenants, and in open mode one for each key that was seen.

A tenant of open mode never signs off, so at most OPEN_TENANTS_MAX are kept: a new one replaces the one that was idle
longest. That is fair: a forgotten tenant that returns is lifted to the least active counter, as any tenant that was
idle.
"""

from collections.abc import Callable

from policies.types import Reason, Tenant

EVICTION_TRIES_MAX = 16
OPEN_TENANTS_MAX = 10_000  # chosen: their state is bounded, and calls cost the same (tests/calm/test_53)


class TenantDirectory:
    """The table of tenants by id: the configured ones and, if it `is_open`, any other tenant with weight 1. Mutable."""

    def __init__(
        self,
        *,
        is_open: bool,
        forget_if_idle: Callable[[str], bool],
        open_tenants_max: int = OPEN_TENANTS_MAX,
    ) -> None:
        """`forget_if_idle` drops all state of a tenant unless it has requests queued or in flight, and returns whether
        it did.
        """
        self._configured: dict[str, Tenant] = {}
        self._open: dict[str, Tenant] = {}  # the least recently seen is first
        self._open_tenants_max = open_tenants_max if is_open else 0
        self._forget_if_idle = forget_if_idle
        self.reject_reason = Reason.QUEUE_FULL if is_open else Reason.TENANT_UNKNOWN
        """Why a tenant is rejected that `find` does not find: an open directory is full of busy tenants."""

    def find(self, tenant_id: str) -> Tenant | None:
        """The tenant; None where there is no such tenant, or no room for one more."""
        tenant = self._configured.get(tenant_id)
        if tenant is not None:
            return tenant
        tenant = self._open.pop(tenant_id, None)
        if tenant is None:
            if len(self._open) >= self._open_tenants_max and not self._evict():
                return None
            tenant = Tenant(id=tenant_id)
        self._open[tenant_id] = tenant
        return tenant

    def put(self, tenant: Tenant) -> None:
        """Add or replace the configuration of a tenant."""
        self._open.pop(tenant.id, None)
        self._configured[tenant.id] = tenant

    def drop(self, tenant_id: str) -> None:
        """Remove the configuration of a tenant."""
        self._configured.pop(tenant_id, None)

    def _evict(self) -> bool:
        """Forget the tenant that was idle longest; return whether one was found. Busy ones on the way count as just
        seen.
        """
        for _ in range(min(EVICTION_TRIES_MAX, len(self._open))):
            tenant_id = next(iter(self._open))
            tenant = self._open.pop(tenant_id)
            if self._forget_if_idle(tenant_id):
                return True
            self._open[tenant_id] = tenant
        return False
