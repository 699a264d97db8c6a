"""Many requests are told, taken in and set aside in slices, and decisions go on meanwhile."""

from math import inf

import pytest

from gateway.cluster.checkpoints import NewestCheckpoint
from gateway.cluster.follower.follower import Follower
from gateway.cluster.follower.leaderless import LEADERLESS_S_MAX, REFUSED_MAX
from gateway.cluster.follower.telling import SLICE_MAX
from gateway.cluster.leader.inbox import TAKEN_MAX
from gateway.cluster.leader.leader import Leader
from gateway.cluster.leader.ordered_requests import Chores, OrderedRequest, OrderedRequests, Sender
from gateway.cluster.promise import SILENT_S
from gateway.cluster.wire import CheckpointPart, Ended, Has, Spend, Submit, ToldAll
from policies.admission.bounded import BoundedQueues
from policies.facts import Adopted, LoadChanged, Parked, Readmitted, Returned, Spent, Submitted
from policies.scheduler import Scheduler
from policies.types import BackendLoad, Dispatch, Outcome, Request, Tenant, Usage
from tests.simulation.recording import Recorder

MANY = 10 * TAKEN_MAX


class Cluster:
    """A leader at m1, and m2 with many requests. In a step m2 sends what it has to say, and the leader takes a turn."""

    def __init__(self, slots=4):
        self.now, self.slots = 0.0, slots
        self.entries = []
        self.leader = self.lead(1)
        self.own, self.other = Follower("m1", wait_s_max=60.0), Follower("m2", wait_s_max=60.0)
        self.said, self.actions = [], []
        self.taken = []  # requests that the Scheduler was told of in each turn

    def lead(self, epoch):
        tenants = {"A": Tenant("A"), "B": Tenant("B")}
        waits = {"m1": self.now + SILENT_S, "m2": self.now + SILENT_S}
        return Leader(epoch, "m1", make_scheduler=self.make, tenant_of=tenants.get, waits=waits)

    def make(self, _pool):
        return Recorder(Scheduler(admission=[BoundedQueues(10**6, 1 << 40, 10**6, 1 << 40)]), self.entries.append)

    def submit(self, number, tenant_id="A"):
        self.other.submit("p", Request(f"r{number}", tenant_id, "m", self.now, 10, 20), self.now)

    def connect(self):
        self.own.connected(self.now)
        self.other.connected(self.now)

    def step(self):
        self.now += 0.001
        for follower in (self.own, self.other):
            for frame in follower.link.frames(self.now):
                if follower is self.other:
                    self.said.append([each for each in frame.messages if not isinstance(each, CheckpointPart)])
                self.leader.received(follower.link.member, frame, self.now)
        before = len(self.entries)
        self.leader.turn(self.now)
        told = [each for each in self.entries[before:] if isinstance(each, Adopted | Parked | Readmitted | Submitted)]
        self.taken.append(len(told))
        for name, frame in self.leader.frames(self.now):
            (self.own if name == "m1" else self.other).received(frame, self.now)
        self.actions += self.other.poll("p", self.now)

    def measure(self):
        load = BackendLoad("gpu", requests_running_max=self.slots, requests_running=0, measured_at=self.now)
        self.leader.intake.told("p", LoadChanged(self.now, (load,)))

    def until(self, is_so, most=1000):
        for _ in range(most):
            if is_so():
                return
            self.step()
        pytest.fail("it never is so")

    @property
    def has_told_all(self):
        return any(isinstance(each, ToldAll) for said in self.said for each in said)


def joined(many=MANY):
    """A cluster whose m2 has joined with so many requests that wait."""
    cluster = Cluster()
    for number in range(many):
        cluster.submit(number)
    cluster.connect()
    cluster.until(lambda: cluster.leader.is_deciding)
    cluster.measure()
    return cluster


