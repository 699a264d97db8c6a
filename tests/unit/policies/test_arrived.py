"""A request that arrives where nothing waits: `arrived` decides and remembers what `submit` and `poll` would. Cases
that tests/properties/arrival_facts.py meets too seldom.
"""

from policies.prediction import NoPrediction
from policies.scheduler import Scheduler
from policies.types import BackendLoad, Dispatch, Outcome, Reason, Reject, Request, Tenant

SEATS = 2
WAIT_S_MAX = 10.0


class Twins:
    """Two Schedulers. One is told of an arrival in one call, the other in two."""

    def __init__(self):
        self.both = [
            Scheduler(tenants=[Tenant("a", queued_requests_max=1)], prediction=NoPrediction(), wait_s_max=WAIT_S_MAX)
            for _ in range(2)
        ]
        self.tell("load_changed", [BackendLoad("gpu", requests_running_max=SEATS)], 0.0)

    def tell(self, name, *args):
        for each in self.both:
            getattr(each, name)(*args)

    def arrives(self, id_, now, *, tenant_id="a", arrived_at=None):
        """What both decide, which is the same."""
        request = Request(id_, tenant_id, "m", now if arrived_at is None else arrived_at, 10, 10)
        one, other = self.both
        decided = list(one.arrived(request, now))
        other.submit(request, now)
        assert decided == other.poll(now)
        assert one.snapshot(now) == other.snapshot(now)
        return decided


def test_a_request_whose_time_is_over_when_it_is_told_is_refused_and_not_sent():
    (decided,) = Twins().arrives("late", 100.0, arrived_at=100.0 - WAIT_S_MAX)
    assert (type(decided), decided.reason) == (Reject, Reason.QUEUE_TIMEOUT)


def test_a_rejection_that_was_not_told_yet_is_told_with_it():
    twins = Twins()
    twins.tell("submit", Request("unknown", "nobody", "m", 0.0, 10, 10), 0.0)
    decided = twins.arrives("r", 0.0)
    assert {(type(each), each.request_id) for each in decided} == {(Reject, "unknown"), (Dispatch, "r")}


def test_what_was_sent_at_once_counts_for_the_time_after_which_a_client_may_ask_again():
    twins = Twins()
    for number in range(5):
        now = 10.0 * number
        assert twins.arrives(f"r{number}", now, arrived_at=now - 4.0), "it has waited, in another process"
        twins.tell("finished", f"r{number}", Outcome.COMPLETED, now + 1.0)
    for number in range(SEATS + 1):
        twins.arrives(f"s{number}", 60.0)
    (refused,) = twins.arrives("t", 60.0)
    assert (refused.reason, refused.retry_after_s > 1.0) == (Reason.TENANT_QUEUE_FULL, True)
