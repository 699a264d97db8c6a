"""Bottleneck: which backend of a pool limits the pool, and how the backends compare, by the samples of the last minute.

One sample says little: a slot is free for some milliseconds between two requests, and the time per token changes with
the load. So backends are described by medians over a minute, as far as there was a viewer.

The rule: if requests waited for a backend in most samples, the bottleneck is a backend that was not available in most
of these; else, of the backends that took no more requests in most of these, the one with the longest time per token,
because each of its slots is held longest. A backend with SLOW_RATIO times the pool's median time per token is slow.
"""

from collections import Counter, deque
from collections.abc import Mapping
from statistics import median, median_low
from typing import Any, Final, NamedTuple

from gateway.live.schema import DRAINING, LivePageBackend, LivePageBottleneck
from policies.types import Binding

SEEN_S: Final = 60.0
MOST: Final = 0.5
# Chosen. Times per token of backends alike differ by their load, and predicted from measured steps by up to 1.5
# (docs/results/prediction.md); the slow one there takes 4.2 times as long.
SLOW_RATIO: Final = 2.0

Fields = dict[str, Any]


class _SeenBackend(NamedTuple):
    """One backend at one time. `bound_by` is None where no request waited, or it took one more."""

    at: float
    token_s: float | None
    error_ratio: float | None
    waits: bool
    bound_by: str | None


class BackendsSeen:
    """Samples of one pool's backends in the last minute, from which the pool's bottleneck is found. Mutable."""

    def __init__(self) -> None:
        self._looks: dict[str, deque[_SeenBackend]] = {}

    def saw(self, backends: Mapping[str, LivePageBackend], *, waits: bool, now: float) -> None:
        """Record a sample of all backends, as the live document has them. `waits`: a request waits for one of them."""
        self._looks = {backend_id: self._looks.get(backend_id) or deque() for backend_id in backends}
        for backend_id, shown in backends.items():
            looks, token_s, step_s = self._looks[backend_id], shown.step_measured_s, shown.step_s
            error = step_s / token_s if token_s and step_s else None
            looks.append(_SeenBackend(now, token_s, error, waits, shown.bound_by if waits else None))
            while looks[0].at < now - SEEN_S:
                looks.popleft()

    def compared(self) -> dict[str, Fields]:
        """The members of the live document that compare the backends, by backend id."""
        token_s = {
            backend_id: median(known) if (known := [look.token_s for look in looks if look.token_s]) else None
            for backend_id, looks in self._looks.items()
        }
        usual_s = median_low([each for each in token_s.values() if each] or [0.0])
        return {
            backend_id: {
                "token_s": None if token_s[backend_id] is None else round(token_s[backend_id] or 0.0, 5),
                "step_error_ratio": _median([look.error_ratio for look in looks]),
                "slow_ratio": round((token_s[backend_id] or 0.0) / usual_s, 2) if token_s[backend_id] else None,
                "full_ratio": _part(looks),
            }
            for backend_id, looks in self._looks.items()
        }

    def bottleneck(self, compared: Mapping[str, Fields]) -> LivePageBottleneck | None:
        """The backend that limits the pool, and why; None: no backend does."""
        full = [backend_id for backend_id, each in compared.items() if (each["full_ratio"] or 0.0) > MOST]
        reasons = {backend_id: self._reason(backend_id) for backend_id in full}
        full = [backend_id for backend_id in full if reasons[backend_id] != DRAINING]
        if not full or not self._waits():
            return None
        found = max(
            full,
            key=lambda each: (reasons[each] == Binding.UNHEALTHY, compared[each]["slow_ratio"] or 0.0, each),
        )
        slow_ratio = compared[found]["slow_ratio"]
        return LivePageBottleneck(
            backend=found,
            bound_by=reasons[found],
            slow_ratio=slow_ratio if slow_ratio is not None and slow_ratio >= SLOW_RATIO else None,
            full=sorted(full),
        )

    def _reason(self, backend_id: str) -> str:
        return Counter(look.bound_by for look in self._looks[backend_id] if look.bound_by).most_common(1)[0][0]

    def _waits(self) -> bool:
        looks = next(iter(self._looks.values()), ())
        return sum(look.waits for look in looks) > MOST * len(looks)


def _part(looks: deque[_SeenBackend]) -> float | None:
    """The part of the looks at which requests waited in which the backend took no more; None: none waited."""
    waited = [look for look in looks if look.waits]
    return round(sum(look.bound_by is not None for look in waited) / len(waited), 2) if waited else None


def _median(values: list[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return round(median(known), 2) if known else None
