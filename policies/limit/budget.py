"""Reported budget: the prompt tokens that an engine reports it can still compute in time, less those sent since."""

from math import inf, isfinite

from policies.limit.deadlines import computed_by
from policies.reservation import Reservation
from policies.types import BackendLoad


class ReportedBudget:
    """The prefill admission budget of one engine: how many prompt tokens it can take now without making a request late.
    It is the engine's latest report, less the prompts that were sent since. Mutable.
    """

    def __init__(self) -> None:
        self.tokens: float | None = None
        """The budget as reported; None: the engine reports none."""
        self.since: dict[Reservation, int] = {}
        """Dispatches that the report does not include, and their prompt tokens."""

    def sent(self, reservation: Reservation) -> None:
        self.since[reservation] = reservation.prefill_tokens

    def reported(self, load: BackendLoad) -> None:
        """Take a new report, which may be older than the latest dispatches: those that it does not include stay
        subtracted. Requests of several senders arrive in any order, so they are counted per sender.
        """
        is_told = load.pab_tokens is not None and isfinite(load.pab_tokens)
        self.tokens = load.pab_tokens if is_told else None
        included = load.pab_dispatches
        if included is None:
            self.since.clear()
            return
        for each in [each for each in self.since if each.sender_number <= included.get(each.sender, 0)]:
            del self.since[each]

    def left(self, due_at: float = inf) -> float:
        """The budget in tokens, less the prompts sent since that are due by `due_at`. Requires a report."""
        assert self.tokens is not None
        return self.tokens - sum(tokens for each, tokens in self.since.items() if computed_by(each) <= due_at)

    def sent_after(self, due_at: float) -> int:
        """The prompt tokens that were sent since the report and have a deadline later than `due_at`."""
        return sum(tokens for each, tokens in self.since.items() if due_at < computed_by(each) < inf)
