"""What is a replica's own of limits that several share: the parts come to the whole, and nobody's is nothing."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from policies.capacity.backend import BackendCapacity
from policies.limit import FixedLimit
from policies.types import BackendLoad, PeerUse, ReplicaShare, Request

GPU = BackendLoad("gpu", requests_running_max=10, kv_tokens_max=1_000)


def shares(replicas):
    return [ReplicaShare(replicas, number) for number in range(replicas)]


def capacity(share, peers=PeerUse(), *, running=None, **options):  # noqa: B008 - a value
    made = BackendCapacity(replace(GPU, share=share, peers=peers), headroom_ratio_max=1.0, **options)
    for at in range(3):
        if running is not None:
            made.measured(replace(made.load, requests_running=running, measured_at=float(at)), 0.0)
    return made


@given(limit=st.integers(0, 1_000), replicas=st.integers(1, 50))
def test_parts_come_to_the_whole_or_are_one_each(limit, replicas):
    parts = [share.of(limit) for share in shares(replicas)]
    assert sum(parts) == (limit if limit >= replicas or not limit else replicas)
    assert max(parts) - min(parts) <= 1


def test_a_backends_seats_and_memory_are_divided():
    made = [capacity(share) for share in shares(3)]
    assert [each.sequences_max for each in made] == [4, 3, 3]
    assert {round(each.tokens_max) for each in made} == {333}


def test_what_peers_have_there_is_not_taken_for_strangers():
    """Of 9 that run 5 are the other replicas': 4 are strangers', and the rest is shared."""
    made = [capacity(share, PeerUse(5, 200), running=9) for share in shares(3)]
    assert {each.foreign_requests for each in made} == {4}
    assert [each.sequences_max for each in made] == [2, 2, 2]


def test_what_peers_have_there_fills_the_backend_and_slows_its_steps():
    empty, filled = capacity(ReplicaShare(2, 0)), capacity(ReplicaShare(2, 0), PeerUse(5, 400))
    assert (empty.reserved_ratio, filled.reserved_ratio) == (0.0, 0.5)
    assert filled.work._foreign_sequences == 5


def test_a_tiers_reserve_is_of_the_replicas_own_part():
    made = capacity(ReplicaShare(2, 0), reserve_ratios={"gold": 0.4})
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
