"""Deleted tenants of this month, by what the audit log has of them: what they used still counts for their group."""

from gateway.registry.registry import Registry

PAGE_ENTRIES = 1000


async def deleted_tenants(registry: Registry, since_s: float) -> dict[str, str]:
    """The group of each tenant that was deleted since then (seconds since 1970) and is not there now. Raises
    StoreUnavailable.
    """
    found: dict[str, str | None] = {}
    before: int | None = None
    while entries := await registry.audit(before=before, limit=PAGE_ENTRIES, kind="tenants"):
        for entry in entries:
            if entry.at_s < since_s:
                return _with_group(found)
            if entry.after is None and registry.get("tenants", entry.name) is None:
                found.setdefault(entry.name, (entry.before or {}).get("group"))  # the newest comes first
        before = entries[-1].revision
    return _with_group(found)


def _with_group(found: dict[str, str | None]) -> dict[str, str]:
    return {name: group for name, group in found.items() if group is not None}
