"""Reconciler: makes the running gateway equal the registry's desired state, at once and without harm to running
requests.

The registry reports which entries are new, changed or removed, whatever the source (this gateway's API, another
replica, a reload of the file); one method per kind applies them. A backend that is no longer wanted is retired, and
removed once it runs none of this gateway's requests; until then a new backend of the same name has to wait.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from backends.address_allowlist import AddressAllowlist
from backends.tls import tls_context_of
from gateway.budgets.accounts import BudgetLimits, group_holder, limits_of
from gateway.budgets.budgets import BUDGETED, Budgets
from gateway.config.aliases import AliasSection
from gateway.config.config import backend_spec, envelope_of, policy_group, policy_key, policy_tenant, policy_tier
from gateway.config.files import resolve_files
from gateway.config.prices import PriceSection
from gateway.config.scheduling import Scheduling
from gateway.config.sections import GroupSection, Section, TenantSection, TierSection
from gateway.config.step_time import read_configured_step_time
from gateway.identity.auth import Identity
from gateway.parts import GatewayParts
from gateway.registry.entries import Entry
from gateway.registry.registry import Changed, Registry
from gateway.registry.resource_kinds import ApiKey, ManagedBackend
from gateway.scheduling.assembly import policy_choices
from gateway.store.base import StoreUnavailable
from gateway.store.periodic import Periodic
from policies import types as policy

REMOVE_RETIRED_S = 0.1

S = TypeVar("S", bound=Section)
P = TypeVar("P", policy.Tenant, policy.Group)

log = logging.getLogger(__name__)


class BudgetReconciler:
    """The part of the reconciler that applies price lists and budgets from the registry."""

    def __init__(self, registry: Registry, budgets: Budgets, *, keeps_state: bool) -> None:
        """`keeps_state`: whether usage is counted and stored."""
        self._registry = registry
        self._budgets = budgets
        self._keeps_state = keeps_state

    async def start(self, *, recalls_deleted: bool) -> None:
        """Apply all entries of the registry, and then every change to them. `recalls_deleted`: budgets of groups also
        count the usage of tenants that were deleted before.
        """
        self._prices_changed(frozenset({("prices", "")}))
        self._registry.subscribe(self._prices_changed)
        self._budgets_changed(frozenset((kind, e.name) for kind in BUDGETED for e in self._registry.entries(kind)))
        self._registry.subscribe(self._budgets_changed)
        if recalls_deleted:
            await self._recall_deleted_tenants()

    def _prices_changed(self, changed: Changed) -> None:
        if any(kind == "prices" for kind, _ in changed):
            lists = {each.name: each.of(PriceSection) for each in self._registry.entries("prices")}
            self._budgets.prices.replace(lists)
            self._budgets.past.repriced()

    async def _recall_deleted_tenants(self) -> None:
        """Recall this month's deleted tenants, also from before this start, because budgets of groups count them."""
        month_began_at = datetime.fromisoformat(self._budgets.book.today()).replace(day=1, tzinfo=UTC)
        try:
            deleted = await self._registry.deleted_since("tenants", month_began_at.timestamp())
            for tenant, group in ((name, section.get("group")) for name, section in deleted.items()):
                if group is not None:
                    self._budgets.put_group(tenant, group)
                    self._budgets.tenant_deleted(tenant)
        except StoreUnavailable as error:
            log.warning("what deleted tenants have used of their groups' budgets cannot be read: %s", error)

    def _budgets_changed(self, changed: Changed) -> None:
        for kind, name in changed:
            entry = self._registry.get(kind, name) if kind in BUDGETED else None
            section = None if entry is None else entry.section
            if limits_of(section) != BudgetLimits() and not self._keeps_state:
                log.warning(
                    "%s %s has a budget, which is kept from the next start on: usage is not counted", kind, name
                )
            if kind == "tenants":
                self._budgets.put((name, ""), limits_of(section))
                if isinstance(section, TenantSection):
                    self._budgets.put_group(name, section.group)
                else:
                    self._budgets.tenant_deleted(name)
            elif kind == "groups":
                self._budgets.put(group_holder(name), limits_of(section))
            elif isinstance(section, ApiKey) and section.tenant is not None:
                self._budgets.put((section.tenant, name), limits_of(section))
            elif kind == "keys":
                self._budgets.forget_key(name)