def test_a_leader_dispatches_before_it_has_been_told_all_that_waits():
    cluster = joined()
    cluster.until(lambda: cluster.actions)
    assert not cluster.has_told_all
    assert [each.request_id for each in cluster.actions] == ["r0", "r1", "r2", "r3"]
    cluster.until(lambda: cluster.has_told_all)
    assert max(len(said) for said in cluster.said) <= SLICE_MAX + 3
    assert max(cluster.taken) <= TAKEN_MAX
    assert sum(cluster.taken) == MANY


def test_what_arrives_while_older_requests_are_told_is_told_after_them():
    cluster = joined(3 * SLICE_MAX)
    cluster.submit("late", "B")
    cluster.until(lambda: cluster.has_told_all)
    told = [each for said in cluster.said for each in said if isinstance(each, Has | Submit)]
    assert [each.number for each in told] == list(range(1, 3 * SLICE_MAX + 2))
    assert isinstance(told[-1], Has)


def test_what_runs_is_told_before_what_waits():
    cluster = joined(3 * SLICE_MAX)
    cluster.until(lambda: len(cluster.actions) == 4 and cluster.has_told_all)
    cluster.other.finished("r0", Outcome.COMPLETED, cluster.now, None, Usage(10, 0, 5))
    cluster.submit("new")
    cluster.until(lambda: len(cluster.actions) == 5)
    cluster.leader.lost("m2", cluster.now)
    cluster.other.lost(cluster.now)
    cluster.said.clear()
    cluster.other.connected(cluster.now)
    cluster.until(lambda: cluster.has_told_all)
    told = [each for said in cluster.said for each in said if isinstance(each, Has)]
    assert [each.backend_id is not None for each in told[:5]] == [True] * 4 + [False]


def test_a_request_that_the_last_checkpoint_lacks_asks_for_admission_though_a_later_one_runs():
    cluster = joined(10)
    cluster.until(lambda: len(cluster.actions) == 4)
    cluster.other.told(Returned(cluster.now, "r0"))
    cluster.entries.clear()
    cluster.leader = cluster.lead(2)
    cluster.own.checkpoint = cluster.other.checkpoint = NewestCheckpoint()
    cluster.said.clear()
    cluster.connect()
    cluster.until(lambda: cluster.has_told_all and cluster.leader.is_deciding and not cluster.leader.intake.inbox)
    assert next(each.request.id for each in cluster.entries if isinstance(each, Submitted)) == "m2.1"


def test_of_a_request_that_was_not_told_yet_the_leader_hears_how_it_ended():
    cluster = joined(3 * SLICE_MAX)
    last = f"r{3 * SLICE_MAX - 1}"
    cluster.other.cancel(last)
    cluster.other.reports.spent("p", Spent(cluster.now, "A", Usage(1, 0, 1)))
    cluster.until(lambda: cluster.has_told_all)
    said = [each for said in cluster.said for each in said]
    assert [(type(each), each.entry) for each in said if isinstance(each, Ended | Spend)] == [(Ended, 1), (Spend, 2)]
    assert not any(isinstance(each, Has) and each.request.id == last for each in said)


def test_what_ended_before_is_told_by_its_number_though_more_ends_meanwhile():
    cluster = Cluster()
    for number in range(3 * SLICE_MAX):
        cluster.submit(number)
        cluster.other.cancel(f"r{number}")
    cluster.connect()
    cluster.until(lambda: any(isinstance(each, Ended) for said in cluster.said for each in said))
    cluster.other.reports.spent("p", Spent(cluster.now, "A", Usage(1, 0, 1)))
    cluster.until(lambda: cluster.has_told_all)
    entries = [each.entry for said in cluster.said for each in said if isinstance(each, Ended | Spend)]
    assert entries == list(range(1, 3 * SLICE_MAX + 2))


