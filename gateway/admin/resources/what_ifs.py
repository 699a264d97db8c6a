"""What-if routes: simulations of the recorded calls under another policy or other settings, compared with the measured
outcome.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gateway.admin.models.what_ifs import WhatIfAsked, WhatIfChanges
from gateway.admin.problems import AdminProblem, FieldError, field_problem
from gateway.admin.routes import AdminAnswer, AdminRequest, Role, Route, path_of
from gateway.config.aliases import AliasSection
from gateway.live.stream.events import to_json
from gateway.registry.registry import Registry
from gateway.steering.what_if.changes import PLAYED, PlayedChanges, SplitChange
from gateway.steering.what_if.messages import SessionsChanged, WhatIf
from gateway.steering.what_if.what_ifs import Asked, NothingRecorded, OneIsRunning, WhatIfs
from policies.fairness.bounds import BOUNDS
from policies.types import DEFAULT_TIER

KIND: Final = "what-ifs"


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfRoutes:
    """The admin routes that start, show and stop what-ifs: simulations of recorded calls with other settings."""

    what_ifs: WhatIfs
    registry: Registry

    def routes(self) -> Iterator[Route]:
        yield Route(
            method="POST", path=f"/{KIND}", role=Role.OPERATOR,
            summary="Simulate the calls of the last minutes under another policy or other settings.",
            run=self.ask, body=WhatIfAsked, answer=WhatIf, status=202,
            conflicts="Another one runs, or no call was recorded in that time.",
        )  # fmt: skip
        yield Route(
            method="GET", path=f"/{KIND}/{{id}}", role=Role.VIEWER,
            summary="A what-if: how far it is, what happened, and what would have.",
            run=self.read, answer=WhatIf,
        )  # fmt: skip
        yield Route(
            method="DELETE", path=f"/{KIND}/{{id}}", role=Role.OPERATOR,
            summary="Stop a what-if that runs. One that no reader asks for stops by itself after a minute.",
            run=self.end, status=204, conflicts="It does not run.",
        )  # fmt: skip

    async def ask(self, asked: AdminRequest) -> AdminAnswer:
        body: WhatIfAsked = asked.body
        if body.policy is not None and body.policy.partition(":")[0] not in BOUNDS:
            raise field_problem("body.policy", f"is none of {', '.join(BOUNDS)}")
        changes = self._changes(body.changes)
        asked_for = Asked(
            policy=body.policy,
            weights=body.weights,
            minutes=body.minutes,
            pool=body.pool,
            changes=body.changes.model_dump(mode="json", exclude_unset=True),
            sessions=SessionsChanged(**body.sessions.model_dump()),
        )
        try:
            begun = await self.what_ifs.ask(asked_for, changes)
        except OneIsRunning as running:
            raise AdminProblem(409, f"another what-if runs, {running}: only one does at a time") from None
        except NothingRecorded:
            raise AdminProblem(409, "no call was recorded in that time") from None
        return AdminAnswer(encoded=to_json(begun), location=path_of(KIND, begun.id))

    def _changes(self, asked: WhatIfChanges) -> PlayedChanges:
        """What is asked for, of entries that exist. Raises AdminProblem, naming every one that does not."""
        named = {kind: getattr(asked, kind) for kind in PLAYED}
        missing = [
            FieldError(field=f"body.changes.{kind}.{name}", reason="has no settings here")
            for kind, entries in (named | {"aliases": asked.aliases}).items()
            for name in entries
            if kind != "tenants"
            and (kind, name) != ("tiers", DEFAULT_TIER.id)
            and self.registry.get(kind, name) is None
        ]
        missing += [
            FieldError(field=f"body.changes.tenants.{name}.{of}", reason="has no settings here")
            for name, tenant in asked.tenants.items()
            for of, kind in (("tier", "tiers"), ("group", "groups"))
            if (wanted := getattr(tenant, of)) is not None
            and wanted != DEFAULT_TIER.id
            and self.registry.get(kind, wanted) is None
        ]
        if missing:
            raise AdminProblem(422, f"{missing[0].field}: {missing[0].reason}", missing)
        splits = {}
        for name, alias in asked.aliases.items():
            entry = self.registry.get("aliases", name)
            if entry is not None:
                splits[name] = SplitChange.of(entry.of(AliasSection), alias.split)
        return PlayedChanges(
            engines=asked.engines,
            patches={
                kind: {name: each.model_dump(mode="json", exclude_unset=True) for name, each in entries.items()}
                for kind, entries in named.items()
            },
            splits=splits,
        )

    async def read(self, asked: AdminRequest) -> AdminAnswer:
        found = await self.what_ifs.find(asked.id)
        if found is None:
            raise AdminProblem(404, "there is no such what-if: each process keeps the last ten that it was asked for")
        return AdminAnswer(encoded=to_json(found))

    async def end(self, asked: AdminRequest) -> AdminAnswer:
        if await self.what_ifs.find(asked.id) is None:
            raise AdminProblem(404, "there is no such what-if")
        if not await self.what_ifs.end(asked.id):
            raise AdminProblem(409, "this what-if does not run")
        return AdminAnswer()
