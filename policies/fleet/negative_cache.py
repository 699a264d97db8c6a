"""Which backends need not be asked again? A full pool is asked by every poll whether it has room for whoever is next.

Who has refused a request refuses every other that needs no less of anything: as many sequences, as much of a prompt, as
many steps after it, a first token as soon. It does until something comes, goes, changes or is reported there. (What
runs comes further in between, which makes room where the fullest moment is what counts; it is seen with the next of
these.) So what was refused is remembered, and for whoever needs no less only the backends are asked that have changed
since: mostly one or two. Who was busy with prompts is asked again when he is not any more. It is known per tier, for a
tier may be kept out of others' reserves, or may enter nothing but its own.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop
from math import inf

from policies.capacity.backend import BackendCapacity
from policies.capacity.candidates import Candidates
from policies.reservation import Reservation

REMEMBERED_MAX = 16  # requests of a tier: twice as many as a poll passes over


@dataclass(slots=True, eq=False)
class _Refused:
    """A request that all backends but `others`, and those that have changed since `at`, have refused."""

    needed: Reservation
    prompt_tokens: float  # what it holds before its first step
    at: int
    others: set[str]
    ready_at: float
    """No first token would come before at any of those that are busy."""
    busy: list[tuple[float, str]]
    """Who is busy, and until when; the soonest first."""

    def is_no_more_than(self, other: Reservation) -> bool:
        """Whether who refused this refuses the other as well."""
        needed = self.needed
        return (
            needed.tokens <= other.tokens
            and self.prompt_tokens <= other.tokens - other.output_tokens
            and needed.steps_left <= other.steps_left
            and needed.sequences <= other.sequences
            and other.first_due_at < self.ready_at
            and (not needed.prefix or needed.prefix == other.prefix)
        )


class NegativeCache:
    """What was refused, by tier. It holds for one layout of blocks: a pool of several remembers nothing."""

    def __init__(self) -> None:
        self._refused: dict[tuple[str, bool], list[_Refused]] = {}
        """By tier, and whether it may enter its own reserve alone; what was asked last comes last."""
        self._changes = 0
        self._changed: dict[str, int] = {}  # which change was the last of each backend, in their order

    def changed(self, backend_id: str) -> None:
        """Something came, went or changed there."""
        if self._refused:
            self._changes += 1
            self._changed.pop(backend_id, None)
            self._changed[backend_id] = self._changes

    def forget(self) -> None:
        """Everything may be different."""
        self._refused.clear()
        self._changed.clear()

    def worth_asking(
        self,
        candidates: Sequence[BackendCapacity],
        needed: Reservation,
        *,
        reserve_only: bool,
        now: float,
    ) -> Sequence[BackendCapacity]:
        """The candidates that may have room for what is needed."""
        others = self._others(needed, reserve_only=reserve_only, now=now)
        if others is None or 2 * len(others) > len(candidates):
            return candidates  # the first of many mostly fits: to leave out those who refused would cost more
        if not others:
            return ()
        if isinstance(candidates, Candidates):
            return candidates.among(others)
        return [each for each in candidates if each.id in others]

    def found_none(
        self,
        asked: Sequence[BackendCapacity],
        known: Collection[str],
        needed: Reservation,
        *,
        reserve_only: bool,
        now: float,
    ) -> None:
        """None of those asked, the candidates that were worth it, has room. `known` are the ids of all backends."""
        remembered = self._refused.setdefault((needed.tier_id, reserve_only), [])
        before = self._least_changed(remembered, needed)
        others, busy, ready_at = {*known}, list[tuple[float, str]](), inf
        if before is not None:
            others, busy, ready_at = self._changed_since(before), before.busy.copy(), before.ready_at
        for each in asked:
            # Who refused for another reason than these may think better of it as time goes by.
            if not each.has_room(needed, reserve_only=reserve_only):
                others.discard(each.id)
            elif now < (busy_until := each.busy_until(needed.first_due_at)):
                ready_at = min(ready_at, each.work.ready_at)
                busy.append((busy_until, each.id))
                others.discard(each.id)
        heapify(busy)
        refused = _Refused(needed, needed.tokens - needed.output_tokens, self._changes, others, ready_at, busy)
        remembered[:] = [each for each in remembered if not refused.is_no_more_than(each.needed)]
        remembered.append(refused)
        if len(remembered) > REMEMBERED_MAX:
            del remembered[0]

    def _others(self, needed: Reservation, *, reserve_only: bool, now: float) -> Collection[str] | None:
        """Ids of the backends that have not refused as much as this; None: it is not known of any."""
        refused = self._least_changed(self._refused.get((needed.tier_id, reserve_only), ()), needed)
        if refused is None:
            return None
        while refused.busy and refused.busy[0][0] <= now:
            refused.others.add(heappop(refused.busy)[1])
        return self._changed_since(refused)

    def _least_changed(self, remembered: Sequence[_Refused], needed: Reservation) -> _Refused | None:
        """What was refused last of what is no more than this."""
        for refused in reversed(remembered):
            if refused.is_no_more_than(needed):
                return refused
        return None

    def _changed_since(self, refused: _Refused) -> set[str]:
        others = refused.others.copy()
        for backend_id in reversed(self._changed):
            if self._changed[backend_id] <= refused.at:
                break
            others.add(backend_id)
        return others
