"""What a member keeps of ended calls until a checkpoint has them."""

from gateway.cluster.follower import charge_log
from gateway.cluster.follower.charge_log import ChargeLog
from gateway.cluster.wire import Ended, Spend
from policies.types import Request, Usage


def test_of_more_entries_than_are_kept_the_oldest_are_summed_up_by_tenant(monkeypatch):
    monkeypatch.setattr(charge_log, "ENTRIES_MAX", 1)
    log, request = ChargeLog(), Request("r", "A", "m", 0.0, 10, 20)
    for entry in (
        Ended(1, log.next_number(), request),  # it waited, and used nothing
        Spend("A", Usage(3, 0, 0), entry=log.next_number()),
        Ended(2, log.next_number(), request, usage=Usage(10, 2, 5)),
        Spend("B", Usage(1, 0, 0), entry=log.next_number()),
        last := Spend("A", Usage(7, 0, 0), entry=log.next_number()),
    ):
        log.add("p", entry)
    of_a, of_b = ("p", Spend("A", Usage(13, 2, 5), entry=3)), ("p", Spend("B", Usage(1, 0, 0), entry=4))
    assert list(log) == [of_a, of_b, ("p", last)]
    log.taken(3)
    assert list(log) == [of_b, ("p", last)]
