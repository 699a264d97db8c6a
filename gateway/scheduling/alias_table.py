"""AliasTable: the present aliases, and the order in which an alias tries its models."""

import random
from collections.abc import Mapping

from gateway.config.aliases import AliasSection
from gateway.scheduling.split import choose_target


class AliasTable:
    """The table of model aliases (names for other models), by name. Mutable; a change affects only new calls."""

    def __init__(self, aliases: Mapping[str, AliasSection]) -> None:
        self.all: Mapping[str, AliasSection] = dict(aliases)

    def replace(self, aliases: Mapping[str, AliasSection]) -> None:
        self.all = dict(aliases)

    def find(self, name: str | None) -> AliasSection | None:
        """The alias of this name; None where the name is no alias."""
        return None if name is None else self.all.get(name)

    def targets(self, name: str) -> frozenset[str]:
        """All models that the alias of this name may stand for; empty where there is no such alias."""
        alias = self.all.get(name)
        return frozenset() if alias is None else alias.targets()

    def order(self, name: str, *, tenant: str, session: str | None) -> tuple[str, ...]:
        """The models of this alias in the order of trial, for a call of this tenant and session. KeyError where there
        is no such alias.
        """
        alias = self.all[name]
        if not alias.split:
            return alias.models
        first: str | None
        if alias.sticky == "call":
            (first,) = random.choices(list(alias.split), list(alias.split.values()))  # noqa: S311 - no secret
        else:
            caller = caller_of(tenant, session if alias.sticky == "session" else None)
            first = choose_target(alias.split, seed=name, caller=caller)
        return alias.models if first is None else (first, *(model for model in alias.models if model != first))


def caller_of(tenant: str, session: str | None) -> str:
    """The caller for a sticky split, which sends all calls of a caller to one model: a tenant, or a session of it."""
    caller = f"{len(tenant)} {tenant}"
    return caller if session is None else f"{caller} {session}"
