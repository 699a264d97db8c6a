"""What tenants received by the tokens that reached their clients, over time: how even it is, and how far two differ."""

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

PROMPT, OUTPUT = 1.0, 2.0  # the default price (policies/accounts/cost.py)


class Moment(NamedTuple):
    """What each tenant had received by then, in service over weight."""

    at_s: float
    received: Mapping[str, float]


class Received:
    """Counts what clients of tenants with these weights received. Used by many threads."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._lock = threading.Lock()
        self.service = dict.fromkeys(weights, 0.0)

    def counter(self, tenant: str) -> Callable[[str], None]:
        """What takes the events of one stream of this tenant, which has usage in each."""
        before = 0.0

        def count(payload: str) -> None:
            nonlocal before
            usage = json.loads(payload).get("usage") if payload != "[DONE]" else None
            if usage:
                now = PROMPT * usage["prompt_tokens"] + OUTPUT * usage["completion_tokens"]
                with self._lock:
                    self.service[tenant] += now - before
                before = now

        return count

    def look(self) -> Moment:
        with self._lock:
            received = {tenant: service / self._weights[tenant] for tenant, service in self.service.items()}
        return Moment(time.perf_counter(), received)


def jain_index(moments: Sequence[Moment]) -> float:
    """Jain's index over what was received between the first and the last of these: 1 is even."""
    first, last = moments[0].received, moments[-1].received
    got = [last[tenant] - first[tenant] for tenant in first]
    squares = len(got) * sum(each * each for each in got)
    return sum(got) ** 2 / squares if squares else 1.0


def largest_difference(moments: Sequence[Moment]) -> float:
    """By how much what two tenants received differs at most, over any interval between these moments."""
    spans = []
    for one, other in combinations(moments[0].received, 2):
        leads = [moment.received[one] - moment.received[other] for moment in moments]
        spans.append(max(leads) - min(leads))
    return max(spans)
