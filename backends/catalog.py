"""Catalog of models: the /v1/models of all backends as one list, and the pool that serves each model.

A pool is the set of backends that serve the same base model (a LoRA adapter names its base as `parent`), or those that
the configuration groups under one name. A derived pool is named after the first base model that was seen in it. It
keeps that name for the gateway's lifetime, because the tenants' counters of the pool are stored under it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MODELS_MAX = 1024  # per backend: base model, aliases and adapters
MODEL_ID_CHARS_MAX = 512
CONTEXT_TOKENS_MAX = 1 << 24  # no published model has a longer context (the longest has 10 million tokens)


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The entry of one model in a backend's answer to /v1/models. `entry` is the whole entry as the server wrote it."""

    id: str
    root: str | None
    parent: str | None
    max_model_len: int | None
    entry: Mapping[str, Any] = field(compare=False)  # not compared: vLLM writes the present time into `created`


def read_models(body: Any) -> tuple[ModelCard, ...]:
    """Read the decoded body of /v1/models. Raises ValueError if it has no list of models."""
    entries = body.get("data") if isinstance(body, dict) else None
    if not isinstance(entries, list):
        raise ValueError("the body of /v1/models has no list 'data'")  # noqa: TRY004 - a bad answer, not a bad argument
    return tuple(_card(entry) for entry in entries[:MODELS_MAX] if _is_model(entry))


def _is_model(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("id"), str) and 0 < len(entry["id"]) <= MODEL_ID_CHARS_MAX


def _card(entry: Mapping[str, Any]) -> ModelCard:
    root, parent, length = entry.get("root"), entry.get("parent"), entry.get("max_model_len")
    return ModelCard(
        id=entry["id"],
        root=root if isinstance(root, str) else None,
        parent=parent if isinstance(parent, str) else None,
        max_model_len=min(length, CONTEXT_TOKENS_MAX) if isinstance(length, int) and length > 0 else None,
        entry=entry,
    )


class Catalog:
    """The models that each backend last reported, and so the backends and the pool that serve a model. Mutable."""

    def __init__(self, backend_ids: Sequence[str], *, pools: Mapping[str, str]) -> None:
        """`pools` maps the ids of backends with a configured pool to that pool."""
        self._configured = dict(pools)
        self._pool_names: dict[str, None] = dict.fromkeys(pools.values())  # all that were ever configured
        self._cards: dict[str, tuple[ModelCard, ...]] = dict.fromkeys(backend_ids, ())
        self._pool_of_base: dict[str, str] = {}
        self._pool_of_backend: dict[str, str] = dict(pools)
        self._pool_of_model: dict[str, str] = {}
        self._merged: dict[str, ModelCard] = {}
        self._contexts: dict[str, int] = {}
        self._backends_of: dict[str, tuple[str, ...]] = {}  # by pool; a cache, cleared by every change

    def update(self, backend_id: str, cards: tuple[ModelCard, ...]) -> bool:
        """Record the models of a backend; return whether they have changed."""
        if cards == self._cards[backend_id]:
            return False
        self._cards[backend_id] = cards
        self._regroup()
        return True

    def add(self, backend_id: str, pool: str | None) -> None:
        """Add a backend after the others, with its `pool` if that is configured."""
        assert backend_id not in self._cards, "a backend is there once"
        self._cards[backend_id] = ()
        if pool is not None:
            self._configured[backend_id] = self._pool_of_backend[backend_id] = pool
            self._pool_names[pool] = None
            self._backends_of.clear()

    def remove(self, backend_id: str) -> None:
        del self._cards[backend_id]
        self._configured.pop(backend_id, None)
        self._pool_of_backend.pop(backend_id, None)
        self._regroup()

    @property
    def pools(self) -> list[str]:
        """The names of all pools since the start; a pool that has lost its last backend is reported as empty."""
        return list(dict.fromkeys([*self._pool_names, *self._pool_of_base.values()]))

    def pool_of_backend(self, backend_id: str) -> str | None:
        """Return the backend's pool; None while its models are unknown and no pool is configured."""
        return self._pool_of_backend.get(backend_id)

    def backends_of(self, pool: str) -> tuple[str, ...]:
        """Return the backends of this pool, in the catalog's order."""
        backends = self._backends_of.get(pool)
        if backends is None:
            found = (each for each in self._cards if self._pool_of_backend.get(each) == pool)
            backends = self._backends_of[pool] = tuple(found)
        return backends

    def pool_of_model(self, model: str) -> str | None:
        """Return the pool that serves this model; if several do, the pool of the first backend in order."""
        return self._pool_of_model.get(model)

    def serves(self, backend_id: str, model: str) -> bool:
        """Whether this backend was last seen to serve this model. KeyError for an unknown backend."""
        return any(card.id == model for card in self._cards[backend_id])

    def undiscovered(self) -> list[str]:
        """Return the backends whose models are not known yet. They may serve models that no other backend has."""
        return [backend_id for backend_id, cards in self._cards.items() if not cards]

    def models(self) -> list[ModelCard]:
        """Return one card per id, from the first backend in order."""
        return list(self._merged.values())

    def model(self, model: str) -> ModelCard | None:
        """Return the card of this model; None if no backend serves it."""
        return self._merged.get(model)

    def context_tokens_max(self, model: str) -> int:
        """The longest context of this model at any backend. CONTEXT_TOKENS_MAX if a backend does not report it."""
        return self._contexts.get(model, CONTEXT_TOKENS_MAX)

    def _regroup(self) -> None:
        self._pool_of_model.clear()
        self._merged.clear()
        self._contexts.clear()
        self._backends_of.clear()
        for backend_id, cards in self._cards.items():
            if not cards:
                continue
            pool = self._configured.get(backend_id) or self._derived_pool(_bases(cards))
            self._pool_of_backend[backend_id] = pool
            for card in cards:
                self._pool_of_model.setdefault(card.id, pool)
                self._merged.setdefault(card.id, card)
                context = card.max_model_len or CONTEXT_TOKENS_MAX
                self._contexts[card.id] = max(context, self._contexts.get(card.id, 0))

    def _derived_pool(self, bases: list[str]) -> str:
        known = (self._pool_of_base[base] for base in bases if base in self._pool_of_base)
        pool = next(known, bases[0])
        for base in bases:
            self._pool_of_base.setdefault(base, pool)
        return pool


def _bases(cards: Iterable[ModelCard]) -> list[str]:
    """Return the base models among these cards, aliases included; if there are only adapters, their parents."""
    cards = list(cards)
    bases = [card.id for card in cards if card.parent is None]
    return bases or [card.parent for card in cards if card.parent is not None]
