"""The request that is next: what will it need, and where is there room for it?

Two predictors may be at work, one for the order of tenants and one for the size of reservations: what is fair to expect
and what is safe to expect are not the same. Both learn from what ends.
"""

from collections.abc import Iterable
from functools import partial

from policies.accounts.ledger import InFlight
from policies.capacity.prefix_index import PrefixIndex
from policies.fleet.fleet import Fleet
from policies.placement import LeastReserved, Placement
from policies.pool.backfill import BackfillRound
from policies.prediction import Prediction
from policies.types import Outcome, Request, Tier, Usage


class SlotFitting:
    """Finds the chosen request its place."""

    def __init__(self, fleet: Fleet, prefixes: PrefixIndex, *, prediction: Prediction, sizing: Prediction) -> None:
        self.placement: Placement = LeastReserved()
        """Which of several backends that have room."""
        self._fleet = fleet
        self._prefixes = prefixes
        self._first_sizing = sizing
        self.unreserved: frozenset[str] = frozenset()
        """Ids of the tiers without a reserve."""
        self.predict_by(prediction, sizing)

    @property
    def reads_prefixes(self) -> bool:
        """Whether anybody asks what is cached where."""
        return self._fleet.cached_tokens is not None

    @reads_prefixes.setter
    def reads_prefixes(self, reads: bool) -> None:
        self._fleet.cached_tokens = self._cached_tokens if reads else None

    def predict_by(self, prediction: Prediction, sizing: Prediction) -> None:
        """From now on."""
        self.prediction, self.sizing = prediction, sizing
        # Rate limits go on by the predictor that they were made with: it goes on learning.
        distinct = {id(each): each for each in (prediction, sizing, self._first_sizing)}
        self._predictors = tuple(distinct.values())

    def set_tiers(self, tiers: Iterable[Tier]) -> None:
        """These are all the tiers."""
        tiers = list(tiers)
        self._fleet.set_reserves(tiers)
        self.unreserved = frozenset(tier.id for tier in tiers if not tier.reserve_ratio)

    def slot(self, request: Request, tier_id: str, this_round: BackfillRound) -> InFlight | None:
        """Reserve the request's place where placement says; None where it has to wait."""
        sized = self.sizing.predict(request)
        expected = sized if self.prediction is self.sizing else self.prediction.predict(request)
        slot = self._fleet.slot(
            request,
            tier_id,
            this_round.open_to(tier_id, request),
            output_tokens=sized,
            is_closed=this_round.is_closed,
            closed=this_round.reserve_only_at,
            may_enter=partial(this_round.may_enter, request) if this_round.is_anyone_passed else None,
            placement=self.placement,
        )
        if slot is None:
            this_round.found_none(tier_id, request)
            return None
        backend, reservation = slot
        if backend.id not in self._fleet.with_slot:
            this_round.candidates.gone(backend)
        else:
            this_round.candidates.filled(backend)
        if self._fleet.cached_tokens is not None:
            self._prefixes.inserted(request, backend.id)  # from now on the backend holds all of it
        return InFlight(
            request,
            backend.id,
            reservation,
            expected,
            sized,
            Usage(request.prompt_tokens, reservation.cached_tokens, 0),
            dispatched_at=this_round.now,
            utilisation=backend.sequences / backend.sequences_limit,
            speed=backend.speed,
        )

    def observed(self, entry: InFlight, outcome: Outcome) -> None:
        """The entry has ended. An answer that was cut short says only that the whole would have been longer."""
        output = entry.usage.output_tokens
        if output and (outcome is Outcome.COMPLETED or output > entry.sized_output):
            for predictor in self._predictors:
                predictor.observed(entry.request, output)

    def forget(self, tenant_id: str) -> None:
        for predictor in self._predictors:
            predictor.forget(tenant_id)

    def _cached_tokens(self, request: Request, backend_id: str) -> int:
        """Tokens of the prompt that the backend is believed to hold."""
        blocks = self._prefixes.matched_blocks(request, backend_id)
        return min(request.prompt_tokens, int(blocks * request.prefix_block_tokens))
