"""What is a replica's own of limits that several share: the parts come to the whole, and none is nothing."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from policies.capacity.backend import BackendCapacity
from policies.limit import FixedLimit
from policies.types import BackendLoad, ReplicaShare, Request

GPU = BackendLoad("gpu", requests_running_max=10, kv_tokens_max=1_000)


def shares(replicas):
    return [ReplicaShare(replicas, number) for number in range(replicas)]


def capacity(share, **options):
    return BackendCapacity(replace(GPU, share=share), headroom_ratio_max=1.0, **options)


@given(limit=st.integers(0, 1_000), replicas=st.integers(1, 50))
def test_parts_come_to_the_whole_or_are_one_each(limit, replicas):
    parts = [share.of(limit) for share in shares(replicas)]
    assert sum(parts) == (limit if limit >= replicas or not limit else replicas)
    assert max(parts) - min(parts) <= 1


def test_a_backends_seats_and_memory_are_divided():
    made = [capacity(share) for share in shares(3)]
    assert [each.sequences_max for each in made] == [4, 3, 3]
    assert {round(each.tokens_max) for each in made} == {333}


def test_a_tiers_reserve_is_of_the_replicas_own_part():
    made = capacity(ReplicaShare(2, 0))
    made.set_reserves({"gold": 0.4}, {"gold": 1.0})
    assert made.room("default") == (5 - 2, 500 - 200)
    assert made.room("gold").sequences == 5


def test_a_fixed_limit_is_divided():
    for share, most in zip(shares(3), (3, 2, 2), strict=True):
        made = capacity(share, limit=FixedLimit(7))
        taken = 0
        while True:
            request = Request(f"r{taken}", "A", "m", 0.0, 1, 1)
            reservation = made.reservation(request, "default", prompt_tokens=1, output_tokens=1)
            if not made.fits(reservation, reserve_only=False):
                break
            made.take(reservation)
            taken += 1
        assert taken == most
