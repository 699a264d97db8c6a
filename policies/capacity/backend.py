"""Capacity of one backend: what our requests and external load hold there, and whether one more request fits.

An engine serves its own queue first come, first served, outside the scheduler's fairness. So a backend is given no more
than it can run: its sequences stay below `max_num_seqs`, and the KV tokens that its requests will need fit its KV pool
(prompt + predicted output, growing with the actual output). The need is the sum of all full lengths ("sum"), the tokens
that they are expected to hold while others follow ("expected", kv_use/expected.py), or the most that is held at any one
moment ("peak", kv_use/peak.py). A prompt block that several running requests share counts once. Subtracted are what
other clients run at the same backend (external_load.py), a headroom against preemptions inside the engine
(headroom.py), and the reserves of other tiers (tier_reserves.py).

A backend with free slots and memory may still be unable to serve one more request in time: a limit
(policies/limit/) decides that.

Each replica of the gateway has a share of a backend's slots and memory. Replicas tell each other what they hold there,
so that none takes another's requests for external load.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, inf

from policies.capacity.external_load import ExternalLoad
from policies.capacity.headroom import KV_HEADROOM_RATIO, Headroom
from policies.capacity.held_blocks import HeldBlocks
from policies.capacity.kv_use.end_order import EndOrder
from policies.capacity.kv_use.expected import ExpectedOverTime
from policies.capacity.kv_use.peak import PeakOverTime
from policies.capacity.reserve import Room
from policies.capacity.tier_reserves import NOTHING, TierReserves
from policies.capacity.window import Window
from policies.limit import EngineWork, Limit, ModelLimit
from policies.limit.latency_by_batch import TimedAnswer
from policies.limit.step_forecast import PREDICTORS, prefill_tokens_per_s
from policies.reservation import Reservation
from policies.types import BackendLoad, Request

SERVED_WINDOW = 50  # requests that the service rate is averaged over: two or three fillings of a small engine
RUNNING_MAX_UNKNOWN = 256  # vLLM's default max_num_seqs, where none is configured or learnt
NO_TIER = ""  # no tier has this id, so that all reserves are for others
HELD_MEAN_OF = 16  # requests that the mean time in a slot is taken over

KV_RULES: dict[str, type[ExpectedOverTime] | type[PeakOverTime] | None] = {
    "sum": None,  # all requests at their full lengths at once
    "expected": ExpectedOverTime,
    "peak": PeakOverTime,
}


@dataclass(slots=True)
class Clock:
    """The clock that all backends of a fleet share: the time of the latest event or decision, in seconds."""

    now: float = 0.0


class BackendCapacity:
    """The capacity of one backend: what our requests and external load (other clients' requests) use of it, and the
    room that is left. Its limits are recomputed with every measurement. Every dispatch decision asks it what fits.
    Mutable.
    """

    # Slots for speed, as in EngineWork.
    __slots__ = (
        "_external", "_headroom", "_peak", "_reserved_ratio", "_rooms", "_seen", "_service", "_shared",
        "_shared_tokens", "_started", "_token_seconds", "awaits_measurement", "clock", "ends", "external_requests",
        "external_tokens", "follows_starts", "held_s", "held_until", "id", "is_sized", "layout", "limit", "load",
        "refusing_since", "requests", "reserves", "sequences", "sequences_limit", "sequences_max", "speed", "tokens",
        "tokens_limit", "tokens_max", "window", "work",
    )  # fmt: skip

    def __init__(
        self,
        load: BackendLoad,
        headroom_ratio_max: float = KV_HEADROOM_RATIO,
        *,
        kv_rule: str = "sum",
        limit: Limit | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.load = load
        self.work = EngineWork()
        self.limit = limit or ModelLimit()
        self.clock = clock or Clock()
        self._peak = None if (rule := KV_RULES[kv_rule]) is None else rule()
        self.held_s = 0.0  # mean time that the latest requests held their slot
        self._rooms: dict[str, Room] = {}  # cache by tier, cleared by every change
        self._reserved_ratio: float | None = None  # likewise
        self.held_until = -inf  # the backend rejected a request: nothing is sent before this time
        self.refusing_since: float | None = None  # since then it has accepted no request
        self.awaits_measurement = False
        """Whether no request is sent before the next measurement: another scheduler has sent requests until now."""
        self.requests = self.sequences = 0
        self.tokens = 0.0
        self._started = 0  # sequences whose first token has come
        self.window: Window | None = None  # where nothing says how many sequences it runs
        self.follows_starts = False
        """Whether the first token of a request matters here even if the request ends with it. To read."""
        self.speed = 1.0  # service rate over the mean of its pool
        self._service = self._token_seconds = 0.0
        self._seen = 0  # requests that had been sent at the last measurement
        self.ends = EndOrder()
        """What runs, the soonest end first."""
        self._shared = HeldBlocks()
        self._shared_tokens = 0.0
        self._headroom = Headroom(headroom_ratio_max)
        self._external = ExternalLoad()
        self.reserves = TierReserves()
        self._set_window(load, is_new=False)
        self._set_limits()
        self.work.measured(load, external_sequences=0, external_tokens=0.0, now=self.clock.now)

    @property
    def reserved_ratio(self) -> float:
        """The reserved part of the backend's capacity, external load included. It is the larger of the ratios of slots
        and of KV tokens, cached until a dispatch, a release, a resize or a measurement.
        """
        ratio = self._reserved_ratio
        if ratio is None:
            ratio = (self.sequences + self.external_requests) / self.sequences_limit
            if self.tokens_limit:
                tokens = self.tokens
                if self._peak is not None:
                    tokens = min(tokens, self._peak.tokens_at_least() + self._shared_tokens)
                ratio = max(ratio, (tokens + self.external_tokens) / self.tokens_limit)
            self._reserved_ratio = ratio
        return ratio

    @property
    def tokens_held_max(self) -> float:
        """The most KV tokens that our requests will hold at once, by the pool's rule ("sum", "expected" or "peak")."""
        return self.tokens if self._peak is None else min(self.tokens, self._peak.tokens() + self._shared_tokens)

    @property
    def usable(self) -> tuple[float, float]:
        """The sequences and KV tokens that we may have in flight there, by its slots, its limit and its memory."""
        return min(self.sequences_max, self.limit.sequences_max(self.work)), self.tokens_max

    @property
    def has_slot(self) -> bool:
        """Whether one more sequence may run, regardless of its tokens; an idle backend always takes one."""
        return not self.sequences or (self.sequences < self.sequences_max and not self.limit.is_full(self.work))

    def reservation(self, request: Request, tier_id: str, *, prompt_tokens: int, output_tokens: float) -> Reservation:
        """The slots and KV tokens that a request with this prompt and expected output would occupy at the backend."""
        prefix = request.prefix if self.load.prefixes_shared else ()
        if prefix or request.choices > 1:
            tokens = self.own_tokens(request, prefix, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        else:  # inlined: every decision asks
            block = self.load.kv_block_tokens
            tokens = ceil((prompt_tokens + output_tokens) / block) * block
        began_at, envelope = request.arrived_at, request.envelope
        if request.produced_tokens and envelope is not None:  # its next token is due later than its first was
            began_at += request.produced_tokens * (envelope.tpot_s or 0.0)
        most = request.output_tokens_max - request.produced_tokens
        return Reservation(
            tier_id,
            request.choices,
            tokens,
            prefix,
            request.prefix_block_tokens,
            output_tokens,
            0,  # produced
            prompt_tokens,
            0,  # cached
            began_at,
            envelope,
            sender=request.sender,
            output_tokens_max=output_tokens if output_tokens > most else float(most),
        )

    def own_tokens(self, request: Request, prefix: tuple[int, ...], *, prompt_tokens: int, output_tokens: float) -> int:
        """The request's own KV tokens, in whole blocks: those beyond the shareable prefix. Choices share the prompt."""
        block = self.load.kv_block_tokens
        tail = max(0.0, prompt_tokens - len(prefix) * request.prefix_block_tokens)
        if request.choices == 1:
            return ceil((tail + output_tokens) / block) * block
        output = output_tokens / request.choices
        return (ceil((tail + output) / block) + (request.choices - 1) * ceil(output / block)) * block

    def fits(self, reservation: Reservation, *, reserve_only: bool) -> bool:
        """Whether the reservation fits beside the running requests and the limit allows it now. With `reserve_only`, it
        must fit into its own tier's reserve.
        """
        if not self.sequences:
            return True  # an idle backend always takes one, however large it is and whatever the external load
        return self.has_room(reservation, reserve_only=reserve_only) and self.limit.allows(
            self.work, reservation, self.clock.now
        )

    def has_room(self, reservation: Reservation, *, reserve_only: bool) -> bool:
        """Whether there are slots and memory for the reservation. Does not ask the limit."""
        if not self.sequences:
            return True
        tier_id = reservation.tier_id
        room = self._rooms[tier_id] if tier_id in self._rooms else self.room(tier_id)
        if reservation.sequences > room.sequences:
            return False
        needed = float(reservation.tokens)
        if needed > room.tokens and (
            self._peak is None
            or (
                not self.reserves.has_kept(tier_id, needed, self.clock.now)
                and self._peak.surely_exceeds(reservation, self.tokens_max - self._shared_tokens)
            )
        ):
            return False
        if reservation.prefix:
            needed += self._shared.unheld_tokens(reservation)
        if reserve_only:
            own = self.reserves.own_room(tier_id, self.clock.now)
            if reservation.sequences > own.sequences or needed > own.tokens:
                return False
        return needed <= room.tokens or self._fits_peak(reservation, needed, room)

    def may_fit(self, reservation: Reservation, *, reserve_only: bool) -> bool:
        """False where `fits` is certainly False, however much of the prompt is cached. A cheap check before `fits`."""
        if not self.sequences:
            return True
        tier_id = reservation.tier_id
        room = self.reserves.own_room(tier_id, self.clock.now) if reserve_only else self.room(tier_id)
        if reservation.sequences > room.sequences or (reservation.tokens > room.tokens and self._peak is None):
            return False
        return self.clock.now >= self.busy_until(reservation.first_due_at)

    def busy_until(self, due_at: float) -> float:
        """The time until which the backend certainly takes no prompt that is due at `due_at`; -inf where it may take
        one now.
        """
        work = self.work
        return work.busy_until if self.limit.reads_time and self.sequences and work.ready_at > due_at else -inf

    def opens_at(self, now: float) -> float:
        """The time at which the backend may take a prompt that it would not take at `now`. Infinite where the passing
        of time alone changes nothing.
        """
        return self.work.opens_at(now) if self.limit.reads_time and self.sequences else inf

    def room(self, tier_id: str) -> Room:
        """The slots and KV tokens that are free for the tier: neither in use nor reserved for other tiers."""
        if tier_id not in self._rooms:
            reserves = self.reserves
            kept = reserves.kept_for_others(tier_id, self.clock.now) if reserves.has_any else NOTHING
            tokens = inf if self.tokens_max == inf else self.tokens_max - self.tokens - kept.tokens
            self._rooms[tier_id] = Room(self.sequences_max - self.sequences - kept.sequences, tokens)
        return self._rooms[tier_id]

    def ttft_s(self, prefill_tokens: float, *, due_at: float = inf) -> float | None:
        """Seconds until the first token of a request that is sent now. The request has `prefill_tokens` of prompt to
        compute, and its first token is due at `due_at`. None while the step-time model is missing or not sure.
        """
        work = self.work
        if work.model is None or not work.is_sure:
            return None
        return PREDICTORS[work.batching].ttft_s(work, prefill_tokens, self.clock.now, due_at=due_at)

    def budget_tokens(self, window_s: float, *, due_at: float = inf) -> float | None:
        """The prefill admission budget in tokens, for a prompt whose first token is due at `due_at`. The engine reports
        it; otherwise it is computed over `window_s` seconds from the running requests. None without either.
        """
        work, now = self.work, self.clock.now
        reported = work.budget_tokens(due_at, now)
        if reported is not None or work.model is None:
            return reported
        return prefill_tokens_per_s(work) * window_s - work.owed_by(due_at, now)

    def room_after(self, needed: Reservation) -> tuple[float, int, float]:
        """The steps from now until there are slots and memory for the reservation, if nothing more is sent and all
        answers end as predicted; and the sequences and KV tokens that are free at that time.
        """
        room = self.room(needed.tier_id)
        sequences, tokens, steps, wanted = room.sequences, room.tokens, 0.0, float(needed.tokens)
        if needed.prefix:
            wanted += self._shared.unheld_tokens(needed)
        # A request that has outgrown its prediction is assumed to end next.
        for steps_left, _, each in self.ends.soonest_first():
            if needed.sequences <= sequences and wanted <= tokens:
                break
            steps, sequences, tokens = steps_left, sequences + each.sequences, tokens + each.tokens
        return steps if steps > 0.0 else 0.0, sequences, tokens

    def spares(self, first: Reservation, other: Reservation) -> bool:
        """Whether `first`, which has no room yet, is not delayed if `other`, which has room, is sent now. Either
        `other` ends before there is room for `first`, or both fit at that time. Where only the limit holds `first`
        back, any dispatch delays it.
        """
        room, wanted = self.room(first.tier_id), float(first.tokens)
        if first.prefix:
            wanted += self._shared.unheld_tokens(first)
        if first.sequences <= room.sequences and wanted <= room.tokens:
            return False
        steps, sequences, tokens = self.room_after(first)
        if 0.0 < other.steps_left < steps:
            return True
        wanted = float(first.tokens + other.tokens)
        if first.prefix or other.prefix:
            wanted += self._shared.unheld_tokens(first)
            wanted += self._shared.unheld_tokens(other)
        return first.sequences + other.sequences <= sequences and wanted <= tokens

    def take(self, reservation: Reservation) -> None:
        # An idle backend takes a request however little is left: a smaller usable part would not have kept it out.
        is_larger = not self.requests and reservation.tokens > self.tokens_max
        self._headroom.granted = reservation.tokens if is_larger else self.tokens_max, self.external_tokens
        self.requests += 1
        self.ends.moved[reservation] = None
        if reservation.prefix:
            tokens = self._shared.take(reservation)
            self._shared_tokens += tokens
            self._add(reservation.tier_id, 0, tokens)
        self._add(reservation.tier_id, reservation.sequences, reservation.tokens)
        reservation.ran_with = self.sequences
        if self.window is not None:
            self.window.sent(reservation.sequences)
        envelope = reservation.envelope
        if envelope is not None and envelope.ttft_s is not None and envelope.ttft_s < self.held_s:
            self.reserves.came(reservation, self.clock.now)
            self._rooms.clear()
        self.work.take(reservation, self.clock.now)
        if self._peak is not None:
            self._peak.add(reservation)

    def resize(self, reservation: Reservation, tokens: int) -> None:
        """Set the number of the request's own KV tokens (`own_tokens`) that are now expected."""
        self._add(reservation.tier_id, 0, tokens - reservation.tokens)
        reservation.tokens = tokens
        if self._peak is not None:
            self._peak.moved(reservation)

    def started(self, reservation: Reservation) -> bool:
        """Record the request's first token. Returns whether this may change which requests fit at the backend."""
        self.work.started(reservation, self.clock.now)
        if not reservation.has_started:
            reservation.has_started = True
            self._started += reservation.sequences
            if self.window is not None and self.window.started(self._started):
                self._set_limits()
        if self._peak is not None:
            self._peak.moved(reservation)
            self._reserved_ratio = None
        return self.window is not None or self.work.model is not None

    def release(self, reservation: Reservation, held_s: float = 0.0, service: float = 0.0) -> None:
        """Remove the request, which held its slot for `held_s` seconds and was charged this service here."""
        if service > 0.0 and held_s > 0.0:
            self._service += service - self._service / SERVED_WINDOW
            self._token_seconds += reservation.tokens * held_s - self._token_seconds / SERVED_WINDOW
        self.requests -= 1
        self._started -= reservation.has_started * reservation.sequences
        self.ends.remove(reservation)
        self.held_s += (held_s - self.held_s) / HELD_MEAN_OF
        if self.reserves.has_any:
            is_roomy = 2 * self.sequences < self.sequences_max and 2 * self.tokens < self.tokens_max
            self.reserves.ended(reservation, is_roomy=is_roomy)
        self._add(reservation.tier_id, -reservation.sequences, -reservation.tokens)
        self.work.release(reservation, self.clock.now)
        if self._peak is not None:
            self._peak.remove(reservation)
        if reservation.prefix:
            for tier_id, tokens in self._shared.release(reservation):
                self._shared_tokens -= tokens
                self._add(tier_id, 0, -tokens)
        assert self.requests >= 0, "released what was not taken"
        if not self.requests:
            assert not self.sequences, "an idle backend holds nothing"
            assert not self._shared.runs, "an idle backend holds nothing"
            self.tokens = self._shared_tokens = 0.0  # drop the rounding error of shared blocks
            self.reserves.used.clear()

    @property
    def service_rate(self) -> float | None:
        """Service per second and reserved token, over about the last SERVED_WINDOW requests; None before the first."""
        return self._service / self._token_seconds if self._token_seconds > 0.0 else None

    def answered(self, reservation: Reservation, tokens: int, duration_s: float, *, is_streamed: bool) -> None:
        """Tell the limit of an answer of `tokens` per sequence, `duration_s` after its dispatch. Called before
        `release`.
        """
        by_latency = self.limit.by_latency
        if by_latency is None or self.work.model is not None:
            return  # the limit knows without
        prompt = reservation.prompt_tokens - reservation.cached_tokens
        answer = TimedAnswer(
            duration_s, prompt if prompt > 1 else 1, tokens, is_streamed, reservation.ran_with, self.sequences
        )
        if by_latency.answered(answer, slots=self.sequences_max, is_sized=self.is_sized):
            self._set_limits()

    def is_news(self, load: BackendLoad) -> bool:
        """Whether this is a new measurement, not the last one repeated."""
        return load.measured_at is None or load.measured_at != self.load.measured_at

    def measured(self, load: BackendLoad, held_tokens: float, *, is_first: bool = False) -> None:
        """Apply a measurement, made while our requests at the backend held (and did not only reserve) `held_tokens` KV
        tokens of their own. The first measurement after a handover (`is_first`) sets the external load by itself.
        """
        is_new = is_first or self.is_news(load)
        if is_first:
            self.awaits_measurement = False
            self._external.forget()
        if is_new:
            # What was sent since the last measurement may not have reached the backend at this one.
            unseen = (each for each in self.ends.running() if each.number > self._seen)
            sent = sum(each.sequences for each in unseen if not each.has_started)
            self._external.observe_requests(load, self.sequences, sent=sent, limit=self.sequences_limit)
            self._external.observe_tokens(load, held_tokens, self._shared_tokens, limit=self.tokens_limit)
            self._seen = self.work.dispatches
            self._headroom.measured(load, self.load, self._external, lambda: self.tokens_held_max)
        self._set_window(load, is_new=is_new)
        self.load = load
        self._set_limits()
        self.work.measured(
            load,
            external_sequences=self.external_requests,
            external_tokens=self.external_tokens,
            now=self.clock.now,
            is_new=is_new,
        )

    def set_reserves(self, reserve_ratios: Mapping[str, float], entitled: Mapping[str, float]) -> None:
        """Set the configured reserve of each tier, as a part of the backend. A learnt reserve is at most the part that
        the tier is `entitled` to by its weight.
        """
        self.reserves.set_tiers(reserve_ratios, entitled)
        self._set_limits()

    def _set_window(self, load: BackendLoad, *, is_new: bool) -> None:
        """Update the window by a measurement. It is dropped where the engine reports its size, and where the server is
        away: it may come back as another one.
        """
        if load.requests_running_max is not None or not (load.available or load.drains):
            self.window = None
        elif load.requests_running is not None:
            if self.window is None:
                self.window = Window()
                self.window.started(self._started)
            if is_new and self.clock.now >= self.work.busy_until:  # no prompts that were sent are what waits
                kept = self.reserves.kept_for_others(NO_TIER, self.clock.now) if self.reserves.has_any else NOTHING
                waiting = load.requests_waiting_for_room
                if waiting is None:
                    waiting = load.requests_waiting or 0
                # One without output ends with its prompt, mostly in one step. So no scrape shows that it has run, and
                # one that waits does so for the next step. Half of the most are in a step, and half wait for the next.
                unseen = sum(each.sequences for each in self.ends.running() if not each.output_tokens_max)
                unseen = min(unseen, RUNNING_MAX_UNKNOWN * load.engines // 2)
                waiting = max(0, waiting - unseen)
                self.window.measured(
                    max(0, min(load.requests_running + unseen, self.sequences - waiting)),
                    waiting,
                    seen=self._started,
                    is_used=self.sequences + kept.sequences >= self.sequences_max,
                    now=self.clock.now,
                )
        self.follows_starts = self.window is not None or self._peak is not None

    def _set_limits(self) -> None:
        load = self.load
        self._rooms.clear()
        self._reserved_ratio = None
        self.id = load.backend_id
        self.layout = (load.kv_block_tokens, load.prefixes_shared)  # equal: requests reserve the same at both
        if self._peak is not None:
            self._peak.measured(load.kv_block_tokens)
        # What may run there at once, external load included. Tokens are infinite where the pool's size is not known.
        self.sequences_limit = load.requests_running_max or RUNNING_MAX_UNKNOWN * load.engines
        self.is_sized = load.requests_running_max is not None or load.kv_tokens_max is not None
        learnt = self.limit.sequences_max(self.work)
        if not self.is_sized and learnt < inf:
            self.sequences_limit = max(self.sequences_limit, int(learnt) * load.share.replicas)
        self.tokens_limit = inf if load.kv_tokens_max is None else load.kv_tokens_max * self._headroom.usable_ratio
        self.external_requests, self.external_tokens = self._external.least()
        # What may be ours: this replica's share of what external load leaves.
        share = load.share
        if self.window is None:
            self.sequences_max = share.of(max(0, self.sequences_limit - self.external_requests))
        else:
            self.sequences_max = self.window.sequences_max
            self.sequences_limit = self.sequences_max * share.replicas + self.external_requests
            if self.window.is_open and self.reserves.has_any:  # beyond what is kept free, or nothing would be seen
                self.sequences_max += self.reserves.kept_for_others(NO_TIER, self.clock.now).sequences
        self.tokens_max = max(0.0, self.tokens_limit - self.external_tokens) / share.replicas
        self.reserves.sized(
            share.of(self.sequences_limit),
            self.tokens_limit / share.replicas,
            sequences_max=self.sequences_max,
            tokens_max=self.tokens_max,
        )

    def _fits_peak(self, reservation: Reservation, needed: float, room: Room) -> bool:
        """Whether the reservation fits by "expected" or "peak" where it does not fit by the sum of full lengths."""
        if self._peak is None:
            return False
        tokens_max = self.tokens + room.tokens - self._shared_tokens - (needed - reservation.tokens)
        if self._peak.tokens() + self._peak.own_tokens(reservation) <= tokens_max:
            return True  # even if it has its full length at the fullest moment
        if self._peak.tokens_with(reservation) <= tokens_max:
            return True
        # Others that are longer than expected grow into what is kept for its tier. What is free of that now is its own.
        is_kept = self.reserves.has_kept(reservation.tier_id, needed, self.clock.now)
        return is_kept and self._peak.tokens_now() + self._shared_tokens + needed <= self.tokens_max

    def _add(self, tier_id: str, sequences: int, tokens: float) -> None:
        if self._rooms:
            self._rooms.clear()
        self._reserved_ratio = None
        use = self.reserves.used[tier_id]
        use.sequences += sequences
        use.tokens += tokens
        self.sequences += sequences
        self.tokens += tokens
