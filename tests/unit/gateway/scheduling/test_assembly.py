"""What is configured is what runs: every policy by its name, with its parameters, in every combination of one."""

from random import Random

import pytest

from gateway.config.scheduling import SimulatedScheduling
from gateway.config.sections import ContinuationSection, QueueSection
from gateway.scheduling.assembly import make_scheduler
from policies.accounts.cost import PRICES
from policies.fairness import FAIRNESS
from policies.placement import PLACEMENT
from policies.prediction import PREDICTION
from policies.types import BackendLoad, Dispatch, Outcome, Preempt, Reason, Reject, Request, Tenant, Usage

TABLES = {"fairness": FAIRNESS, "prediction": PREDICTION, "placement": PLACEMENT, "price": PRICES}
TENANTS = (Tenant("a"), Tenant("b", tokens_per_minute_max=1_000))


def request(number: int, tenant_id: str, now: float, output: int = 20) -> Request:
    return Request(f"r{number}", tenant_id, "m", now, 10, 50, output_tokens_known=output)


def drive(scheduler, count: int = 12) -> list[str]:
    """Ids in the order of their dispatch: both tenants send, one request runs at a time."""
    scheduler.load_changed([BackendLoad("gpu", requests_running_max=1, kv_tokens_max=10_000)], 0.0)
    for number in range(count):
        scheduler.submit(request(number, "ab"[number % 2], 0.0, output=5 + 10 * (number % 3)), 0.0)
    order = []
    for now in range(1, count + 1):
        (action,) = scheduler.poll(float(now))
        assert isinstance(action, Dispatch)
        order.append(action.request_id)
        scheduler.tokens(action.request_id, Usage(10, 0, 5), now + 0.5)
        scheduler.finished(action.request_id, Outcome.COMPLETED, now + 0.5)
    return order


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, table in TABLES.items() for name in table])
def test_every_policy_of_every_kind_runs_by_its_name(kind, name):
    scheduling = SimulatedScheduling.model_validate({kind: name})
    orders = [drive(make_scheduler(scheduling, tenants=TENANTS, rng=Random(5))) for _ in range(2)]
    assert sorted(orders[0]) == sorted(f"r{number}" for number in range(12))
    assert orders[0] == orders[1], "the same seed gives the same schedule"


def service(price: object, usage: Usage) -> float:
    scheduler = make_scheduler(SimulatedScheduling.model_validate({"price": price}), tenants=TENANTS)
    scheduler.spent("a", usage, 0.0)
    return scheduler.snapshot(0.0).tenants["a"].service


def test_parameters_reach_the_policy():
    usage = Usage(100, 60, 5)
    assert service({"output": 3}, usage) == pytest.approx(40 + 6 + 15)
    assert service("extend", usage) == 40 + 10
    assert service({"policy": "extend", "extend": 2}, usage) == 80 + 10
    assert service("profiled", usage) == pytest.approx(0.21001891 * 40 + 0.50376975 + 1.9934 + 0.08118325 + 1.14601454)


def test_every_scheduler_has_policies_of_its_own():
    scheduling = SimulatedScheduling.model_validate({"fairness": "lcf"})
    first, second = (make_scheduler(scheduling, tenants=TENANTS) for _ in range(2))
    drive(first)
    assert second.snapshot(0.0).tenants["a"].counter == 0.0


@pytest.mark.parametrize(
    ("continuation", "is_preempted", "is_moved"),
    [
        (None, False, False),
        ({"enabled": False, "preempt": {"enabled": True}}, False, False),
        ({"drain_s": 5.0}, False, True),
        ({"drain_s": 5.0, "preempt": {"enabled": True}}, True, True),
    ],
)
def test_a_stream_gives_way_and_moves_as_configured(continuation, is_preempted, is_moved):
    scheduling = SimulatedScheduling.model_validate({"fairness": "lcf", "preempt_service": 1.0, "prediction": "none"})
    section = None if continuation is None else ContinuationSection.model_validate(continuation)
    scheduler = make_scheduler(scheduling, tenants=TENANTS, continuation=section)
    x, y = (BackendLoad(name, requests_running_max=1) for name in "xy")
    scheduler.load_changed([x], 0.0)
    stream = Request("r", "a", "m", 0.0, 100, 1_000, is_resumable=True)
    scheduler.submit(stream, 0.0)
    scheduler.poll(0.0)
    scheduler.tokens("r", Usage(100, 0, 64), 0.0)
    scheduler.submit(request(2, "b", 0.0), 0.0)
    assert (Preempt("r") in scheduler.poll(0.0)) is is_preempted
    if is_preempted:
        scheduler.interrupted("r", Usage(100, 0, 64), 0.0)
        scheduler.cancel("r2", 0.0)
        scheduler.poll(0.0)
    scheduler.load_changed([y], 0.0)
    scheduler.poll(0.0)
    assert (Preempt("r") in scheduler.poll(5.0)) is is_moved


def test_queues_and_limits_hold_as_configured():
    scheduler = make_scheduler(SimulatedScheduling(), tenants=TENANTS, queue=QueueSection(tenant_requests_max=1))
    scheduler.load_changed([BackendLoad("gpu", requests_running_max=1)], 0.0)
    scheduler.submit(Request("long", "b", "m", 0.0, 1_001, 1), 0.0)
    scheduler.submit(request(1, "a", 0.0), 0.0)
    scheduler.submit(request(2, "a", 0.0), 0.0)
    refusals = {action.request_id: action.reason for action in scheduler.poll(0.0) if isinstance(action, Reject)}
    assert refusals == {"long": Reason.REQUEST_TOO_LARGE, "r2": Reason.TENANT_QUEUE_FULL}
