"""Alias routes: the models that a name stands for."""

from collections.abc import Iterator

from gateway.admin import models
from gateway.admin.resources.collection import Collection, CollectionModels
from gateway.admin.routes import Role, Route
from gateway.config.sections import POOL_CHARS_MAX
from gateway.state.entries import Entry
from gateway.state.registry import Registry

ID_PATTERN = rf"^[^\x00-\x1f\x7f]{{1,{POOL_CHARS_MAX}}}$"


def routes(registry: Registry) -> Iterator[Route]:
    """Routes of aliases; the id is the name that clients use."""
    return Collection(
        kind="aliases",
        noun="alias",
        registry=registry,
        models=CollectionModels(
            made=models.NewAlias,
            whole=models.AliasFields,
            fields=models.AliasFields,
            shown=models.AliasResource,
            listed=models.AliasList,
        ),
        show=_alias,
        role=Role.OPERATOR,
        id_schema={"type": "string", "pattern": ID_PATTERN},
    ).routes()


def _alias(entry: Entry) -> models.AliasResource:
    return models.AliasResource.model_construct(
        id=entry.name, origin=entry.origin, **entry.section.model_dump(mode="json")
    )
