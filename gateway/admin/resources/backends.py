"""Backend routes: add, change, drain and delete backends; their state and load.

The URL of a backend cannot change: another URL is another backend. A literal IP address is checked against the
allowlist when the backend is added, a host name on every connection (backends/address_allowlist.py).
"""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from backends.address_allowlist import AddressAllowlist, literal
from backends.kinds import GENERIC
from backends.pool import BackendPool
from gateway.admin.models import backends as backend_models
from gateway.admin.problems import field_problem
from gateway.admin.reconciler import Reconciler
from gateway.admin.resources.collection import Collection, CollectionModels
from gateway.admin.resources.live import steps_of
from gateway.admin.routes import Role
from gateway.config.step_time import write_configured
from gateway.registry.entries import Entry
from gateway.registry.registry import Registry
from gateway.registry.resource_kinds import ManagedBackend
from gateway.scheduling.pools import Pools
from policies import step_time as policy

ABSENT = "absent"  # wanted, but not added


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendRoutes:
    """The admin routes of backends."""

    registry: Registry
    backends: BackendPool
    pools: Pools
    in_force: Reconciler
    address_allowlist: AddressAllowlist

    def collection(self) -> Collection:
        return Collection(
            kind="backends",
            noun="backend",
            registry=self.registry,
            models=CollectionModels(
                made=backend_models.NewBackend,
                whole=backend_models.WholeBackend,
                fields=backend_models.BackendFields,
                shown=backend_models.BackendResource,
                listed=backend_models.BackendList,
            ),
            show=self.show,
            role=Role.OPERATOR,
            check=self.check,
        )

    def check(self, body: Any, part: str) -> None:
        """Raise AdminProblem where the URL holds a literal address outside the allowlist."""
        try:
            host = urlsplit(body.url).hostname or ""
        except ValueError:
            raise field_problem(f"{part}.url", "must be a URL like http://10.0.0.1:8000", status=409) from None
        address = literal(host)
        if address is not None and not self.address_allowlist.allows(address):
            reason = "is at an address where no backend may be: admin.backend_networks says where"
            raise field_problem(f"{part}.url", reason, status=409)

    def show(self, entry: Entry) -> backend_models.BackendResource:
        section = entry.of(ManagedBackend)
        there = entry.name in self.backends.backend_ids()
        view = self.pools.backend_view(entry.name)
        return backend_models.BackendResource.made_of(
            section,
            id=entry.name,
            origin=entry.origin,
            pool=self.backends.catalog.pool_of_backend(entry.name) if there else section.pool,
            kind=(self._kind(entry.name) if there else None) or section.kind,
            step_time_now=self._believed(section, entry.name, view.step_time) if view and view.step_time else None,
            state=str(self.backends[entry.name].health.state) if there else ABSENT,
            trouble=self.backends[entry.name].last_error if there else self.in_force.backends.fault(entry.name),
            models=[card.id for card in self.backends[entry.name].cards] if there else [],
            in_flight_requests=view.in_flight_requests if view else 0,
            requests_limit=view.requests_limit if view else None,
            reserved_tokens=view.reserved_tokens if view else 0,
            tokens_limit=view.tokens_limit if view else None,
            steps=steps_of(view) if view else None,
        )

    def _kind(self, backend_id: str) -> str | None:
        """The configured or detected kind of the backend; None while it is unknown."""
        kind = self.backends[backend_id].known_kind
        return None if kind is GENERIC else kind.name

    def _believed(
        self, section: ManagedBackend, backend_id: str, now: policy.StepTime
    ) -> backend_models.BelievedStepTime:
        """The current step time model, and its origin."""
        origin = "learnt" if self.backends[backend_id].step_times.has_learnt else "stored"
        if origin == "stored" and section.step_time is not None and now == self.backends[backend_id].spec.step_time:
            origin = "named"
        known: dict[str, Any] = write_configured(now)
        return backend_models.BelievedStepTime.model_construct(**known, sure=now.is_sure, origin=origin)
