"""Pool routes: read and change the policies of a pool while its requests wait and run.

There is one model per policy with its parameters, generated from the tables of the configuration, so that the OpenAPI
document lists the parameters of each.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, create_model

from gateway.admin.models import resources as models
from gateway.admin.problems import AdminProblem, field_problem, read_checked
from gateway.admin.reconciler import Reconciler
from gateway.admin.resources.collection import CONFLICTS, PlannedEdit, etag_of, registry_answers
from gateway.admin.routes import AdminAnswer, AdminRequest, Role, Route
from gateway.config.scheduling import NAMES, PARAMETERS, POLICY, PolicySettings
from gateway.config.value_types import POOL_CHARS_MAX
from gateway.registry.changes import ANY_THERE, NOT_THERE, Edit
from gateway.registry.merge_patch import merged
from gateway.registry.registry import Registry
from gateway.scheduling.pools import Pools as LivePools

KIND = "pools"
SCHEMAS = {"id": {"type": "string", "minLength": 1, "maxLength": POOL_CHARS_MAX}}
UNTOUCHED = "0"  # the version of a pool without an entry
LIVE_KINDS = ("fairness", "prediction", "placement")  # what a running pool can change


def _fields(definitions: dict[str, Any]) -> dict[str, Any]:
    """Types made at run time, which a type checker sees as plain values."""
    return definitions


def _choice(kind: str) -> Any:
    made = [
        create_model(
            "".join(part.capitalize() for part in f"{kind}-{name}".split("-")),
            __base__=PARAMETERS[kind].get(name, PolicySettings),
            __doc__=f"The policy {name}.",
            **_fields({POLICY: (Literal[name], ...)}),
        )
        for name in NAMES[kind]
    ]
    return Annotated[reduce(or_, made), Field(discriminator=POLICY)]


PoolFields: type[BaseModel] = create_model(
    "PoolFields",
    __base__=models.Fields,
    __doc__="Which policy decides what; null or not there: as the configuration says for all pools.",
    **_fields({kind: (_choice(kind) | None, None) for kind in LIVE_KINDS}),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRoutes:
    """The admin routes of pools and their policies."""

    registry: Registry
    pools: LivePools
    in_force: Reconciler

    def routes(self) -> Iterator[Route]:
        one = f"/{KIND}/{{id}}"
        yield Route(
            method="GET", path=f"/{KIND}", role=Role.VIEWER, summary="All pools that have a backend, by id.",
            run=self.listed, query=models.Page, answer=models.PoolList,
        )  # fmt: skip
        yield Route(
            method="GET", path=one, role=Role.VIEWER, summary="The policies of one pool.", run=self.read,
            answer=models.PoolResource, versioned=True, path_schemas=SCHEMAS,
        )  # fmt: skip
        yield Route(
            method="PUT", path=one, role=Role.OPERATOR, summary="Schedule a pool by these policies from now on.",
            run=self.put, body=PoolFields, answer=models.PoolResource, versioned=True, conflicts=CONFLICTS,
            path_schemas=SCHEMAS,
        )  # fmt: skip

    async def listed(self, asked: AdminRequest) -> AdminAnswer:
        query: models.Page = asked.query
        names = [name for name in self._names() if name > (query.cursor or "")]
        shown, cursor = models.first_of(names, query.limit, str)
        return AdminAnswer(models.PoolList.model_construct(items=list(map(self._show, shown)), next_cursor=cursor))

    async def read(self, asked: AdminRequest) -> AdminAnswer:
        return AdminAnswer(self._show(self._known(asked)), etag=self._etag(asked.id))

    async def put(self, asked: AdminRequest) -> AdminAnswer:
        """Replace the policies of a pool; its other settings from the file stay."""
        name = self._known(asked)
        entry = self.registry.get(KIND, name)
        etag = etag_of(asked, self._etag(name))
        if etag == UNTOUCHED:
            etag = NOT_THERE
        elif etag == ANY_THERE:  # If-Match: *, which any pool with a backend satisfies
            etag = None
        scheduling: dict[str, Any] = {} if entry is None else dict(entry.body.get("scheduling", {}))
        given = asked.body.model_dump(mode="json", exclude_unset=True)
        for kind in LIVE_KINDS:
            scheduling.pop(kind, None)
            if given.get(kind) is not None:
                scheduling[kind] = given[kind]
        with registry_answers():
            await self.registry.changes.put(KIND, name, {"scheduling": scheduling}, actor=asked.caller.name, etag=etag)
        return AdminAnswer(self._show(name), etag=self._etag(name))

    def plan(self, name: str, given: Mapping[str, Any], part: str) -> PlannedEdit:
        """The edit by which a pool takes over these policies: parameters of the same policy are merged, those of
        another policy replace them. Raises AdminProblem, which names `part` as the wrong part of the request.
        """
        if name not in self.pools.tenant_ids():
            raise field_problem(part, "there is no such pool: a pool has at least one backend", status=409)
        entry, scheduling = self.registry.get(KIND, name), self.in_force.scheduling_of(name)
        stored: dict[str, Any] = {} if entry is None else dict(entry.body.get("scheduling", {}))
        before = {kind: stored[kind] for kind in LIVE_KINDS if kind in stored}
        after = dict(before)
        for kind, policy in given.items():
            now = getattr(scheduling, kind).model_dump(mode="json") if kind in LIVE_KINDS else {}
            wanted = policy
            if isinstance(policy, Mapping) and policy.get(POLICY, now.get(POLICY)) == now.get(POLICY):
                wanted = merged(now, policy)
            if wanted is None:
                after.pop(kind, None)
            elif wanted != now:
                after[kind] = wanted
        after = read_checked(PoolFields, after, part).model_dump(mode="json", exclude_unset=True)
        others = {kind: value for kind, value in stored.items() if kind not in LIVE_KINDS}
        edit = Edit(KIND, name, {"scheduling": {**others, **after}}, NOT_THERE if entry is None else entry.etag)
        return PlannedEdit(edit, before, after)

    def _names(self) -> list[str]:
        return sorted(self.pools.tenant_ids())

    def _known(self, asked: AdminRequest) -> str:
        if asked.id not in self.pools.tenant_ids():
            raise AdminProblem(404, "there is no such pool")
        return asked.id

    def _etag(self, name: str) -> str:
        entry = self.registry.get(KIND, name)
        return UNTOUCHED if entry is None else entry.etag

    def _show(self, name: str) -> models.PoolResource:
        scheduling = self.in_force.scheduling_of(name)
        return models.PoolResource.model_construct(
            id=name,
            fairness=scheduling.fairness.model_dump(mode="json"),
            prediction=scheduling.prediction.model_dump(mode="json"),
            placement=scheduling.placement.model_dump(mode="json"),
        )
