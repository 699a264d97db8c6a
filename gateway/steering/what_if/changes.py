"""PlayedChanges: the changes of a what-if besides the order and weights, applied to the recording and the settings.

Settings are changed by merge patches of their entries, as the admin API's PATCH does. A changed split of an alias moves
recorded calls between the alias's models: under `sticky: call` as few calls as give the new weights, else the calls of
tenants or sessions that the rendezvous hash sends to another model (gateway/scheduling/split.py). A call that moves
keeps its time, its tenant and its length.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from statistics import median
from typing import Any, Final

import orjson

from gateway.config.aliases import AliasSection
from gateway.registry.merge_patch import merged
from gateway.scheduling.alias_table import caller_of
from gateway.scheduling.split import choose_target
from gateway.steering.what_if.messages import EngineSpec

ENGINES_MAX: Final = 1024  # of a simulation
PLAYED: Final = ("tenants", "groups", "tiers")  # kinds of entries that a simulation reads


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitChange:
    """A change of the weights by which an alias divides its calls among its models. `before` and `after` are weights by
    model. `sticky` is the alias's setting of what is divided: calls, or whole tenants or sessions, which keep their
    model.
    """

    sticky: str
    before: Mapping[str, float]
    after: Mapping[str, float]

    @classmethod
    def of(cls, alias: AliasSection, after: Mapping[str, float]) -> "SplitChange":
        """The change of this alias to these weights; without a split its first model has all calls."""
        return cls(sticky=alias.sticky, before=alias.split or {alias.models[0]: 1.0}, after=after)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedChanges:
    """The changes of settings that a what-if (see WhatIf) simulates. `engines` is the number of additional engines;
    below 0: of removed ones. `patches` are JSON merge patches of registry entries, by kind and id. `splits` are by
    alias.
    """

    engines: int = 0
    patches: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    splits: Mapping[str, SplitChange] = field(default_factory=dict)

    def config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The changed configuration. A tenant with a group gets the group's tier."""
        found = dict(config) | {kind: dict(config[kind]) for kind in PLAYED}
        for kind, patches in self.patches.items():
            for name, patch in patches.items():
                section = merged(found[kind].get(name, {}), patch)
                if section.get("group") is not None:
                    section.pop("tier", None)
                found[kind][name] = section
        return found

    def engine(self, engine: EngineSpec) -> EngineSpec:
        """The engines with the changed number, at least one. Engines of the median pace are added or removed."""
        number = min(ENGINES_MAX, max(1, engine.engines + self.engines))
        paces = sorted(engine.paces)
        while paces and len(paces) != number:
            if len(paces) < number:
                paces.append(median(engine.paces))
            else:
                del paces[len(paces) // 2]
        return EngineSpec(
            engines=number,
            requests_running_max=engine.requests_running_max,
            kv_tokens_max=engine.kv_tokens_max,
            paces=paces,
        )

    def calls(self, lines: bytes) -> bytes:
        """The recorded calls with the models that the changed splits give them."""
        if not self.splits:
            return lines
        draws = Random("splits")  # noqa: S311 - a simulation draws lots, not secrets
        return b"".join(self._moved(line, draws.random()) + b"\n" for line in lines.splitlines())

    def _moved(self, line: bytes, draw: float) -> bytes:
        call = orjson.loads(line)
        alias = call.get("alias")
        split = self.splits.get(alias)
        if split is None:
            return line
        if split.sticky == "call":
            target = _by_lot(call["model"], split, draw)
        else:
            session = call["program"] if split.sticky == "session" else None
            caller = caller_of(call["tenant"], session)
            before, after = (choose_target(each, seed=alias, caller=caller) for each in (split.before, split.after))
            target = after if before != after else None
        return line if target is None else orjson.dumps({**call, "model": target})


def _by_lot(model: str, split: SplitChange, draw: float) -> str | None:
    """The model that a call moves to; None: it stays. A model loses calls only where its part becomes smaller, and
    gains them only where it becomes larger: that moves the fewest.
    """
    before, after = _parts(split.before), _parts(split.after)
    had, has = before.get(model, 0.0), after.get(model, 0.0)
    if had == 0.0 or draw * had < has:  # the split has not sent it there, or it stays
        return None
    gains = {each: part - before.get(each, 0.0) for each, part in after.items() if part > before.get(each, 0.0)}
    left = (draw * had - has) / (had - has) * sum(gains.values())
    for each, gain in sorted(gains.items()):
        left -= gain
        if left <= 0.0:
            return each
    return max(gains, default=None)


def _parts(weights: Mapping[str, float]) -> dict[str, float]:
    whole = sum(weights.values())
    return {name: weight / whole for name, weight in weights.items()}
