"""Sign-in routes: a one-time link becomes a key, and a caller learns its name and its role."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from gateway.admin.access.one_time_links import OneTimeLinks
from gateway.admin.access.sign_in import SignIn
from gateway.admin.models.resources import Fields
from gateway.admin.resources.keys import label_of
from gateway.admin.routes import ROLES, AdminAnswer, AdminRequest, Role, Route
from gateway.config.jwt import Role as RoleName
from gateway.config.key_file import FIRST_KEY_CHARS_MAX
from gateway.registry.registry import Registry

ROLE_NAMES: dict[Role, RoleName] = {role: name for name, role in ROLES.items()}


class OneTimeToken(Fields):
    """The request to sign in by a one-time link. `once` is its token, which follows #once= in the link."""

    once: Annotated[str, Field(min_length=1, max_length=FIRST_KEY_CHARS_MAX)]


class SessionResource(Fields):
    """A new session at the admin port, after signing in: its key and its role. `expires_at`: seconds since 1970."""

    key: str
    role: RoleName
    expires_at: int


class CallerResource(Fields):
    """The caller that sent a request. `name` is its name in the audit log, `label` the label of its key, `group` the
    group that it administers.
    """

    name: str
    label: str | None = None
    role: RoleName
    group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRoutes:
    """The admin routes that sign callers in, and tell them their role."""

    registry: Registry
    links: OneTimeLinks
    sign_in: SignIn

    def routes(self) -> Iterator[Route]:
        yield Route(
            method="POST", path="/sign-in", role=None,
            summary="Sign in by a one-time link. It works once, within ten minutes, and returns a key that expires.",
            run=self.open, body=OneTimeToken, answer=SessionResource,
        )  # fmt: skip
        yield Route(
            method="GET", path="/me", role=Role.VIEWER, summary="The caller's name and role.",
            run=self.me, answer=CallerResource, for_groups=True,
        )  # fmt: skip

    async def open(self, asked: AdminRequest) -> AdminAnswer:
        session = self.links.open(asked.body.once)
        if session is None:
            raise self.sign_in.refusal(
                asked.peer,
                "this link was opened before, is older than ten minutes, or is from before a restart",
            )
        role = ROLE_NAMES[session.role]
        return AdminAnswer(SessionResource(key=session.key, role=role, expires_at=int(session.expires_at_s)))

    async def me(self, asked: AdminRequest) -> AdminAnswer:
        caller = asked.caller
        label = label_of(self.registry, caller.name)
        role = ROLE_NAMES[caller.role]
        return AdminAnswer(CallerResource(name=caller.name, label=label, role=role, group=caller.group))
