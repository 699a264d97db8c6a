"""The backends of one pool and what they hold of ours.

A backend that leaves the live set gets nothing more, but stays in the books until its last request has ended.
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
REFUSED_S_MAX = 2.0  # a backend that has taken nothing for so long is not waited for where another would do


class TtftForecast(NamedTuple):
    """When a request would have its first token at this backend, in seconds from now."""

    ttft_s: float
    backend_id: str


class WorkAhead(NamedTuple):
    """What is sent to a backend before a request that waits: sequences, and their tokens of prompt and output."""

    sequences: float
    tokens: float


class BackendHold(NamedTuple):
    """A backend that is kept for a request that fits nowhere yet: what the request will occupy there, and what of ours
    was in flight there when it was chosen, or, where there is no other backend, the request's own.
    """

    backend_id: str
    needed: Reservation
    requests: int
    tokens: float


class Fleet:
    """Who has room for this request, and how large are all of them together?"""

    def __init__(self, headroom_ratio_max: float, kv_rule: str, make_limit: Callable[[], Limit] = ModelLimit) -> None:
        self.cached_tokens: Callable[[Request, str], int] | None = None
        """How much of a prompt a backend is believed to hold, where anybody knows."""
        self._make_limit = make_limit
        self._clock = Clock()
        self._headroom_ratio_max = headroom_ratio_max
        self._kv_rule = kv_rule
        # The headroom covers what is told late of tokens that were predicted. Without any, each may let somebody in.
        self.reads_progress = kv_rule == "peak" and headroom_ratio_max >= 1.0
        self._reserve_ratios: dict[str, float] = {}
        self._entitled: dict[str, float] = {}  # the part of everything that each tier's weight is
        self._limits = (0.0, 0.0)
        self._usable: dict[str, tuple[float, float]] = {}  # by backend, as last measured: sequences and KV tokens
        self._backends: dict[str, BackendCapacity] = {}
        self._retired: set[str] = set()
        self.with_slot: set[str] = set()
        """Ids of the backends that are there and have a seat."""
        self._open: list[BackendCapacity] | None = None  # these, as far as they were asked for since they changed
        self._refusals = NegativeCache()
        self._requests = 0  # of ours that all of them hold
        self._layout: tuple[int, bool] | None = None  # of blocks, where all backends have the same
        self._held_until = -inf  # the last of those that are held

    def live(self, loads: Sequence[BackendLoad], in_flight: InFlightAt, now: float) -> None:
        """These are all the backends there are, newly measured, while so much of ours was in flight at each."""
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
        """One backend was measured while this of ours was in flight there. Whether it is new, or has come or gone."""
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
        """These are all the tiers, each with the part of every backend that only it may enter."""
        tiers = list(tiers)
        weights = sum(tier.weight for tier in tiers)
        self._reserve_ratios = {tier.id: tier.reserve_ratio for tier in tiers if tier.reserve_ratio}
        self._entitled = {tier.id: tier.weight / weights for tier in tiers}
        for capacity in self._backends.values():
            capacity.set_reserves(self._reserve_ratios, self._entitled)
        self._refusals.forget()

    def backend_ids(self) -> Collection[str]:
        """All backends that are known: live, or running something of ours yet."""
        return self._backends.keys()

    def is_available(self, backend_ids: Collection[str] | None = None) -> bool:
        """Whether any backend is, or any of these."""
        for capacity in self._backends.values():  # a generator would cost more than the look at the first
            if capacity.load.available and (backend_ids is None or capacity.id in backend_ids):
                return True
        return False

    def known(self, request: Request) -> list[BackendCapacity]:
        """The backends that will do for the request, there or not."""
        ids = request.backend_ids
        return [each for each in self._backends.values() if ids is None or each.id in ids]

    def available(self, request: Request) -> list[BackendCapacity]:
        """The backends that are there, of those that will do for the request."""
        return [each for each in self.known(request) if each.load.available]

    def serving(self, request: Request, now: float) -> list[BackendCapacity]:
        """The backends that are there and take requests, of those that will do for this one."""
        return [each for each in self.available(request) if self.serves(each.id, now)]

    def serves(self, backend_id: str, now: float) -> bool:
        """Whether the backend is there, and has not refused all that it was sent for too long."""
        capacity = self._backends.get(backend_id)
        if capacity is None or not capacity.load.available:
            return False
        return capacity.refusing_since is None or now - capacity.refusing_since < REFUSED_S_MAX

    def open_at(self, now: float) -> list[BackendCapacity]:
        """The backends that may be sent something now and have a seat for it."""
        self._clock.now = now
        return (
            [each for each in self._in_slot() if now >= each.held_until]
            if now < self._held_until
            else self._in_slot()[:]
        )

    def is_open(self, backend_id: str, now: float) -> bool:
        """Whether the backend may be sent something now, if it had a seat for it."""
        capacity = self._backends[backend_id]
        return capacity.load.available and now >= capacity.held_until

    def next_opening(self, now: float) -> float | None:
        """When the first backend opens that is held at `now`, or takes no prompt for the sake of others."""
        opening = inf
        if now < self._held_until:
            held = [capacity.held_until for capacity in self._backends.values() if capacity.held_until > now]
            opening = min(held, default=inf)
        opening = min([opening, *[capacity.opens_at(now) for capacity in self._in_slot()]])
        return None if opening == inf else opening

    def refused(self, backend_id: str, now: float, hold_s: float) -> None:
        """The backend did not take a request: it is sent nothing for `hold_s`."""
        capacity = self._backends.get(backend_id)
        if capacity is not None and backend_id not in self._retired:
            capacity.held_until = max(capacity.held_until, now + hold_s)
            self._held_until = max(self._held_until, capacity.held_until)
            if capacity.refusing_since is None:
                capacity.refusing_since = now

    def progressed(self, entry: InFlight) -> None:
        """It is known how much more the entry has produced."""
        self._backends[entry.backend_id].by_end = None

    def took(self, entry: InFlight) -> None:
        """The backend took a request: its first token is there."""
        backend = self._backends[entry.backend_id]
        backend.refusing_since = None
        self._clock.now = entry.first_token_at or self._clock.now
        backend.started(entry.reservation)
        self._refusals.changed(backend.id)

    def prefilled(self, entry: InFlight, now: float) -> Usage:
        """The request's prompt as far as its backend has probably got with it by now."""
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
        """Reserve the request's place where placement says, among the candidates that have room; None if none has.
        Where `is_closed`, or at the backends that are `closed`, it may enter its tier's reserve alone. One that has
        room is asked whether it `may_enter`, before others that wait.
        """
        if not candidates:
            return None
        needed = candidates[0].reservation(
            request, tier_id, prompt_tokens=request.prompt_tokens, output_tokens=output_tokens
        )
        layouts = {candidates[0].layout: needed}
        asked, refusals = candidates, self._refusals if self._layout is not None and (is_closed or not closed) else None
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
        """The backend that will have room for the request first if nothing more is sent to any, but for these; None
        where there is no other that will do for it and may be sent something now.
        """
        best: tuple[float, str] | None = None
        layouts: dict[tuple[int, bool], Reservation] = {}  # what it would occupy
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
        # Where there is nowhere else to go, others may go before the request by no more than it is worth itself.
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
        """When the request, sent as soon as there is a seat for it, would have its first token at each of the backends
        (or `among` these) that serve and will do for it, in order of backend id; those of whose steps too little is
        known are left out. By what is in flight and, where there is no room now, what goes `ahead` of it there;
        `output_tokens` are what is expected of it.
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
        """The least of its forecasts. None where some backend that would do for it has none: who would serve it
        better is not known then.
        """
        forecasts = self.forecasts(request, now, output_tokens=output_tokens)
        if not forecasts or len(forecasts) < len(self.serving(request, now)):
            return None
        return min(forecasts).ttft_s

    def least_ttft_s(self, request: Request, now: float, among: Collection[str] | None = None) -> float | None:
        """Seconds until its first token at the best of the backends (or `among` these) that serve if that had nothing
        else to do; None where too little is known of one of them.
        """
        least: list[float] = []
        for capacity in self.serving(request, now) if among is None else self._serving_among(among, now):
            if capacity.work.model is None or not capacity.work.is_sure:
                return None
            least.append(capacity.work.prefill_s(self._prefill_tokens(request, capacity.id)))
        return min(least, default=None)

    def mean_output_tokens(self) -> float:
        """Of all that runs, what is expected of one answer."""
        running = [capacity.work for capacity in self._backends.values() if capacity.work.sequences]
        return sum(work.output_tokens for work in running) / max(1, sum(work.sequences for work in running))

    def tokens_needed(self, entry: InFlight) -> int:
        """What the entry's own tokens come to, by its prompt as reported and an output that may have outgrown
        its prediction.
        """
        return self._own_tokens(entry, max(entry.sized_output, entry.usage.output_tokens))

    def resize(self, entry: InFlight, tokens: int) -> None:
        self._backends[entry.backend_id].resize(entry.reservation, tokens)
        self._refusals.changed(entry.backend_id)

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
        """Sequences and KV tokens that we may have in flight at all available backends together, each times the speed
        of its backend; infinitely many tokens where the size of a pool is not known.
        """
        return self._limits

    def limits_of(self, backend_id: str) -> tuple[float, float]:
        """The same of one backend."""
        capacity = self._backends[backend_id]
        return capacity.sequences_usable, capacity.tokens_max

    def requests(self) -> int:
        """How many requests of ours all backends hold."""
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
        else:  # what is told again says nothing of what is held now
            capacity.measured(load, self._told(capacity, in_flight) if capacity.is_news(load) else 0)
        self._slots_changed(capacity)
        usable = (capacity.sequences_usable, capacity.tokens_max)
        self._usable[capacity.id] = usable if load.available else NOTHING_USABLE
        return capacity

    def _told(self, capacity: BackendCapacity, in_flight: Collection[InFlight]) -> float:
        """KV tokens that our requests hold there by now, beyond what they share. What they have produced is told."""
        capacity.work.told(self._clock.now)
        block_tokens, held_tokens = capacity.load.kv_block_tokens, 0.0
        for entry in in_flight:
            request, prefix, usage = entry.request, entry.reservation.prefix, entry.usage
            if prefix or request.choices > 1:
                held_tokens += self._own_tokens(entry, usage.output_tokens)
            else:  # written out: all that runs there is looked at with every measurement
                held_tokens -= -(usage[0] + usage[2]) // block_tokens * block_tokens
        return held_tokens

    def _set_layout(self) -> None:
        """The backends, or how one of them lays out its blocks, are others: who refused may not refuse any more."""
        layouts = {each.layout for each in self._backends.values()}
        self._layout = layouts.pop() if len(layouts) == 1 and not self.reads_progress else None
        self._refusals.forget()

    def _set_limits(self) -> None:
        """Add up what may be in flight at all backends, by how fast each serves against the mean of all; as the mean
        where it is not known yet.
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
        """What says whether a backend has room for it. `layouts` has what it would occupy by the layout of blocks, of
        one at least.
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
        """The backends that are there and have a seat."""
        if self._open is None:
            self._open = [each for each in self._backends.values() if each.id in self.with_slot]
        return self._open

    def _slots_changed(self, capacity: BackendCapacity) -> None:
        self._refusals.changed(capacity.id)
        has_slot = capacity.load.available and capacity.has_slot
        if has_slot != (capacity.id in self.with_slot):
            self._open = None
            (self.with_slot.add if has_slot else self.with_slot.discard)(capacity.id)

    def _retire(self, capacity: BackendCapacity) -> None:
        capacity.load = replace(capacity.load, available=False)
        if not capacity.requests:
            del self._backends[capacity.id]
            self._retired.discard(capacity.id)
