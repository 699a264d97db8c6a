"""How many prompt tokens can an engine still take on in time, by its own report and what it was sent since?"""

from math import inf, isfinite

from policies.limit.deadlines import computed_by
from policies.reservation import Reservation
from policies.types import BackendLoad


class ReportedBudget:
    """The prefill admission budget of one engine's latest report. Mutable."""

    def __init__(self) -> None:
        self.tokens: float | None = None
        """As reported; None: the engine reports none."""
        self._since: dict[Reservation, int] = {}  # sent after what the report knew of

    def sent(self, reservation: Reservation) -> None:
        self._since[reservation] = reservation.prefill_tokens

    def gone(self, reservation: Reservation) -> None:
        """Its first token is there, or it has ended."""
        if self._since:
            self._since.pop(reservation, None)

    def reported(self, load: BackendLoad, *, dispatches: int) -> None:
        """A report that is late would give back what was spent since: what it does not include is taken off again. So
        many were sent until now.
        """
        is_told = load.pab_tokens is not None and isfinite(load.pab_tokens)
        self.tokens = load.pab_tokens if is_told else None
        included = dispatches if load.pab_dispatches is None else load.pab_dispatches
        for reservation in [each for each in self._since if each.number <= included]:
            del self._since[reservation]

    def left(self, due_at: float = inf) -> float:
        """Less what was sent since and is due at this time or sooner. Only where there is a report."""
        assert self.tokens is not None
        return self.tokens - sum(tokens for each, tokens in self._since.items() if computed_by(each) <= due_at)

    def sent_after(self, due_at: float) -> int:
        """What was sent since and is due at some time, but later."""
        return sum(tokens for each, tokens in self._since.items() if due_at < computed_by(each) < inf)
