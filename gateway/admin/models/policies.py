"""Models of a pool's policies in the admin API: one model per policy with its parameters, generated from the tables of
the configuration, so that the OpenAPI document lists the parameters of each.
"""

from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, create_model

from gateway.admin.models.resources import Fields
from gateway.config.scheduling import NAMES, PARAMETERS, POLICY, PolicySettings

LIVE_KINDS = ("fairness", "prediction", "placement")  # what a running pool can change


def _fields(definitions: dict[str, Any]) -> dict[str, Any]:
    """Types made at run time, which a type checker sees as plain values."""
    return definitions


def _choice(kind: str) -> Any:
    models = [
        create_model(
            "".join(part.capitalize() for part in f"{kind}-{name}".split("-")),
            __base__=PARAMETERS[kind].get(name, PolicySettings),
            __doc__=f"The policy {name}.",
            **_fields({POLICY: (Literal[name], ...)}),
        )
        for name in NAMES[kind]
    ]
    return Annotated[reduce(or_, models), Field(discriminator=POLICY)]


PoolFields: type[BaseModel] = create_model(
    "PoolFields",
    __base__=Fields,
    __doc__="Which policy decides what; null or not there: as the configuration says for all pools.",
    **_fields({kind: (_choice(kind) | None, None) for kind in LIVE_KINDS}),
)
