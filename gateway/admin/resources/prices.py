"""Price list routes: what the tokens of a model cost, and from which day on."""

from collections.abc import Iterator

from gateway.admin.models.resources import MODEL_PATTERN
from gateway.admin.resources.collection import Collection, CollectionModels
from gateway.admin.routes import Role, Route
from gateway.config.prices import PriceSection
from gateway.config.value_types import PoolName
from gateway.registry.registry import Registry


def routes(registry: Registry) -> Iterator[Route]:
    """Routes of price lists; the id is a model."""
    return Collection(
        kind="prices",
        noun="price list",
        registry=registry,
        models=CollectionModels.of(PriceSection, "Price", PoolName),
        role=Role.OPERATOR,
        id_pattern=MODEL_PATTERN,
    ).routes()
