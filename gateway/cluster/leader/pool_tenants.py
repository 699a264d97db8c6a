"""PoolTenants: the tenants for which any member has used one pool, as the pool's Scheduler knows them."""

from collections.abc import Callable, Collection

from gateway.cluster.wire import LimitsOf
from policies.admission.scopes import group_scope, key_scope
from policies.facts import TenantsChanged
from policies.scheduler_protocol import SharedSchedulerProtocol
from policies.types import RateLimits, Tenant


class PoolTenants:
    """The tenants that one pool's Scheduler knows. It gives the Scheduler a tenant's settings at the tenant's first
    request, and whenever the settings have changed. Mutable.
    """

    def __init__(self, scheduler: SharedSchedulerProtocol, tenant_of: Callable[[str], Tenant | None]) -> None:
        """`tenant_of` looks a tenant up in the registry, without waiting."""
        self._scheduler = scheduler
        self._tenant_of = tenant_of
        self._tenants: dict[str, Tenant] = {}

    def learn(self, tenant_id: str, now: float) -> bool:
        """Look the tenant up, and tell the Scheduler any change; return whether the registry knows the tenant."""
        tenant = self._tenant_of(tenant_id)
        if tenant is None:
            self.forget(tenant_id, now)
            return False
        told = self._tenants.get(tenant_id)
        if told is not tenant and told != tenant:
            self._tenants[tenant_id] = tenant
            self._scheduler.told(TenantsChanged(now, changed=(tenant,)))
        return True

    def changed(self, tenant_id: str, now: float) -> None:
        """The registry has changed this tenant; apply the change, also to its queued requests."""
        if tenant_id in self._tenants:
            self.learn(tenant_id, now)

    def forget(self, tenant_id: str, now: float) -> None:
        """Forget a tenant: its queued requests are rejected, its running requests continue."""
        if self._tenants.pop(tenant_id, None) is not None:
            self._scheduler.told(TenantsChanged(now, removed=(tenant_id,)))

    def scopes(self, tenant_id: str, key_id: str = "") -> list[str]:
        """The names of the scopes of a request (policies/admission/scopes.py), by the registry."""
        tenant = self._tenant_of(tenant_id)
        group_id = None if tenant is None else tenant.group_id
        scopes = [tenant_id] if group_id is None else [tenant_id, group_scope(group_id)]
        return [*scopes, key_scope(key_id)] if key_id else scopes

    def all(self) -> Collection[Tenant]:
        """All tenants that the Scheduler was told of, with their present settings."""
        return self._tenants.values()

    def rate_limits(self, of: LimitsOf, now: float) -> RateLimits:
        """The limits per minute of a tenant and key; empty for a tenant that has not used this pool."""
        tenant_id, key_id = of
        return self._scheduler.rate_limits(tenant_id, now, key_id) if tenant_id in self._tenants else RateLimits()

    def told_limits(self, of: LimitsOf, now: float) -> RateLimits | None:
        """The limits per minute of a tenant and key; None if the tenant, its group and the key have no such limits."""
        tenant = self._tenants.get(of.tenant_id)
        if tenant is None or not tenant.may_meet_rate_limit(of.key_id):
            return None
        return self.rate_limits(of, now)
