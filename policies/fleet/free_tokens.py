"""Free tokens: the most KV tokens that are free for a tier at any one backend that has a slot.

A request that needs more has room nowhere. In a pool that is full of KV tokens, one comparison shows this for nearly
every request that a poll looks at, whatever the number of backends: only backends that have changed are asked, once for
all requests of a tier.
"""

from collections.abc import Collection, Iterable, Mapping
from math import inf

from policies.capacity.backend import BackendCapacity
from policies.reservation import Reservation


class FreeTokens:
    """The numbers of KV tokens that each backend has free for requests of each tier. A request that needs more than the
    largest number of its tier has room nowhere, so one comparison shows this. Mutable.
    """

    def __init__(self, backends: Mapping[str, BackendCapacity], with_slot: Collection[str]) -> None:
        """`backends` are all of the fleet, by id; `with_slot` has the ids of those with a slot."""
        self._backends, self._with_slot = backends, with_slot
        self._free: dict[str, dict[str, float]] = {}  # by tier and backend
        self._changed: dict[str, dict[str, BackendCapacity]] = {}  # by tier: those to be asked again
        self.known: dict[str, float] = {}
        """By tier, what `most` gave, as long as nothing has changed. To read."""

    def changed(self, backend: BackendCapacity) -> None:
        """Record that the number of free tokens at the backend, or whether it has a slot, may have changed."""
        self.known.clear()
        for changed in self._changed.values():
            changed[backend.id] = backend

    def forget(self) -> None:
        """Drop all, because backends or their reserves have changed."""
        self.known.clear()
        self._free.clear()
        self._changed.clear()

    def most(self, tier_id: str) -> float:
        """The most free tokens at any backend with a slot; infinite where one is idle, which takes any request."""
        most = self.known[tier_id] = max(self._at(tier_id).values(), default=-inf)
        return most

    def _at(self, tier_id: str) -> Mapping[str, float]:
        """The free tokens at each backend, by id."""
        if tier_id not in self._changed:
            self._free[tier_id] = {}
            self._changed[tier_id] = dict(self._backends)
        free, changed = self._free[tier_id], self._changed[tier_id]
        if changed:
            for each in changed.values():
                if each.id not in self._with_slot:
                    free[each.id] = -inf
                else:
                    free[each.id] = each.room(tier_id).tokens if each.sequences else inf
            changed.clear()
        return free

    def enough(self, needed: Reservation, candidates: Iterable[BackendCapacity]) -> list[BackendCapacity]:
        """The candidates that have as many free tokens as `needed` takes of its own, in the same order."""
        free, tokens = self._at(needed.tier_id), needed.tokens
        return [each for each in candidates if free[each.id] >= tokens]
