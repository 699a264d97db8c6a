"""ServiceWindow: the service that each tenant of one pool got, and how long it waited, in the last seconds or minutes.

The totals of all tenants are read at intervals. A bucket has the increase between two readings, only for tenants whose
totals changed; the sum of a window's buckets is kept. So a reading takes time in proportion to the tenants, and memory
is for tenants that were served or waited within the window.

A reading is inlined for speed: with a thousand tenants it takes a tenth of the time of the live document.
"""

from collections import deque
from collections.abc import Mapping
from typing import Final

from policies.types import TenantView

FIRST_BUCKET_S: Final = 1.0
SERVICE, PROMPT_TOKENS, CACHED_TOKENS, OUTPUT_TOKENS, SLO_REQUESTS, SLO_MET, WAITED_S, BUCKETS = range(8)
"""The amounts of one tenant in a window, by index: service units; tokens; its requests with an envelope that ended, and
those of them that were in time throughout; for how many seconds it had something queued throughout that its limits let
it send; in how many buckets it has anything. A tenant whose queue empties now and then waits for the next slot alone.
"""

Amounts = list[float]
NOTHING: Final = [0.0] * 8
_NO_TOTALS: Final = (0.0, 0, 0, 0, 0, 0, 0)
_Totals = tuple[float, int, int, int, int, int, int]  # the last one is the number of the waiting spell, 0 for none


class ServiceWindow:
    """A sliding window over the last seconds or minutes of one pool: the service, tokens and waiting time of each
    tenant in it. Mutable: to update it, call `begin`, then `saw` with all tenants, then `end`.
    """

    def __init__(self, length_s: float, bucket_s: float) -> None:
        """The window is `length_s` long, and up to `bucket_s` longer while its oldest bucket leaves."""
        self._length_s = length_s
        self._bucket_s = bucket_s
        self._buckets: deque[tuple[float, float, dict[str, tuple[float, ...]]]] = deque()  # begun and ended at
        self.amounts: dict[str, Amounts] = {}
        """By tenant, to read only; NOTHING for any other. Refunds may make a service negative."""
        self._before: dict[str, _Totals] = {}
        self._seen: dict[str, _Totals] = {}
        self.readings = 0
        self._read_at: float | None = None
        self._now = 0.0

    def is_due(self, now: float, at_least_s: float = 0.0) -> bool:
        """Whether the last reading was a bucket ago, and at least `at_least_s` seconds; a tenth less, for readings at
        the same interval. The first buckets are a tenth of the covered time, so that a young window is as fresh.
        """
        bucket_s = min(self._bucket_s, max(FIRST_BUCKET_S, self.covered_s / 10))
        return self._read_at is None or now - self._read_at >= 0.9 * max(bucket_s, at_least_s)

    @property
    def covered_s(self) -> float:
        """The number of seconds that the buckets cover."""
        return self._buckets[-1][1] - self._buckets[0][0] if self._buckets else 0.0

    def begin(self, now: float) -> None:
        """Begin a reading at `now`, in seconds."""
        self._now = now
        self._seen = {}
        while self._buckets and self._buckets[0][1] <= now - self._length_s:
            self._subtract(self._buckets.popleft()[2])
        if self._read_at is not None:
            self._buckets.append((self._read_at, now, {}))

    def saw(self, views: Mapping[str, TenantView]) -> None:
        """Take the totals of some tenants. All totals of a new tenant count as received since the last reading."""
        before, seen, sums = self._before, self._seen, self.amounts
        bucket = self._buckets[-1][2] if self._buckets else {}
        is_first, elapsed_s = self._read_at is None, self._now - (self._read_at or 0.0)
        for tenant_id, view in views.items():
            prompt, cached, output = view.used
            slo = view.attainment
            total = view.service, prompt, cached, output, slo.requests, slo.met, view.waiting_spell
            seen[tenant_id] = total
            was = before.get(tenant_id, _NO_TOTALS)
            has_waited = view.waiting_spell and was[6] == view.waiting_spell
            if is_first or (total[:6] == was[:6] and not has_waited):
                continue
            added = (
                total[0] - was[0], prompt - was[1], cached - was[2], output - was[3], slo.requests - was[4],
                slo.met - was[5], elapsed_s if has_waited else 0.0,
            )  # fmt: skip
            bucket[tenant_id] = added
            amounts = sums.get(tenant_id)
            if amounts is None:
                sums[tenant_id] = [*added, 1]
            else:
                _add(amounts, added)

    def end(self) -> None:
        """All tenants were shown: forget tenants that are gone."""
        self._before, self._seen, self._read_at = self._seen, {}, self._now
        self.readings += 1

    def _subtract(self, bucket: Mapping[str, tuple[float, ...]]) -> None:
        """A bucket leaves. With the last bucket of a tenant goes what rounding has left of it."""
        sums = self.amounts
        for tenant_id, gone in bucket.items():
            amounts = sums[tenant_id]
            if amounts[BUCKETS] == 1:
                del sums[tenant_id]
                continue
            for index, amount in enumerate(gone):
                if amount:
                    amounts[index] -= amount
            amounts[BUCKETS] -= 1


def _add(amounts: Amounts, added: tuple[float, ...]) -> None:
    service, prompt, cached, output, requests, met, waited_s = added
    amounts[0] += service
    amounts[1] += prompt
    amounts[2] += cached
    amounts[3] += output
    if requests:
        amounts[4] += requests
        amounts[5] += met
    amounts[6] += waited_s
    amounts[7] += 1
