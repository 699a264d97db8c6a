"""Slot fitting: predicts the need of the chosen request, and reserves a slot for it at a backend.

There may be two predictors, one for the order of tenants and one for the size of reservations, because a fair
expectation and a safe one differ. Both learn from requests that end.
"""

from collections.abc import Callable, Iterable, Sequence

from policies.accounts.ledger import InFlight
from policies.capacity.backend import BackendCapacity
from policies.capacity.prefix_index import PrefixIndex
from policies.fleet.fleet import OPEN, Access, Fleet
from policies.pool.backfill import BackfillRound
from policies.prediction import Prediction
from policies.types import Outcome, Request, Tier, Usage


class SlotFitting:
    """The part of a Scheduler that finds a backend with a free slot and memory for the request that is next."""

    def __init__(self, fleet: Fleet, prefixes: PrefixIndex, *, prediction: Prediction, sizing: Prediction) -> None:
        self.home_of: Callable[[Request], str] | None = None
        """The backend that has the context of a request's session, empty where none has; None: none is known."""
        self.fleet = fleet
        self._prefixes = prefixes
        self._first_sizing = sizing
        self.unreserved: frozenset[str] = frozenset()
        """Ids of the tiers without a reserve."""
        self.predict_by(prediction, sizing)

    @property
    def reads_prefixes(self) -> bool:
        """Whether a policy or a placement reads the prefix index."""
        return self.fleet.cached_tokens is not None

    @reads_prefixes.setter
    def reads_prefixes(self, reads: bool) -> None:
        self.fleet.cached_tokens = self._cached_tokens if reads else None

    def predict_by(self, prediction: Prediction, sizing: Prediction) -> None:
        """Use these predictors from now on."""
        self.prediction, self.sizing = prediction, sizing
        # Rate limits keep the predictor that they were made with, so it continues to learn.
        distinct = {id(each): each for each in (prediction, sizing, self._first_sizing)}
        self._predictors = tuple(distinct.values())

    def set_tiers(self, tiers: Iterable[Tier]) -> None:
        """Set all tiers, with their reserves."""
        tiers = list(tiers)
        self.fleet.set_reserves(tiers)
        self.unreserved = frozenset(tier.id for tier in tiers if not tier.reserve_ratio)

    def slot(self, request: Request, tier_id: str, this_round: BackfillRound) -> InFlight | None:
        """Reserve a slot for the request, which is next in this round and not refused; None: it has to wait."""
        output_tokens = self.sizing.predict(request)
        if request.produced_tokens:
            output_tokens = max(output_tokens, float(request.produced_tokens))
        candidates = this_round.open_to(tier_id, request)
        entry = self.fit(request, tier_id, candidates, output_tokens, this_round.now, access=this_round.access())
        if entry is None:
            this_round.found_none(tier_id, request)
            return None
        this_round.sent(self.fleet.backends[entry.backend_id])
        return entry

    def fit(
        self,
        request: Request,
        tier_id: str,
        candidates: Sequence[BackendCapacity],
        output_tokens: float,
        now: float,
        *,
        access: Access = OPEN,
    ) -> InFlight | None:
        """Reserve a slot for the request, with room for `output_tokens`, at the candidate that the placement chooses;
        None: it fits at none.
        """
        home, produced = request.ran_at, request.produced_tokens
        if not produced:
            home = "" if self.home_of is None or request.program_id is None else self.home_of(request)
        slot = self.fleet.slot(request, tier_id, candidates, access, output_tokens=output_tokens - produced, home=home)
        if slot is None:
            return None
        backend, reservation = slot
        expected = output_tokens if self.prediction is self.sizing else self.prediction.predict(request)
        if self.fleet.cached_tokens is not None:
            self.assume_cached(request, backend.id)
        return InFlight(
            request,
            backend.id,
            reservation,
            expected,
            output_tokens,
            Usage(request.prompt_tokens, reservation.cached_tokens, 0),
            dispatched_at=now,
            utilisation=backend.sequences / backend.sequences_limit,
            speed=backend.speed,
        )

    def adopt(
        self, request: Request, tier_id: str, backend_id: str, usage: Usage, *, output_tokens: float, now: float
    ) -> InFlight:
        """Take the slot of a request that another scheduler has sent to this backend, with room for so much output; 0:
        for the predicted output.
        """
        sized = max(output_tokens or self.sizing.predict(request), float(usage.output_tokens))
        backend, reservation = self.fleet.adopt(request, tier_id, backend_id, usage, output_tokens=sized, now=now)
        self.assume_cached(request, backend_id)
        return InFlight(
            request,
            backend_id,
            reservation,
            self.prediction.predict(request),
            sized,
            usage,
            utilisation=backend.sequences / backend.sequences_limit,
            speed=backend.speed,
        )

    def assume_cached(self, request: Request, backend_id: str) -> None:
        """Assume that the backend has the request's whole prompt cached from now on, if any policy reads prefixes."""
        if self.fleet.cached_tokens is not None:
            self._prefixes.inserted(request, backend_id)

    def observed(self, entry: InFlight, outcome: Outcome) -> None:
        """Learn from an entry that has ended; from an incomplete answer only where it outgrew its prediction."""
        output = entry.usage.output_tokens
        if output and (outcome is Outcome.COMPLETED or output > entry.sized_output):
            for predictor in self._predictors:
                predictor.observed(entry.request, output)

    def forget(self, tenant_id: str) -> None:
        for predictor in self._predictors:
            predictor.forget(tenant_id)

    def _cached_tokens(self, request: Request, backend_id: str) -> int:
        """The tokens of the prompt that are assumed to be in the backend's prefix cache."""
        blocks = self._prefixes.matched_blocks(request, backend_id)
        return min(request.prompt_tokens, int(blocks * request.prefix_block_tokens))
