"""What tenants received by the tokens that reached their clients, over time: how even it is, and how far two differ."""

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from gateway.observability.metrics.service_gap import jain_index
from policies.fairness.bounds import BOUNDS

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


def evenness(moments: Sequence[Moment]) -> float | None:
    """Jain's index over what was received between the first and the last of these: 1 is even."""
    first, last = moments[0].received, moments[-1].received
    return jain_index([last[tenant] - first[tenant] for tenant in first])


def promised(*, slots: int, backends: int, prompt_tokens: int, output_tokens: int) -> float:
    """What VTC lets two waiting tenants differ by, 2 (U + G + H) in policies/fairness/bounds.py, where all calls are of
    this size and a tenant may hold half of the slots, each backend an equal part of them. The lighter weighs 1.
    """
    whole, as_outputs = PROMPT * prompt_tokens + OUTPUT * output_tokens, OUTPUT * (prompt_tokens + output_tokens)
    exposure, share, held = slots * whole, slots / 2 * as_outputs, slots / backends * as_outputs
    return BOUNDS["vtc"].both_wait * (exposure + share + held)


def largest_difference(moments: Sequence[Moment]) -> float:
    """By how much what two tenants received differs at most, over any interval between these moments."""
    spans = []
    for one, other in combinations(moments[0].received, 2):
        leads = [moment.received[one] - moment.received[other] for moment in moments]
        spans.append(max(leads) - min(leads))
    return max(spans)
