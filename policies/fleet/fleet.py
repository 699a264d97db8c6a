"""Fleet: the backends of one pool, what each holds of our requests, and which of them can take one more.

A backend that leaves the live set gets no more requests, but stays in the fleet until its last request has ended.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple

from policies.accounts.ledger import InFlight
from policies.capacity.backend import BackendCapacity, Clock
from policies.envelope import due_no_later
from policies.fleet.negative_cache import NegativeCache
from policies.limit import Limit, ModelLimit
from policies.placement import Placement
from policies.placement.base import Fits
from policies.reservation import Reservation
from policies.types import BackendLoad, BackendView, Request, Tier, Usage

InFlightAt = Callable[[str], Collection[InFlight]]
NOTHING_USABLE = (0.0, 0.0)
REFUSED_S_MAX = 2.0  # a backend that has rejected everything for this long counts as not serving


class TtftForecast(NamedTuple):
    """The forecast TTFT of a request at one backend, in seconds from now."""

    ttft_s: float
    backend_id: str


class WorkAhead(NamedTuple):
    """What is sent to a backend before a request that waits: sequences, and their prompt and output tokens."""

    sequences: float
    tokens: float


class BackendHold(NamedTuple):
    """A backend that is held for a request that fits nowhere yet. `needed` is what the request will occupy there.
    `requests` and `tokens` are what was in flight there when it was chosen; where the pool has only this backend,
    those of the request itself.
    """

    backend_id: str
    needed: Reservation
    requests: int
    tokens: float


class Fleet:
    """The backends of one pool: dispatch reserves a slot here, and forecasts and limits are read from it. Mutable."""

    def __init__(self, headroom_ratio_max: float, kv_rule: str, make_limit: Callable[[], Limit] = ModelLimit) -> None:
        self.cached_tokens: Callable[[Request, str], int] | None = None
        """How much of a prompt a backend is believed to hold, where anybody knows."""
        self._make_limit = make_limit
        self._clock = Clock()
        self._headroom_ratio_max = headroom_ratio_max
        self._kv_rule = kv_rule
        # The headroom covers progress that is reported late. Without headroom, every reported token may make room.
        self.reads_progress = kv_rule == "peak" and headroom_ratio_max >= 1.0
        self._reserve_ratios: dict[str, float] = {}
        self._entitled: dict[str, float] = {}  # each tier's weight over the sum of all
        self._limits = (0.0, 0.0)
        self._usable: dict[str, tuple[float, float]] = {}  # by backend, as last measured: sequences and KV tokens
        self._backends: dict[str, BackendCapacity] = {}
        self._retired: set[str] = set()
        self.with_slot: set[str] = set()
        """Ids of the backends that are there and have a seat."""
        self._open: list[BackendCapacity] | None = None  # cache of these backends, None after a change
        self._negative_cache = NegativeCache()
        self._requests = 0  # of ours that all backends hold
        self._layout: tuple[int, bool] | None = None  # of KV blocks, where all backends have the same
        self._held_until = -inf  # the latest `held_until` of all backends

    def live(self, loads: Sequence[BackendLoad], in_flight: InFlightAt, now: float) -> None:
        """Replace the live set by these newly measured backends. `in_flight` gives our requests at each, by id."""
        self._clock.now = now
        for load in loads:
            self._take_in(load, in_flight(load.backend_id))
        self._retired = self._backends.keys() - {load.backend_id for load in loads}
        for backend_id in sorted(self._retired):
            self._retire(self._backends[backend_id])
            self.with_slot.discard(backend_id)
            self._usable.pop(backend_id, None)
        self._open = None
        self._set_layout()
        self._set_limits()

    def measured(self, load: BackendLoad, in_flight: Collection[InFlight], now: float) -> bool:
        """Apply a measurement of one backend, made while `in_flight` ran there. Returns whether the backend is new or
        its availability changed.
        """
        self._clock.now = now
        before = self._backends.get(load.backend_id)
        was = None if before is None else (before.load.available, before.layout)
        capacity = self._take_in(load, in_flight)
        self._retired.discard(capacity.id)
        if was is None or was[1] != capacity.layout:
            self._set_layout()
        self._set_limits()
        return was is None or was[0] != load.available

    def set_reserves(self, tiers: Iterable[Tier]) -> None:
        """Set all tiers, each with its reserve: the part of every backend that only it may enter."""
        tiers = list(tiers)
        weights = sum(tier.weight for tier in tiers)
        self._reserve_ratios = {tier.id: tier.reserve_ratio for tier in tiers if tier.reserve_ratio}
        self._entitled = {tier.id: tier.weight / weights for tier in tiers}
        for capacity in self._backends.values():
            capacity.set_reserves(self._reserve_ratios, self._entitled)
        self._negative_cache.forget()

    def backend_ids(self) -> Collection[str]:
        """The ids of all known backends: live ones, and retired ones that still run our requests."""
        return self._backends.keys()

    def is_available(self, backend_ids: Collection[str] | None = None) -> bool:
        """Whether any backend (or any of `backend_ids`) is available."""
        for capacity in self._backends.values():  # a generator would cost more: mostly the first is available
            if capacity.load.available and (backend_ids is None or capacity.id in backend_ids):
                return True
        return False

    def known(self, request: Request) -> list[BackendCapacity]:
        """The backends that are eligible for the request, available or not."""
        ids = request.backend_ids
        return [each for each in self._backends.values() if ids is None or each.id in ids]

    def available(self, request: Request) -> list[BackendCapacity]:
        """The available backends that are eligible for the request."""
        return [each for each in self.known(request) if each.load.available]

    def serving(self, request: Request, now: float) -> list[BackendCapacity]:
        """The eligible backends that serve (see `serves`)."""
        return [each for each in self.available(request) if self.serves(each.id, now)]

    def serves(self, backend_id: str, now: float) -> bool:
        """Whether the backend is available and has not rejected everything for REFUSED_S_MAX."""
        capacity = self._backends.get(backend_id)
        if capacity is None or not capacity.load.available:
            return False
        return capacity.refusing_since is None or now - capacity.refusing_since < REFUSED_S_MAX

    def open_at(self, now: float) -> list[BackendCapacity]:
        """The backends that have a slot and are not held after a rejection."""
        self._clock.now = now
        return (
            [each for each in self._in_slot() if now >= each.held_until]
            if now < self._held_until
            else self._in_slot()[:]
        )

    def is_open(self, backend_id: str, now: float) -> bool:
        """Whether the backend is available and not held after a rejection, with a slot or without."""
        capacity = self._backends[backend_id]
        return capacity.load.available and now >= capacity.held_until

    def next_opening(self, now: float) -> float | None:
        """When the first backend opens that is held at `now`, or that takes no prompt now because others would become
        late; None if no such time is known.
        """
        opening = inf
        if now < self._held_until:
            held = [capacity.held_until for capacity in self._backends.values() if capacity.held_until > now]
            opening = min(held, default=inf)
        opening = min([opening, *[capacity.opens_at(now) for capacity in self._in_slot()]])
        return None if opening == inf else opening

    def refused(self, backend_id: str, now: float, hold_s: float) -> None:
        """Record that the backend rejected a request: it is sent nothing for `hold_s` seconds."""
        capacity = self._backends.get(backend_id)
        if capacity is not None and backend_id not in self._retired:
            capacity.held_until = max(capacity.held_until, now + hold_s)
            self._held_until = max(self._held_until, capacity.held_until)
            if capacity.refusing_since is None:
                capacity.refusing_since = now

    def progressed(self, entry: InFlight) -> None:
        """Record that the entry has produced more tokens."""
        self._backends[entry.backend_id].by_end = None

    def took(self, entry: InFlight) -> None:
        """Record the first token of a request: the backend has accepted it."""
        backend = self._backends[entry.backend_id]
        backend.refusing_since = None
        self._clock.now = entry.first_token_at or self._clock.now
        backend.started(entry.reservation)
        self._negative_cache.changed(backend.id)

    def prefilled(self, entry: InFlight, now: float) -> Usage:
        """The usage so far of a request without output: the prompt tokens that its backend has computed by `now`, by
        the step-time model.
        """
        reservation = entry.reservation
        computed = self._backends[entry.backend_id].computed_tokens(reservation, now)
        prompt, cached = entry.request.prompt_tokens, min(reservation.cached_tokens, entry.request.prompt_tokens)
        part = min(1.0, computed / reservation.prefill_tokens)
        return Usage(cached + round((prompt - cached) * part), cached, 0)

    def slot(
        self,
        request: Request,
        tier_id: str,
        candidates: Sequence[BackendCapacity],
        *,
        output_tokens: float,
        is_closed: bool,
        closed: Collection[str],
        may_enter: Callable[[BackendCapacity, Reservation], bool] | None,
        placement: Placement,
    ) -> tuple[BackendCapacity, Reservation] | None:
        """Reserve the request's slot at the backend that placement chooses among the candidates with room; None if none
        has. Where `is_closed`, or at the backends in `closed`, it may only enter its tier's reserve. `may_enter` is
        asked of each candidate with room whether the request may overtake others that wait.
        """
        if not candidates:
            return None
        needed = candidates[0].reservation(
            request, tier_id, prompt_tokens=request.prompt_tokens, output_tokens=output_tokens
        )
        layouts = {candidates[0].layout: needed}
        asked, refusals = (
            candidates,
            self._negative_cache if self._layout is not None and (is_closed or not closed) else None,
        )
        if refusals is not None:
            asked = refusals.worth_asking(candidates, needed, reserve_only=is_closed, now=self._clock.now)
        fits = self._fits(layouts, request, is_closed=is_closed, closed=closed, may_enter=may_enter)
        chosen = placement.place(request, asked, fits)
        if chosen is None:
            if refusals is not None:
                now = self._clock.now
                refusals.found_none(asked, self._backends.keys(), needed, reserve_only=is_closed, now=now)
            return None
        reservation = layouts[chosen.layout]
        if self.cached_tokens is not None:
            reservation.cached_tokens = self.cached_tokens(request, chosen.id)
        chosen.take(reservation)
        self._requests += 1
        self._slots_changed(chosen)
        return chosen, reservation

    def soonest(
        self, request: Request, tier_id: str, output_tokens: float, *, besides: Collection[str], now: float
    ) -> BackendHold | None:
        """The backend, not in `besides`, that will have room for the request first if nothing more is sent anywhere;
        None if no other eligible backend is open now.
        """
        best: tuple[float, str] | None = None
        layouts: dict[tuple[int, bool], Reservation] = {}  # what the request would occupy
        for capacity in self.available(request):
            if capacity.id in besides or now < capacity.held_until:
                continue
            needed = layouts.get(capacity.layout)
            if needed is None:
                needed = layouts[capacity.layout] = capacity.reservation(
                    request, tier_id, prompt_tokens=request.prompt_tokens, output_tokens=output_tokens
                )
            found = capacity.room_in_steps(needed) * (capacity.work.decode_s or 1.0), capacity.id
            if best is None or found < best:
                best = found
        if best is None:
            return None
        chosen = self._backends[best[1]]
        needed = layouts[chosen.layout]
        # Where there is no other backend, requests may overtake this one by no more than its own size.
        is_alone = len(self._backends) == 1
        return BackendHold(chosen.id, needed, *((1, needed.tokens) if is_alone else (chosen.requests, chosen.tokens)))

    def forecasts(
        self,
        request: Request,
        now: float,
        *,
        output_tokens: float,
        ahead: WorkAhead | None = None,
        among: Collection[str] | None = None,
    ) -> list[TtftForecast]:
        """The forecast TTFT of the request, sent as soon as there is a slot for it, at each eligible backend (or each
        `among` these) that serves, in order of backend id. Backends without a sure step-time model are left out. It
        counts what is in flight and, where there is no room now, what goes `ahead` of the request at each backend.
        `output_tokens` is the request's predicted output.
        """
        self._clock.now = now
        due_at, found = due_no_later(request), []
        for capacity in self.serving(request, now) if among is None else self._serving_among(among, now):
            slot_in_s = self._slot_in_s(capacity, request, output_tokens, ahead)
            ttft_s = capacity.ttft_s(self._prefill_tokens(request, capacity.id), due_at=due_at)
            if ttft_s is not None:
                found.append(TtftForecast(max(slot_in_s, 0.0) + ttft_s, capacity.id))
        return sorted(found, key=lambda forecast: forecast.backend_id)

    def predicted_ttft_s(self, request: Request, now: float, *, output_tokens: float) -> float | None:
        """The least forecast TTFT in seconds; None if an eligible backend has no forecast, as it may be better."""
        forecasts = self.forecasts(request, now, output_tokens=output_tokens)
        if not forecasts or len(forecasts) < len(self.serving(request, now)):
            return None
        return min(forecasts).ttft_s

    def least_ttft_s(self, request: Request, now: float, among: Collection[str] | None = None) -> float | None:
        """Seconds until the first token at the best serving backend (or `among` these) if no other prompt were ahead
        there; None where one of them has no sure step-time model, or there is none.
        """
        least: list[float] = []
        for capacity in self.serving(request, now) if among is None else self._serving_among(among, now):
            if capacity.work.model is None or not capacity.work.is_sure:
                return None
            least.append(capacity.work.prefill_s(self._prefill_tokens(request, capacity.id)))
        return min(least, default=None)

    def mean_output_tokens(self) -> float:
        """The mean predicted output of the sequences that run; 0 when nothing runs."""
        running = [capacity.work for capacity in self._backends.values() if capacity.work.sequences]
        return sum(work.output_tokens for work in running) / max(1, sum(work.sequences for work in running))

    def tokens_needed(self, entry: InFlight) -> int:
        """The entry's own KV tokens, from its reported prompt and the larger of its predicted and its actual output."""
        return self._own_tokens(entry, max(entry.sized_output, entry.usage.output_tokens))

    def resize(self, entry: InFlight, tokens: int) -> None:
        self._backends[entry.backend_id].resize(entry.reservation, tokens)
        self._negative_cache.changed(entry.backend_id)

    def release(self, entry: InFlight, now: float) -> None:
        self._clock.now = now
        capacity = self._backends[entry.backend_id]
        output = entry.usage.output_tokens // entry.reservation.sequences
        if output:
            is_streamed = entry.first_token_at is not None and entry.first_token_at < now
            capacity.answered(entry.reservation, output, now - entry.dispatched_at, is_streamed=is_streamed)
        if entry.service > 0.0 and now > entry.dispatched_at:
            capacity.served(entry.service, entry.reservation, now - entry.dispatched_at)
        capacity.release(entry.reservation, now - entry.dispatched_at)
        self._requests -= 1
        if capacity.id in self._retired:
            self._retire(capacity)
        self._slots_changed(capacity)

    def limits(self) -> tuple[float, float]:
        """Sequences and KV tokens that we may have in flight at all available backends together, each weighted by the
        speed of its backend. Tokens are infinite where the size of a KV pool is not known.
        """
        return self._limits

    def limits_of(self, backend_id: str) -> tuple[float, float]:
        """Sequences and KV tokens that we may have in flight at one backend, unweighted."""
        capacity = self._backends[backend_id]
        return capacity.sequences_usable, capacity.tokens_max

    def requests(self) -> int:
        """The number of our requests that all backends hold."""
        return self._requests

    def views(self) -> Mapping[str, BackendView]:
        return {backend_id: capacity.view() for backend_id, capacity in self._backends.items()}

    def _own_tokens(self, entry: InFlight, output_tokens: float) -> int:
        return self._backends[entry.backend_id].own_tokens(
            entry.request,
            entry.reservation.prefix,
            prompt_tokens=entry.usage.prompt_tokens,
            output_tokens=output_tokens,
        )

    def _take_in(self, load: BackendLoad, in_flight: Collection[InFlight]) -> BackendCapacity:
        capacity = self._backends.get(load.backend_id)
        if capacity is None:
            capacity = self._backends[load.backend_id] = BackendCapacity(
                load,
                self._headroom_ratio_max,
                self._reserve_ratios,
                kv_rule=self._kv_rule,
                limit=self._make_limit(),
                clock=self._clock,
            )
            capacity.set_reserves(self._reserve_ratios, self._entitled)
        else:  # a repeated measurement says nothing of what is held now
            capacity.measured(load, self._told(capacity, in_flight) if capacity.is_news(load) else 0)
        self._slots_changed(capacity)
        usable = (capacity.sequences_usable, capacity.tokens_max)
        self._usable[capacity.id] = usable if load.available else NOTHING_USABLE
        return capacity

    def _told(self, capacity: BackendCapacity, in_flight: Collection[InFlight]) -> float:
        """KV tokens that our requests hold there now, without shared blocks. Also settles their produced tokens."""
        capacity.work.told(self._clock.now)
        block_tokens, held_tokens = capacity.load.kv_block_tokens, 0.0
        for entry in in_flight:
            request, prefix, usage = entry.request, entry.reservation.prefix, entry.usage
            if prefix or request.choices > 1:
                held_tokens += self._own_tokens(entry, usage.output_tokens)
            else:  # inlined for speed: every measurement looks at all that runs there
                held_tokens -= -(usage[0] + usage[2]) // block_tokens * block_tokens
        return held_tokens

    def _set_layout(self) -> None:
        """Find the common block layout after backends or layouts changed, and clear the negative cache."""
        layouts = {each.layout for each in self._backends.values()}
        self._layout = layouts.pop() if len(layouts) == 1 and not self.reads_progress else None
        self._negative_cache.forget()

    def _set_limits(self) -> None:
        """Add up what may be in flight at all backends, each weighted by its service rate over the mean of all; 1 where
        the rate is not known yet.
        """
        rates = [rate for each in self._usable if (rate := self._backends[each].service_rate) is not None]
        mean = sum(rates) / len(rates) if rates else 0.0
        sequences_max = tokens_max = 0.0
        for backend_id, (sequences, tokens) in self._usable.items():
            backend = self._backends[backend_id]
            rate = backend.service_rate
            backend.speed = rate / mean if rate is not None and mean > 0.0 else 1.0
            sequences_max += sequences * backend.speed
            tokens_max += tokens * backend.speed
        self._limits = sequences_max, tokens_max

    def _prefill_tokens(self, request: Request, backend_id: str) -> int:
        """Tokens of the prompt that this backend would have to compute."""
        cached_tokens = self.cached_tokens(request, backend_id) if self.cached_tokens is not None else 0
        return max(1, request.prompt_tokens - cached_tokens)

    def _serving_among(self, backend_ids: Collection[str], now: float) -> list[BackendCapacity]:
        return [self._backends[each] for each in backend_ids if self.serves(each, now)]

    def _slot_in_s(
        self, capacity: BackendCapacity, request: Request, output_tokens: float, ahead: WorkAhead | None
    ) -> float:
        tokens = request.prompt_tokens + output_tokens
        if capacity.work.model is None:
            return 0.0
        if ahead is None:
            return capacity.slot_in_s(request.choices, tokens)
        return capacity.slot_in_s(request.choices + ahead.sequences, tokens + ahead.tokens, is_full=True)

    def _fits(
        self,
        layouts: dict[tuple[int, bool], Reservation],
        request: Request,
        *,
        is_closed: bool,
        closed: Collection[str],
        may_enter: Callable[[BackendCapacity, Reservation], bool] | None,
    ) -> Fits:
        """Make the predicate that says whether a backend has room for the request. `layouts` maps a block layout to
        what the request would occupy; it holds at least one.
        """
        cached_tokens = self.cached_tokens

        def fits(backend: BackendCapacity) -> bool:
            reservation = layouts.get(backend.layout)
            if reservation is None:
                like = next(iter(layouts.values()))
                reservation = layouts[backend.layout] = backend.reservation(
                    request, like.tier_id, prompt_tokens=request.prompt_tokens, output_tokens=like.output_tokens
                )
            reserve_only = is_closed or backend.id in closed
            if cached_tokens is not None:
                if not backend.may_fit(reservation, reserve_only=reserve_only):
                    return False
                reservation.cached_tokens = cached_tokens(request, backend.id)
            has_room = backend.fits(reservation, reserve_only=reserve_only)
            return has_room and (may_enter is None or may_enter(backend, reservation))

        return fits

    def _in_slot(self) -> list[BackendCapacity]:
        """The available backends that have a slot."""
        if self._open is None:
            self._open = [each for each in self._backends.values() if each.id in self.with_slot]
        return self._open

    def _slots_changed(self, capacity: BackendCapacity) -> None:
        self._negative_cache.changed(capacity.id)
        has_slot = capacity.load.available and capacity.has_slot
        if has_slot != (capacity.id in self.with_slot):
            self._open = None
            (self.with_slot.add if has_slot else self.with_slot.discard)(capacity.id)

    def _retire(self, capacity: BackendCapacity) -> None:
        capacity.load = replace(capacity.load, available=False)
        if not capacity.requests:
            del self._backends[capacity.id]
            self._retired.discard(capacity.id)
