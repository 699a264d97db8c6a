"""Metrics that are read from Schedulers, which a process that leads again makes anew."""

from gateway.config.scheduling import Scheduling
from gateway.observability import instruments
from gateway.observability.scheduler_metrics import SchedulerMetrics
from gateway.observability.tenant_series import TenantSeries
from gateway.scheduling.dispatcher import Dispatcher
from policies.scheduler import Scheduler
from policies.types import Tenant, Usage

ALICE = Tenant("alice")


async def test_what_a_new_leadership_charges_counts_from_its_start():
    dispatchers = {"pool": Dispatcher(Scheduler(wait_s_max=10.0))}
    series = TenantSeries(10, lambda _tenant: None)
    metrics = SchedulerMetrics(lambda: dispatchers, series=series, scheduling_of=lambda _pool: Scheduling())
    dispatchers["pool"].spent(ALICE, Usage(100, 0, 0))
    await metrics.look()
    dispatchers["pool"] = Dispatcher(Scheduler(wait_s_max=10.0))
    metrics.replaced()
    dispatchers["pool"].spent(ALICE, Usage(30, 0, 0))
    await metrics.look()
    assert metrics.seen[instruments.POOL_SERVICE] == {("pool",): 130.0}