class BackendReconciler:
    """The part of the reconciler that adds, changes and removes a gateway's backends. Call `start` on the loop that
    serves, and `stop`.
    """

    def __init__(
        self, registry: Registry, parts: GatewayParts, *, address_allowlist: AddressAllowlist, folder: Path
    ) -> None:
        """`address_allowlist` has the networks that undeclared backends may be in; `folder` is the base of relative
        paths.
        """
        self._registry = registry
        self._pools, self._backends, self._clients = parts.pools, parts.backends, parts.clients
        self._address_allowlist = address_allowlist
        self._folder = folder
        self._urls: dict[str, str] = {}  # of the backends in the pool, by id
        self._faults: dict[str, str] = {}  # why a wanted backend could not be added
        self._stuck: set[str] = set()  # retired ones that could not be removed
        self._remover = Periodic(self._remove_retired, REMOVE_RETIRED_S, "remove retired backends")

    def start(self) -> None:
        self._urls = {backend_id: self._backends[backend_id].spec.url for backend_id in self._backends.backend_ids()}
        self._remover.start()

    async def stop(self) -> None:
        await self._remover.stop()

    def fault(self, backend_id: str) -> str:
        """The reason why a wanted backend could not be added; "" where it was added."""
        return self._faults.get(backend_id, "")

    def match(self) -> None:
        """Retire backends that are not wanted or have another URL, then add or update the wanted ones whose names are
        free.
        """
        wanted = {entry.name: entry for entry in self._registry.entries("backends")}
        self._faults.clear()
        for backend_id in self._backends.backend_ids():
            entry = wanted.get(backend_id)
            is_ours = backend_id in self._urls
            if is_ours and (entry is None or entry.of(ManagedBackend).url != self._urls[backend_id]):
                self._backends.retire(backend_id)
        for backend_id, entry in wanted.items():
            self._match(backend_id, entry)

    def _match(self, backend_id: str, entry: Entry) -> None:
        section = resolve_files(entry.of(ManagedBackend), self._folder)
        if backend_id in self._backends.leaving_ids():
            self._faults[backend_id] = "another backend of this name is leaving"
            return
        if backend_id not in self._clients.by_id:
            try:
                self._add(backend_id, entry)
            except ValueError as error:
                log.error("backend %s: %s", backend_id, error)  # noqa: TRY400 - its text says all
                self._faults[backend_id] = str(error)
                return
        self._backends.drain(backend_id, draining=section.draining)
        spec = self._backends[backend_id].spec
        self._backends.resize(
            replace(
                spec,
                requests_running_max=section.requests_running_max,
                kv_tokens_max=section.kv_tokens_max,
                step_tokens_max=section.step_tokens_max,
                prompt_step_tokens_max=section.prompt_step_tokens_max,
                # The step time file is read when its backend is added, not with every change.
                step_time=spec.step_time if section.step_time_file is not None else read_configured_step_time(section),
            )
        )

    def _add(self, backend_id: str, entry: Entry) -> None:
        """Add a wanted backend. Raises ValueError where it cannot be added."""
        section = resolve_files(entry.of(ManagedBackend), self._folder)
        # The operator may declare any address in the file. The API may keep that URL in its entry, but give no other.
        declared = self._registry.view.declared_body("backends", backend_id)
        is_declared_url = declared is not None and declared["url"] == entry.body["url"]
        address_allowlist = None if is_declared_url else self._address_allowlist
        spec = backend_spec(section.model_copy(update={"name": backend_id}), address_allowlist)
        if section.ca_pem is not None:
            spec = replace(spec, tls=tls_context_of(section.ca_pem))
        backend_client = self._clients.make(spec)
        self._backends.add(spec)
        self._clients.by_id[backend_id] = backend_client
        self._urls[backend_id] = section.url

    async def _remove_retired(self) -> None:
        leaving = self._backends.leaving_ids()
        self._stuck.intersection_update(leaving)
        for backend_id in leaving:
            try:
                await self._forget_if_idle(backend_id)
            except Exception:  # a failure of one must not keep the others from being removed
                if backend_id not in self._stuck:  # retried every REMOVE_RETIRED_S, logged once
                    log.exception("backend %s: it could not be taken away", backend_id)
                self._stuck.add(backend_id)

    async def _forget_if_idle(self, backend_id: str) -> None:
        """Remove a retired backend that runs none of this gateway's requests, which frees its name."""
        upstream, view = self._clients.by_id[backend_id].upstream, self._pools.backend_view(backend_id)
        if (view is not None and view.in_flight_requests) or upstream.open_connections > upstream.idle_connections:
            return
        await self._backends.forget(backend_id)
        del self._clients.by_id[backend_id], self._urls[backend_id]
        try:
            await upstream.aclose()
        finally:
            self.match()


