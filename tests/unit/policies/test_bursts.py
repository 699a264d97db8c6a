"""A burst asks few backends: the best first, and none after the one that has room."""

from dataclasses import replace
from random import Random

import pytest

from policies.capacity.backend import BackendCapacity
from policies.capacity.kv_use.end_order import EndOrder
from policies.prediction import TenantQuantile
from policies.step_time import StepTime, StepTimeModel
from policies.types import BackendLoad, Dispatch, SloEnvelope, Tenant, Tier

BACKENDS = 64
BURST = 256
ENVELOPES = (None, SloEnvelope(ttft_s=60.0, tpot_s=0.1))
LIMITS = {
    "seats": BackendLoad("gpu", requests_running_max=16, kv_tokens_max=10_000_000, kv_block_tokens=16),
    "KV tokens": BackendLoad("gpu", requests_running_max=1_000, kv_tokens_max=10_000, kv_block_tokens=16),
    "steps": BackendLoad(
        "gpu",
        requests_running_max=1_000,
        kv_tokens_max=10_000_000,
        step_tokens_max=16_384,
        step_time=StepTime(StepTimeModel(0.010, 1e-5, 1e-7, 5e-3), error_ratio=0.05, is_sure=True),
    ),
    "prompts": BackendLoad(
        "gpu",
        requests_running_max=1_000,
        kv_tokens_max=10_000_000,
        step_tokens_max=512,
        step_time=StepTime(StepTimeModel(0.010, 1e-3, 1e-8), error_ratio=0.05, is_sure=True),
    ),
}


@pytest.fixture
def asked(monkeypatch):
    """The backends that were asked whether a request fits, one after the other."""
    found, fits = [], BackendCapacity.fits

    def spied(self, reservation, *, reserve_only):
        found.append(self.id)
        return fits(self, reservation, reserve_only=reserve_only)

    monkeypatch.setattr(BackendCapacity, "fits", spied)
    return found


@pytest.mark.parametrize("limit", LIMITS)
def test_a_dispatch_of_a_burst_asks_few_of_many_backends(make_pool, asked, limit):
    rng = Random(1)
    pool = make_pool(
        tenants=[Tenant("A", tier_id="gold"), Tenant("B"), Tenant("C")],
        tiers=[Tier("gold", reserve_ratio=0.05), Tier("default")],
        loads=[replace(LIMITS[limit], backend_id=f"gpu-{n:02}") for n in range(BACKENDS)],
    )
    running: list[str] = []

    def send(requests: int) -> int:
        """So many more; how many were sent."""
        for _ in range(requests):
            pool.send(
                rng.choice("ABC"),
                f"r{len(pool.prompts)}",
                prompt=rng.randrange(20, 800),
                output_max=rng.randrange(100, 500),
                envelope=rng.choice(ENVELOPES),
            )
        sent = [action.request_id for action in pool.poll() if isinstance(action, Dispatch)]
        running.extend(sent)
        return len(sent)

    send(20 * BACKENDS)  # until nothing fits any more
    sent = 0
    asked.clear()
    for _ in range(4):
        pool.now += 1.0
        for _ in range(min(BURST, len(running))):
            pool.end(running.pop(rng.randrange(len(running))))
        sent += send(BURST)
    assert sent > BURST
    assert len(asked) < sent * BACKENDS / 8, f"{len(asked) / sent} of {BACKENDS} for each of {sent}"


@pytest.fixture
def ranked(monkeypatch):
    """Requests that were ranked by when they end. When there is room is checked against ranking all of them anew."""
    found, soonest_first = [], EndOrder.soonest_first

    def checked(self):
        found.extend(self.moved)
        ends = soonest_first(self)
        assert {end[2] for end in ends} == self._end_of.keys()
        anew = sorted((each.steps_left, each.number, each) for each in self._end_of)
        assert ends == anew, "as what runs there was known a moment ago"
        return ends

    monkeypatch.setattr(EndOrder, "soonest_first", checked)
    return found


def test_what_runs_at_a_backend_is_ranked_again_only_when_something_has_changed_there(make_pool, ranked):
    rng = Random(1)
    load = BackendLoad("gpu", requests_running_max=1_000, kv_tokens_max=10_000, kv_block_tokens=16)
    tenants = [f"tenant-{number}" for number in range(40)]
    pool = make_pool(
        tenants=list(map(Tenant, tenants)),
        loads=[replace(load, backend_id=f"gpu-{n}") for n in range(8)],
        prediction=TenantQuantile(),
    )
    running: list[str] = []
    number = changes = 0
    for _ in range(150):
        pool.now += 0.1
        for _ in range(6):
            number += 1
            pool.send(
                rng.choice(tenants), f"r{number}", prompt=rng.randrange(20, 2_000), output_max=rng.randrange(10, 500)
            )
        ended = [running.pop(rng.randrange(len(running))) for _ in range(min(len(running), 3))]
        for request_id in ended:
            pool.end(request_id)
        produced = rng.sample(running, min(len(running), 2))
        for request_id in produced:
            pool.emit(request_id, rng.randrange(1, 50))
        sent = [action.request_id for action in pool.poll() if isinstance(action, Dispatch)]
        running.extend(sent)
        changes += len(ended) + len(produced) + len(sent)
    for backend in pool.scheduler._fleet.backends.values():
        reservations = [entry.reservation for entry in pool.scheduler._ledger.at(backend.id)]
        assert [end[2] for end in backend.ends.soonest_first()] == sorted(
            reservations, key=lambda each: (each.steps_left, each.number)
        )
    assert ranked, "a tenant waited for room"
    assert len(ranked) <= changes
