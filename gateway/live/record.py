"""LiveRecord: the windows of service and the latest sample of every pool, for the live document.

The windows are kept all the time, so that a page that is opened shows the last 15 minutes at once. Without a viewer
they are read every few seconds, from the samples of every tenant that the metrics take anyway
(observability/metrics/scheduler_metrics.py); nothing else is kept. For a viewer the record takes its own samples.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from gateway.live.windows import ServiceWindow
from gateway.observability.metrics.scheduler_metrics import LookWatch
from gateway.scheduling.dispatcher import Dispatcher
from gateway.tasks import in_turns
from policies.types import Snapshot, Tenant, TenantView

# Length and bucket in seconds: what just happened, a minute, a quarter of an hour. A bucket is at most a tenth of its
# window, which is how wrong its length may be.
WINDOWS_S: Final = ((10.0, 1.0), (60.0, 5.0), (900.0, 30.0))
UNSEEN_BUCKET_S: Final = 5.0  # at least, while there is no viewer
WANTED_S: Final = 5.0  # a viewer's process asks every second, or a little less often where there are many tenants
SLICE_TENANTS: Final = 100  # of a look: about a millisecond


class Reading:
    """One update of a pool's service windows (how much each tenant received lately) from the totals of its tenants.
    Call `saw` with some tenants at a time, until it has had all, then `ended`.
    """

    def __init__(self, record: "PoolRecord", windows: Sequence[ServiceWindow], now: float) -> None:
        self._record = record
        self._windows = windows
        for window in windows:
            window.begin(now)

    def saw(self, views: Mapping[str, TenantView]) -> None:
        """Show some of the pool's tenants to the windows."""
        for window in self._windows:
            window.saw(views)

    def ended(self) -> None:
        """End the update of the windows: they have seen all tenants."""
        for window in self._windows:
            window.end()
        self._record.reading = None


class PoolRecord:
    """One pool's record for the live document (the data of the live page): its service in the last 10 s, minute and 15
    minutes, and the latest snapshot of its Scheduler. Mutable.
    """

    def __init__(self) -> None:
        self.windows = tuple(ServiceWindow(length_s, bucket_s) for length_s, bucket_s in WINDOWS_S)
        self.snapshot: Snapshot | None = None
        """Without tenants; None: there is no viewer."""
        self.tenants: dict[str, tuple[Tenant, TenantView]] = {}
        """Those of the latest look for a viewer."""
        self.reading: Reading | None = None

    def begin(self, now: float, *, at_least_s: float = 0.0) -> Reading | None:
        """Begin to read the windows that are due at `now` (in seconds) and whose last reading is at least `at_least_s`
        old. None: there are none, or a reading is still going on.
        """
        due = [window for window in self.windows if window.is_due(now, at_least_s)]
        if not due or self.reading is not None:
            return None
        self.reading = Reading(self, due, now)
        return self.reading

    async def look(self, dispatcher: Dispatcher) -> None:
        """Sample the pool for a viewer, with turns of the event loop between slices of its tenants."""
        snapshot = dispatcher.snapshot(())
        await asyncio.sleep(0)
        reading = self.begin(snapshot.now)
        found: dict[str, tuple[Tenant, TenantView]] = {}
        async for tenants in in_turns(list(dispatcher.tenants()), SLICE_TENANTS):
            part = {tenant.id: tenant for tenant in tenants}
            views = dispatcher.tenant_views(part)
            if reading is not None:
                reading.saw(views)
            for tenant_id, view in views.items():
                found[tenant_id] = part[tenant_id], view
        if reading is not None:
            reading.ended()
        self.snapshot, self.tenants = snapshot, found

    def unwatched(self) -> None:
        """No viewer is left: keep only the windows."""
        self.snapshot, self.tenants = None, {}


class LiveRecord(LookWatch):
    """The recent service of every pool, one PoolRecord each, from which the live document (the data of the live page)
    is made. Mutable. It records each sample of a pool that the metrics take.
    """

    def __init__(self) -> None:
        self.pools: dict[str, PoolRecord] = {}
        self._wanted_until = float("-inf")

    def look(self, pool: str, snapshot: Snapshot) -> Reading | None:
        """A Reading for a sample of the metrics; None if no window is due, or if a viewer causes samples anyway."""
        if snapshot.now < self._wanted_until:
            return None
        record = self._record(pool)
        record.unwatched()
        return record.begin(snapshot.now, at_least_s=UNSEEN_BUCKET_S)

    async def look_for_viewer(self, dispatchers: Mapping[str, Dispatcher]) -> None:
        """Sample all pools now."""
        self._wanted_until = asyncio.get_running_loop().time() + WANTED_S
        for pool, dispatcher in list(dispatchers.items()):
            try:
                await self._record(pool).look(dispatcher)
            except BaseException:  # what it has seen of the pool would be counted again
                self.pools.pop(pool, None)
                raise

    def replaced(self) -> None:
        """The Schedulers were replaced by new ones, which count from zero."""
        self.pools.clear()

    def _record(self, pool: str) -> PoolRecord:
        record = self.pools.get(pool)
        if record is None:
            record = self.pools[pool] = PoolRecord()
        return record
