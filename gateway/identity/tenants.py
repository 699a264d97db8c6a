"""Which tenants are there? The configured ones, and in open mode those that came by themselves.

Nobody announces that a tenant of open mode will not come back, so there are at most `open_tenants_max` of
them: a new one takes the place of the one that was idle longest. That is fair to all: a tenant that is
forgotten and comes back is lifted to the least active counter, as any tenant is that was away.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from policies.types import Reason, Tenant

EVICTION_TRIES_MAX = 16


class TenantDirectory(Protocol):
    """Who is this tenant?"""

    refusal: Reason
    """What a request is told whose tenant is not found."""

    def find(self, tenant_id: str) -> Tenant | None:
        """Return the tenant, None where there is no such tenant, or no room for one more."""
        ...

    def put(self, tenant: Tenant) -> None:
        """The tenant is configured like this from now on."""
        ...

    def drop(self, tenant_id: str) -> None:
        """The tenant is not configured any more."""
        ...


class ConfiguredTenants:
    """Those of the configuration and no others."""

    refusal = Reason.TENANT_UNKNOWN

    def __init__(self, tenants: Iterable[Tenant]) -> None:
        self._tenants = {tenant.id: tenant for tenant in tenants}

    def find(self, tenant_id: str) -> Tenant | None:
        return self._tenants.get(tenant_id)

    def put(self, tenant: Tenant) -> None:
        self._tenants[tenant.id] = tenant

    def drop(self, tenant_id: str) -> None:
        self._tenants.pop(tenant_id, None)


class OpenTenants:
    """Everybody, with weight 1 unless configured otherwise. Mutable."""

    refusal = Reason.QUEUE_FULL  # all tenants there is room for are busy

    def __init__(
        self, tenants: Iterable[Tenant], *, open_tenants_max: int, forget_if_idle: Callable[[str], bool]
    ) -> None:
        """`forget_if_idle`: forget this tenant everywhere, unless it has anything queued or in flight; did it?"""
        self._configured = {tenant.id: tenant for tenant in tenants}
        self._open: dict[str, Tenant] = {}  # the one that came longest ago is first
        self._open_tenants_max = open_tenants_max
        self._forget_if_idle = forget_if_idle

    def find(self, tenant_id: str) -> Tenant | None:
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
        self._open.pop(tenant.id, None)
        self._configured[tenant.id] = tenant

    def drop(self, tenant_id: str) -> None:
        self._configured.pop(tenant_id, None)

    def _evict(self) -> bool:
        """Forget the tenant that was idle longest. Busy ones on the way count as having just come."""
        for _ in range(min(EVICTION_TRIES_MAX, len(self._open))):
            tenant_id = next(iter(self._open))
            tenant = self._open.pop(tenant_id)
            if self._forget_if_idle(tenant_id):
                return True
            self._open[tenant_id] = tenant
        return False
