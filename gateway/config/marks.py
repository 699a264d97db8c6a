"""Marks on the fields of sections: facts about a setting besides its value.

The sections of tenants, groups and keys share some settings by inheritance (sections.py).
"""

from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

from pydantic import BaseModel

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class FormField:
    """A mark (metadata) on a setting that a form of the page (the admin port's web interface) shows: the setting's
    label, its unit, and an example value as YAML.
    """

    label: str
    unit: str = ""
    example: str = ""


@dataclass(frozen=True, slots=True)
class Budget:
    """A mark (metadata) on a setting that is a budget: a limit per day or month on tokens or cost. The use is stored,
    so that it also counts after a restart.
    """

    unit: Literal["tokens", "cost"]


@dataclass(frozen=True, slots=True)
class QueueLimit:
    """A mark (metadata) on a setting that limits a tenant's part of the queue. All groups share the queue, so a group's
    administrator cannot change the setting.
    """


def marked(section: type[BaseModel], mark: type[M]) -> dict[str, M]:
    """The fields of a section that have a mark of this kind, each with its mark."""
    return {
        name: each for name, field in section.model_fields.items() for each in field.metadata if isinstance(each, mark)
    }


def inner_section(annotation: Any) -> type[BaseModel] | None:
    """The section that a field with this annotation holds; None for a field that holds plain values."""
    if isinstance(annotation, type):
        return annotation if issubclass(annotation, BaseModel) else None
    return next((found for each in get_args(annotation) if (found := inner_section(each)) is not None), None)
