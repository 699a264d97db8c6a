"""Price list routes: what the tokens of a model cost, and from which day on."""

from collections.abc import Iterator

from gateway.admin import models
from gateway.admin.resources.collection import Collection, CollectionModels
from gateway.admin.routes import Role, Route
from gateway.config.sections import POOL_CHARS_MAX
from gateway.state.entries import Entry
from gateway.state.registry import Registry

ID_PATTERN = rf"^[^\x00-\x1f\x7f]{{1,{POOL_CHARS_MAX}}}$"


def routes(registry: Registry) -> Iterator[Route]:
    """Routes of price lists; the id is a model."""
    return Collection(
        kind="prices",
        noun="price list",
        registry=registry,
        models=CollectionModels(
            made=models.NewPrice,
            whole=models.PriceFields,
            fields=models.PriceFields,
            shown=models.PriceResource,
            listed=models.PriceList,
        ),
        show=_price_list,
        role=Role.OPERATOR,
        id_schema={"type": "string", "pattern": ID_PATTERN},
    ).routes()


def _price_list(entry: Entry) -> models.PriceResource:
    return models.PriceResource.model_construct(
        id=entry.name, origin=entry.origin, **entry.section.model_dump(mode="json")
    )