def test_a_member_that_is_lost_is_sent_nothing_while_its_requests_are_set_aside():
    cluster = joined()
    cluster.until(lambda: cluster.has_told_all and len(cluster.actions) == 4)
    cluster.until(lambda: not cluster.leader.intake.inbox)
    cluster.slots = MANY
    cluster.measure()
    cluster.step()
    assert 4 < len(cluster.actions) < MANY
    running = len(cluster.actions)
    cluster.leader.lost("m2", cluster.now)
    cluster.taken.clear()
    before = len(cluster.entries)
    cluster.until(lambda: not any(pool.chores.is_busy for pool in cluster.leader.pools.values()))
    cluster.step()
    assert max(cluster.taken) <= TAKEN_MAX
    assert sum(cluster.taken) == MANY - running
    polled = [each for each in cluster.entries[before:] if getattr(each, "actions", ())]
    assert not any(isinstance(action, Dispatch) for each in polled for action in each.actions)


def test_a_member_that_comes_back_while_it_is_given_up_keeps_what_was_left():
    cluster = joined()
    cluster.until(lambda: cluster.has_told_all and len(cluster.actions) == 4)
    cluster.until(lambda: not cluster.leader.intake.inbox)
    cluster.leader.lost("m2", cluster.now, is_dead=True)
    cluster.other.lost(cluster.now)
    chores = cluster.leader.pools["p"].chores
    cluster.until(lambda: not chores.is_urgent)
    cluster.step()  # a part of it was given up
    assert chores.is_busy
    cluster.said.clear()
    cluster.other.connected(cluster.now)
    cluster.until(lambda: cluster.has_told_all)
    cluster.until(lambda: not cluster.leader.intake.inbox)
    for _ in range(20):
        cluster.step()
    pool = cluster.leader.pools["p"]
    snapshot = pool.scheduler.snapshot(cluster.now)
    assert snapshot.queued_requests + snapshot.in_flight_requests == MANY


def test_what_is_left_of_a_member_that_comes_back_is_not_given_up():
    requests, given_up, over = OrderedRequests(), [], []
    sender = Sender("m2")
    for number in range(10):
        asked = Request(f"r{number}", "A", "m", 0.0, 10, 20)
        requests.add(f"m2.{number}", OrderedRequest(sender, number, asked, "gpu" if number < 2 else None))

    def give_up(id_, _known, _now):
        given_up.append(id_)
        requests.pop(id_)

    chores = Chores(requests, park=None, place_again=None, end=None, give_up=give_up)
    assert chores.give_up(sender, over.append)
    assert chores.is_urgent
    chores.work(4, 1.0)
    assert (given_up, over) == (["m2.0", "m2.1"], [1.0])
    assert not chores.is_urgent
    chores.work(4, 2.0)
    sender.joins()
    chores.work(100, 3.0)
    assert given_up == ["m2.0", "m2.1", "m2.2", "m2.3"]
    assert not chores.is_busy


def test_without_a_leader_requests_are_refused_at_their_deadline_a_few_at_once():
    follower = Follower("m", wait_s_max=60.0)
    for number in range(3 * REFUSED_MAX):
        follower.submit("p", Request(f"r{number}", "A", "m", 0.0, 10, 20), 0.0)
    assert follower.due() == LEADERLESS_S_MAX
    assert follower.poll("p", LEADERLESS_S_MAX - 0.01) == []
    counts = [len(follower.poll("p", LEADERLESS_S_MAX)) for _ in range(4)]
    assert counts == [REFUSED_MAX] * 3 + [0]
    assert follower.due() == inf


def test_what_the_leader_was_not_told_yet_is_refused_at_its_deadline_by_the_member():
    cluster = Cluster(slots=0)
    cluster.other = Follower("m2", wait_s_max=1.0)
    for number in range(3 * SLICE_MAX):
        cluster.submit(number)
    cluster.connect()
    while not cluster.other.link.may_decide(cluster.now):
        cluster.step()
    assert cluster.other.reports.is_telling_all, "it has a leader, which knows a part"
    refused = []
    for _ in range(3 * SLICE_MAX // REFUSED_MAX):
        refused += cluster.other.poll("p", 1.0)
    known = sum(cluster.other.reports.has_told(own) for own in cluster.other.requests)
    assert len(refused) + known == 3 * SLICE_MAX
    assert 0 < len(refused) < 3 * SLICE_MAX
