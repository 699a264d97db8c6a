"""ServiceWindow: what each tenant of one pool was served, and how long it waited, in the last seconds or minutes.

The totals of all tenants are read at intervals of `bucket_s`. A bucket has what was added between two readings, for
those tenants alone that it changed for; the sum of a window's buckets is kept. So a reading takes time in proportion to
the tenants, and memory is for tenants that were served or waited within the window.
"""

from collections import deque
from operator import add, sub
from typing import Final, NamedTuple

from policies.types import TenantView

FIRST_BUCKET_S: Final = 1.0


class Amounts(NamedTuple):
    """What one tenant got: service in service units, tokens, its requests with an envelope that ended and those of them
    that were in time throughout. `waited_s`: for how long it had something queued that its limits let it send.
    """

    service: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    slo_requests: int
    slo_met: int
    waited_s: float


NOTHING: Final = Amounts(0.0, 0, 0, 0, 0, 0, 0.0)


class _Sum:
    """The amounts of one tenant in all buckets of a window."""

    __slots__ = ("amounts", "buckets")

    def __init__(self) -> None:
        self.amounts: list[float] = list(NOTHING)
        self.buckets = 0  # that have something of this tenant: with the last of them goes what rounding has left


class ServiceWindow:
    """One window of one pool. Mutable: `begin` a reading, `saw` each tenant, `end` it."""

    def __init__(self, length_s: float, bucket_s: float) -> None:
        """The window is `length_s` long, and up to `bucket_s` longer while its oldest bucket leaves."""
        self._length_s = length_s
        self._bucket_s = bucket_s
        self._buckets: deque[tuple[float, float, dict[str, Amounts]]] = deque()  # begun and ended at
        self._sums: dict[str, _Sum] = {}
        self._before: dict[str, Amounts] = {}
        self._seen: dict[str, Amounts] = {}
        self._read_at: float | None = None
        self._now = 0.0

    def is_due(self, now: float, at_least_s: float = 0.0) -> bool:
        """Whether the last reading is a bucket ago, and at least so many seconds; a tenth less, for readings at the
        same interval. The first buckets are a tenth of what they cover, so that a young window is as fresh.
        """
        bucket_s = min(self._bucket_s, max(FIRST_BUCKET_S, self.covered_s / 10))
        return self._read_at is None or now - self._read_at >= 0.9 * max(bucket_s, at_least_s)

    @property
    def covered_s(self) -> float:
        """Seconds that the buckets cover."""
        return self._buckets[-1][1] - self._buckets[0][0] if self._buckets else 0.0

    def begin(self, now: float) -> None:
        """Begin a reading at `now`, in seconds."""
        self._now = now
        self._seen = {}
        if self._read_at is not None:
            self._buckets.append((self._read_at, now, {}))
        while self._buckets and self._buckets[0][1] <= now - self._length_s:
            for tenant_id, added in self._buckets.popleft()[2].items():
                self._subtract(tenant_id, added)

    def saw(self, tenant_id: str, view: TenantView) -> None:
        """The totals of one tenant. One that was not there before has got all of them since the last reading."""
        used, attained = view.used, view.attainment
        total = Amounts(view.service, *used, attained.requests, attained.met, 0.0)
        self._seen[tenant_id] = total
        if self._read_at is None:
            return
        before = self._before.get(tenant_id, NOTHING)
        if view.waiting_spell or total != before:
            waited_s = self._now - self._read_at if view.waiting_spell else 0.0
            self._add(tenant_id, Amounts._make((*map(sub, total[:-1], before[:-1]), waited_s)))

    def end(self) -> None:
        """All tenants were seen: those that are gone are forgotten."""
        self._before, self._seen, self._read_at = self._seen, {}, self._now

    def __contains__(self, tenant_id: str) -> bool:
        """Whether the tenant was served or waited."""
        return tenant_id in self._sums

    def amounts(self, tenant_id: str) -> Amounts:
        """The amounts of one tenant; refunds of earlier service count as nothing."""
        found = self._sums.get(tenant_id)
        return NOTHING if found is None else Amounts._make(max(0.0, each) for each in found.amounts)

    def services(self) -> dict[str, float]:
        """The service of each tenant that was served or waited."""
        return {tenant_id: max(0.0, each.amounts[0]) for tenant_id, each in self._sums.items()}

    def has_waited(self, tenant_id: str) -> bool:
        """Whether the tenant waited for at least half of the window: only then it was due its part of all of it."""
        found = self._sums.get(tenant_id)
        return found is not None and found.amounts[-1] >= self.covered_s / 2

    def _add(self, tenant_id: str, added: Amounts) -> None:
        self._buckets[-1][2][tenant_id] = added
        found = self._sums.get(tenant_id)
        if found is None:
            found = self._sums[tenant_id] = _Sum()
        found.buckets += 1
        found.amounts = list(map(add, found.amounts, added))

    def _subtract(self, tenant_id: str, added: Amounts) -> None:
        found = self._sums[tenant_id]
        found.buckets -= 1
        if found.buckets:
            found.amounts = list(map(sub, found.amounts, added))
        else:
            del self._sums[tenant_id]
