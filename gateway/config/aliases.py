"""Aliases: model names that clients use, and the models that each stands for (docs/aliases.md).

A target is always a model that backends serve, never another alias. So there are no chains and no cycles. An alias may
have the name of a model; the model is then reached as a target of that alias.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from gateway.config.marks import FormField
from gateway.config.sections import Section
from gateway.config.value_types import POOL_CHARS_MAX, not_bool, whole

TARGETS_MAX = 16
SPLIT_WEIGHT_MAX = 1e6
SHADOWS_MAX = 64


def _plain(value: str) -> str:
    if not value.isprintable():
        raise ValueError("must be a name of printable characters")
    return value


ModelName = Annotated[str, Field(min_length=1, max_length=POOL_CHARS_MAX), AfterValidator(_plain)]
SplitWeight = Annotated[float, Field(ge=0, le=SPLIT_WEIGHT_MAX), BeforeValidator(not_bool)]


class ShadowSection(Section):
    """The settings of shadow calls: copies of an alias's calls that are sent to another model. The answers to the
    copies are dropped.
    """

    model: Annotated[ModelName, Field(description="where the copies go"), FormField("Copies to")]
    ratio: Annotated[
        float,
        Field(gt=0, le=1, description="the part of the calls that is copied"),
        BeforeValidator(not_bool),
        FormField("Part of the calls that is copied"),
    ] = 1.0
    in_flight_max: Annotated[
        int,
        Field(ge=1, le=SHADOWS_MAX, description="copies at once in each process"),
        BeforeValidator(whole),
        FormField("Copies at once"),
    ] = 1


class AliasSection(Section):
    """The settings of an alias: the models that its name stands for, and how calls are divided among them."""

    models: Annotated[
        tuple[ModelName, ...],
        Field(
            min_length=1,
            max_length=TARGETS_MAX,
            description="tried in order: the next where one has no live backend, or is too slow now",
        ),
        FormField("Models, in order"),
    ]
    split: Annotated[
        Mapping[ModelName, SplitWeight],
        Field(max_length=TARGETS_MAX, description="one of these is tried first, by weight"),
        FormField("Split by weight"),
    ] = {}
    sticky: Annotated[
        Literal["call", "tenant", "session"],
        Field(description="by lot for each call, or the same one for all calls of a tenant, or of a session"),
        FormField("Divided by"),
    ] = "call"
    shadow: Annotated[
        ShadowSection | None, Field(description="copies of calls, to idle backends; answers are dropped")
    ] = None

    @model_validator(mode="after")
    def _is_plain(self) -> Self:
        if len(set(self.models)) < len(self.models):
            raise ValueError("models has a name twice")
        if self.split and not any(self.split.values()):
            raise ValueError("split needs a weight above 0")
        return self

    def targets(self) -> frozenset[str]:
        """All models that the alias may stand for."""
        return frozenset((*self.models, *self.split))


def alias_problems(aliases: Mapping[str, AliasSection]) -> Iterator[tuple[str, str]]:
    """Yield the alias and the reason of each target that is another alias."""
    for name, alias in aliases.items():
        shadow = () if alias.shadow is None else (alias.shadow.model,)
        for target in sorted({*alias.targets(), *shadow} - {name}):
            if target in aliases:
                yield name, chained(target)


def chained(target: str) -> str:
    """The reason why a target that is an alias is refused."""
    return f"'{target}' is an alias itself: name the models that it stands for"
