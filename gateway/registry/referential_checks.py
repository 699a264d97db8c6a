"""Referential checks: changes must not break references between entries (a tenant's tier exists, a tier in use stays).

Only references that a change can break are checked, so that the cost grows with the change and not with the number of
entries.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gateway.config.aliases import chained
from gateway.config.problems import ConfigProblem
from gateway.registry.entries import View
from gateway.registry.resource_kinds import RESOURCE_KINDS
from gateway.store.base import Change
from policies.types import DEFAULT_TIER


class _After:
    """The view as it would be after the changes."""

    def __init__(self, view: View, changes: Sequence[Change]) -> None:
        self._view = view
        self._changed = {(change.kind, change.name): change for change in changes}

    def body(self, kind: str, name: str) -> Mapping[str, Any] | None:
        change = self._changed.get((kind, name))
        if change is not None and change.body is not None:
            return change.body
        if change is not None:
            return self._view.declared_body(kind, name)
        entry = self._view.get(kind, name)
        return None if entry is None else entry.body

    def before(self, kind: str, name: str) -> Mapping[str, Any] | None:
        """The body before the changes."""
        entry = self._view.get(kind, name)
        return None if entry is None else entry.body

    def bodies(self, kind: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        names = {*self._view.names(kind), *(name for changed, name in self._changed if changed == kind)}
        for name in sorted(names):
            body = self.body(kind, name)
            if body is not None:
                yield name, body


def disagreements(view: View, changes: Sequence[Change]) -> Iterator[tuple[Change | None, ConfigProblem]]:
    """The problems that the changes would cause, each with the change that causes it (None: all of them together). The
    path of a problem is within the body of its change.
    """
    after = _After(view, changes)
    for change in changes:
        yield from ((change, problem) for problem in _problems(after, change))
    created = Counter(
        change.kind for change in changes if change.body is not None and view.get(change.kind, change.name) is None
    )
    for kind, count in created.items():
        if len(view.names(kind)) + count > RESOURCE_KINDS[kind].entries_max:
            most = RESOURCE_KINDS[kind].entries_max
            yield None, ConfigProblem((), f"there are {most} {kind}, which is as many as there may be")


def _problems(after: _After, change: Change) -> Iterator[ConfigProblem]:
    if change.body is not None:
        yield from _CHECKS[change.kind](after, change.name, change.body)
    elif change.kind == "tiers":
        yield from _tier_is_free(after, change.name)
    elif change.kind == "groups":
        yield from _group_is_free(after, change.name)


def _tenant(after: _After, name: str, body: Mapping[str, Any]) -> Iterator[ConfigProblem]:
    yield from _tier_is_there(after, body, after.before("tenants", name))
    group_id = body.get("group")
    group = None if group_id is None else after.body("groups", group_id)
    if group_id is not None and group is None:
        yield ConfigProblem(("group",), f"there is no group '{group_id}'")
    elif group is not None and body.get("tier", _tier_of(group)) != _tier_of(group):
        yield ConfigProblem(("tier",), f"must be that of its group, '{_tier_of(group)}', or not be set")


def _group(after: _After, name: str, body: Mapping[str, Any]) -> Iterator[ConfigProblem]:
    before = after.before("groups", name)
    yield from _tier_is_there(after, body, before)
    if before is not None and _tier_of(before) != _tier_of(body):
        for tenant, each in after.bodies("tenants"):
            if each.get("group") == name and each.get("tier", _tier_of(body)) != _tier_of(body):
                yield ConfigProblem(("tier",), f"its tenant '{tenant}' names another tier")
                return


def _tier_is_there(after: _After, body: Mapping[str, Any], before: Mapping[str, Any] | None) -> Iterator[ConfigProblem]:
    tier = _tier_of(body)
    # The file may take a tier away from its members: their other fields can still be changed.
    if before is not None and tier == _tier_of(before):
        return
    if tier != DEFAULT_TIER.id and after.body("tiers", tier) is None:
        yield ConfigProblem(("tier",), f"there is no tier '{tier}'")


def _tier_of(body: Mapping[str, Any]) -> str:
    tier: str = body.get("tier", DEFAULT_TIER.id)
    return tier


def _tier(after: _After, _name: str, body: Mapping[str, Any]) -> Iterator[ConfigProblem]:
    if body.get("reserve_ratio") and sum(each.get("reserve_ratio", 0.0) for _, each in after.bodies("tiers")) >= 1:
        yield ConfigProblem(("reserve_ratio",), "of all tiers together must be less than 1")


def _tier_is_free(after: _After, name: str) -> Iterator[ConfigProblem]:
    if name == DEFAULT_TIER.id or after.body("tiers", name) is not None:
        return
    for kind in ("tenants", "groups"):
        member = next((member for member, body in after.bodies(kind) if body.get("tier") == name), None)
        if member is not None:
            yield ConfigProblem((), f"{kind} are in this tier, like '{member}'")


def _group_is_free(after: _After, name: str) -> Iterator[ConfigProblem]:
    if after.body("groups", name) is not None:
        return
    tenant = next((tenant for tenant, body in after.bodies("tenants") if body.get("group") == name), None)
    if tenant is not None:
        yield ConfigProblem((), f"tenants are in this group, like '{tenant}'")


def _key(after: _After, _name: str, body: Mapping[str, Any]) -> Iterator[ConfigProblem]:
    for holder in ("tenant", "group"):
        name = body.get(holder)
        if name is not None and after.body(f"{holder}s", name) is None:
            yield ConfigProblem((holder,), f"there is no {holder} '{name}'")


def _backend(_after: _After, name: str, body: Mapping[str, Any]) -> Iterator[ConfigProblem]:
    if body.get("name", name) != name:
        yield ConfigProblem(("name",), "must be the name of the entry, or not be set")


def _price(after: _After, _name: str, body: Mapping[str, Any]) -> Iterator[ConfigProblem]:
    if any(each["currency"] != body["currency"] for _, each in after.bodies("prices")):
        yield ConfigProblem(("currency",), "all price lists have one currency, and another list has another")


def _alias(after: _After, name: str, body: Mapping[str, Any]) -> Iterator[ConfigProblem]:
    for target in sorted(_targets(body) - {name}):
        if after.body("aliases", target) is not None:
            yield ConfigProblem(("models",), chained(target))
    other = next((other for other, each in after.bodies("aliases") if other != name and name in _targets(each)), None)
    if other is not None:
        yield ConfigProblem((), f"the alias '{other}' stands for a model of this name: change that first")


def _targets(body: Mapping[str, Any]) -> set[str]:
    shadow = body.get("shadow")
    return {*body["models"], *body.get("split", {}), *([] if shadow is None else [shadow["model"]])}


def _nothing(_after: _After, _name: str, _body: Mapping[str, Any]) -> Iterator[ConfigProblem]:
    return iter(())


_CHECKS: Mapping[str, Callable[[_After, str, Mapping[str, Any]], Iterator[ConfigProblem]]] = {
    "tenants": _tenant,
    "tiers": _tier,
    "groups": _group,
    "keys": _key,
    "backends": _backend,
    "pools": _nothing,
    "prices": _price,
    "aliases": _alias,
}
