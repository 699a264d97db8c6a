"""Routes: from a model's name to the Dispatcher of the pool that serves it, and to the backends that hold it."""

from collections.abc import Callable

from backends.catalog import ModelCard
from backends.pool import BackendPool
from gateway.scheduling.dispatcher import Dispatcher
from policies.types import BackendLoad


class Routes:
    """A table of routes: from a model's name to the Dispatcher of its pool, and to the backends that have the model."""

    def __init__(self, backends: BackendPool, dispatcher_of: Callable[[str], Dispatcher]) -> None:
        self._backends = backends
        self._catalog = backends.catalog
        self._dispatcher_of = dispatcher_of
        self.context_tokens_max = backends.catalog.context_tokens_max
        """Of a model: the longest context that a call of it may meet."""
        # By model: caches of `find` and `holders` until the backends change.
        self._routes: dict[str, tuple[Dispatcher, ModelCard]] = {}
        self._holders: dict[str, frozenset[str] | None] = {}

    def changed(self) -> None:
        """The set of backends, or the models that they serve, has changed."""
        self._routes.clear()
        self._holders.clear()

    def find(self, model: str | None) -> tuple[Dispatcher, ModelCard] | None:
        """The dispatcher and the card of this model, None where no backend has it. None as the model means the only
        base model, as in vLLM.
        """
        route = self._routes.get(model) if model is not None else None
        if route is not None:
            return route
        card = self._catalog.model(model) if model is not None else self._only_model()
        pool = None if card is None else self._catalog.pool_of_model(card.id)
        if card is None or pool is None:
            return None
        route = self._dispatcher_of(pool), card
        if model is not None:
            self._routes[model] = route
        return route

    def any(self) -> tuple[Dispatcher, ModelCard] | None:
        """The route to any pool, for calls that do not depend on the model: to an available pool if there is one."""
        well = [pool for pool, loads in self._backends.loads().items() if any(load.available for load in loads)]
        cards = sorted(self._catalog.models(), key=lambda card: self._catalog.pool_of_model(card.id) not in well)
        return self.find(cards[0].id) if cards else None

    def holders(self, model: str) -> frozenset[str] | None:
        """The backends of its pool that have this model (an adapter may be loaded on some); None: all of them."""
        if model not in self._holders:
            mates = [load.backend_id for load in self._loads(model)]
            having = frozenset(each for each in mates if self._catalog.serves(each, model))
            self._holders[model] = None if len(having) == len(mates) else having
        return self._holders[model]

    def available(self, model: str) -> list[str]:
        """The available backends of this model's pool."""
        return [load.backend_id for load in self._loads(model) if load.available]

    def is_live(self, model: str) -> bool:
        """Whether an available backend has this model."""
        if self.find(model) is None:
            return False
        holders = self.holders(model)
        return any(holders is None or each in holders for each in self.available(model))

    def may_come(self) -> bool:
        """Whether a backend that has not answered yet may serve a model that no other backend serves."""
        return bool(self._catalog.undiscovered())

    def any_available(self) -> bool:
        """Whether any backend of any pool is available."""
        return any(load.available for loads in self._backends.loads().values() for load in loads)

    def _loads(self, model: str) -> tuple[BackendLoad, ...]:
        return self._backends.loads_of(self._catalog.pool_of_model(model) or "")

    def _only_model(self) -> ModelCard | None:
        bases = [card for card in self._catalog.models() if card.parent is None]
        pools = {self._catalog.pool_of_model(card.id) for card in bases}
        return bases[0] if len(pools) == 1 else None
