"""Marks on the fields of sections: what code asks of a setting besides its value.

Which of a tenant's settings a group has too, and a key, their sections say: they inherit SharingSection and
LimitedSection. Which limits are divided among replicas says the scheduler's value (cluster/member.py).
"""

from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

from pydantic import BaseModel

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class FormField:
    """A setting that the page's forms have: its label there, the unit behind its value, and the value that the example
    file has, as YAML.
    """

    label: str
    unit: str = ""
    example: str = ""


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit per day or month, which is counted over restarts and renewed."""

    unit: Literal["tokens", "cost"]
    period: Literal["day", "month"]


@dataclass(frozen=True, slots=True)
class QueueLimit:
    """A limit of the queue, which all groups share: a group's administrator leaves it as it is."""


def marked(section: type[BaseModel], mark: type[M]) -> dict[str, M]:
    """The fields of a section that have a mark of this kind, and that mark."""
    return {
        name: each for name, field in section.model_fields.items() for each in field.metadata if isinstance(each, mark)
    }


def inner_section(annotation: Any) -> type[BaseModel] | None:
    """The section that a field of this annotation holds, None for a field of values."""
    if isinstance(annotation, type):
        return annotation if issubclass(annotation, BaseModel) else None
    return next((found for each in get_args(annotation) if (found := inner_section(each)) is not None), None)
