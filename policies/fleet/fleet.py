"""Fleet: the backends of one pool, the requests that each holds, and which backends can take one more.

A backend that leaves the live set gets no more requests, but stays in the fleet until its last request has ended.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from math import ceil, inf
from typing import NamedTuple

from policies.accounts.ledger import InFlight
from policies.capacity.backend import BackendCapacity, Clock
from policies.fleet.negative_cache import NegativeCache
from policies.fleet.pool_limits import PoolLimits
from policies.limit import Limit, ModelLimit
from policies.placement import LeastReserved, Placement
from policies.reservation import Reservation
from policies.types import BackendLoad, Request, Tier, Usage

Backends = Sequence[BackendCapacity]
InFlightAt = Callable[[str], Collection[InFlight]]
ASKED_FEW = 4  # backends: to ask so many costs less than to look up and record which of them refuse
REFUSED_S_MAX = 2.0  # a backend that has rejected everything for this long counts as not serving


class Access(NamedTuple):
    """The rules for where one request may be sent while earlier requests wait. At the backends in `closed` (if
    `is_closed`: at all backends) the request may take only the capacity that is reserved for its tier.
    `may_enter(request, backend, reservation)` tells whether the request may overtake the earlier ones at a backend with
    room; None: there is none to overtake.
    """

    is_closed: bool = False
    closed: Collection[str] = ()
    may_enter: Callable[[Request, BackendCapacity, Reservation], bool] | None = None


OPEN = Access()


class BackendHold(NamedTuple):
    """The choice of the backend that is held (kept free) for a waiting request: the one that will have room for the
    request first. `needed` is what the request will occupy there. A tenant that has received more service may overtake
    the request only if its lead is small. `requests` and `tokens` (KV) limit this lead: they are what was in flight at
    the backend when the backend was chosen or, if the pool has only this backend, the size of the request itself.
    """

    backend_id: str
    needed: Reservation
    requests: int
    tokens: float


class Fleet:
    """The backends of one pool, with the slots and KV tokens that are reserved at each. It knows which backends are
    available, and finds one with room for a request. Mutable.
    """

    def __init__(self, headroom_ratio_max: float, kv_rule: str, make_limit: Callable[[], Limit] = ModelLimit) -> None:
        self.cached_tokens: Callable[[Request, str], int] | None = None
        """The tokens of a prompt that a backend is believed to hold, if a policy reads them."""
        self.placement: Placement = LeastReserved()
        """The placement, which chooses among the backends with room."""
        self._make_limit = make_limit
        self.clock = Clock()
        self._headroom_ratio_max = headroom_ratio_max
        self.kv_rule = kv_rule
        # The headroom covers progress that is reported late. Without headroom, every reported token may make room.
        self.reads_progress = kv_rule == "peak" and headroom_ratio_max >= 1.0
        self._reserve_ratios: dict[str, float] = {}
        self._entitled: dict[str, float] = {}  # each tier's weight over the sum of all
        self.limits = PoolLimits()
        self.backends: dict[str, BackendCapacity] = {}
        """All known backends by id: live ones, and retired ones that still run our requests."""
        self._retired: set[str] = set()
        self.with_slot: set[str] = set()
        """The ids of the available backends that have a slot."""
        self._open: list[BackendCapacity] | None = None  # cache of these backends, None after a change
        self.negative_cache = NegativeCache(self.backends, self.with_slot)
        self.requests = 0
        """The number of our requests at all backends."""
        self.asked = 0
        """The number of times that a backend was asked whether, or when, it has room for a request."""
        self._layout: tuple[int, bool] | None = None  # of KV blocks, where all backends have the same
        self._held_until = -inf  # the latest `held_until` of all backends
        self._taken_over_at = -inf  # what another scheduler had sent until then is not known but by measurement

    def live(self, loads: Sequence[BackendLoad], in_flight: InFlightAt, now: float) -> None:
        """Replace the live set by these newly measured backends. `in_flight` gives our requests at a backend, by its
        id.
        """
        self.clock.now = now
        for load in loads:
            self._take_in(load, in_flight(load.backend_id))
        self._retired = self.backends.keys() - {load.backend_id for load in loads}
        for backend_id in sorted(self._retired):
            capacity = self.backends[backend_id]
            self._retire(capacity)
            self.with_slot.discard(backend_id)
            self.limits.remove(capacity)
        self._open = None
        self._set_layout()
        self.limits.add_up()

    def measured(self, load: BackendLoad, in_flight: Collection[InFlight], now: float) -> bool:
        """Apply a measurement of one backend, made while `in_flight` ran there. Returns whether the backend is new or
        its availability has changed.
        """
        self.clock.now = now
        before = self.backends.get(load.backend_id)
        was = None if before is None else (before.load.available, before.layout)
        capacity = self._take_in(load, in_flight)
        self._retired.discard(capacity.id)
        if was is None or was[1] != capacity.layout:
            self._set_layout()
        return was is None or was[0] != load.available

    def taken_over(self, now: float) -> None:
        """Another scheduler has decided until now: send no request to a backend before its first measurement after
        `now`. Requests there beyond the adopted ones are external load, which only a measurement shows.
        """
        self._taken_over_at = now
        for capacity in self.backends.values():
            capacity.awaits_measurement = True
            self._slots_changed(capacity)

    def adopt(
        self, request: Request, tier_id: str, backend_id: str, usage: Usage, *, output_tokens: float, now: float
    ) -> tuple[BackendCapacity, Reservation]:
        """Take the slot of a request that already runs at the backend, whether or not it fits. An unknown backend is
        kept, like one that has left, until the request has ended.
        """
        self.clock.now = now
        capacity = self.backends.get(backend_id)
        if capacity is None:
            capacity = self._take_in(BackendLoad(backend_id, available=False), ())
            self._retired.add(backend_id)
            self.limits.remove(capacity)
            self._set_layout()
        reservation = capacity.reservation(
            request,
            tier_id,
            prompt_tokens=(usage.prompt_tokens or request.prompt_tokens) + request.produced_tokens,
            output_tokens=max(0.0, output_tokens - request.produced_tokens),
        )
        reservation.cached_tokens = usage.cached_tokens
        reservation.produced_tokens = usage.output_tokens - request.produced_tokens
        capacity.take(reservation)
        self.requests += 1
        self._slots_changed(capacity)
        return capacity, reservation

    def set_reserves(self, tiers: Iterable[Tier]) -> None:
        """Set all tiers, each with its reserve: the part of every backend that only this tier may enter."""
        tiers = list(tiers)
        weights = sum(tier.weight for tier in tiers)
        self._reserve_ratios = {tier.id: tier.reserve_ratio for tier in tiers if tier.reserve_ratio}
        self._entitled = {tier.id: tier.weight / weights for tier in tiers}
        for capacity in self.backends.values():
            capacity.set_reserves(self._reserve_ratios, self._entitled)
        self.negative_cache.forget()

    def is_available(self, backend_ids: Collection[str] | None = None) -> bool:
        """Whether any backend (or any of `backend_ids`) is available."""
        for capacity in self.backends.values():  # a generator would cost more: mostly the first is available
            if capacity.load.available and (backend_ids is None or capacity.id in backend_ids):
                return True
        return False

    def known(self, request: Request) -> list[BackendCapacity]:
        """The backends that are eligible for the request, available or not."""
        ids = request.backend_ids
        return [each for each in self.backends.values() if ids is None or each.id in ids]

    def available(self, request: Request) -> list[BackendCapacity]:
        """The available backends that are eligible for the request."""
        return [each for each in self.known(request) if each.load.available]

    def serving(self, request: Request, now: float) -> list[BackendCapacity]:
        """The eligible backends that serve (see `serves`)."""
        return [each for each in self.available(request) if self.serves(each.id, now)]

    def serves(self, backend_id: str, now: float) -> bool:
        """Whether the backend is available and has not rejected everything for REFUSED_S_MAX."""
        capacity = self.backends.get(backend_id)
        if capacity is None or not capacity.load.available:
            return False
        return capacity.refusing_since is None or now - capacity.refusing_since < REFUSED_S_MAX

    def open_at(self, now: float) -> list[BackendCapacity]:
        """The backends that have a slot and are not held after a rejection."""
        self.clock.now = now
        backends = self._open or self._in_slot()
        return [each for each in backends if now >= each.held_until] if now < self._held_until else backends[:]

    def is_open(self, backend_id: str, now: float) -> bool:
        """Whether the backend is available and not held after a rejection. Its slots do not count."""
        capacity = self.backends[backend_id]
        return capacity.load.available and not capacity.awaits_measurement and now >= capacity.held_until

    def next_opening(self, now: float) -> float | None:
        """The time at which the first backend opens that is held at `now`, or that is busy with prompts. None if no
        such time is known.
        """
        opening = inf
        if now < self._held_until:
            held = [capacity.held_until for capacity in self.backends.values() if capacity.held_until > now]
            opening = min(held, default=inf)
        opening = min([opening, *[capacity.opens_at(now) for capacity in self._in_slot()]])
        return None if opening == inf else opening

    def refused(self, backend_id: str, now: float, hold_s: float) -> None:
        """Record that the backend rejected a request, and send no request there for `hold_s` seconds."""
        capacity = self.backends.get(backend_id)
        if capacity is not None and backend_id not in self._retired:
            capacity.held_until = max(capacity.held_until, now + hold_s)
            self._held_until = max(self._held_until, capacity.held_until)
            if capacity.refusing_since is None:
                capacity.refusing_since = now

    def took(self, entry: InFlight) -> None:
        """Record the first token of a request, by which its backend has accepted it."""
        backend = self.backends[entry.backend_id]
        backend.refusing_since = None
        self.clock.now = entry.first_token_at or self.clock.now
        limit = backend.sequences_max
        if backend.started(entry.reservation):
            self._slots_changed(backend)
        elif self.negative_cache.is_used:
            self.negative_cache.changed(backend)
        if backend.sequences_max != limit:
            self.limits.measured(backend)

    def prefilled(self, entry: InFlight, now: float) -> Usage:
        """The usage so far of a request without output: by the step-time model, the prompt tokens computed by `now`.
        For a continued request, it is the usage from before its interruption.
        """
        if entry.request.produced_tokens:
            return entry.usage
        reservation = entry.reservation
        computed = self.backends[entry.backend_id].work.computed_tokens(reservation, now)
        prompt, cached = entry.request.prompt_tokens, min(reservation.cached_tokens, entry.request.prompt_tokens)
        part = min(1.0, computed / reservation.prefill_tokens)
        return Usage(cached + round((prompt - cached) * part), cached, 0)

    def slot(
        self, request: Request, tier_id: str, candidates: Backends, access: Access, *, output_tokens: float, home: str
    ) -> tuple[BackendCapacity, Reservation] | None:
        """Reserve the request's slot at the backend that placement chooses among the candidates with room; None if none
        has. It goes to its `home`, the backend of its session or of its interrupted answer, if that has room: its
        blocks may still be in the prefix cache there. `output_tokens` excludes the tokens produced before.
        """
        if not candidates:
            return None
        now, is_closed = self.clock.now, access.is_closed
        refusals = self.negative_cache if self._layout is not None and (is_closed or not access.closed) else None
        needed = candidates[0].reservation(
            request, tier_id, prompt_tokens=request.prompt_tokens + request.produced_tokens, output_tokens=output_tokens
        )
        layouts, asked, search = {candidates[0].layout: needed}, candidates, None
        if self.negative_cache.is_used and self._layout is not None and self.kv_rule == "sum":
            few = self.negative_cache.free.enough(needed, candidates)
            if len(few) <= ASKED_FEW:
                asked, refusals = few, None
        if refusals is not None and refusals.refused:
            search = refusals.search(needed, now, reserve_only=is_closed)
            asked = refusals.worth_asking(candidates, search)
        chosen = self._chosen(request, asked, layouts, needed, access, home)
        if chosen is None:
            if refusals is not None:
                search = search or refusals.search(needed, now, reserve_only=is_closed)
                refusals.found_none(request, asked, search)
            return None
        reservation = layouts[chosen.layout]
        if self.cached_tokens is not None or request.produced_tokens:
            reservation.cached_tokens = _cached_tokens(request, chosen, self.cached_tokens)
        chosen.take(reservation)
        self.requests += 1
        self._slots_changed(chosen)
        return chosen, reservation

    def _chosen(  # noqa: PLR0917 - compiled, and called with every decision
        self,
        request: Request,
        asked: Backends,
        layouts: dict[tuple[int, bool], Reservation],
        needed: Reservation,
        access: Access,
        home: str,
    ) -> BackendCapacity | None:
        """The backend, of those that are asked, to which the request goes; None: it fits at none. For the others see
        `_fits`.
        """
        if len(asked) == 1 and self.kv_rule == "sum":  # mostly, while requests wait; placement could but ask it, too
            return asked[0] if self._fits(layouts, needed, request, access, asked[0]) else None
        fits = partial(self._fits, layouts, needed, request, access)
        if home:
            for each in asked:
                if each.id == home and fits(each):
                    return each
        return self.placement.place(request, asked, fits)

    def still_refuses(
        self,
        request: Request,
        tier_id: str,
        output_tokens: float,
        *,
        is_closed: bool,
        closed: Collection[str],
    ) -> bool:
        """Whether `slot` certainly finds no room for this request: it needs more KV tokens than are free anywhere, or
        it found none before. `output_tokens` is the whole predicted output. False says nothing.
        """
        refusals = self.negative_cache
        if self._layout is None or self.kv_rule != "sum":
            return False  # by other rules room comes with progress, too, which no change reports
        produced = request.produced_tokens
        if produced:
            output_tokens = max(output_tokens, float(produced)) - produced
        if request.choices == 1:
            block, are_shared = self._layout  # `own_tokens`, inlined: a poll asks of all that it passes over
            prompt = float(request.prompt_tokens + produced)
            if are_shared and request.prefix:
                prompt = max(0.0, prompt - len(request.prefix) * request.prefix_block_tokens)
            known = refusals.free.known
            if tier_id in known:
                most = known[tier_id]
            else:
                refusals.is_used = True
                most = refusals.free.most(tier_id)
            tokens = prompt + output_tokens  # to a block, only where it decides
            if tokens > most + 1.0 or ceil(tokens / block) * block > most:
                return True
        return (is_closed or not closed) and refusals.is_refused_still(
            request, tier_id, output_tokens, self.clock.now, reserve_only=is_closed
        )

    def soonest(
        self, request: Request, tier_id: str, output_tokens: float, *, besides: Collection[str], now: float
    ) -> BackendHold | None:
        """The backend, not in `besides`, that will have room for the request first if no other request is sent. None if
        no other eligible backend is open now.
        """
        best: tuple[float, str] | None = None
        layouts: dict[tuple[int, bool], Reservation] = {}  # what the request would occupy
        ids = request.backend_ids
        for capacity in self.backends.values():
            is_eligible = capacity.load.available and (ids is None or capacity.id in ids)
            if not is_eligible or capacity.id in besides or now < capacity.held_until:
                continue
            needed = layouts.get(capacity.layout)
            if needed is None:
                needed = layouts[capacity.layout] = capacity.reservation(
                    request, tier_id, prompt_tokens=request.context_tokens, output_tokens=output_tokens
                )
            self.asked += 1
            found = capacity.room_after(needed)[0] * (capacity.work.decode_s or 1.0), capacity.id
            if best is None or found < best:
                best = found
        if best is None:
            return None
        chosen = self.backends[best[1]]
        needed = layouts[chosen.layout]
        # Where there is no other backend, requests may overtake this one by no more than its own size.
        is_alone = len(self.backends) == 1
        return BackendHold(chosen.id, needed, *((1, needed.tokens) if is_alone else (chosen.requests, chosen.tokens)))

    def resize(self, entry: InFlight) -> int:
        """Fit the entry's reservation to its prompt as reported and to the larger of its predicted and its actual
        output. Returns by how many KV tokens it has grown.
        """
        backend, before = self.backends[entry.backend_id], entry.reservation.tokens
        tokens = _own_tokens(backend, entry, max(entry.sized_output, entry.usage.output_tokens))
        if tokens != before:
            backend.resize(entry.reservation, tokens)
            self.negative_cache.changed(backend)
        return tokens - before

    def release(self, entry: InFlight, now: float, *, is_failed: bool) -> None:
        """Release the entry's slot. If its backend has failed, the time that it held the slot is not counted in the
        backend's speed.
        """
        self.clock.now = now
        capacity = self.backends[entry.backend_id]
        output = entry.reservation.produced_tokens // entry.reservation.sequences
        if output:
            is_streamed = entry.first_token_at is not None and entry.first_token_at < now
            capacity.answered(entry.reservation, output, now - entry.dispatched_at, is_streamed=is_streamed)
        service = 0.0 if is_failed else entry.service - entry.service_before
        capacity.release(entry.reservation, now - entry.dispatched_at, service)
        self.requests -= 1
        if capacity.id in self._retired:
            self._retire(capacity)
        if capacity.load.requests_running is None:  # no measurement will update its speed
            self.limits.changed()
        self._slots_changed(capacity)

    def _take_in(self, load: BackendLoad, in_flight: Collection[InFlight]) -> BackendCapacity:
        capacity = self.backends.get(load.backend_id)
        is_known = capacity is not None
        if capacity is None:
            capacity = self.backends[load.backend_id] = BackendCapacity(
                load, self._headroom_ratio_max, kv_rule=self.kv_rule, limit=self._make_limit(), clock=self.clock
            )
            capacity.set_reserves(self._reserve_ratios, self._entitled)
            capacity.awaits_measurement = self._taken_over_at > -inf
        if is_known or capacity.awaits_measurement:
            # One from before a handover does not show the adopted requests.
            is_later = load.measured_at is None or load.measured_at >= self._taken_over_at
            is_first = capacity.awaits_measurement and load.available and is_later
            # A repeated measurement says nothing of what is held now.
            held_tokens = self._held_tokens(capacity, in_flight) if is_first or capacity.is_news(load) else 0.0
            capacity.measured(load, held_tokens, is_first=is_first)
        self._slots_changed(capacity)
        self.limits.measured(capacity)
        return capacity

    def _held_tokens(self, capacity: BackendCapacity, in_flight: Collection[InFlight]) -> float:
        """The KV tokens that our requests hold at the backend now, without shared blocks. Also updates the due times by
        their produced tokens.
        """
        capacity.work.told(self.clock.now)
        block_tokens, held_tokens = capacity.load.kv_block_tokens, 0.0
        for entry in in_flight:
            request, prefix, usage = entry.request, entry.reservation.prefix, entry.usage
            if prefix or request.choices > 1:
                held_tokens += _own_tokens(capacity, entry, usage.output_tokens)
            else:  # inlined for speed: every measurement looks at all that runs there
                held_tokens -= -(usage[0] + usage[2]) // block_tokens * block_tokens
        return held_tokens

    def _set_layout(self) -> None:
        """Find the common block layout after backends or layouts changed, and clear the negative cache."""
        layouts = {each.layout for each in self.backends.values()}
        self._layout = layouts.pop() if len(layouts) == 1 and not self.reads_progress else None
        self.negative_cache.forget()

    def _fits(
        self,
        layouts: dict[tuple[int, bool], Reservation],
        needed: Reservation,
        request: Request,
        access: Access,
        backend: BackendCapacity,
    ) -> bool:
        """Whether the backend has room for the request. `layouts` maps a block layout to the room that the request
        would occupy, `needed` at one of them.
        """
        is_closed, closed, may_enter = access
        self.asked += 1
        if backend.work.ready_at > -inf:
            due_at = -inf if request.envelope is None else needed.first_due_at
            if backend.work.ready_at > due_at and self.clock.now < backend.busy_until(due_at):
                return False
        layout = backend.layout
        if layout in layouts:
            reservation = layouts[layout]
        else:
            reservation = layouts[layout] = backend.reservation(
                request, needed.tier_id, prompt_tokens=request.context_tokens, output_tokens=needed.output_tokens
            )
        reserve_only = is_closed or backend.id in closed
        if self.cached_tokens is not None or request.produced_tokens:
            if not backend.may_fit(reservation, reserve_only=reserve_only):
                return False
            reservation.cached_tokens = _cached_tokens(request, backend, self.cached_tokens)
        # An idle backend always has room.
        has_room = not backend.sequences or backend.fits(reservation, reserve_only=reserve_only)
        return has_room and (may_enter is None or may_enter(request, backend, reservation))

    def _in_slot(self) -> list[BackendCapacity]:
        """The available backends that have a slot."""
        if self._open is None:
            if len(self.with_slot) == 1:  # mostly, while requests wait
                self._open = [self.backends[each] for each in self.with_slot]
            else:
                self._open = [each for each in self.backends.values() if each.id in self.with_slot]
        return self._open

    def _slots_changed(self, capacity: BackendCapacity) -> None:
        if self.negative_cache.is_used:
            self.negative_cache.changed(capacity)
        has_slot = capacity.load.available and not capacity.awaits_measurement
        if has_slot and capacity.sequences:  # an idle backend has one
            has_slot = capacity.has_slot
        if has_slot != (capacity.id in self.with_slot):
            self._open = None
            (self.with_slot.add if has_slot else self.with_slot.discard)(capacity.id)

    def _retire(self, capacity: BackendCapacity) -> None:
        capacity.load = replace(capacity.load, available=False)
        if not capacity.requests:
            del self.backends[capacity.id]
            self._retired.discard(capacity.id)


def _own_tokens(capacity: BackendCapacity, entry: InFlight, output_tokens: float) -> int:
    """The entry's own KV tokens at the backend, by its reported prompt and this much output."""
    usage = entry.usage
    return capacity.own_tokens(
        entry.request, entry.reservation.prefix, prompt_tokens=usage.prompt_tokens, output_tokens=output_tokens
    )


def _cached_tokens(request: Request, backend: BackendCapacity, known: Callable[[Request, str], int] | None) -> int:
    """The tokens that are assumed to be in the backend's prefix cache. They are all whole blocks of an interrupted
    request, at the backend where it ran, if there was room for them; otherwise, the blocks of its prompt that are
    `known` to be there.
    """
    if request.produced_tokens and backend.id == request.ran_at and backend.load.prefixes_shared:
        had_room = backend.tokens_max - backend.tokens >= 2 * request.context_tokens  # for them, and for it anew
        if had_room:
            return (request.context_tokens - 1) // backend.load.kv_block_tokens * backend.load.kv_block_tokens
    return 0 if known is None else known(request, backend.id)
