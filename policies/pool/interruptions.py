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

    def continued(self, entry: InFlight) -> None:
        """The entry's request was dispatched again."""
        self.sent_again_tokens += entry.request.context_tokens
