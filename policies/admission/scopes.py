"""Scopes: the owners of the limits per minute that hold for a request: its tenant, the tenant's group, and its API key.

Each scope is limited by itself, so a request is admitted where every scope has room for it. The name of a scope, under
which its rate windows are kept, is the tenant's id, or a name that no tenant has.
"""

from collections.abc import Mapping
from typing import NamedTuple

from policies.group_state import GroupState
from policies.types import Group, KeyLimits, Tenant


class Scope(NamedTuple):
    """A tenant, group or API key that has limits per minute: its name and these limits."""

    name: str
    limits: Tenant | Group | KeyLimits


def group_scope(group_id: str) -> str:
    """The name of a group's scope."""
    return f"group={group_id}"


def key_scope(key_id: str) -> str:
    """The name of a key's scope."""
    return f"key={key_id}"


def limited_scopes(tenant: Tenant, key_id: str, groups: Mapping[str, GroupState]) -> list[Scope]:
    """The scopes with limits per minute for a request of this tenant and key, the tenant's own first."""
    scopes = [Scope(tenant.id, tenant)] if tenant.has_rate_limit else []
    state = None if tenant.group_id is None else groups.get(tenant.group_id)
    if state is not None and state.group.has_rate_limit:
        scopes.append(Scope(group_scope(state.group.id), state.group))
    key = tenant.keys.get(key_id) if tenant.keys else None
    if key is not None and key.has_rate_limit:
        scopes.append(Scope(key_scope(key_id), key))
    return scopes
