"""LiveRecord: what is kept of every pool for the live document: windows of service, and the latest look at it.

The looks are those that the metrics take every second (observability/scheduler_metrics.py), which read every tenant
anyhow. The windows are kept all the time, so that a page that is opened shows the last 15 minutes at once; without a
viewer they are read every few seconds, and nothing else is kept.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from gateway.live.windows import ServiceWindow
from gateway.observability.scheduler_metrics import TierGap
from policies.types import Snapshot, Tenant, TenantView

# Length and bucket in seconds: what just happened, a minute, a quarter of an hour. A bucket is at most a tenth of its
# window, which is how wrong its length may be.
WINDOWS_S: Final = ((10.0, 1.0), (60.0, 5.0), (900.0, 30.0))
UNSEEN_BUCKET_S: Final = 5.0  # at least, while there is no viewer
WANTED_S: Final = 5.0  # a viewer's process asks every second, or a little less often where there are many tenants


class PoolRecord:
    """One pool. Mutable: a look `saw` its tenants in slices, and `ended`."""

    def __init__(self) -> None:
        self.windows = tuple(ServiceWindow(length_s, bucket_s) for length_s, bucket_s in WINDOWS_S)
        self.snapshot: Snapshot | None = None
        self.tenants: dict[str, tuple[Tenant, TenantView]] = {}
        """Those of the latest look for a viewer."""
        self.gaps: Mapping[str, TierGap] = {}
        self.looks = 0
        """For viewers."""
        self.read: frozenset[int] = frozenset()
        """The windows that the latest look has read, by number."""
        self._reading: list[ServiceWindow] = []
        self._is_wanted = False
        self._found: dict[str, tuple[Tenant, TenantView]] = {}

    def begin(self, now: float, *, is_wanted: bool) -> bool:
        """Begin a look at `now`, in seconds; returns whether it is of use. `is_wanted`: for a viewer."""
        at_least_s = 0.0 if is_wanted else UNSEEN_BUCKET_S
        self._reading = [window for window in self.windows if window.is_due(now, at_least_s)]
        self._is_wanted, self._found = is_wanted, {}
        for window in self._reading:
            window.begin(now)
        return bool(self._reading) or is_wanted

    def saw(self, tenants: Sequence[Tenant], views: Mapping[str, TenantView]) -> None:
        """Some tenants, and their views."""
        for window in self._reading:
            for tenant_id, view in views.items():
                window.saw(tenant_id, view)
        if self._is_wanted:
            self._found |= {each.id: (each, views[each.id]) for each in tenants if each.id in views}

    def ended(self, snapshot: Snapshot, gaps: Mapping[str, TierGap]) -> None:
        """All tenants were seen; `gaps` are by tier."""
        self.read = frozenset(number for number, each in enumerate(self.windows) if each in self._reading)
        for window in self._reading:
            window.end()
        if self._is_wanted:
            self.snapshot, self.tenants, self.gaps = snapshot, self._found, gaps
            self.looks += 1
        self._reading, self._found = [], {}

    def unwatched(self) -> None:
        """No viewer is left: only the windows stay."""
        self.snapshot, self.tenants, self.gaps = None, {}, {}


class LiveRecord:
    """All pools. Mutable."""

    def __init__(self) -> None:
        self.pools: dict[str, PoolRecord] = {}
        self._wanted_until = float("-inf")

    def want(self, now: float) -> bool:
        """A viewer asks: looks are kept for WANTED_S from now, in seconds. Returns whether the latest was kept."""
        self._wanted_until = now + WANTED_S
        return bool(self.pools) and all(record.snapshot is not None for record in self.pools.values())

    def look(self, pool: str, now: float) -> PoolRecord | None:
        """The record that takes in a look at this pool; None where it would be of no use."""
        record = self.pools.get(pool)
        if record is None:
            record = self.pools[pool] = PoolRecord()
        is_wanted = now < self._wanted_until
        if not is_wanted and record.snapshot is not None:
            record.unwatched()
        return record if record.begin(now, is_wanted=is_wanted) else None

    def replaced(self) -> None:
        """The Schedulers are other ones, which count from zero."""
        self.pools.clear()
