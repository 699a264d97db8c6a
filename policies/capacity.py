"""How much may a backend hold of ours at once?

What waits inside an engine is first come, first served and outside our fairness, so a backend is given no more
than it can run: its sequences stay below `max_num_seqs`, and the KV tokens its requests will need fit its pool
(prompt + predicted output, growing with the actual output). Blocks of a prompt that another running request
holds too are counted once. What others send to the same backend is measured (its counts minus ours) and taken
off. An engine that preempts says that the pool was overbooked: its headroom shrinks at once and comes back slowly.

A tier's reserve is a part of each backend that only this tier may enter: for all others it is as if occupied.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil

from policies.types import BackendLoad, BackendView, Request, Tier

KV_HEADROOM_RATIO = 0.95  # F = 0.95 M: beyond the pool requests would queue in the engine
PREEMPTION_SHRINK_RATIO = 0.9
HEADROOM_RATIO_MIN = 0.5
HEADROOM_RECOVERY_RATIO = 0.005  # a measurement
RUNNING_MAX_UNKNOWN = 256  # vLLM's default max_num_seqs where none is configured or learnt
FOREIGN_OBSERVATIONS = 3


@dataclass(slots=True)
class Reservation:
    """What one request occupies at its backend.

    `tokens` are its own (the tail of its prompt and its output), rounded up to blocks; `prefix` are the leading
    blocks of its prompt that it may share, `block_tokens` tokens each.
    """

    tier_id: str
    sequences: int
    tokens: int
    prefix: tuple[int, ...] = ()
    block_tokens: float = 0.0


@dataclass(slots=True)
class _Use:
    sequences: int = 0
    tokens: float = 0.0


@dataclass(slots=True)
class _SharedBlock:
    """A prompt block that running requests hold, accounted to the tier that brought it."""

    tier_id: str
    tokens: float
    holders: int = 0


@dataclass(slots=True)
class BackendCapacity:
    """One backend's books: what it holds of ours, what of others, and what still fits."""

    load: BackendLoad
    headroom_ratio_max: float = KV_HEADROOM_RATIO
    held_until: float = 0.0  # the backend refused a request: nothing is sent before
    requests: int = 0
    _total: _Use = field(default_factory=_Use)
    _tiers: dict[str, _Use] = field(default_factory=dict)
    _shared: dict[int, _SharedBlock] = field(default_factory=dict)
    _shared_tokens: float = 0.0
    _headroom_ratio: float = 0.0
    _foreign_requests: deque[int] = field(default_factory=lambda: deque([0], FOREIGN_OBSERVATIONS))
    _foreign_tokens: deque[float] = field(default_factory=lambda: deque([0.0], FOREIGN_OBSERVATIONS))

    def __post_init__(self) -> None:
        self._headroom_ratio = self.headroom_ratio_max

    @property
    def id(self) -> str:
        return self.load.backend_id

    @property
    def sequences_limit(self) -> int:
        """Sequences that may run there at once, ours and others'."""
        return self.load.requests_running_max or RUNNING_MAX_UNKNOWN * self.load.engines

    @property
    def tokens_limit(self) -> float | None:
        """KV tokens that may be reserved there, ours and others'; None where the pool's size is not known."""
        return None if self.load.kv_tokens_max is None else self.load.kv_tokens_max * self._headroom_ratio

    @property
    def foreign_requests(self) -> int:
        # The least of the last observations: a count of ours that moved between the measurement and its
        # arrival looks like foreign load once, a foreign request stays.
        return min(self._foreign_requests)

    @property
    def foreign_tokens(self) -> float:
        return min(self._foreign_tokens)

    @property
    def reserved_ratio(self) -> float:
        """How full it is, by whichever limit is nearer."""
        sequences = (self._total.sequences + self.foreign_requests) / self.sequences_limit
        limit = self.tokens_limit
        return sequences if not limit else max(sequences, (self._total.tokens + self.foreign_tokens) / limit)

    def open_at(self, now: float) -> bool:
        return self.load.available and now >= self.held_until

    def reservation(self, request: Request, tier_id: str, *, prompt_tokens: int, output_tokens: float) -> Reservation:
        """What a request of this prompt and (expected) output would occupy here."""
        prefix = request.prefix if self.load.prefixes_shared else ()
        tokens = self.own_tokens(request, prefix, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        return Reservation(tier_id, request.choices, tokens, prefix, request.prefix_block_tokens)

    def own_tokens(self, request: Request, prefix: tuple[int, ...], *, prompt_tokens: int, output_tokens: float) -> int:
        """KV tokens, in whole blocks, beyond the shareable prefix: the choices share the prompt, not the output."""
        block = self.load.kv_block_tokens
        tail = max(0.0, prompt_tokens - len(prefix) * request.prefix_block_tokens)
        output = output_tokens / request.choices
        first = ceil((tail + output) / block)
        return (first + (request.choices - 1) * ceil(output / block)) * block

    def fits(self, reservation: Reservation, tiers: Iterable[Tier], *, reserve_only: bool) -> bool:
        """Whether the reservation fits beside what runs; with `reserve_only` only into its own tier's reserve."""
        if not self._total.sequences:
            return True  # an idle backend always takes one, whatever is foreign there and however large it is
        sequences, tokens = reservation.sequences, self._new_tokens(reservation)
        if reserve_only and not self._fits_own_reserve(reservation.tier_id, sequences, tokens, tiers):
            return False
        kept_sequences, kept_tokens = self._kept_for_others(reservation.tier_id, tiers)
        if self._total.sequences + sequences + self.foreign_requests + kept_sequences > self.sequences_limit:
            return False
        limit = self.tokens_limit
        return limit is None or self._total.tokens + tokens + self.foreign_tokens + kept_tokens <= limit

    def take(self, reservation: Reservation) -> None:
        self.requests += 1
        for block_hash in reservation.prefix:
            block = self._shared.get(block_hash)
            if block is None:
                block = self._shared[block_hash] = _SharedBlock(reservation.tier_id, reservation.block_tokens)
                self._shared_tokens += block.tokens
                self._add(block.tier_id, 0, block.tokens)
            block.holders += 1
        self._add(reservation.tier_id, reservation.sequences, reservation.tokens)

    def resize(self, reservation: Reservation, tokens: int) -> None:
        """The request's own tokens are now expected to be this many."""
        self._add(reservation.tier_id, 0, tokens - reservation.tokens)
        reservation.tokens = tokens

    def release(self, reservation: Reservation) -> None:
        self.requests -= 1
        self._add(reservation.tier_id, -reservation.sequences, -reservation.tokens)
        for block_hash in reservation.prefix:
            block = self._shared[block_hash]
            block.holders -= 1
            if not block.holders:
                del self._shared[block_hash]
                self._shared_tokens -= block.tokens
                self._add(block.tier_id, 0, -block.tokens)
        assert self.requests >= 0, "released what was not taken"
        if not self.requests:
            assert not self._total.sequences, "an idle backend holds nothing"
            self._total.tokens = self._shared_tokens = 0.0  # what rounding of shared blocks may have left

    def measured(self, load: BackendLoad, held_tokens: float) -> None:
        """Take in a measurement, made while our requests there held `held_tokens` of their own (not: had reserved)."""
        if load.preemptions_total is not None and self.load.preemptions_total is not None:
            if load.preemptions_total > self.load.preemptions_total:
                self._headroom_ratio = max(self._headroom_ratio * PREEMPTION_SHRINK_RATIO, HEADROOM_RATIO_MIN)
            else:
                recovered = self._headroom_ratio + HEADROOM_RECOVERY_RATIO
                self._headroom_ratio = min(recovered, self.headroom_ratio_max)
        if load.requests_running is not None:
            theirs = load.requests_running + (load.requests_waiting or 0) - self._total.sequences
            self._foreign_requests.append(max(0, theirs))
        if load.kv_used_ratio is not None and load.kv_tokens_max is not None:
            self._foreign_tokens.append(
                max(0.0, load.kv_used_ratio * load.kv_tokens_max - held_tokens - self._shared_tokens)
            )
        self.load = load

    def view(self) -> BackendView:
        limit = self.tokens_limit
        return BackendView(
            available=self.load.available,
            in_flight_requests=self.requests,
            requests_limit=self.sequences_limit,
            reserved_tokens=round(self._total.tokens),
            tokens_limit=None if limit is None else int(limit),
            foreign_requests=self.foreign_requests,
            foreign_tokens=round(self.foreign_tokens),
        )

    def _new_tokens(self, reservation: Reservation) -> float:
        """What the pool would hold more than now."""
        blocks = sum(1 for block_hash in reservation.prefix if block_hash not in self._shared)
        return reservation.tokens + blocks * reservation.block_tokens

    def _fits_own_reserve(self, tier_id: str, sequences: int, tokens: float, tiers: Iterable[Tier]) -> bool:
        used = self._tiers.get(tier_id) or _Use()
        reserve = next((tier.reserve_ratio for tier in tiers if tier.id == tier_id), 0.0)
        limit = self.tokens_limit
        return used.sequences + sequences <= ceil(reserve * self.sequences_limit) and (
            limit is None or used.tokens + tokens <= reserve * limit
        )

    def _kept_for_others(self, tier_id: str, tiers: Iterable[Tier]) -> tuple[int, float]:
        """The unused part of the other tiers' reserves: sequences and tokens."""
        sequences, tokens = 0, 0.0
        limit = self.tokens_limit or 0.0
        for tier in tiers:
            if tier.reserve_ratio and tier.id != tier_id:
                used = self._tiers.get(tier.id) or _Use()
                sequences += max(0, ceil(tier.reserve_ratio * self.sequences_limit) - used.sequences)
                tokens += max(0.0, tier.reserve_ratio * limit - used.tokens)
        return sequences, tokens

    def _add(self, tier_id: str, sequences: int, tokens: float) -> None:
        use = self._tiers.setdefault(tier_id, _Use())
        use.sequences += sequences
        use.tokens += tokens
        self._total.sequences += sequences
        self._total.tokens += tokens
