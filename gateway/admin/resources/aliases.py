"""Alias routes: the models that a name stands for."""

from collections.abc import Iterator

from gateway.admin.models.resources import MODEL_PATTERN
from gateway.admin.resources.collection import Collection, CollectionModels
from gateway.admin.routes import Role, Route
from gateway.config.aliases import AliasSection
from gateway.config.value_types import PoolName
from gateway.registry.registry import Registry


def routes(registry: Registry) -> Iterator[Route]:
    """Routes of aliases; the id is the name that clients use."""
    return Collection(
        kind="aliases",
        noun="alias",
        registry=registry,
        models=CollectionModels.of(AliasSection, "Alias", PoolName),
        role=Role.OPERATOR,
        id_pattern=MODEL_PATTERN,
    ).routes()
