"""ArrivalOrder: requests are oldest first in whatever order they come, and none costs a scan of the others."""

from hypothesis import given
from hypothesis import strategies as st

from policies.queues import ArrivalOrder
from policies.types import Request

TIMES = st.integers(0, 6).map(float)
STEPS = st.lists(st.tuples(st.sampled_from(["come", "late", "first", "leave"]), TIMES, st.integers(0, 99)), max_size=40)


def a_request(number, arrived_at):
    return Request(f"r{number}", "a", "m", arrived_at, 1, 1)


@given(STEPS)
def test_the_order_is_that_of_a_list_which_is_kept_sorted(steps):
    """`first` holds what was put first, `others` the rest; a late one goes before all that arrived later."""
    order, first, others = ArrivalOrder(), [], []
    for number, (step, arrived_at, at) in enumerate(steps):
        request = a_request(number, arrived_at)
        if step == "come":
            request = a_request(number, max([each.arrived_at for each in others], default=0.0) + arrived_at)
            order.append(request)
            others.append(request)
        elif step == "late":
            order.insert(request)
            later = [at for at, each in enumerate(others) if each.arrived_at > arrived_at]
            others.insert(later[0] if later else len(others), request)
        elif step == "first":
            order.prepend(request)
            first.insert(0, request)
        elif first or others:
            gone = [*first, *others][at % (len(first) + len(others))]
            order.remove(gone.id)
            (first if gone in first else others).remove(gone)
        expected = [*first, *others]
        assert len(order) == len(expected)
        assert [each.arrived_at for each in order.values()] == [each.arrived_at for each in expected]
        assert set(order) == {each.id for each in expected}
        assert all(order[each.id] is each and each.id in order for each in expected)
        if expected:
            assert order.head() is next(iter(order.values()))
            assert order.last().arrived_at == expected[-1].arrived_at


def test_of_two_that_come_late_and_arrived_at_once_the_one_that_came_first_is_first():
    order = ArrivalOrder([a_request(1, 2.0)])
    for number in (9, 10):  # by their ids the second one would be first
        order.insert(a_request(number, 1.0))
    assert order.head().id == next(iter(order)) == "r9"


def test_what_comes_late_is_not_compared_with_all_that_wait():
    """By counts: 20,000 that come youngest first are looked at a few times each."""
    reads = 0

    class Counted(Request):
        __slots__ = ()

        def __getattribute__(self, name):
            nonlocal reads
            reads += name == "arrived_at"
            return super().__getattribute__(name)

    order = ArrivalOrder()
    for number in reversed(range(20_000)):
        order.insert(Counted(f"r{number:05}", "a", "m", float(number), 1, 1))
    for number in range(20_000):
        assert order.head().id == f"r{number:05}"
        order.remove(f"r{number:05}")
    assert reads < 10 * 20_000
