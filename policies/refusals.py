"""Which backends need not be asked again? A full pool is asked by every poll whether it has room for whoever is next.

What is free there stays what it was until something comes, goes or changes. So once all have refused, it is remembered
how much the emptiest of those that are full has free, how soon the first of those that are busy with prompts would
have computed them, and which have changed since: for whoever needs more, and is due sooner, only those are asked,
mostly one or two. Who was busy is asked again when he is not any more. It is known per tier, for a tier may be kept out
of others' reserves, or may enter nothing but its own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop
from math import inf

from policies.candidates import Candidates
from policies.capacity import BackendCapacity
from policies.reservation import Reservation

ASKED_MAX = 8  # changed backends that are asked; when more have refused, what is free is found out again


@dataclass(slots=True)
class _Refused:
    """All backends but `others` have no more than so many seats free, or no more than so many tokens, or are busy, and
    no first token would come before `ready_at`.
    """

    seats_free: float
    tokens_free: float
    ready_at: float
    others: set[str]
    busy: list[tuple[float, str]]
    """Who is busy, and until when; the soonest first."""


class Refusals:
    """Who has refused, by tier. It holds for one layout of blocks: a pool of several remembers nothing."""

    def __init__(self) -> None:
        self.kinds: dict[tuple[str, bool], _Refused] = {}
        """By tier, and whether it may enter its own reserve alone."""

    def changed(self, backend_id: str) -> None:
        """Something came, went or changed there."""
        for refused in self.kinds.values():
            refused.others.add(backend_id)

    def forget(self) -> None:
        """Everything may be different."""
        self.kinds.clear()

    def worth_asking(
        self,
        candidates: Sequence[BackendCapacity],
        needed: Reservation,
        *,
        reserve_only: bool,
        now: float,
    ) -> Sequence[BackendCapacity]:
        """The candidates that may have room for what is needed."""
        refused = self.kinds.get((needed.tier_id, reserve_only))
        if (
            refused is None
            or needed.sequences <= refused.seats_free
            or needed.tokens <= refused.tokens_free
            or needed.first_due_at >= refused.ready_at
        ):
            return candidates
        others, busy = refused.others, refused.busy
        while busy and busy[0][0] <= now:
            others.add(heappop(busy)[1])
        if not others:
            return ()
        if 2 * len(others) > len(candidates):
            return (
                candidates  # the first of them mostly fits: to ask those who refused costs less than to leave them out
            )
        if isinstance(candidates, Candidates):
            return candidates.among(others)
        return [each for each in candidates if each.id in others]

    def found_none(
        self,
        asked: Sequence[BackendCapacity],
        candidates: Sequence[BackendCapacity],
        known: Iterable[str],
        needed: Reservation,
        *,
        reserve_only: bool,
        now: float,
    ) -> None:
        """None of those asked, the candidates that were worth it, has room. `known` are the ids of all backends."""
        if len(asked) < len(candidates) and len(asked) <= ASKED_MAX:
            return
        # A backend that refused for another reason than these may think better of it as time goes by.
        tier_id = needed.tier_id
        seats_free, tokens_free, ready_at = -inf, -inf, inf
        refused: set[str] = set()
        busy: list[tuple[float, str]] = []
        for each in candidates:
            room = each.own_room(tier_id) if reserve_only else each.room(tier_id)
            if room.sequences < needed.sequences:
                seats_free = max(seats_free, room.sequences)
            elif room.tokens < needed.tokens:
                tokens_free = max(tokens_free, room.tokens)
            elif now < (busy_until := each.busy_until(needed.first_due_at)):
                ready_at = min(ready_at, each.work.ready_at)
                busy.append((busy_until, each.id))
            else:
                continue
            refused.add(each.id)
        if refused:
            heapify(busy)
            others = {*known} - refused
            self.kinds[tier_id, reserve_only] = _Refused(seats_free, tokens_free, ready_at, others, busy)
