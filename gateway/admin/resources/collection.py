"""Collection: the routes that all stored kinds share, over the registry: list, create, read, replace, patch, delete.

A change is validated with the model that the OpenAPI document shows (422), then by the registry against all other
entries (409).
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from types import GenericAlias
from typing import Any, Literal, Self

from pydantic import BaseModel, create_model

from gateway.admin.models.resources import Page, ResourceList, StoredResource, first_of
from gateway.admin.problems import AdminProblem, FieldError, field_problem, read_checked
from gateway.admin.resources.group_scope import check_deletes, pinned
from gateway.admin.routes import AdminAnswer, AdminRequest, Caller, Role, Route, path_of
from gateway.config.reasons import said_of_pattern
from gateway.config.sections import Section
from gateway.config.value_types import NAME_PATTERN
from gateway.registry.changes import (
    ANY_THERE,
    NOT_THERE,
    AlreadyThere,
    DeclaredInFile,
    Edit,
    EtagMismatch,
    Guard,
    Invalid,
    NotFound,
    RegistryError,
)
from gateway.registry.entries import Entry
from gateway.registry.merge_patch import merged
from gateway.registry.registry import Registry
from gateway.registry.resource_kinds import body_to_json, read_body

FIXED = "cannot be changed: make another one"
CONFLICTS = "It goes not together with what is there, or only the configuration file has it."


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionModels:
    """The data models of one kind of stored entry in the admin API. `made` is the body that creates an entry, with its
    id; `whole` is the body of a PUT, which has the id in its path. `fields` is for patches, `shown` for one entry in a
    response, `listed` for a page of entries. Fields of `whole` that are not in `fields` cannot be changed.
    """

    made: type[BaseModel]
    whole: type[BaseModel]
    fields: type[BaseModel]
    shown: type[BaseModel]
    listed: type[ResourceList]

    @classmethod
    def of(cls, section: type[Section], name: str, id_type: Any) -> Self:
        """The models of a kind whose fields may all change, from the section that the file is read with."""
        made = create_model(f"New{name}", __base__=section, __cls_kwargs__={"defer_build": True}, id=(id_type, ...))
        shown = create_model(f"{name}Resource", __base__=(StoredResource, section))
        items: Any = (GenericAlias(list, shown), ...)
        listed = create_model(f"{name}List", __base__=ResourceList, items=items)
        return cls(made=made, whole=section, fields=section, shown=shown, listed=listed)


def _as_given(_caller: Caller, _name: str, _before: Entry | None, body: Mapping[str, Any]) -> dict[str, Any]:
    return dict(body)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryScope:
    """The rights of a group's administrator to entries of one kind. `sees` returns whether a caller sees an entry.
    `reads` and `changes`: whether the administrator may read entries, and change them. `name` checks the name of a new
    entry, and `give` returns the body that the caller may store; these two raise AdminProblem. `keeps` names fields
    that a PUT leaves unchanged if it does not set them. Callers that administer no group are not limited.
    """

    sees: Callable[[Caller, Entry], bool]
    reads: bool = True
    changes: bool = False
    keeps: tuple[str, ...] = ()
    name: Callable[[Caller, str, str], None] | None = None
    give: Callable[[Caller, str, Entry | None, Mapping[str, Any]], dict[str, Any]] = _as_given

    def check_name(self, caller: Caller, name: str, path: str) -> None:
        """Raise AdminProblem about the field `path` where the caller may not create an entry of this name."""
        if self.name is not None:
            self.name(caller, name, path)

    def kept(self, caller: Caller, entry: Entry) -> dict[str, Any]:
        """The fields that keep their values when the caller replaces the entry without setting them."""
        return {} if caller.group is None else {name: entry.body[name] for name in self.keeps if name in entry.body}

    def guard(self, caller: Caller, name: str, before: Entry | None, body: Mapping[str, Any]) -> Guard | None:
        """The condition that the caller may store this body, given all that its group has stored by then; None: the
        caller administers no group. Raises AdminProblem.
        """
        return None if caller.group is None else Guard(caller.group, partial(self.give, caller, name, before, body))


FOR_NO_GROUP = EntryScope(sees=lambda caller, _entry: caller.group is None, reads=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """The routes of the admin API for one kind of stored entry. Callers of `role` may create, change and delete.
    `check` raises AdminProblem if a new entry is not allowed. It gets the body of the entry and, for the error message,
    the name of the part of the request in which the body is. `show` makes the model of an entry for a response; None:
    it is the fields of the entry's section.
    """

    kind: str
    noun: str
    registry: Registry
    models: CollectionModels
    role: Role
    show: Callable[[Entry], BaseModel] | None = None
    id_pattern: str = NAME_PATTERN
    check: Callable[[Any, str], None] | None = None
    scope: EntryScope = FOR_NO_GROUP

    def routes(self) -> Iterator[Route]:
        reads, changes = self.scope.reads, self.scope.changes
        one, many, noun = f"/{self.kind}/{{id}}", f"/{self.kind}", self.noun
        schemas = {"id": {"type": "string", "pattern": self.id_pattern}}
        models = self.models
        yield Route(
            method="GET", path=many, role=Role.VIEWER, summary=f"All {self.kind}, by id.", run=self.listed,
            query=Page, answer=models.listed, for_groups=reads,
        )  # fmt: skip
        yield Route(
            method="POST", path=many, role=self.role, summary=f"Make a {noun}.", run=self.create,
            body=models.made, answer=models.shown, status=201, versioned=True, conflicts=CONFLICTS,
            for_groups=changes,
        )  # fmt: skip
        yield Route(
            method="GET", path=one, role=Role.VIEWER, summary=f"One {noun}.", run=self.read,
            answer=models.shown, versioned=True, path_schemas=schemas, for_groups=reads,
        )  # fmt: skip
        yield Route(
            method="PUT", path=one, role=self.role, summary=f"Make a {noun}, or replace it as a whole.", run=self.put,
            body=models.whole, answer=models.shown, versioned=True, creates=True, conflicts=CONFLICTS,
            path_schemas=schemas, for_groups=changes,
        )  # fmt: skip
        yield Route(
            method="PATCH", path=one, role=self.role, summary=f"Change a {noun} in part (RFC 7396).", run=self.patch,
            merges=models.fields, answer=models.shown, versioned=True, conflicts=CONFLICTS, path_schemas=schemas,
            for_groups=changes,
        )  # fmt: skip
        yield Route(
            method="DELETE", path=one, role=self.role, summary=f"Take a {noun} away.", run=self.delete,
            status=204, versioned=True, conflicts=CONFLICTS, path_schemas=schemas, for_groups=changes,
        )  # fmt: skip

    async def listed(self, asked: AdminRequest) -> AdminAnswer:
        """One page of the entries that the caller sees; its cursor is the last name on it."""
        query: Page = asked.query
        sees = partial(self.scope.sees, asked.caller)
        found = self.registry.page(self.kind, after=query.cursor or "", limit=query.limit + 1, sees=sees)
        shown, cursor = first_of(found, query.limit, attrgetter("name"))
        return AdminAnswer(self.models.listed.model_construct(items=list(map(self.shown, shown)), next_cursor=cursor))

    async def create(self, asked: AdminRequest) -> AdminAnswer:
        with registry_answers():
            return await self._create(asked.body.id, asked)

    async def put(self, asked: AdminRequest) -> AdminAnswer:
        """Create the entry where it does not exist and there is no If-Match; else replace it."""
        entry = self.registry.get(self.kind, asked.id)
        if entry is None and not re.fullmatch(self.id_pattern, asked.id):
            raise field_problem("path.id", said_of_pattern(self.id_pattern))
        if entry is None or not self.scope.sees(asked.caller, entry):
            self.scope.check_name(asked.caller, asked.id, "path.id")
        if entry is not None and not self.scope.sees(asked.caller, entry):
            raise AdminProblem(409, "there is one of this id")
        if entry is None and asked.if_match is None:
            with suppress(AlreadyThere), registry_answers(but=AlreadyThere):  # another request created it first
                return await self._create(asked.id, asked)
        entry = self.registry.get(self.kind, asked.id)
        etag = etag_of(asked, None if entry is None else entry.etag)
        if entry is None or not self.scope.sees(asked.caller, entry):
            raise AdminProblem(409, "it was taken away meanwhile")
        etag = pinned(asked, etag, entry)
        with registry_answers():
            body = self._replaced(entry, self.scope.kept(asked.caller, entry) | _given(asked))
            guard = self.scope.guard(asked.caller, entry.name, entry, body)
            entry = await self.registry.changes.put(
                self.kind, asked.id, body, actor=asked.caller.name, etag=etag, guard=guard
            )
        return AdminAnswer(self.shown(entry), etag=entry.etag)

    async def read(self, asked: AdminRequest) -> AdminAnswer:
        entry = self.entry(asked)
        return AdminAnswer(self.shown(entry), etag=entry.etag)

    async def patch(self, asked: AdminRequest) -> AdminAnswer:
        entry = self.entry(asked)
        whole = entry.section.model_dump(mode="json")
        read_checked(
            self.models.fields, merged({name: whole[name] for name in self.models.fields.model_fields}, asked.body)
        )
        etag = pinned(asked, etag_of(asked, entry.etag), entry)
        guard = self.scope.guard(asked.caller, entry.name, entry, merged(entry.body, asked.body))
        with registry_answers():
            entry = await self.registry.changes.patch(
                self.kind, asked.id, asked.body, actor=asked.caller.name, etag=etag, guard=guard
            )
        return AdminAnswer(self.shown(entry), etag=entry.etag)

    async def delete(self, asked: AdminRequest) -> AdminAnswer:
        entry = self.entry(asked)
        etag = pinned(asked, etag_of(asked, entry.etag), entry)
        with registry_answers():
            check_deletes(asked.caller, entry)
            await self.registry.changes.delete(self.kind, asked.id, actor=asked.caller.name, etag=etag)
        return AdminAnswer()

    async def _create(self, name: str, asked: AdminRequest) -> AdminAnswer:
        if self.check is not None:
            self.check(asked.body, "body")
        self.scope.check_name(asked.caller, name, "body.id")
        body = self.scope.give(asked.caller, name, None, _given(asked))
        guard = self.scope.guard(asked.caller, name, None, body)
        entry = await self.registry.changes.create(self.kind, name, body, actor=asked.caller.name, guard=guard)
        return AdminAnswer(self.shown(entry), etag=entry.etag, location=path_of(self.kind, name))

    def plan(self, name: str, given: Mapping[str, Any], part: str) -> "PlannedEdit":
        """The edit that sets these fields of an entry. Raises AdminProblem, which names `part` as the wrong part."""
        entry = self.registry.get(self.kind, name)
        if entry is None:
            return self._plan_new(name, given, part)
        whole, changeable = entry.section.model_dump(mode="json"), self.models.fields.model_fields
        fixed = {each for each in given if each in whole and each not in changeable}
        errors = [FieldError(field=f"{part}.{each}", reason=FIXED) for each in fixed if given[each] != whole[each]]
        if errors:
            raise AdminProblem(409, FIXED, errors)
        rest = {each: value for each, value in given.items() if each not in fixed}
        read_checked(self.models.fields, merged({each: whole[each] for each in changeable}, rest), part)
        body = merged(entry.body, rest)
        section, problems = read_body(self.kind, body)
        if section is None:
            with registry_answers(part=part):
                raise Invalid(problems)
        return PlannedEdit(Edit(self.kind, name, body, entry.etag), dict(entry.body), body_to_json(section))

    def _plan_new(self, name: str, given: Mapping[str, Any], part: str) -> "PlannedEdit":
        if not re.fullmatch(self.id_pattern, name):
            raise field_problem(part, f"a name {said_of_pattern(self.id_pattern)}")
        made = read_checked(
            self.models.whole, {each: value for each, value in given.items() if value is not None}, part
        )
        if self.check is not None:
            self.check(made, part)
        body = made.model_dump(mode="json", exclude_unset=True, exclude_none=True)
        return PlannedEdit(Edit(self.kind, name, body, NOT_THERE), None, body)

    def shown(self, entry: Entry) -> BaseModel:
        """The entry as the API shows it."""
        if self.show is not None:
            return self.show(entry)
        return self.models.shown.model_construct(id=entry.name, origin=entry.origin, **dict(entry.section))

    def _replaced(self, entry: Entry, given: dict[str, Any]) -> dict[str, Any]:
        """The entry's body with the given values for all fields that can change. Raises AdminProblem where the value of
        another field differs, and Invalid.
        """
        stays = {name: value for name, value in entry.body.items() if name not in self.models.fields.model_fields}
        body = stays | given
        section, problems = read_body(self.kind, body)
        if section is None:
            raise Invalid(problems)
        fixed = sorted(given.keys() - self.models.fields.model_fields.keys())
        others = [name for name in fixed if getattr(section, name) != getattr(entry.section, name)]
        if others:
            errors = [FieldError(field=f"body.{name}", reason=FIXED) for name in others]
            raise AdminProblem(409, f"that is another {self.noun}: {', '.join(others)} cannot be changed", errors)
        return body

    def entry(self, asked: AdminRequest) -> Entry:
        """The entry that the path names. Raises AdminProblem (404)."""
        entry = self.registry.get(self.kind, asked.id)
        if entry is None or not self.scope.sees(asked.caller, entry):
            raise AdminProblem(404, f"there is no such {self.noun}")
        return entry


@dataclass(frozen=True, slots=True)
class PlannedEdit:
    """A planned edit of a registry entry, which is not made yet. `before` and `after` are the bodies of the entry
    without and with the edit, as the API shows them; `before` None: there is no entry.
    """

    edit: Edit
    before: Mapping[str, Any] | None
    after: Mapping[str, Any]

    @property
    def change(self) -> Literal["created", "configured", "unchanged"]:
        if self.before is None:
            return "created"
        return "unchanged" if self._is_same() else "configured"

    def _is_same(self) -> bool:
        """Whether every field has the value it had, whether it was set or is the default."""
        if self.edit.kind == "pools":
            return self.before == self.after
        sections = [read_body(self.edit.kind, body)[0] for body in (self.before or {}, self.edit.body or {})]
        before, after = (None if each is None else each.model_dump() for each in sections)  # 1.50 is 1.5
        return before == after


def etag_of(asked: AdminRequest, etag: str | None) -> str | None:
    """The etag that the change expects (as in registry.Edit); None: any. `etag` is the etag of the present entry, if
    there is one. Raises AdminProblem where a condition of the request does not hold (RFC 9110, 13.1).
    """
    if asked.if_none_match is not None and etag is not None and _names(asked.if_none_match, etag):
        raise AdminProblem(412, "what If-None-Match names is there")
    if asked.if_match is None:
        return None if asked.if_none_match is None else (etag or NOT_THERE)
    if etag is None or not _names(asked.if_match, etag):
        raise AdminProblem(412, "it has changed since the version that If-Match names")
    return ANY_THERE if asked.if_match.strip() == "*" else etag


def _names(condition: str, etag: str) -> bool:
    """Whether the condition (a list of etags, or *) includes the etag."""
    return condition.strip() == "*" or f'"{etag}"' in (each.strip() for each in condition.split(","))


def _given(asked: AdminRequest) -> dict[str, Any]:
    """The fields that the request sets, without the id."""
    given: dict[str, Any] = asked.body.model_dump(mode="json", exclude_unset=True, exclude_none=True, exclude={"id"})
    return given


@contextmanager
def registry_answers(but: type[RegistryError] | None = None, part: str = "body") -> Iterator[None]:
    """Turn errors of the registry into AdminProblems, which name `part` as the wrong part of the request. An error of
    the type `but` stays as it is.
    """
    try:
        yield
    except RegistryError as error:
        if type(error) is but:
            raise
        raise _refusal(error, part) from None


def _refusal(error: RegistryError, part: str) -> AdminProblem:
    if isinstance(error, Invalid):
        found = [(".".join((part, *map(str, problem.path))), problem.text) for problem in error.problems]
        errors = [FieldError(field=path, reason=text) for path, text in found]
        return AdminProblem(409, "; ".join(f"{path}: {text}" for path, text in found), errors)
    return _REFUSALS[type(error)]


_REFUSALS: Mapping[type[RegistryError], AdminProblem] = {
    NotFound: AdminProblem(404, "there is no such thing any more"),
    AlreadyThere: AdminProblem(409, "there is one of this id"),
    EtagMismatch: AdminProblem(412, "it has changed since the version that If-Match names"),
    DeclaredInFile: AdminProblem(409, "only the configuration file has it: delete it there"),
}
