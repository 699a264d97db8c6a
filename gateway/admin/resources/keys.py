"""Key routes: create API keys (the secret is shown once), rotate them with an overlap, change and revoke them.

The store keeps the HMAC of a key and its last four characters. A key of the key file can be revoked here, but deleted
only in that file.
"""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gateway.admin.models import resources as models
from gateway.admin.problems import AdminProblem, field_problem, read_checked
from gateway.admin.resources.collection import CONFLICTS, etag_of, registry_answers
from gateway.admin.resources.group_scope import GroupScope, check_deletes
from gateway.admin.routes import AdminAnswer, AdminRequest, Role, Route, path_of
from gateway.config.key_file import new_key
from gateway.config.value_types import NAME_PATTERN
from gateway.identity.last_use import LastUse
from gateway.registry.changes import NOT_THERE, Edit
from gateway.registry.entries import Entry
from gateway.registry.merge_patch import merged
from gateway.registry.registry import Registry
from gateway.registry.resource_kinds import ApiKey, KeyHolder, KeySection
from gateway.store.base import StoreUnavailable

KIND = "keys"
ID_BYTES = 8
CHANGED = {"revoked", *KeySection.model_fields}
INHERITED = {"expires_at", *KeyHolder.model_fields, *KeySection.model_fields}  # by the key that takes another's place
SCHEMAS = {"id": {"type": "string", "pattern": NAME_PATTERN}}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRoutes:
    """The admin routes of API keys. `hmac_hex` computes the HMAC of a key, as which the key is stored.
    `checks_tenants`: whether the data port checks keys; if not, no key is made for a tenant.
    """

    registry: Registry
    hmac_hex: Callable[[str], str]
    checks_tenants: bool
    use: LastUse
    clock: Callable[[], float] = time.time

    def routes(self) -> Iterator[Route]:
        one = f"/{KIND}/{{id}}"
        yield Route(
            method="GET", path=f"/{KIND}", role=Role.VIEWER, summary="All keys, by id, without their secrets.",
            run=self.listed, query=models.KeyPage, answer=models.KeyList, for_groups=True,
        )  # fmt: skip
        yield Route(
            method="POST", path=f"/{KIND}", role=Role.ADMIN, summary="Make a key; its secret is shown this once.",
            run=self.create, body=models.NewKey, answer=models.KeyMade, status=201, versioned=True,
            conflicts=CONFLICTS, for_groups=True,
        )  # fmt: skip
        yield Route(
            method="GET", path=one, role=Role.VIEWER, summary="One key, without its secret.", run=self.read,
            answer=models.KeyResource, versioned=True, path_schemas=SCHEMAS, for_groups=True,
        )  # fmt: skip
        yield Route(
            method="PATCH", path=one, role=Role.ADMIN, summary="Change or revoke a key (RFC 7396).", run=self.patch,
            merges=models.KeyChange, answer=models.KeyResource, versioned=True, conflicts=CONFLICTS,
            path_schemas=SCHEMAS, for_groups=True,
        )  # fmt: skip
        yield Route(
            method="DELETE", path=one, role=Role.ADMIN, summary="Take a key away, for good.", run=self.delete,
            status=204, versioned=True, conflicts=CONFLICTS, path_schemas=SCHEMAS, for_groups=True,
        )  # fmt: skip
        yield Route(
            method="POST", path=f"{one}/rotate", role=Role.ADMIN,
            summary="Make a key like this one, which ends after an overlap.", run=self.rotate,
            body=models.Rotation, answer=models.KeyMade, status=201, versioned=True, conflicts=CONFLICTS,
            path_schemas=SCHEMAS, for_groups=True,
        )  # fmt: skip

    async def listed(self, asked: AdminRequest) -> AdminAnswer:
        query: models.KeyPage = asked.query
        scope, days = self._scope, await self._last_days()

        def sees(entry: Entry) -> bool:
            tenant = entry.of(ApiKey).tenant
            return query.tenant in (None, tenant) and scope.sees_tenant_named(asked.caller, tenant)

        found = self.registry.page(KIND, after=query.cursor or "", limit=query.limit + 1, sees=sees)
        shown, cursor = models.first_of(found, query.limit, lambda each: each.name)
        items = [show(entry, days) for entry in shown]
        return AdminAnswer(models.KeyList.model_construct(items=items, next_cursor=cursor))

    async def create(self, asked: AdminRequest) -> AdminAnswer:
        new: models.NewKey = asked.body
        if asked.caller.group is not None and (new.role is not None or new.group is not None):
            raise AdminProblem(403, "an administrator of a group makes keys of its tenants only")
        if (new.tenant is None) == (new.role is None):
            raise field_problem("body", "set one of tenant and role", status=409)
        if new.tenant is not None and not self.checks_tenants:
            raise field_problem("body.tenant", "keys of tenants are not checked while auth.mode is open", status=409)
        if (new.role == "group-admin") != (new.group is not None):
            raise field_problem("body.group", "is set with the role group-admin, and with no other", status=409)
        if not self._scope.sees_tenant_named(asked.caller, new.tenant):
            raise field_problem("body.tenant", f"there is no tenant '{new.tenant}'", status=409)
        body: dict[str, Any] = new.model_dump(mode="json", exclude_unset=True, exclude_none=True)
        expires_in_s = body.pop("expires_in_s", None)
        if expires_in_s is not None:
            body["expires_at"] = self._at(expires_in_s)
        edit, secret = self._made(body)
        return await self._written([edit], secret, asked)

    async def read(self, asked: AdminRequest) -> AdminAnswer:
        entry = self._entry(asked)
        return AdminAnswer(show(entry, await self._last_days()), etag=entry.etag)

    async def patch(self, asked: AdminRequest) -> AdminAnswer:
        entry, patch = self._entry(asked), dict(asked.body)
        key = entry.of(ApiKey)
        given = merged(key.model_dump(mode="json", include=CHANGED), patch)
        change = read_checked(models.KeyChange, given)
        if key.revoked and not change.revoked:
            raise field_problem("body.revoked", "cannot be taken back", status=409)
        if "expires_in_s" in patch:
            expires_in_s = patch.pop("expires_in_s")
            patch["expires_at"] = None if expires_in_s is None else self._at(expires_in_s)
        with registry_answers():
            entry = await self.registry.changes.patch(
                KIND, asked.id, patch, actor=asked.caller.name, etag=etag_of(asked, entry.etag)
            )
        return AdminAnswer(show(entry, await self._last_days()), etag=entry.etag)

    async def delete(self, asked: AdminRequest) -> AdminAnswer:
        entry = self._entry(asked)
        with registry_answers():
            check_deletes(asked.caller, entry)
            await self.registry.changes.delete(KIND, asked.id, actor=asked.caller.name, etag=etag_of(asked, entry.etag))
        return AdminAnswer()

    async def rotate(self, asked: AdminRequest) -> AdminAnswer:
        """Create the new key and set the end of the old one, in one transaction."""
        rotation: models.Rotation = asked.body
        entry = self._entry(asked)
        key = entry.of(ApiKey)
        if key.revoked or (key.expires_at is not None and key.expires_at.timestamp() <= self.clock()):
            raise AdminProblem(409, "the key is not valid any more: make a new one")
        inherited = {name: value for name, value in entry.body.items() if name in INHERITED}
        edit, secret = self._made(inherited)
        ends_at = self._at(rotation.overlap_s)
        if key.expires_at is not None:
            ends_at = min(ends_at, key.expires_at.astimezone(UTC).isoformat())
        old = Edit(KIND, entry.name, {**entry.body, "expires_at": ends_at}, etag_of(asked, entry.etag))
        return await self._written([edit, old], secret, asked)

    async def _last_days(self) -> Mapping[str, str]:
        """The days of last use; none where the store cannot be read, because the keys are known without it."""
        try:
            return await self.use.of_keys()
        except StoreUnavailable:
            return {}

    def _made(self, body: dict[str, Any]) -> tuple[Edit, str]:
        secret, name = new_key(), f"key-{secrets.token_hex(ID_BYTES)}"
        kept = {"hmac": self.hmac_hex(secret), "last_four": secret[-4:], "created_at": self._at(0)}
        return Edit(KIND, name, {**body, **kept}, NOT_THERE), secret

    async def _written(self, edits: list[Edit], secret: str, asked: AdminRequest) -> AdminAnswer:
        with registry_answers():
            guard = self._scope.make_key(asked.caller)
            entry = (await self.registry.changes.apply(edits, actor=asked.caller.name, guard=guard))[0]
        made = models.KeyMade.made_of(show(entry, {}), secret=secret)
        return AdminAnswer(made, etag=entry.etag, location=path_of(KIND, entry.name))

    def _at(self, in_s: float) -> str:
        return datetime.fromtimestamp(int(self.clock()) + in_s, UTC).isoformat()

    @property
    def _scope(self) -> GroupScope:
        return GroupScope(self.registry)

    def _entry(self, asked: AdminRequest) -> Entry:
        entry = self.registry.get(KIND, asked.id)
        if entry is None or not self._scope.sees_tenant_named(asked.caller, entry.of(ApiKey).tenant):
            raise AdminProblem(404, "there is no such key")
        return entry


def show(entry: Entry, last_days: Mapping[str, str]) -> models.KeyResource:
    """The key as the API shows it, without its HMAC."""
    key = entry.of(ApiKey)
    return models.KeyResource.made_of(
        key,
        id=entry.name,
        origin=entry.origin,
        last_used_on=last_days.get(entry.name),
        created_at=int(key.created_at.timestamp()),
        expires_at=None if key.expires_at is None else int(key.expires_at.timestamp()),
    )


def label_of(registry: Registry, key: str | None) -> str | None:
    """The present label of the key with this id; None where there is no such key, or it has no label."""
    entry = None if key is None else registry.get(KIND, key)
    return None if entry is None else entry.body.get("label") or None
