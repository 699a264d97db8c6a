"""Which backends need not be asked again? A full pool is asked by every poll whether it has room for whoever is next.

What is free there stays what it was until something comes, goes or changes. So once all have refused, it is remembered
how much the emptiest of them has free, and which have changed since: for whoever needs more, only those are asked,
mostly one or two. It is known per tier, for a tier may be kept out of others' reserves.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from policies.capacity import BackendCapacity
from policies.reservation import Reservation

ASKED_MAX = 8  # changed backends that are asked; when more have refused, what is free is found out again


@dataclass(slots=True)
class _Refused:
    """All backends but these have no more than so many tokens free."""

    tokens_free: float
    others: set[str]


class Refusals:
    """Who has refused, by tier. It holds for one layout of blocks: a pool of several remembers nothing."""

    def __init__(self) -> None:
        self._tiers: dict[str, _Refused] = {}

    def changed(self, backend_id: str) -> None:
        """Something came, went or changed there."""
        for refused in self._tiers.values():
            refused.others.add(backend_id)

    def forget(self) -> None:
        """Everything may be different."""
        self._tiers.clear()

    def worth_asking(
        self, reservation: Reservation, candidates: Sequence[BackendCapacity]
    ) -> Sequence[BackendCapacity]:
        """The candidates that may have room."""
        refused = self._tiers.get(reservation.tier_id)
        if refused is None or reservation.tokens <= refused.tokens_free:
            return candidates
        others = refused.others
        return [each for each in candidates if each.id in others]

    def found_none(
        self,
        reservation: Reservation,
        asked: Sequence[BackendCapacity],
        candidates: Sequence[BackendCapacity],
        known: Iterable[str],
    ) -> None:
        """None of those asked, the candidates that were worth it, has room. `known` are the ids of all backends."""
        if len(asked) < len(candidates) and len(asked) <= ASKED_MAX:
            return
        # A backend that refused for another reason than its memory may think better of it as time goes by.
        tier_id = reservation.tier_id
        rooms = {each.id: each.room(tier_id).tokens for each in candidates}
        full = {backend_id: tokens for backend_id, tokens in rooms.items() if tokens < reservation.tokens}
        if full:
            others = {backend_id for backend_id in known if backend_id not in full}
            self._tiers[tier_id] = _Refused(max(full.values()), others)
