"""Doubts about a valid configuration: settings that probably have another effect than intended.

Doubts are warnings, because the gateway can serve with such settings: for example, prices may come by the admin API.
"""

from collections.abc import Iterator

from gateway.config.config import Config
from gateway.config.marks import Budget, marked
from gateway.config.problems import did_you_mean, dotted_path
from gateway.config.sections import LimitedSection

COSTS = [name for name, budget in marked(LimitedSection, Budget).items() if budget.unit == "cost"]


def doubts(config: Config) -> Iterator[str]:
    """Yield one sentence for each doubt, with the path of its setting."""
    if not config.prices:
        for kind, limited in (("tenants", config.tenants), ("groups", config.groups)):
            for name, each in limited.items():
                for limit in COSTS:
                    if getattr(each, limit) is not None:
                        yield f"{dotted_path((kind, name, limit))}: limits nothing as long as no model has a price list"
    for name, alias in config.aliases.items():
        for model in alias.split:
            if model not in alias.models:
                hint = did_you_mean(model, list(alias.models))
                yield f"{dotted_path(('aliases', name, 'split', model))}: is none of the alias's models{hint}"
