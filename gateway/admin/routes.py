"""Route table of the admin API: every method and path, its role, its request and response models.

The server dispatches by this table and the OpenAPI document is generated from it, so the two always agree. A path is
split at its slashes before it is decoded: a tenant may be named a/b (as a%2Fb).
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, get_args
from urllib.parse import quote, unquote

import msgspec
from aiohttp import hdrs, web
from pydantic import BaseModel, ConfigDict, JsonValue, RootModel

from gateway.config.jwt import Role as RoleName

ROOT = "/admin/v1"
MERGE_PATCH = "application/merge-patch+json"  # RFC 7396
BODY_BYTES_MAX = 64 << 10
HEADERS: dict[str, str] = {
    hdrs.SERVER: "fairlead",
    hdrs.CACHE_CONTROL: "no-store",
    "x-content-type-options": "nosniff",
}


class Role(IntEnum):
    """The role of a caller of the admin API. Each role includes the permissions of the lower ones. A group's
    administrator may only use routes that limit it to its group.
    """

    GROUP_ADMIN = 0
    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3


ROLES: Mapping[RoleName, Role] = {name: Role[name.upper().replace("-", "_")] for name in get_args(RoleName)}


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of the admin API. `name` is for the audit log; `group` is the group that it administers, if any."""

    name: str
    role: Role
    group: str | None = None


class Query(BaseModel):
    """The base of all models of query parameters. The parameters arrive as text, so numbers are parsed from text."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class JsonObject(RootModel[dict[str, JsonValue]]):
    """Any JSON object."""


@dataclass(frozen=True, slots=True)
class AdminRequest:
    """A request to the admin API, parsed and validated. `query` and `body` are instances of the route's models."""

    caller: Caller
    path: Mapping[str, str]
    query: Any
    body: Any
    if_match: str | None
    if_none_match: str | None
    peer: str | None = None  # the client's address

    @property
    def id(self) -> str:
        return self.path["id"]


@dataclass(frozen=True, slots=True)
class AdminAnswer:
    """A response of the admin API. `body` is a model, and `encoded` a body that is already JSON; without both, the
    status is 204. `location` is the path, below ROOT (/admin/v1), of a new entry; the status is then 201. If `pieces`
    is set, the body is a file of type `media_type` and name `file_name`, written piece by piece.
    """

    body: BaseModel | None = None
    encoded: bytes | None = None
    etag: str | None = None
    location: str | None = None
    pieces: AsyncIterator[bytes] | None = None
    media_type: str = ""
    file_name: str = ""

    def json(self) -> bytes | None:
        # Models are made of values that were checked when they were set: they are shown without another check.
        return self.encoded if self.body is None else self.body.model_dump_json(warnings=False).encode()


Stream = Callable[[web.BaseRequest, AdminRequest, Callable[[], bool]], Awaitable[web.StreamResponse]]
"""A function that answers a request as a stream. It checks again and again whether the caller's credential is still
valid.
"""


def refusal(caller: Caller, role: Role | None, *, for_groups: bool = False) -> str | None:
    """The reason why this caller may not use a route for this role and those above (None: for all); None: it may."""
    if caller.role is Role.GROUP_ADMIN:
        return None if for_groups and caller.group is not None else "this is not for the administrator of a group"
    return None if role is None or caller.role >= role else f"this is for the role {role.name.lower()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A route of the admin API: one method at one path below ROOT (/admin/v1). `role` is the lowest role that may use
    it; None: no sign-in is needed. `conflicts` says why the route can return 409; None: it cannot.
    """

    method: str
    path: str
    role: Role | None
    summary: str
    run: Callable[[AdminRequest], Awaitable[AdminAnswer]]
    stream: Stream | None = None  # the same as server-sent events, for a caller that accepts these
    answer: type[BaseModel | msgspec.Struct] | None = None
    media_types: tuple[str, ...] = ()  # of the file that it answers with, in place of JSON
    status: int = 200
    body: type[BaseModel] | None = None
    merges: type[BaseModel] | None = None  # the model of a merge patch: the body is any part of it (RFC 7396)
    query: type[Query] | None = None
    versioned: bool = False  # the answer has an ETag; a change takes If-Match
    creates: bool = False  # it creates (201) or replaces (200)
    conflicts: str | None = None
    stored: bool = False  # it reads the store, which may be unavailable
    for_groups: bool = False  # administrators of groups may use it; the handler keeps them within their group
    live: bool = False  # the leader's to say: another process asks it
    body_bytes_max: int = BODY_BYTES_MAX
    count_changes: Callable[[Any], int] | None = None  # of a body, against the caller's rate of changes; None: one
    path_schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names_group = self.query is not None and "group" in self.query.model_fields
        assert names_group or not (self.live and self.for_groups), "the leader is told the caller's group by the query"

    def is_for(self, caller: Caller) -> bool:
        """Whether the caller's role may use the route."""
        return refusal(caller, self.role, for_groups=self.for_groups) is None

    def changes_of(self, body: Any) -> int:
        """The number of changes that this body counts as, against the caller's rate."""
        return 1 if self.count_changes is None else self.count_changes(body)

    @property
    def changes(self) -> bool:
        return self.method != "GET"

    @property
    def names(self) -> list[str]:
        """The names of the path's parameters."""
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]


class RouteTable:
    """A table that finds the admin routes at a path."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes: Sequence[Route] = tuple(routes)
        self._paths: list[tuple[tuple[str, ...], dict[str, Route]]] = []
        for route in self.routes:
            parts = tuple(route.path.split("/"))
            methods = next((methods for known, methods in self._paths if known == parts), None)
            if methods is None:
                methods = {}
                self._paths.append((parts, methods))
            assert route.method not in methods, "a method stands once at a path"
            methods[route.method] = route

    def find(self, raw_path: str) -> tuple[Mapping[str, Route], Mapping[str, str]] | None:
        """Return the routes at this path by method, and the values of its parameters; None where the path is
        unknown.
        """
        if not raw_path.startswith(ROOT + "/"):
            return None
        parts = tuple(unquote(part) for part in raw_path.removeprefix(ROOT).split("/"))
        for pattern, methods in self._paths:
            values = _matched(pattern, parts)
            if values is not None:
                return methods, values
        return None


def path_of(kind: str, name: str) -> str:
    """The path of one resource, below ROOT."""
    return f"/{kind}/{quote(name, safe='')}"


def _matched(pattern: tuple[str, ...], parts: tuple[str, ...]) -> dict[str, str] | None:
    if len(pattern) != len(parts):
        return None
    values = {}
    for expected, part in zip(pattern, parts, strict=True):
        if expected.startswith("{"):
            if not part:
                return None
            values[expected[1:-1]] = part
        elif expected != part:
            return None
    return values
