"""The limit by answers before backends that say nothing of themselves: whatever becomes of them, no throughput is lost,
and where it is of no use to send them more, tenants wait here, by their weights.
"""

import pytest
from stand_in import Clients, Kind, Play, affine, in_slot

from policies.limit import RoomOnly
from policies.types import BackendLoad, Tenant

ANY, SIZED = BackendLoad("gpu"), BackendLoad("gpu", requests_running_max=8192)
STREAM = Kind(output=(50, 150))
MIXED = (STREAM, Kind(output=(5, 300), streamed=False), Kind(output=(20, 40), prompt=(2000, 4000), prefill=0.02))
CHANGE_S, LATER_S, END_S = 20.0, 10.0, 45.0

BACKENDS = {
    "never full": lambda slow: affine(0.020, 0.0, slow),
    "a knee": lambda slow: affine(0.010, 0.001, slow),
    "24 seats": lambda slow: in_slot(24, 0.015, slow),
    "8 seats": lambda slow: in_slot(8, 0.010, slow),
}
CHANGES = {
    "stays": lambda _now: 1.0,
    "2 times slower": lambda now: 1.0 if now < CHANGE_S else 2.0,
    "10 times slower": lambda now: 1.0 if now < CHANGE_S else 10.0,
    "10 times as fast": lambda now: 10.0 if now < CHANGE_S else 1.0,
    "10 times slower by and by": lambda now: 10.0 ** min(1.0, max(0.0, (now - CHANGE_S) / 20.0)),
}


def begin_s(play: Play) -> float:
    """30 answers after the change or 10 s, whichever is later."""
    ends = [done.at_s for done in play.done if done.at_s >= CHANGE_S]
    return max(CHANGE_S + LATER_S, ends[30] if len(ends) > 30 else END_S)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_at_least_nine_tenths_of_the_throughput_of_no_limit(backend, change):
    make, slow = BACKENDS[backend], CHANGES[change]
    kinds = MIXED if (len(backend) + len(change)) % 2 else (STREAM,)
    limited, without = (
        Play(make(slow), [Clients(60, kinds)], load=ANY, options=options).run(END_S)
        for options in ({}, {"limit": RoomOnly})
    )
    from_s = max(begin_s(limited), begin_s(without))
    if from_s < END_S - 5.0:
        assert limited.throughput(from_s, END_S) >= 0.9 * without.throughput(from_s, END_S)


def test_whole_answers_of_no_time_do_not_throttle_the_streams_that_come_after_them():
    """As the benchmark of the relay has it: 500 streams at a time fell to 4, and stayed there for minutes."""
    whole, stream = Kind(output=(20, 20), streamed=False, work=0.0005), Kind(output=(150, 150))
    clients = [
        Clients(500, [stream], until_s=4.0),
        Clients(32, [whole], from_s=8.0, until_s=8.05),
        Clients(100, [stream], from_s=9.0, until_s=13.0),
        Clients(500, [stream], from_s=18.0),
    ]
    play = Play(affine(0.020, 0.0), clients, load=SIZED).run(26.0)
    assert play.throughput(19.0, 26.0) == pytest.approx(500 / 0.020, rel=0.01)


def test_a_burst_that_ends_leaves_the_next_one_as_it_was():
    clients = [Clients(2, [STREAM]), *(Clients(300, [STREAM], from_s=at_s, until_s=at_s + 5.0) for at_s in (5.0, 40.0))]
    first, again = (
        Play(affine(0.005, 0.0001, slow), clients, load=SIZED).run(60.0)
        for slow in (lambda _now: 1.0, CHANGES["stays"])
    )
    assert first.throughput(40.0, 45.0) >= 0.9 * first.throughput(5.0, 10.0)
    assert again.throughput(40.0, 45.0) == first.throughput(40.0, 45.0), "the same facts, the same decisions"


def test_beyond_the_knee_answers_become_faster_and_no_throughput_is_lost():
    clients = [Clients(2, [STREAM], until_s=6.0), Clients(600, [STREAM], from_s=6.0)]
    limited, without = (
        Play(affine(0.002, 0.0002), clients, load=SIZED, options=options).run(80.0)
        for options in ({}, {"limit": RoomOnly})
    )
    assert limited.throughput(50.0, 80.0) >= 0.9 * without.throughput(50.0, 80.0)
    took, took_without = (sorted(play.durations_s(60.0, 80.0)) for play in (limited, without))
    assert took[len(took) // 2] < 0.55 * took_without[len(took_without) // 2]


@pytest.mark.parametrize(("slots", "kinds"), [(8, (STREAM,)), (24, MIXED)])
def test_weights_hold_at_a_backend_of_unknown_size_once_it_is_learnt(slots, kinds):
    tenants = (Tenant("A", weight=1.0), Tenant("B", weight=3.0))
    clients = [Clients(60, kinds, tenant_id=tenant.id) for tenant in tenants]
    backend = in_slot(slots, 0.010 * slots / 24)
    play, without = (
        Play(backend, clients, load=ANY, tenants=tenants, options=options).run(150.0)
        for options in ({}, {"limit": RoomOnly})
    )
    alike = without.service("B", 75.0, 150.0) / without.service("A", 75.0, 150.0)
    assert alike == pytest.approx(1.0, rel=0.1), "all are sent at once: weights are without effect"
    assert play.service("B", 75.0, 150.0) / play.service("A", 75.0, 150.0) == pytest.approx(3.0, rel=0.05)
    assert play.throughput(75.0, 150.0) >= 0.95 * without.throughput(75.0, 150.0)
