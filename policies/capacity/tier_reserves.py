"""Tier reserves: the parts of one backend that only one tier may enter, configured or learnt (reserve.py).

A tier's reserve counts as occupied for all other tiers, as far as the tier does not use it itself. A learnt reserve is
kept free beside what the tier uses, and is at most the tier's part of the backend by its weight.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, inf
from types import MappingProxyType

from policies.capacity.reserve import NONE, FloatingReserve, Room
from policies.reservation import Reservation
from policies.types import ReserveView

ROUNDING = 1e-9  # 0.07 of 100 slots are 7, although the product is 7.000000000000001
NO_RESERVES: Mapping[str, float] = MappingProxyType({})


@dataclass(slots=True)
class TierUse:
    """The use of one backend by one tier: its sequences and KV tokens there."""

    sequences: int = 0
    tokens: float = 0.0


NOTHING = TierUse()


class TierReserves:
    """The reserves of all tiers at one backend, and the use of the backend by each tier. Mutable."""

    __slots__ = ("_configured", "_entitled", "_learnt", "_ratios", "_sequences_max", "_tokens_max", "has_any", "used")

    def __init__(self) -> None:
        self.used: defaultdict[str, TierUse] = defaultdict(TierUse)
        """The sequences and tokens that each tier uses."""
        self.has_any = False
        self._ratios = self._entitled = NO_RESERVES
        self._configured: dict[str, TierUse] = {}
        self._learnt: dict[str, FloatingReserve] = {}
        self._sequences_max, self._tokens_max = 0, 0.0

    def set_tiers(self, ratios: Mapping[str, float], entitled: Mapping[str, float]) -> None:
        """Set the configured reserve of each tier, as a part of the backend, and the part that each is `entitled` to.
        Entitlement follows the tiers' weights. `sized` has to be called next.
        """
        self._ratios, self._entitled = ratios, entitled
        self._learnt = {tier_id: each for tier_id, each in self._learnt.items() if tier_id in entitled}

    def sized(self, sequences: int, tokens: float, *, sequences_max: int, tokens_max: float) -> None:
        """Set the size of the backend, and the part of it (`..._max`) that is left beside external load."""
        self._sequences_max, self._tokens_max = sequences_max, tokens_max
        self._configured = {
            tier_id: TierUse(ceil(ratio * sequences - ROUNDING), ratio * tokens)
            for tier_id, ratio in self._ratios.items()
        }
        self.has_any = bool(self._configured or self._learnt)

    def kept_for_others(self, tier_id: str, now: float) -> TierUse:
        """The unused part of the other tiers' reserves."""
        sequences, tokens = 0, 0.0
        for other_id, reserve in self._configured.items():
            if other_id != tier_id:
                used = self.used[other_id]
                if reserve.sequences > used.sequences:
                    sequences += reserve.sequences - used.sequences
                if reserve.tokens > used.tokens:
                    tokens += reserve.tokens - used.tokens
        for other_id in self._learnt:
            if other_id != tier_id:
                used, reserve = self.used[other_id], self._configured.get(other_id, NOTHING)
                free = self._free(other_id, now)
                sequences += max(0, free.sequences - max(0, reserve.sequences - used.sequences))
                tokens += max(0.0, free.tokens - max(0.0, reserve.tokens - used.tokens))
        return TierUse(sequences, tokens) if sequences or tokens else NOTHING

    def own_room(self, tier_id: str, now: float) -> Room:
        """The free part of the tier's own reserve; negative where the tier uses more than its reserve."""
        used, reserve = self.used[tier_id], self._configured.get(tier_id, NOTHING)
        sequences, tokens = reserve.sequences - used.sequences, reserve.tokens - used.tokens
        free = self._free(tier_id, now)
        return Room(
            sequences if sequences > free.sequences else free.sequences,
            tokens if tokens > free.tokens else free.tokens,
        )

    def has_kept(self, tier_id: str, tokens: float, now: float) -> bool:
        """Whether the tier's own reserve has this many KV tokens free."""
        return self.has_any and tokens <= self.own_room(tier_id, now).tokens

    def came(self, reservation: Reservation, now: float) -> None:
        """Record a request of the tier that could not have waited for a slot to come free, and learn the tier's need
        from it.
        """
        learnt = self._learnt.get(reservation.tier_id)
        if learnt is None:
            learnt = self._learnt[reservation.tier_id] = FloatingReserve()
        learnt.came(reservation.sequences, reservation.tokens, now)
        self.has_any = True

    def ended(self, reservation: Reservation, *, is_roomy: bool) -> None:
        """Record the slots and KV tokens that an ended request frees. `is_roomy`: less than half of the backend is in
        use.
        """
        for learnt in self._learnt.values():
            learnt.ended(reservation.sequences, reservation.tokens, is_roomy=is_roomy)

    def needs(self, tier_id: str, now: float) -> Room:
        """The learnt reserve of the tier: the room that its next arrival needs."""
        learnt = self._learnt.get(tier_id)
        return NONE if learnt is None else learnt.needed(now)

    def views(self, now: float) -> dict[str, ReserveView]:
        """The reserve of each tier: the configured one, or the learnt one where that is larger."""
        held = {}
        for tier_id in self._configured.keys() | self._learnt.keys():
            configured = self._configured.get(tier_id, NOTHING)
            learnt = self._bounded(self.needs(tier_id, now), tier_id)
            tokens = max(learnt.tokens, 0.0 if configured.tokens == inf else configured.tokens)
            held[tier_id] = ReserveView(max(configured.sequences, learnt.sequences), round(tokens))
        return held

    def _free(self, tier_id: str, now: float) -> Room:
        """The part of the tier's learnt reserve that is still free."""
        learnt = self._learnt.get(tier_id)
        return NONE if learnt is None else self._bounded(learnt.free(now), tier_id)

    def _bounded(self, room: Room, tier_id: str) -> Room:
        """The room, bounded by the tier's part of the backend by its weight."""
        part = self._entitled.get(tier_id, 1.0)
        return Room(min(room.sequences, int(part * self._sequences_max)), min(room.tokens, part * self._tokens_max))
