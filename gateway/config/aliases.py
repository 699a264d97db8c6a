"""Aliases: model names that clients use, and the models that each stands for (docs/aliases.md).

A target is always a model that backends serve, never another alias. So there are no chains and no cycles, and an alias
may have the name of a model: that model is reached as a target of its own name.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from gateway.config.sections import POOL_CHARS_MAX, Section, not_bool

TARGETS_MAX = 16
WEIGHT_MAX = 1e6
SHADOWS_MAX = 64


def _plain(value: str) -> str:
    if not value.isprintable():
        raise ValueError("must be a name of printable characters")
    return value


ModelName = Annotated[str, Field(min_length=1, max_length=POOL_CHARS_MAX), AfterValidator(_plain)]
Weight = Annotated[float, Field(ge=0, le=WEIGHT_MAX), BeforeValidator(not_bool)]


class ShadowSection(Section):
    """Copies of calls that are sent to another model, and whose answers are dropped: this part of the calls, at most so
    many at once in each process.
    """

    model: ModelName
    ratio: Annotated[float, Field(gt=0, le=1), BeforeValidator(not_bool)] = 1.0
    in_flight_max: Annotated[int, Field(ge=1, le=SHADOWS_MAX), BeforeValidator(not_bool)] = 1


class AliasSection(Section):
    """What a model name stands for. `models` are tried in order. With `split` one of its models is tried first, by
    weight: the same one for every call of a tenant (`sticky: tenant`) or of a session.
    """

    models: Annotated[tuple[ModelName, ...], Field(min_length=1, max_length=TARGETS_MAX)]
    split: Annotated[Mapping[ModelName, Weight], Field(max_length=TARGETS_MAX)] = {}
    sticky: Literal["tenant", "session"] = "tenant"
    shadow: ShadowSection | None = None

    @model_validator(mode="after")
    def _is_plain(self) -> Self:
        if len(set(self.models)) < len(self.models):
            raise ValueError("models has a name twice")
        if self.split and not any(self.split.values()):
            raise ValueError("split needs a weight above 0")
        return self

    def targets(self) -> frozenset[str]:
        """All models that it may stand for."""
        return frozenset((*self.models, *self.split))


def alias_problems(aliases: Mapping[str, AliasSection]) -> Iterator[tuple[str, str]]:
    """The alias and the reason of each target that is another alias."""
    for name, alias in aliases.items():
        shadow = () if alias.shadow is None else (alias.shadow.model,)
        for target in sorted({*alias.targets(), *shadow} - {name}):
            if target in aliases:
                yield name, chained(target)


def chained(target: str) -> str:
    """Why a target is refused."""
    return f"'{target}' is an alias itself: name the models that it stands for"
