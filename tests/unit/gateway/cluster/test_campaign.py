"""What a member does about the election: when it stands again, what it tells the store, and when it is alone."""

from dataclasses import replace

import pytest

from gateway.cluster.campaign import HAND_OVER_S
from gateway.cluster.election import Candidate
from gateway.cluster.election_store import Ask, StoreView
from gateway.cluster.member import Member
from gateway.cluster.promise import SILENT_S
from gateway.cluster.wire import Frame, Release, Welcome
from gateway.cluster.wishes import StepDown
from policies.scheduler import Scheduler
from policies.types import Tenant


def member(name):
    return Member(name, make_scheduler=lambda _: Scheduler(wait_s_max=10.0), tenant_of=Tenant, wait_s_max=10.0, now=0.0)


class Alone:
    """A member m1 whose store is this test."""

    def __init__(self):
        self.now = 0.0
        self.candidate = Candidate("m1", now=0.0)
        self.member = member("m1")
        self.member.stand(self.candidate)

    def ask(self, view, *, at=None):
        """The call that the member makes next, at the earliest at this time. The store answers with the view."""
        self.now = self.now if at is None else at
        for _ in range(100):
            self.member.campaign.tick(self.now, 0.0)
            calls = self.member.campaign.calls()
            if calls:
                (call,) = calls
                self.member.campaign.answered(call, view, self.now)
                self.member.campaign.tick(self.now, 0.0)
                self.member.lead.turn(self.now, 0.0)
                return call
            self.now += 0.1
        raise AssertionError("it asks nothing")


FREE = StoreView(None, 0, {"m1": "a", "m2": "b"})
OURS = StoreView("m1", 1, {"m1": "a", "m2": "b"})


def elected():
    one = Alone()
    assert one.ask(FREE).ask is Ask.LOOK
    assert one.ask(OURS, at=SILENT_S + 0.1).ask is Ask.ACQUIRE
    assert one.member.lead.leader.epoch == 1
    return one


def test_a_member_that_helps_the_first_leader_does_not_say_that_it_helps_it_no_more():
    one = elected()
    call = one.ask(OURS)
    assert (call.ask, one.candidate.is_bound, call.free_epoch) == (Ask.RENEW, True, 0)


def test_a_leader_that_reached_no_backend_does_not_stand_again_for_a_while():
    one = elected()
    one.member.campaign.stepped_down(StepDown("no backend", epoch=1, is_blind=True), one.now)
    one.member.lead.end_alone(one.now)
    until = one.now + HAND_OVER_S
    asked = []
    while one.now < until - 1.0:
        asked.append(one.ask(FREE).ask)
        one.now += 0.1
    assert set(asked) == {Ask.LOOK}
    one.ask(FREE, at=until + 0.1)
    assert one.ask(FREE).ask is Ask.ACQUIRE


def test_a_leader_that_hears_of_a_higher_epoch_leads_no_more_until_it_is_elected_again():
    one, worker = elected(), member("w0")
    worker.appoint("w0", 1, one.now)
    for each in (one.member, worker):
        assert each.lead.leader is not None
        each.received_from("other", Frame(2, "", ()), one.now)
        for _ in range(2):
            each.tick(one.now)
            assert each.lead.leader is None
    assert one.candidate.key.led_epoch == 0
    one.ask(replace(OURS, epoch=3))
    assert one.member.lead.leader.epoch == 3


@pytest.mark.parametrize(("epoch", "asks"), [(5, True), (4, False)])
def test_a_member_asks_the_store_at_once_when_its_leader_resigns_and_not_when_one_before_did(epoch, asks):
    one = Alone()
    one.ask(replace(FREE, leader="m2", epoch=5))
    one.member.connected("m2", one.now)
    one.member.received("m2", Frame(5, "", (Welcome("m2"),)), one.now)
    one.member.received("m2", Frame(epoch, "", (Release(returns=False),)), one.now)
    one.member.campaign.tick(one.now, 0.0)
    assert bool(one.member.campaign.calls()) is asks


def test_members_of_another_version_make_each_alone_once_and_anew_when_there_are_more():
    one = Alone()
    other = StoreView(None, 0, {"m1": "a", "m2": "b"}, strangers=frozenset({"m2"}))
    one.ask(other)
    one.ask(other, at=SILENT_S + 0.1)
    alone = one.member.lead.leader
    assert (one.member.lead.is_standalone, one.member.lead.share.part.replicas) == (True, 2)
    one.ask(other)
    assert one.member.lead.leader is alone, "what it decided is kept"
    one.ask(StoreView(None, 0, {**other.members, "m3": "c"}, strangers=frozenset({"m2", "m3"})))
    assert one.member.lead.share.part.replicas == 3
    assert one.member.lead.leader is not alone


def test_the_worker_that_is_named_leader_connects_to_none_and_others_to_it():
    for name, target in [("w0", None), ("w1", "w0")]:
        worker = member(name)
        worker.appoint("w0", 1, 0.0)
        assert worker.target() == target