class KeyLimitsByTenant:
    """A table of the limits of API keys, by tenant and key; keys without limits are left out. Mutable."""

    def __init__(self) -> None:
        self._tenants: dict[str, str] = {}  # by key
        self._limits: defaultdict[str, dict[str, policy.KeyLimits]] = defaultdict(dict)  # by tenant and key

    def of(self, tenant_id: str) -> Mapping[str, policy.KeyLimits]:
        """The limits of a tenant's keys, by id."""
        return self._limits.get(tenant_id, {})

    def put(self, key_id: str, tenant_id: str | None, limits: policy.KeyLimits | None) -> Collection[str]:
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


class Reconciler:
    """The reconciler of one gateway: it applies the registry to the data plane. Call `start` on the loop that serves,
    and `stop`.
    """

    def __init__(
        self,
        registry: Registry,
        parts: GatewayParts,
        *,
        address_allowlist: AddressAllowlist,
        folder: Path,
        scheduling_of: Callable[[str], Scheduling],
    ) -> None:
        """`address_allowlist` has the networks that undeclared backends may be in; `folder` is the base of relative
        paths. `scheduling_of` gives the scheduling settings of a pool.
        """
        self._registry = registry
        self._handlers, self._pools = parts.handlers, parts.pools
        self._tiers, self._groups = parts.tiers, parts.groups
        self._group_sections: dict[str, GroupSection] = {}
        self._key_limits = KeyLimitsByTenant()
        self.backends = BackendReconciler(registry, parts, address_allowlist=address_allowlist, folder=folder)
        self.scheduling_of = scheduling_of
        self._tenant_envelopes: dict[str, policy.SloEnvelope] = {}
        self._tier_envelopes: dict[str, policy.SloEnvelope] = {}
        self._unplaced: Counter[tuple[str, bool]] = Counter()  # tenants (False) and groups (True) of tiers not there
        self._unsubscribe: Callable[[], None] | None = None

    def start(self) -> None:
        """Apply all entries of the registry, and then every change to them."""
        kinds = ("aliases", "tiers", "groups", "tenants", "keys", "backends", "pools")
        self.backends.start()
        self._changed(frozenset((kind, entry.name) for kind in kinds for entry in self._registry.entries(kind)))
        self._unsubscribe = self._registry.subscribe(self._changed)

    async def stop(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
        await self.backends.stop()

    def scheduling_changed(self) -> None:
        """Apply changed scheduling defaults to all pools."""
        for name in self._pools.dispatchers:
            self._pool_changed(name)

    def _changed(self, changed: Changed) -> None:
        names: dict[str, list[str]] = {}
        for kind, name in sorted(changed):
            names.setdefault(kind, []).append(name)
        # Tiers are applied before their groups, groups before their tenants, and tenants before their keys.
        tiers = self._tiers_changed(names.get("tiers", []))
        moved = self._groups_changed(sorted({*names.get("groups", []), *self._members("groups", tiers)}))
        limited = [each for name in names.get("keys", []) for each in self._key_limits_changed(name)]
        tenants = {*names.get("tenants", []), *self._members("tenants", tiers), *moved, *limited}
        self._tenants_changed(sorted(tenants))
        self._tell_unplaced()
        for name in names.get("keys", []):
            self._key_changed(name, self._registry.get("keys", name))
        for name in names.get("pools", []):
            self._pool_changed(name)
        if "aliases" in names:
            self._aliases_changed()
        if "backends" in names:
            self.backends.match()

    def _tiers_changed(self, names: list[str]) -> Collection[str]:
        """Apply changed tiers. Returns those that were added or removed."""
        tiers, removed, before = [], [], set(self._tiers)
        for name in names:
            section = _section(self._registry.get("tiers", name), TierSection)
            if section is None and name != policy.DEFAULT_TIER.id:
                removed.append(name)
                self._tiers.pop(name, None)
                self._tier_envelopes.pop(name, None)
                continue
            section = section or TierSection()
            self._tiers[name] = policy_tier(name, section)
            tiers.append(self._tiers[name])
            _keep(self._tier_envelopes, name, section)
        if names:
            self._pools.settings.tiers_changed(tiers)
            self._pools.settings.tiers_removed(removed)
            self._handlers.envelopes.replace(tenants=self._tenant_envelopes, tiers=self._tier_envelopes)
        return before ^ self._tiers.keys()

    def _members(self, kind: str, tiers: Collection[str]) -> list[str]:
        """The groups or tenants that name one of these tiers."""
        return [each.name for each in self._registry.entries(kind) if each.body.get("tier") in tiers] if tiers else []

    def _placed(self, each: P) -> P:
        """A tenant or group in its tier; in the default tier where another file or gateway had its tier."""
        if each.tier_id in self._tiers:
            return each
        self._unplaced[each.tier_id, isinstance(each, policy.Group)] += 1
        return replace(each, tier_id=policy.DEFAULT_TIER.id)

    def _tell_unplaced(self) -> None:
        for tier in sorted({tier for tier, _ in self._unplaced}):
            tenants, groups = self._unplaced[tier, False], self._unplaced[tier, True]
            log.warning("there is no tier '%s': %d tenants and %d groups are in tier 'default'", tier, tenants, groups)
        self._unplaced.clear()

    def _groups_changed(self, names: list[str]) -> list[str]:
        """Apply changed groups. Returns the tenants of groups that were added, removed or moved to another tier."""
        groups, removed, moved = [], [], set()
        for name in names:
            section, before = _section(self._registry.get("groups", name), GroupSection), self._groups.get(name)
            if section is None:
                removed.append(name)
                self._groups.pop(name, None)
                self._group_sections.pop(name, None)
            else:
                self._group_sections[name] = section
                self._groups[name] = self._placed(policy_group(name, section))
                groups.append(self._groups[name])
            if section is None or before is None or before.tier_id != self._groups[name].tier_id:
                moved.add(name)
        if names:
            self._pools.settings.groups_changed(groups, removed)
        tenants = self._registry.entries("tenants") if moved else ()
        return [entry.name for entry in tenants if entry.body.get("group") in moved]

    def _tenants_changed(self, names: list[str]) -> None:
        for name in names:
            section = _section(self._registry.get("tenants", name), TenantSection)
            if section is None:
                self._tenant_envelopes.pop(name, None)
                self._handlers.tenants.drop(name)
                self._pools.settings.forget(name)
            else:
                _keep(self._tenant_envelopes, name, section)
                tenant = self._placed(policy_tenant(name, section, self._group_sections, self._key_limits.of(name)))
                self._handlers.tenants.put(tenant)
                self._pools.settings.tenant_changed(tenant)
        if names:
            self._handlers.envelopes.replace(tenants=self._tenant_envelopes, tiers=self._tier_envelopes)

    def _key_limits_changed(self, name: str) -> Collection[str]:
        """Apply a key's changed limits. Returns the tenants whose keys now have other limits."""
        key = _section(self._registry.get("keys", name), ApiKey)
        if key is None or key.revoked:
            return self._key_limits.put(name, None, None)
        return self._key_limits.put(name, key.tenant, policy_key(key))

    def _key_changed(self, name: str, entry: Entry | None) -> None:
        ring, key = self._handlers.auth.keys, _section(entry, ApiKey)
        if ring is None:
            return  # keys are not checked
        ring.drop(name)
        if key is not None and key.tenant is not None and not key.revoked:
            models = None if key.models is None else frozenset(key.models)
            expires_at_s = None if key.expires_at is None else key.expires_at.timestamp()
            ring.put(name, key.hmac, Identity(key.tenant, models, name), expires_at_s=expires_at_s)

    def _aliases_changed(self) -> None:
        sections = {entry.name: entry.of(AliasSection) for entry in self._registry.entries("aliases")}
        self._handlers.aliases.replace(sections)
        self._handlers.aliases_changed()

    def _pool_changed(self, name: str) -> None:
        self._pools.settings.policy_changed(name, policy_choices(self.scheduling_of(name)))


def _section(entry: Entry | None, kind: type[S]) -> S | None:
    """The section of an entry; None where there is no entry."""
    return None if entry is None else entry.of(kind)


def _keep(envelopes: dict[str, policy.SloEnvelope], name: str, section: TierSection | TenantSection) -> None:
    envelopes.pop(name, None)
    envelope = envelope_of(section)
    if envelope is not None:
        envelopes[name] = envelope
