"""Interruptions: how often answers were cut in this pool and why, and what was sent again to continue them."""

from collections import Counter
from dataclasses import dataclass, field

from policies.accounts.ledger import InFlight
from policies.types import Cause


@dataclass(slots=True)
class Interruptions:
    """The counts of one pool since start. Mutable."""

    by_cause: Counter[Cause] = field(default_factory=Counter)
    sent_again_tokens: int = 0

    def cut(self, entry: InFlight, *, is_failure: bool) -> None:
        """The entry's request was interrupted."""
        moved = Cause.DRAINED if entry.is_moved else Cause.PREEMPTED
        self.by_cause[Cause.FAILED if is_failure else moved] += 1

    def continued(self, entry: InFlight) -> None:
        """The entry's request was dispatched again."""
        self.sent_again_tokens += entry.request.context_tokens
