"""Negative cache: which backends have no room for a request, so that a poll of a full pool need not ask them again.

A backend that has no room for a request has none for any request that needs at least as much of everything: sequences,
prompt tokens, steps after the prompt, and a first token as soon. This holds until a request is dispatched or released
there, or the backend changes or is measured. (Requests progress in between, which makes room by the "expected" and
"peak" rules; the next of these events shows it. By "expected" a smaller request may count more in the long run, as its
successors come sooner: its rejection is kept until that event, too.) So rejections are cached. For a request that needs
no less, only the backends that have changed since are asked: usually one or two. A backend that was busy with prompts
is asked again when it is no longer busy. The cache is per tier, as a tier may not enter the reserves of others, or may
enter only its own.

Most polls of a full pool find the same requests at the head, and each request that ends leaves room at one backend. So
a rejected request is also kept by its id: only its need of memory is then compared with the backends that have changed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf

from policies.capacity.backend import BackendCapacity
from policies.capacity.candidates import Candidates
from policies.fleet.free_tokens import FreeTokens
from policies.reservation import Reservation
from policies.types import Request

REMEMBERED_MAX = 16  # rejected requests per tier: twice as many as a poll passes over
REQUESTS_MAX = 4 * REMEMBERED_MAX  # that are kept by id: those of a few tiers


class _Need:
    """What a request needs, as requests are compared."""

    __slots__ = ("first_due_at", "prefix", "prompt_tokens", "sequences", "steps_left", "tokens")

    def __init__(self, needed: Reservation) -> None:
        self.tokens, self.sequences, self.prefix = needed.tokens, needed.sequences, needed.prefix
        self.prompt_tokens = needed.tokens - needed.output_tokens  # KV tokens that it holds before its first step
        self.steps_left = (needed.output_tokens - needed.produced_tokens) / needed.sequences  # `steps_left`, inlined
        self.first_due_at = -inf if needed.envelope is None else needed.first_due_at


@dataclass(slots=True, eq=False)
class _Refused:
    """A rejected request: it has room at no backend, except perhaps at `others` and those changed since `at`."""

    request: Request
    reserve_only: bool
    needed: Reservation
    need: _Need
    at: int
    others: set[str]
    ready_at: float
    """The time before which no busy backend would give the first token."""
    busy: list[tuple[float, str]]
    """The busy backends with the end of their busy time, the soonest first."""

    def is_no_more_than(self, other: _Need) -> bool:
        """Whether this request needs no more than `other`, so that a backend without room for it has none for the
        other.
        """
        need = self.need
        return (
            need.tokens <= other.tokens
            and need.steps_left <= other.steps_left
            and need.prompt_tokens <= other.prompt_tokens
            and need.sequences <= other.sequences
            and other.first_due_at < self.ready_at
            and (not need.prefix or need.prefix == other.prefix)
        )

    def is_busy(self, backend: BackendCapacity, now: float) -> bool:
        """Whether the backend, which has room, is busy with prompts; if so, it is asked again later."""
        busy_until = backend.busy_until(self.needed.first_due_at)
        if now >= busy_until:
            return False
        self.ready_at = min(self.ready_at, backend.work.ready_at)
        heappush(self.busy, (busy_until, backend.id))
        return True


class _Search:
    """What is known of a request for which room is sought: what it needs, the latest rejected one that needs no more,
    and the backends that may have room all the same.
    """

    __slots__ = ("before", "need", "needed", "now", "others", "reserve_only")

    def __init__(self, needed: Reservation, now: float, *, reserve_only: bool) -> None:
        self.needed, self.now, self.reserve_only = needed, now, reserve_only
        self.need = _Need(needed)
        self.before: _Refused | None = None
        self.others = set[str]()


class NegativeCache:
    """A cache of requests that found no room at any backend, by tier. A later request that needs at least as much is
    compared only with the backends that have changed since. It works only while all backends have the same KV block
    size and prefix sharing; the fleet does not use it otherwise. Mutable.
    """

    def __init__(self, backends: Mapping[str, BackendCapacity], with_slot: set[str]) -> None:
        """`backends` are all of the fleet, by id; `with_slot` has the ids of those with a slot."""
        self._with_slot = with_slot
        self.refused: dict[tuple[str, bool], list[_Refused]] = {}
        """By tier, and whether it may enter its own reserve alone; what was asked last comes last."""
        self.by_request: dict[str, _Refused] = {}
        """The latest of them, by the request's id."""
        self.is_used = False
        """Whether anything was asked or found since it was empty, so that changes have to be told. To read."""
        self.free = FreeTokens(backends, with_slot)
        self._changes = 0
        # Each backend that has changed, and the number of its last change, in ascending order.
        self._changed: dict[str, tuple[int, BackendCapacity]] = {}

    def changed(self, backend: BackendCapacity) -> None:
        """Record that the backend may have room again: a request was dispatched or released there, or it changed."""
        self.free.changed(backend)
        if self.refused:
            self._changes += 1
            self._changed.pop(backend.id, None)
            self._changed[backend.id] = self._changes, backend

    def forget(self) -> None:
        """Drop all entries. This costs one or two searches, and `changed` need not be called before the next search."""
        self.is_used = False
        self.free.forget()
        self.refused.clear()
        self.by_request.clear()
        self._changed.clear()

    def is_refused_still(
        self, request: Request, tier_id: str, output_tokens: float, now: float, *, reserve_only: bool
    ) -> bool:
        """Whether this same request, with this predicted output, was rejected and still has room at no backend with a
        slot. False does not mean that there is room.
        """
        if request.id not in self.by_request:
            return False
        refused = self.by_request[request.id]
        if refused.others or refused.request is not request:
            return False
        needed = refused.needed
        if (needed.output_tokens, needed.tier_id, refused.reserve_only) != (output_tokens, tier_id, reserve_only):
            return False
        if refused.busy and refused.busy[0][0] <= now:
            return False
        if refused.at == self._changes:
            return True
        for number, backend in reversed(self._changed.values()):
            if number <= refused.at:
                break
            if backend.id not in self._with_slot:
                continue  # it changes again before it has one
            if backend.has_room(needed, reserve_only=reserve_only) and not refused.is_busy(backend, now):
                return False
        refused.at = self._changes
        return True

    def search(self, needed: Reservation, now: float, *, reserve_only: bool) -> _Search:
        """Begin a search for room for `needed`. The search is valid until anything changes."""
        search = _Search(needed, now, reserve_only=reserve_only)
        before = self._least_changed(self.refused.get((needed.tier_id, reserve_only), ()), search.need)
        if before is not None:
            while before.busy and before.busy[0][0] <= now:
                before.others.add(heappop(before.busy)[1])
            search.before, search.others = before, self._changed_since(before)
        return search

    def worth_asking(self, candidates: Sequence[BackendCapacity], search: _Search) -> Sequence[BackendCapacity]:
        """The candidates that may have room by this search; all of them where more than half may."""
        others = search.others
        if search.before is None or 2 * len(others) > len(candidates):
            return candidates  # the first of many mostly fits: to filter them would cost more
        if not others:
            return ()
        if isinstance(candidates, Candidates):
            return candidates.among(others)
        return [each for each in candidates if each.id in others]

    def found_none(self, request: Request, asked: Sequence[BackendCapacity], search: _Search) -> None:
        """Record that none of `asked`, the result of `worth_asking` in this search, has room for the request."""
        self.is_used = True
        needed, need, before, now = search.needed, search.need, search.before, search.now
        reserve_only = search.reserve_only
        remembered = self.refused.setdefault((needed.tier_id, reserve_only), [])
        others, busy, ready_at = {*self._with_slot}, list[tuple[float, str]](), inf
        if before is not None:
            others, busy, ready_at = search.others & self._with_slot, before.busy.copy(), before.ready_at
        first_due_at = need.first_due_at
        for each in asked:
            # A rejection for any other reason may end with time alone: it is not cached.
            if not each.has_room(needed, reserve_only=reserve_only):
                others.discard(each.id)
            elif now < (busy_until := each.busy_until(first_due_at)):
                ready_at = min(ready_at, each.work.ready_at)
                busy.append((busy_until, each.id))
                others.discard(each.id)
        heapify(busy)
        refused = _Refused(request, reserve_only, needed, need, self._changes, others, ready_at, busy)
        self._remember(refused, remembered)

    def _remember(self, refused: _Refused, remembered: list[_Refused]) -> None:
        """Keep it by its request, and among those of its tier instead of any that it implies."""
        self.by_request.pop(refused.request.id, None)
        self.by_request[refused.request.id] = refused
        if len(self.by_request) > REQUESTS_MAX:
            del self.by_request[next(iter(self.by_request))]
        tokens = refused.need.tokens  # most need fewer, which says it all
        remembered[:] = [
            each for each in remembered if each.need.tokens < tokens or not refused.is_no_more_than(each.need)
        ]
        remembered.append(refused)
        if len(remembered) > REMEMBERED_MAX:
            del remembered[0]

    def _least_changed(self, remembered: Sequence[_Refused], need: _Need) -> _Refused | None:
        """The latest rejected request that needs no more than `needed`; None if there is none."""
        tokens, steps_left, prompt_tokens = need.tokens, need.steps_left, need.prompt_tokens  # most need more of one
        for refused in reversed(remembered):
            least = refused.need
            is_less = least.tokens <= tokens and least.steps_left <= steps_left and least.prompt_tokens <= prompt_tokens
            if is_less and refused.is_no_more_than(need):
                return refused
        return None

    def _changed_since(self, refused: _Refused) -> set[str]:
        others = refused.others.copy()
        for number, backend in reversed(self._changed.values()):
            if number <= refused.at:
                break
            others.add(backend.id)
        return others
