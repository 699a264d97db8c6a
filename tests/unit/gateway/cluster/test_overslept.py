"""Two members that a parent appointed, one of which does not run for a while: which peer it takes for silent."""

import pytest

from gateway.cluster.member import Member
from gateway.cluster.wishes import CloseMember
from policies.scheduler import Scheduler
from policies.types import Tenant

STOPPED_S = 3.0


class Pair:
    """The leader m1 and its follower m2; a member that `is_stopped` does nothing, and what it is sent waits."""

    def __init__(self):
        self.now = 0.0
        self.members = {name: self.make(name) for name in ("m1", "m2")}
        self.stopped = set()
        self.unread = {name: [] for name in self.members}
        self.wishes = []
        self.members["m1"].appoint("m1", 1, self.now)
        self.members["m2"].appoint("m1", 0, self.now)
        self.members["m2"].connected("m1", self.now)

    def make(self, name):
        scheduler, tenant = (lambda _pool: Scheduler(wait_s_max=10.0)), Tenant("A")
        return Member(name, make_scheduler=scheduler, tenant_of=lambda _id: tenant, wait_s_max=10.0, now=self.now)

    def run(self, seconds):
        """Each member that runs takes the turns that it has asked for. Its timer is seen before what it was sent."""
        until = self.now + seconds
        while self.now < until:
            for name, member in self.members.items():
                if name not in self.stopped:
                    self.turn(name, member)
            self.now += 0.01

    def turn(self, name, member):
        member.tick(self.now)
        self.wishes += member.lead.wishes()
        for other, frame in member.frames(self.now):
            self.unread[other].append(frame)
        frames, self.unread[name] = self.unread[name], []
        for frame in frames:
            if name == "m1":
                member.received_from("m2", frame, self.now)
            else:
                member.received("m1", frame, self.now)
        member.wakeup(self.now)

    @property
    def is_silent(self):
        """Whether either takes the other for silent."""
        closed = any(isinstance(wish, CloseMember) for wish in self.wishes)
        return closed or bool(self.members["m2"].follower.link.closes(self.now))


@pytest.fixture
def pair():
    made = Pair()
    made.run(1.0)
    assert made.members["m2"].follower.link.leader is not None
    return made


def test_a_gateway_that_was_stopped_as_a_whole_goes_on_as_one(pair):
    pair.stopped = {"m1", "m2"}
    pair.run(STOPPED_S)
    pair.stopped = set()
    pair.run(1.5)
    assert not pair.is_silent


def test_a_leader_that_was_stopped_hears_first_what_its_followers_have_sent(pair):
    pair.stopped = {"m1"}
    pair.run(STOPPED_S)
    pair.stopped = set()
    pair.run(0.1)
    assert not any(isinstance(wish, CloseMember) for wish in pair.wishes)


@pytest.mark.parametrize("silent", ["m1", "m2"])
def test_who_runs_notices_one_that_does_not(pair, silent):
    pair.stopped = {silent}
    pair.run(1.3)
    assert pair.is_silent
