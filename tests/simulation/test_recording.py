"""What a Scheduler is told can be kept and told again, to the last bit, and decides the same."""

import io
from dataclasses import replace
from random import Random

import pytest
from pydantic import ValidationError
from simulated_pool import ENGINE

from backends.engine.coefficients import COEFFICIENTS
from backends.engine.engine import Engine
from backends.simulation.world import World
from policies.accounts.checkpoint import QueueCheckpoint, TierCheckpoint
from policies.facts import (
    Cancelled,
    Finished,
    LoadChanged,
    Measured,
    PolicyChanged,
    Progressed,
    Restored,
    Returned,
    Submitted,
    TenantsChanged,
)
from policies.fairness import FAIRNESS
from policies.scheduler import Scheduler
from policies.types import (
    BackendLoad,
    Dispatch,
    Outcome,
    PolicyChoice,
    Preempt,
    Reason,
    Reject,
    Request,
    SloEnvelope,
    Tenant,
    Tier,
    Usage,
)
from tests.simulation.arrivals import merged, poisson
from tests.simulation.recording import Polled, Recorder, read_from, replay, write_to

REQUEST = Request(
    id="r1",
    tenant_id="a",
    model="m",
    arrived_at=1 / 3,
    prompt_tokens=7,
    output_tokens_max=9,
    choices=2,
    body_bytes=120,
    prefix=(2**64 - 1, -5),
    prefix_block_tokens=16.0,
    output_tokens_known=4,
    envelope=SloEnvelope(ttft_s=0.2, tpot_s=0.05),
)
ENTRIES = [
    LoadChanged(0.0, (BackendLoad("x", kv_tokens_max=100, kv_used_ratio=0.1), BackendLoad("y", available=False))),
    Measured(0.05, BackendLoad("x", kv_tokens_max=100, kv_used_ratio=0.2, measured_at=0.05)),
    TenantsChanged(0.1, (Tenant("a", weight=2.5, in_flight_max=3),), ("b",), (Tier("gold", reserve_ratio=0.25),)),
    Submitted(0.1 + 0.2, REQUEST),
    Polled(0.4, (Dispatch("r1", "x", 3.0, 2), Reject("r2", Reason.QUEUE_FULL, 1.5), Preempt("r4"))),
    Progressed(0.5, "r1", Usage(7, 3, 2)),
    Returned(0.6, "r1", 0.25),
    Cancelled(0.7, "r1"),
    Finished(0.8, "r3", Outcome.CLIENT_DISCONNECTED),
    PolicyChanged(0.9, fairness=PolicyChoice("slack", {"slack_service": 2.5, "second_key": "prefix"})),
    TenantsChanged(0.9, (), (), (), tiers_removed=("gold",)),
    Restored(0.9, {"x": QueueCheckpoint(1 / 3, {"default": TierCheckpoint(2.0, 1 / 7, {"a": 1e-9})})}, 10.0),
    PolicyChanged(1.0, prediction=PolicyChoice("none"), placement=PolicyChoice("d2lpm")),
]
TENANTS = [Tenant("one"), Tenant("two", weight=2), Tenant("three", in_flight_max=2)]


def make_scheduler(fairness="vtc"):
    return Scheduler(tenants=TENANTS, fairness=FAIRNESS[fairness])


def record_a_run(listener):
    """Three tenants that ask for more than the engine can do, some of which reach their queue timeout."""
    rng = Random(1)
    streams = [
        poisson(
            tenant.id,
            lambda _: 1.5,
            rate_per_s_max=1.5,
            duration_s=60,
            prompt_tokens=(10, 500),
            output_tokens=(1, 300),
            rng=rng,
            patience_s=12,
        )
        for tenant in TENANTS
    ]
    world = World(Recorder(make_scheduler(), listener), {"x": Engine(COEFFICIENTS[ENGINE])})
    return list(world.run(merged(*streams)))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.call)
def test_every_kind_of_entry_survives_the_file_to_the_last_bit(entry):
    sink = io.BytesIO()
    write_to(sink)(entry)
    assert sink.getvalue().count(b"\n") == 1
    assert list(read_from([sink.getvalue()])) == [entry]


def test_a_recorded_run_read_from_a_file_gives_the_same_actions():
    sink = io.BytesIO()
    records = record_a_run(write_to(sink))
    entries = list(read_from(sink.getvalue().splitlines()))
    decided = [action for entry in entries if isinstance(entry, Polled) for action in entry.actions]
    assert len(decided) >= len(records) * 0.9
    assert any(isinstance(entry, Cancelled) for entry in entries)
    assert list(replay(entries, make_scheduler())) == []


def test_a_scheduler_that_decides_otherwise_is_told_where():
    entries = []
    record_a_run(entries.append)
    mismatches = replay(entries, make_scheduler("fifo"))
    first = next(mismatches)
    assert entries[first.number] == Polled(first.now, first.recorded)
    assert first.recorded != first.replayed


def test_a_call_that_fails_is_not_recorded():
    entries = []
    recorder = Recorder(make_scheduler(), entries.append)
    recorder.load_changed([BackendLoad("x", kv_tokens_max=100)], 0.0)
    request = replace(REQUEST, tenant_id="one")
    recorder.submit(request, 0.0)
    with pytest.raises(AssertionError, match="in use once"):
        recorder.submit(request, 0.0)
    assert [entry.call for entry in entries] == ["load_changed", "submit"]


def test_a_line_that_is_no_entry_is_refused():
    with pytest.raises(ValidationError):
        list(read_from([b'{"call": "dance", "now": 1.0}']))
