"""What a snapshot says for the live page: tokens of each tenant, its oldest request, what keeps a backend closed."""

import pytest

from policies.scheduler import Scheduler
from policies.types import BackendLoad, Binding, Outcome, Request, Tenant, Tier, Usage, Wait


def make(*tenants, **load):
    scheduler = Scheduler(tenants=tenants or [Tenant("a"), Tenant("b")])
    scheduler.load_changed([BackendLoad("gpu", **{"requests_running_max": 1, "kv_tokens_max": 10_000, **load})], 0.0)
    return scheduler


def submit(scheduler, request_id, tenant="a", at=0.0, *, prompt=100):
    scheduler.submit(Request(request_id, tenant, "m", at, prompt, 50), at)
    return [action.request_id for action in scheduler.poll(at)]


def view(scheduler, tenant="a", now=10.0):
    return scheduler.snapshot(now, [tenant]).tenants[tenant]


def binding(scheduler, now=10.0):
    return scheduler.snapshot(now, ()).backends["gpu"].bound_by


def test_tokens_are_counted_as_they_are_charged_the_prompt_from_its_dispatch_on():
    scheduler = make()
    submit(scheduler, "r1")
    assert view(scheduler).used == Usage(100, 0, 0)
    scheduler.tokens("r1", Usage(120, 30, 7), 1.0)
    assert view(scheduler).used == Usage(120, 30, 7)
    scheduler.finished("r1", Outcome.COMPLETED, 2.0, usage=Usage(120, 30, 20))
    assert view(scheduler).used == Usage(120, 30, 20)
    scheduler.spent("a", Usage(5, 0, 1), 3.0)
    assert view(scheduler).used == Usage(125, 30, 21)


def test_tokens_of_a_request_that_was_not_served_are_taken_back_with_its_charge():
    scheduler = make()
    submit(scheduler, "r1")
    scheduler.finished("r1", Outcome.BACKEND_FAILED, 1.0, usage=Usage(100, 0, 0))
    assert view(scheduler).used == Usage(0, 0, 0)
    assert view(scheduler).service == 0


def test_tokens_of_a_request_that_returns_to_the_queue_are_counted_once():
    scheduler = make()
    submit(scheduler, "r1")
    scheduler.returned("r1", 1.0, 0.5)
    scheduler.poll(3.0)
    scheduler.finished("r1", Outcome.COMPLETED, 4.0, usage=Usage(100, 0, 9))
    assert view(scheduler).used == Usage(100, 0, 9)


def test_tokens_that_another_scheduler_has_charged_are_not_counted_again():
    scheduler = make()
    scheduler.adopted(Request("r1", "a", "m", 0.0, 100, 50), "gpu", Usage(100, 0, 10), 1.0)
    scheduler.finished("r1", Outcome.COMPLETED, 4.0, usage=Usage(100, 0, 25))
    assert view(scheduler).used == Usage(0, 0, 15)


def test_a_tenant_shows_when_its_oldest_request_arrived_and_why_it_waits():
    scheduler = make(Tenant("a", in_flight_max=1), Tenant("b"))
    submit(scheduler, "r1", at=1.0)
    submit(scheduler, "r2", at=2.0)
    submit(scheduler, "r3", "b", at=3.0)
    assert (view(scheduler).oldest_at, view(scheduler).waits) == (2.0, Wait.TENANT_LIMIT)
    assert (view(scheduler, "b").oldest_at, view(scheduler, "b").waits) == (3.0, Wait.NO_ROOM)
    scheduler.load_changed([BackendLoad("gpu", available=False)], 4.0)
    assert view(scheduler, "b").waits is Wait.NO_BACKEND
    scheduler.cancel("r3", 5.0)
    assert (view(scheduler, "b").oldest_at, view(scheduler, "b").waits) == (None, None)


@pytest.mark.parametrize(
    ("load", "bound_by"),
    [
        ({"requests_running_max": 1}, Binding.SLOTS),
        ({"requests_running_max": 4}, None),
        ({"requests_running_max": 4, "kv_tokens_max": 160}, Binding.KV),
        ({"available": False}, Binding.UNHEALTHY),
    ],
)
def test_a_backend_shows_what_keeps_one_more_request_out(load, bound_by):
    scheduler = make()
    submit(scheduler, "r1")
    scheduler.load_changed([BackendLoad("gpu", **{"requests_running_max": 1, "kv_tokens_max": 10_000, **load})], 1.0)
    assert binding(scheduler) is bound_by


def test_a_backend_that_has_rejected_a_request_is_held_for_a_moment_and_an_idle_one_has_room():
    scheduler = make()
    assert binding(scheduler) is None
    submit(scheduler, "r1")
    scheduler.returned("r1", 1.0, 0.5)
    assert binding(scheduler, 1.2) is Binding.HELD


def test_a_slot_that_is_free_for_another_tier_alone_is_reserved_and_not_free():
    tiers = [Tier("gold", reserve_ratio=0.5), Tier("batch")]
    scheduler = Scheduler(tenants=[Tenant("a", tier_id="batch"), Tenant("b", tier_id="gold")], tiers=tiers)
    scheduler.load_changed([BackendLoad("gpu", requests_running_max=4, kv_tokens_max=10_000)], 0.0)
    assert submit(scheduler, "r1") == ["r1"]
    assert binding(scheduler) is None
    assert submit(scheduler, "r2") == ["r2"]
    assert submit(scheduler, "r3") == []
    assert binding(scheduler) is Binding.RESERVED
    assert submit(scheduler, "r4", "b") == ["r4"]
    assert submit(scheduler, "r5", "b") == ["r5"]
    assert binding(scheduler) is Binding.SLOTS
