"""Files of resources: all declared entries are read as one file; a file is applied, field by field, all or nothing.

Missing entries are created, and existing entries are changed where a field differs. Entries and fields that the file
does not name stay. So a file that was applied changes nothing when it is applied again. A field that cannot be changed,
such as a backend's URL, may be in the file with its present value.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from gateway.admin.models import resources as models
from gateway.admin.models.resources import AppliedFile, AppliedResource, DeclaredResource
from gateway.admin.problems import ERRORS_MAX, AdminProblem, FieldError
from gateway.admin.resources.collection import CONFLICTS, FOR_NO_GROUP, Collection, PlannedEdit, registry_answers
from gateway.admin.resources.pools import PoolRoutes
from gateway.admin.routes import AdminAnswer, AdminRequest, Role, Route
from gateway.registry.changes import EtagMismatch
from gateway.registry.entries import Entry
from gateway.registry.registry import Registry
from gateway.store.base import CHANGES_MAX

FILE_BYTES_MAX = 1 << 20  # of CHANGES_MAX entries of a kilobyte each
UNPROCESSABLE = 422


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceFileRoutes:
    """The admin routes that apply a file of registry entries (tiers, tenants, backends and others), and that list the
    present entries in the form of such a file.
    """

    registry: Registry
    collections: Mapping[str, Collection]
    pools: PoolRoutes

    def routes(self) -> Iterator[Route]:
        yield Route(
            method="GET", path="/resources", role=Role.VIEWER,
            summary="What is declared of each tier, group, tenant, backend, pool, price list and alias.",
            run=self.listed, query=models.DeclaredPage, answer=models.DeclaredResources, for_groups=True,
        )  # fmt: skip
        yield Route(
            method="POST", path="/resources", role=Role.OPERATOR,
            summary="Apply a file of resources: each is made, or merged by field; all of them, or none.",
            run=self.apply, body=AppliedFile, answer=models.AppliedResources, conflicts=CONFLICTS,
            body_bytes_max=FILE_BYTES_MAX, count_changes=_count_changes,
        )  # fmt: skip

    async def listed(self, asked: AdminRequest) -> AdminAnswer:
        query: models.DeclaredPage = asked.query
        kinds = [kind for kind in models.ResourceFile.model_fields if query.kind in (None, kind)]
        after_kind, _, after = (query.cursor or "").partition("\n")
        if after_kind in kinds:
            kinds = kinds[kinds.index(after_kind) :]
        items: list[Entry] = []
        for kind in kinds:
            behind = after if kind == after_kind else ""
            sees = partial(self._sees, asked)
            items += self.registry.page(kind, after=behind, limit=query.limit + 1 - len(items), sees=sees)
            if len(items) > query.limit:
                break
        shown, cursor = models.first_of(items, query.limit, lambda each: f"{each.kind}\n{each.name}")
        found = list(map(_shown, shown))
        return AdminAnswer(models.DeclaredResources.model_construct(items=found, next_cursor=cursor))

    def _sees(self, asked: AdminRequest, entry: Entry) -> bool:
        collection = self.collections.get(entry.kind)  # none of pools
        scope = FOR_NO_GROUP if collection is None else collection.scope
        return scope.sees(asked.caller, entry)

    async def apply(self, asked: AdminRequest) -> AdminAnswer:
        file: AppliedFile = asked.body
        planned = self._plan(file.resources)
        edits = [each.edit for each in planned if each.change != "unchanged"]
        try:
            with registry_answers(but=EtagMismatch, part="body.resources"):
                if file.dry_run:
                    self.registry.changes.check(edits)
                elif edits:
                    await self.registry.changes.apply(edits, actor=asked.caller.name, names_entries=True)
        except EtagMismatch:
            raise AdminProblem(409, "an entry was changed by another request meanwhile: apply the file again") from None
        return AdminAnswer(models.AppliedResources.model_construct(items=[_applied(each) for each in planned]))

    def _plan(self, file: models.ResourceFile) -> list[PlannedEdit]:
        """The edit of each entry. Raises AdminProblem that names every field that is wrong by itself."""
        entries = file.entries()
        if len(entries) > CHANGES_MAX:
            raise AdminProblem(409, f"a file has at most {CHANGES_MAX} entries, and this one has {len(entries)}")
        planned: list[PlannedEdit] = []
        problems: list[AdminProblem] = []
        for kind, name, fields in entries:
            part = f"body.resources.{kind}.{name}"
            try:
                if kind == "pools":
                    planned.append(self.pools.plan(name, fields, part))
                else:
                    planned.append(self.collections[kind].plan(name, fields, part))
            except AdminProblem as problem:
                problems.append(_of_entry(problem, part))
        if problems:
            raise _all_of(problems)
        return planned


def _count_changes(file: AppliedFile) -> int:
    return 1 if file.dry_run else len(file.resources.entries())


def _of_entry(problem: AdminProblem, part: str) -> AdminProblem:
    """The problem with a field that names its entry."""
    return (
        problem if problem.errors else AdminProblem(problem.status, "", [FieldError(field=part, reason=problem.detail)])
    )


def _all_of(problems: Sequence[AdminProblem]) -> AdminProblem:
    errors = [error for problem in problems for error in problem.errors][:ERRORS_MAX]
    status = UNPROCESSABLE if any(problem.status == UNPROCESSABLE for problem in problems) else 409
    return AdminProblem(status, "; ".join(f"{each.field}: {each.reason}" for each in errors), errors)


def _shown(entry: Entry) -> DeclaredResource:
    fields = dict(entry.body)
    if entry.kind == "pools":
        fields = dict(fields.get("scheduling", {}))
    return DeclaredResource.made_of(entry, id=entry.name, fields=fields)


def _applied(planned: PlannedEdit) -> AppliedResource:
    return AppliedResource.made_of(planned, kind=planned.edit.kind, id=planned.edit.name)
