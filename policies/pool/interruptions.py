"""Interruptions: how often answers were interrupted in this pool and why, and the tokens that were sent again to
continue them.
"""

from collections import Counter
from dataclasses import dataclass, field

from policies.accounts.ledger import InFlight
from policies.types import Cause


@dataclass(slots=True)
class Interruptions:
    """The counts of interruptions in one pool since its start. Mutable."""

    by_cause: Counter[Cause] = field(default_factory=Counter)
    sent_again_tokens: int = 0

    def continued(self, entry: InFlight) -> None:
        """Count the new dispatch of the entry's interrupted request."""
        self.sent_again_tokens += entry.request.context_tokens
