"""However calls and meetings fall, replicas that share a limit pass it by a few calls at most."""

from hypothesis import given, settings
from hypothesis import strategies as st
from shared_replicas import SharedReplicas

REPLICAS = 3
rounds = st.lists(
    st.tuples(
        st.permutations(range(REPLICAS)),  # in which order they meet
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12)), min_size=4, max_size=4),  # calls between meetings
        st.sampled_from([0.2, 0.2, 0.2, 1.0, 4.0]),  # how long the round takes
    ),
    min_size=1,
    max_size=14,  # within the minute
)


@settings(max_examples=500, derandomize=True, deadline=None)
@given(limit=st.integers(1, 30), rounds=rounds, retries=st.booleans())
def test_no_more_than_two_calls_of_each_other_replica_too_many(limit, rounds, retries):
    shared = SharedReplicas(limit, replicas=REPLICAS, retries=retries)
    for order, calls, seconds in rounds:
        for step, (replica, count) in enumerate(calls):
            shared.calls(replica, count)
            assert shared.in_the_last_minute() <= limit + 2 * (REPLICAS - 1)
            if step < 3:
                shared.meets(order[step])
        shared.now += seconds
