"""Metrics that are read from Schedulers, which a process that leads again makes anew."""

import asyncio

import pytest

from gateway.config.scheduling import Scheduling
from gateway.observability.metrics import instruments
from gateway.observability.metrics.call_counts import CallMeter
from gateway.observability.metrics.scheduler_metrics import SchedulerMetrics
from gateway.observability.metrics.service_gap import WINDOWS_S
from gateway.observability.metrics.tenant_series import TenantSeries
from gateway.observability.telemetry import CallTrace
from gateway.scheduling.dispatcher import Dispatcher
from policies.pool.session_gate import SessionRules
from policies.scheduler import Scheduler
from policies.types import BackendLoad, Outcome, Request, Tenant, Usage

ALICE = Tenant("alice")


async def test_what_a_new_leadership_charges_counts_from_its_start():
    dispatchers = {"pool": Dispatcher(Scheduler(wait_s_max=10.0))}
    series = TenantSeries(10, lambda _tenant: None)
    metrics = SchedulerMetrics(
        dispatchers,
        led=lambda: True,
        series=series,
        session_wait=instruments.Histograms().session_wait,
        scheduling_of=lambda _pool: Scheduling(),
    )
    dispatchers["pool"].spent(ALICE, Usage(100, 0, 0))
    await metrics.look()
    dispatchers["pool"] = Dispatcher(Scheduler(wait_s_max=10.0))
    metrics.replaced()
    dispatchers["pool"].spent(ALICE, Usage(30, 0, 0))
    await metrics.look()
    assert metrics.seen[instruments.POOL_SERVICE] == {("pool",): 130.0}


async def test_the_loop_turns_between_comparisons_of_the_tenants_that_wait():
    """Each interval is compared in steps of its own: 10,000 tenants would keep the loop for 15 ms."""
    dispatcher = Dispatcher(Scheduler(wait_s_max=10.0))  # without a backend: they wait
    metrics = SchedulerMetrics(
        {"pool": dispatcher},
        led=lambda: True,
        series=TenantSeries(10, lambda _tenant: None),
        session_wait=instruments.Histograms().session_wait,
        scheduling_of=lambda _pool: Scheduling(),
    )

    async def call(tenant):
        async with dispatcher.lease(Request(tenant.id, tenant.id, "m", dispatcher.now(), 1, 1), tenant):
            raise AssertionError("no backend")

    waiting = [asyncio.create_task(call(tenant)) for tenant in (ALICE, Tenant("bob"))]
    await asyncio.sleep(0)
    turns = []
    for _ in range(2):
        looking, taken = asyncio.create_task(metrics.look()), 0
        while not looking.done():
            await asyncio.sleep(0)
            taken += 1
        turns.append(taken)
    assert metrics.gaps["pool"], "they are compared from the second look on"
    assert turns[1] - turns[0] >= 2 * len(WINDOWS_S), turns
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_working_sets_and_waits_of_sessions_are_metrics():
    scheduler, histograms = Scheduler(sessions=SessionRules()), instruments.Histograms()
    metrics = SchedulerMetrics(
        {"pool": Dispatcher(scheduler)},
        led=lambda: True,
        series=TenantSeries(10, lambda _tenant: None),
        session_wait=histograms.session_wait,
        scheduling_of=lambda _pool: Scheduling(),
    )
    scheduler.tenants_changed(changed=[ALICE], now=0.0)
    scheduler.load_changed([BackendLoad("gpu", kv_tokens_max=10_000)], 0.0)
    scheduler.submit(Request("r", "alice", "m", 0.0, 700, 10, program_id="s"), 0.0)
    scheduler.poll(0.0)
    scheduler._sessions.ledger.wait_counts[2], scheduler._sessions.ledger.wait_s_total = 1, 0.05
    await metrics.look()
    assert metrics.seen[instruments.WORKING_SET] == {("pool", "gpu"): 700}
    assert metrics.seen[instruments.WORKING_SET_LIMIT] == {("pool", "gpu"): 7_000}
    assert metrics.seen[instruments.SESSIONS]["pool", "running"] == 1
    ((labels, waits),) = histograms.session_wait.series()
    assert (labels, sum(waits.counts), waits.sum) == (("pool",), 1, 0.05)


async def test_tenants_keep_their_series_while_another_process_leads_until_they_are_removed():
    gone, dispatcher = [], Dispatcher(Scheduler(wait_s_max=10.0))
    series = TenantSeries(10, gone.append)
    metrics = SchedulerMetrics(
        {"pool": dispatcher},
        led=lambda: False,
        series=series,
        session_wait=instruments.Histograms().session_wait,
        scheduling_of=lambda _pool: Scheduling(),
    )
    dispatcher.spent(ALICE, Usage(100, 0, 0))
    series.label("alice", is_known=True)
    for _ in range(3):
        await metrics.look()
    assert not gone
    assert instruments.POOL_SERVICE not in metrics.seen, "the leader tells what was charged"
    dispatcher.forget("alice")
    for _ in range(3):
        await metrics.look()
    assert gone == ["alice"]


@pytest.mark.parametrize("is_leading", [True, False])
async def test_the_tenants_with_the_most_traffic_have_series_at_a_leader_and_at_a_follower(is_leading):
    dispatcher, histograms = Dispatcher(Scheduler(wait_s_max=10.0)), instruments.Histograms()
    meter = CallMeter(histograms, 2)
    metrics = SchedulerMetrics(
        {"pool": dispatcher},
        led=lambda: is_leading,
        series=meter.series,
        session_wait=histograms.session_wait,
        scheduling_of=lambda _pool: Scheduling(),
    )
    for name, tokens in (("quiet", 10), ("loud", 900), ("late", 1000)):
        dispatcher.spent(Tenant(name), Usage(tokens, 0, 0))
        trace = CallTrace("/v1/completions", tenant_id=name, usage=Usage(tokens, 0, 0), outcome=Outcome.COMPLETED)
        trace.request = Request("r", name, "m", 0.0, tokens, 1)
        meter.ended(trace)
        await metrics.look()
    assert meter.series.names == {"loud", "late"}
