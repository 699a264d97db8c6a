"""Backends: added, drained, taken away; how they are, and what they run.

Where a backend is cannot be changed: another address is another backend. An address that is written out is looked at
when it is named; a name, whatever it means, whenever it is connected to (backends/reach.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from backends.pool import BackendPool
from backends.reach import Reach, literal
from gateway.admin import models
from gateway.admin.in_force import InForce
from gateway.admin.models import NAME_PATTERN
from gateway.admin.problems import wrong
from gateway.admin.resources.collection import Collection, Models
from gateway.admin.routes import Asked, Role, Route
from gateway.scheduling.pools import Pools
from gateway.state.entries import Entry
from gateway.state.kinds import ManagedBackend
from gateway.state.registry import Registry
from policies.types import BackendView

ABSENT = "absent"  # wanted, and not there


@dataclass(frozen=True, slots=True, kw_only=True)
class Backends:
    registry: Registry
    backends: BackendPool
    pools: Pools
    in_force: InForce
    reach: Reach

    def routes(self) -> Iterator[Route]:
        collection = Collection(
            kind="backends",
            noun="backend",
            registry=self.registry,
            models=Models(
                made=models.NewBackend,
                fields=models.BackendFields,
                shown=models.Backend,
                listed=models.Backends,
            ),
            show=self.show,
            role=Role.OPERATOR,
            id_schema={"type": "string", "pattern": NAME_PATTERN},
            check=self.check,
        )
        return collection.routes()

    def check(self, asked: Asked) -> None:
        """Raises Refused where the address that is written out is none that a backend may have."""
        try:
            host = urlsplit(asked.body.url).hostname or ""
        except ValueError:
            raise wrong("body.url", "is not a URL", status=409) from None
        address = literal(host)
        if address is not None and not self.reach.allows(address):
            raise wrong("body.url", "is at an address where no backend may be", status=409)

    def show(self, entry: Entry) -> models.Backend:
        section = entry.section
        assert isinstance(section, ManagedBackend), "an entry is of its kind"
        there = entry.name in self.backends.backend_ids()
        view = self._view(entry.name)
        return models.Backend.model_construct(
            id=entry.name,
            origin=entry.origin,
            url=section.url,
            pool=self.backends.pool_of_backend(entry.name) if there else section.pool,
            requests_running_max=section.requests_running_max,
            kv_tokens_max=section.kv_tokens_max,
            draining=section.draining,
            state=str(self.backends.states()[entry.name]) if there else ABSENT,
            trouble=self.backends.trouble(entry.name) if there else self.in_force.fault(entry.name),
            models=self.backends.models_of(entry.name) if there else [],
            in_flight_requests=view.in_flight_requests if view else 0,
            requests_limit=view.requests_limit if view else None,
            reserved_tokens=view.reserved_tokens if view else 0,
            tokens_limit=view.tokens_limit if view else None,
        )

    def _view(self, backend_id: str) -> BackendView | None:
        views = (snapshot.backends.get(backend_id) for snapshot in self.pools.overviews().values())
        return next((view for view in views if view is not None), None)
