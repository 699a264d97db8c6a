"""How much time each request has left, as leases say it and as the scheduler's own accounts do."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from gateway.scheduling import urgency
from gateway.scheduling.dispatcher import Dispatcher
from gateway.scheduling.urgency import urgency_of
from policies.facts import LoadChanged
from policies.scheduler import Scheduler
from policies.slo.timeliness import Timeliness
from policies.types import BackendLoad, Request, SloEnvelope, Tenant, Tier, Usage

TIERS = (Tier("default"), Tier("gold"))


class Pool:
    """A dispatcher of one backend, whose clock stands until it is moved."""

    def __init__(self, slots):
        self.at = asyncio.get_running_loop().time()  # the scheduler's timer is on that clock
        self.dispatcher = Dispatcher(Scheduler(tiers=TIERS))
        self.dispatcher.now = lambda: self.at
        self.dispatcher.told(LoadChanged(self.dispatcher.now(), (BackendLoad("gpu", requests_running_max=slots),)))
        self.stack = AsyncExitStack()
        self.tasks = []

    async def send(self, tenant_id, request_id, envelope=None, *, tier_id="gold"):
        """The lease of a request that runs, or None while it waits."""
        request = Request(request_id, tenant_id, "m", self.at, 10, 20, envelope=envelope)
        lease = self.dispatcher.lease(request, Tenant(tenant_id, tier_id=tier_id))
        self.tasks.append(asyncio.ensure_future(self.stack.enter_async_context(lease)))
        await asyncio.sleep(0.01)
        if not lease.backend_id:
            return None
        if envelope is not None:
            lease.timeliness = Timeliness(request)
        return lease


@pytest.fixture
async def pool():
    pool = Pool(slots=2)
    yield pool
    for task in pool.tasks:
        task.cancel()
    await asyncio.gather(*pool.tasks, return_exceptions=True)
    await pool.stack.aclose()


def passed(pool, lease, tokens):
    lease.timeliness.passed(tokens, pool.at)
    lease.tokens(Usage(10, 0, tokens))


async def test_slack_is_what_the_schedulers_snapshot_says(pool):
    runs = await pool.send("a", "a1", SloEnvelope(1.0, 0.1))
    plain = await pool.send("b", "b1")
    pool.at += 0.25
    assert await pool.send("a", "a2", SloEnvelope(2.0, None)) is None
    assert await pool.send("c", "c1", SloEnvelope(None, 0.1), tier_id="default") is None
    passed(pool, runs, 1)
    passed(pool, runs, 6)
    assert plain is not None
    pool.at += 0.1
    found, snapshot = await urgency_of(pool.dispatcher, ["default", "gold"]), pool.dispatcher.snapshot()
    assert found.tenants == {"a": pytest.approx(1.0 + 6 * 0.1 - 0.35)}
    assert found.tenants == {
        tenant_id: pytest.approx(view.slack_s_min)
        for tenant_id, view in snapshot.tenants.items()
        if view.slack_s_min is not None
    }
    assert list(found.requests) == list(snapshot.requests) == ["a1", "a2"]
    for request_id, view in snapshot.requests.items():
        shown = found.requests[request_id]
        assert (shown.tenant_id, shown.backend_id, shown.output_tokens) == (
            view.tenant_id, view.backend_id, view.output_tokens,
        )  # fmt: skip
        assert shown.slack_s == pytest.approx(view.slack_s)
    for tier_id, tier in snapshot.tiers.items():
        shown = found.tiers[tier_id]
        assert (shown.queued_requests, shown.in_flight_requests) == (tier.queued_requests, tier.in_flight_requests)


async def test_the_loop_turns_between_slices_and_no_request_is_lost_or_counted_twice(pool, monkeypatch):
    monkeypatch.setattr(urgency, "SLICE_LEASES", 3)
    for number in range(20):
        await pool.send("a", f"r{number:02}", SloEnvelope(1.0 + number, None))
    looking, turns = asyncio.ensure_future(urgency_of(pool.dispatcher, ["gold"])), 0
    while not looking.done():
        await asyncio.sleep(0)
        turns += 1
    found = await looking
    assert turns >= 20 // 3
    assert list(found.requests) == [f"r{number:02}" for number in range(20)]
    assert (found.tiers["gold"].in_flight_requests, found.tiers["gold"].queued_requests) == (2, 18)
