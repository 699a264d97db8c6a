"""Key limits: the limits of API keys by tenant, as the tenants' settings have them."""

from collections import defaultdict
from collections.abc import Collection, Mapping

from policies.types import KeyLimits


class KeyLimitsByTenant:
    """The limits of the keys that have any. Mutable."""

    def __init__(self) -> None:
        self._tenants: dict[str, str] = {}  # by key
        self._limits: defaultdict[str, dict[str, KeyLimits]] = defaultdict(dict)  # by tenant and key

    def of(self, tenant_id: str) -> Mapping[str, KeyLimits]:
        """The limits of a tenant's keys, by id."""
        return self._limits.get(tenant_id, {})

    def put(self, key_id: str, tenant_id: str | None, limits: KeyLimits | None) -> Collection[str]:
        """Set the limits of a tenant's key; None: the key has none, or was removed. Returns the tenants whose limits
        have changed.
        """
        before = self._tenants.get(key_id)
        if before == tenant_id and tenant_id is not None and self.of(tenant_id).get(key_id) == limits:
            return ()
        if before is not None:
            del self._limits[before][key_id], self._tenants[key_id]
        if tenant_id is None or limits is None:
            return () if before is None else (before,)
        self._tenants[key_id], self._limits[tenant_id][key_id] = tenant_id, limits
        return {tenant_id} if before is None else {before, tenant_id}
