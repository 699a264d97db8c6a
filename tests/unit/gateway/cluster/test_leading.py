"""A leader and its followers, joined without a network: what each rule makes them say."""

from dataclasses import replace

import msgspec
import pytest

from gateway.cluster.checkpoints import NewestCheckpoint
from gateway.cluster.follower.follower import Follower
from gateway.cluster.follower.usage_telling import UNTOLD_S
from gateway.cluster.leader.leader import Leader
from gateway.cluster.leader.pool_journal import CHANGES_MAX
from gateway.cluster.member import Member
from gateway.cluster.promise import LEASE_S, PING_S, SILENT_S
from gateway.cluster.wire import (
    Dispatched,
    Frame,
    Has,
    Pong,
    Refused,
    Shared,
    Welcome,
    Withdraw,
    decode,
    encode,
)
from gateway.cluster.wishes import AskBackends, CloseMember, StepDown
from policies.facts import Interrupted, LoadChanged, Measured, Readmitted, Returned, Spent
from policies.pool.session_gate import SessionRules
from policies.scheduler import Scheduler
from policies.types import (
    BackendLoad,
    Cause,
    Dispatch,
    Outcome,
    Preempt,
    Reason,
    Reject,
    ReplicaShare,
    Request,
    SessionState,
    Tenant,
    Usage,
)
from tests.simulation.recording import Recorder, replay

GPU = BackendLoad("gpu", requests_running_max=2, requests_running=0, measured_at=1.0)


class Cluster:
    """One leader, followers m1 and m2, one pool, one backend; everything said arrives at once."""

    def __init__(self, *, names=("m1", "m2")):
        self.now = 0.0
        self.tenants = {"A": Tenant("A"), "B": Tenant("B", weight=4.0)}
        self.entries = []
        self.leader = Leader(
            1,
            "m1",
            make_scheduler=self.make,
            tenant_of=self.tenants.get,
            waits=dict.fromkeys(names, SILENT_S),
        )
        self.followers = {name: Follower(name, wait_s_max=10.0) for name in names}
        for follower in self.followers.values():
            follower.connected(self.now)
        self.exchange()
        self.now = 1.0
        self.leader.intake.told("p", LoadChanged(self.now, (GPU,)))
        self.exchange()

    def make(self, _pool):
        self.scheduler = Scheduler(wait_s_max=10.0, sessions=SessionRules())
        return Recorder(self.scheduler, self.entries.append)

    def exchange(self):
        for _ in range(6):
            for name, follower in self.followers.items():
                for frame in follower.link.frames(self.now):
                    for body in encode(frame):
                        self.leader.received(name, decode(body), self.now)
            self.leader.turn(self.now)
            for name, frame in self.leader.frames(self.now):
                self.followers[name].received(frame, self.now)

    def later(self, seconds):
        for _ in range(round(seconds / 0.25)):
            self.now += 0.25
            self.exchange()

    def submit(self, name, request_id, tenant_id="A", **fields):
        request = Request(request_id, tenant_id, "m", self.now, 10, 20, **fields)
        self.followers[name].submit("p", request, self.now)

    def actions(self, name):
        self.exchange()
        return self.followers[name].poll("p", self.now)

    def wishes(self, kind):
        return [wish for wish in self.leader.wishes() if isinstance(wish, kind)]


def test_requests_of_all_members_are_one_queue_and_the_recording_replays():
    cluster = Cluster()
    for name, request_id in (("m1", "x"), ("m2", "x"), ("m2", "y")):  # ids are each member's own
        cluster.submit(name, request_id)
    (one,), (other,) = cluster.actions("m1"), cluster.actions("m2")
    assert (one.request_id, one.backend_id, other.request_id) == ("x", "gpu", "x")
    cluster.followers["m1"].finished("x", Outcome.COMPLETED, cluster.now, None, Usage(10, 0, 5))
    assert [action.request_id for action in cluster.actions("m2")] == ["y"]
    assert list(replay(cluster.entries, Scheduler(wait_s_max=10.0))) == []


def test_a_tenant_that_the_registry_does_not_know_yet_is_waited_for():
    cluster = Cluster()
    cluster.submit("m2", "r", "new")
    cluster.submit("m2", "s", "unknown")
    assert cluster.actions("m2") == []
    cluster.tenants["new"] = Tenant("new")
    cluster.later(0.25)
    assert [type(action) for action in cluster.actions("m2")] == [Dispatch]
    cluster.later(1.0)
    assert cluster.actions("m2") == [Reject("s", Reason.TENANT_UNKNOWN, 0.0)]


def test_of_a_tenant_that_is_forgotten_nothing_waits_and_what_runs_goes_on():
    cluster = Cluster()
    for request_id in ("x", "y", "z"):
        cluster.submit("m2", request_id)
    assert [action.request_id for action in cluster.actions("m2")] == ["x", "y"]
    del cluster.tenants["A"]
    cluster.leader.pools.tenant_forgotten("A", cluster.now)
    (rejected,) = cluster.actions("m2")
    assert (rejected.request_id, rejected.reason) == ("z", Reason.TENANT_UNKNOWN)
    cluster.followers["m2"].finished("x", Outcome.COMPLETED, cluster.now, None, Usage(10, 0, 5))
    cluster.submit("m2", "of another", "B")
    assert [action.request_id for action in cluster.actions("m2")] == ["of another"]


def test_one_followers_failed_call_closes_the_backend_for_it_alone_and_asks():
    cluster = Cluster()
    cluster.wishes(object)
    cluster.followers["m2"].out_of_reach.failed("gpu", cluster.now)
    cluster.exchange()
    assert cluster.wishes(AskBackends) == [AskBackends(("gpu",))]
    cluster.submit("m1", "r")
    assert [type(action) for action in cluster.actions("m1")] == [Dispatch]


def test_a_member_that_does_not_read_is_dropped_and_one_whose_leader_does_not_read_refuses():
    cluster = Cluster()
    cluster.leader.members.unsent("m2", 9 << 20, 0.1)
    assert cluster.wishes(CloseMember) == [CloseMember("m2", "it does not read")]
    follower = cluster.followers["m2"]
    follower.link.unsent = 0, 1.5
    cluster.submit("m2", "r")
    assert cluster.actions("m2") == [Reject("r", Reason.QUEUE_FULL, 1.0)]


def test_a_leader_that_stops_releases_its_promises_and_decides_no_more():
    cluster = Cluster()
    assert cluster.followers["m2"].link.may_decide(cluster.now)
    cluster.leader.resign(cluster.now, returns=False)
    cluster.exchange()
    assert not cluster.followers["m2"].link.may_decide(cluster.now)
    assert cluster.followers["m2"].link.closes(cluster.now) == "the leader resigns"
    assert cluster.followers["m2"].checkpoint.mark.epoch == 1


def test_a_leader_whose_lease_has_ended_sends_nothing():
    cluster = Cluster()
    cluster.submit("m2", "r")
    cluster.leader.lease_until = cluster.now
    assert cluster.actions("m2") == []
    assert cluster.wishes(StepDown) == [StepDown("its lease has ended")]


def test_a_frame_of_another_epoch_is_dropped_and_a_higher_one_ends_a_leadership():
    cluster = Cluster()
    follower = cluster.followers["m2"]
    follower.received(Frame(7, "", (Shared("catalog", b"x"),)), cluster.now)
    assert follower.shared == {}
    cluster.leader.received("m2", Frame(7, "", ()), cluster.now)
    assert cluster.wishes(StepDown) == [StepDown("a higher epoch is known", 7)]


def test_shared_state_reaches_present_members_and_those_that_join_later():
    cluster = Cluster()
    cluster.leader.members.share("catalog", b"models")
    cluster.exchange()
    assert cluster.followers["m2"].shared == {"catalog": b"models"}
    late = cluster.followers["m3"] = Follower("m3", wait_s_max=10.0)
    late.connected(cluster.now)
    cluster.exchange()
    assert late.shared == {"catalog": b"models"}


@pytest.mark.parametrize("is_dead", [True, False])
def test_the_slots_of_a_lost_member_are_free_at_once_by_its_parents_word_or_when_its_promise_has_ended(is_dead):
    cluster = Cluster()
    for request_id in ("a", "b"):
        cluster.submit("m2", request_id)
    assert len(cluster.actions("m2")) == 2
    cluster.submit("m1", "c")
    assert cluster.actions("m1") == []
    del cluster.followers["m2"]
    cluster.leader.lost("m2", cluster.now, is_dead=is_dead)
    idle = [BackendLoad("gpu", requests_running_max=2, requests_running=0)]
    if not is_dead:
        cluster.later(LEASE_S - PING_S)
        cluster.leader.intake.told("p", LoadChanged(cluster.now, tuple(idle)))
        assert cluster.actions("m1") == []
        cluster.later(PING_S)
    cluster.leader.intake.told("p", LoadChanged(cluster.now, tuple(idle)))
    assert [type(action) for action in cluster.actions("m1")] == [Dispatch]


def takes_over(cluster):
    """Member m2 is the next leader, and goes on from the newest checkpoint that it was told."""
    cluster.leader = Leader(
        cluster.leader.epoch + 1,
        "m2",
        make_scheduler=cluster.make,
        tenant_of=cluster.tenants.get,
        waits=dict.fromkeys(cluster.followers, cluster.now + SILENT_S),
        checkpoint=cluster.followers["m2"].checkpoint,
    )
    for follower in cluster.followers.values():
        follower.lost(cluster.now)
        follower.connected(cluster.now)
    cluster.exchange()


def test_a_request_that_a_checkpoint_has_was_admitted_and_one_that_came_later_asks_the_next_leader():
    cluster = Cluster()
    cluster.tenants["A"] = Tenant("A", requests_per_minute_max=2)
    cluster.leader.intake.told("p", LoadChanged(cluster.now, (BackendLoad("gpu", available=False),)))
    cluster.submit("m1", "x")
    cluster.submit("m1", "y")
    cluster.later(1.0)  # a checkpoint has both, and the limit is reached
    cluster.submit("m1", "z")
    takes_over(cluster)
    assert [(each.request_id, each.reason) for each in cluster.actions("m1")] == [("z", Reason.RATE_LIMITED)]
    cluster.leader.intake.told("p", LoadChanged(cluster.now, (replace(GPU, measured_at=cluster.now),)))
    assert sorted(each.request_id for each in cluster.actions("m1")) == ["x", "y"]


def test_a_leaders_death_forgets_no_session_and_breaks_no_turn():
    cluster = Cluster()
    for name in ("one", "two"):
        finished(cluster, "m2", name, Usage(10, 0, 5), program_id=name)
    cluster.later(1.25)
    cluster.submit("m2", "more", program_id="one", parent_id="two")
    assert [type(each) for each in cluster.actions("m2")] == [Dispatch]
    before = cluster.scheduler._sessions.ledger
    takes_over(cluster)
    cluster.leader.intake.told("p", LoadChanged(cluster.now, (replace(GPU, measured_at=cluster.now),)))
    cluster.exchange()
    after = cluster.scheduler._sessions.ledger
    assert after is not before
    assert after.working_sets["gpu"].tokens == before.working_sets["gpu"].tokens > 0
    known = after.table.sessions("A")
    assert {id_: (each.context, each.state) for id_, each in known.items()} == {
        "one": (15, SessionState.RUNNING),
        "two": (15, SessionState.IDLE),
    }
    assert cluster.now - known["two"].idle_since == pytest.approx(1.0, abs=0.3), "as of the checkpoint"
    cluster.followers["m2"].finished("more", Outcome.COMPLETED, cluster.now, usage=Usage(25, 15, 5))
    cluster.exchange()
    assert known["one"].context == 30


@pytest.mark.parametrize(("used", "left"), [(0, 40), (47, 24), (120, 0)])
def test_a_member_alone_admits_its_part_of_what_is_left_of_a_limit_per_minute(used, left):
    """Of three members and a limit of 120: of 47 that were used, 73 are left, which is 24 or 25 for each."""
    cluster = Cluster()
    cluster.tenants["A"] = Tenant("A", requests_per_minute_max=120)
    cluster.leader.intake.told("p", LoadChanged(cluster.now, (BackendLoad("gpu", available=False),)))
    for number in range(used):
        cluster.submit("m1", f"before {number}")
    cluster.later(1.0)  # a checkpoint has them
    cluster.tenants["A"] = Tenant("A", requests_per_minute_max=40)  # as the member divides it
    alone = Leader(
        1,
        "m2",
        make_scheduler=cluster.make,
        tenant_of=cluster.tenants.get,
        checkpoint=cluster.followers["m2"].checkpoint,
        alone=ReplicaShare(3, 0),
    )
    follower = cluster.followers["m2"]
    cluster.leader, cluster.followers = alone, {"m2": follower}
    follower.lost(cluster.now)
    follower.connected(cluster.now)
    cluster.exchange()
    for number in range(60):
        cluster.submit("m2", f"alone {number}")
    refused = [each for each in cluster.actions("m2") if isinstance(each, Reject)]
    assert {each.reason for each in refused} <= {Reason.RATE_LIMITED}
    assert 60 - len(refused) == left


def test_a_leader_that_is_alone_takes_no_checkpoints():
    cluster, newest = Cluster(), NewestCheckpoint()
    cluster.leader = Leader(
        1,
        "m3",
        make_scheduler=cluster.make,
        tenant_of=cluster.tenants.get,
        checkpoint=newest,
        alone=ReplicaShare(3, 0),
    )
    cluster.followers = {"m3": Follower("m3", wait_s_max=60.0)}
    cluster.followers["m3"].connected(cluster.now)
    cluster.exchange()
    for number in range(CHANGES_MAX):  # after so many changes one with others takes a checkpoint at once
        cluster.tenants[f"T{number}"] = Tenant(f"T{number}")
        cluster.submit("m3", f"r{number}", f"T{number}")
    cluster.later(2.5)
    assert newest.mark == NewestCheckpoint().mark


def finished(cluster, name, request_id, usage, **fields):
    """A request of this member ends, and its leader is told."""
    cluster.submit(name, request_id, **fields)
    assert [type(action) for action in cluster.actions(name)] == [Dispatch]
    cluster.followers[name].finished(request_id, Outcome.COMPLETED, cluster.now, None, usage)
    cluster.exchange()


def test_what_ended_after_the_last_checkpoint_is_charged_by_the_next_leader_and_by_no_leader_twice():
    cluster = Cluster()
    cluster.later(1.0)
    finished(cluster, "m1", "early", Usage(10, 0, 5))
    cluster.followers["m1"].reports.spent("p", Spent(cluster.now, "A", Usage(3, 0, 0)))
    cluster.later(1.25)  # a checkpoint has these
    finished(cluster, "m1", "late", Usage(10, 0, 7))
    cluster.followers["m1"].reports.spent("p", Spent(cluster.now, "A", Usage(1, 0, 0)))
    cluster.exchange()
    for _ in range(2):  # the second one has no newer checkpoint but its predecessor's first
        takes_over(cluster)
    counters = cluster.leader.pools["p"].scheduler.checkpoint()[""].tiers["default"].tenants
    assert counters["A"] == 10 + 2 * 5 + 3 + 10 + 2 * 7 + 1


def test_what_a_member_took_back_or_was_delivered_while_it_was_alone_counts_when_it_is_back():
    cluster = Cluster()
    for request_id in ("x", "y", "preempted", "interrupted"):
        cluster.submit("m2", request_id)
    assert len(cluster.actions("m2")) == GPU.requests_running_max
    follower = cluster.followers["m2"]
    follower.lost(cluster.now)
    cluster.leader.lost("m2", cluster.now)
    preempted, interrupted = follower.requests.find("preempted"), follower.requests.find("interrupted")
    preempted.request = replace(preempted.request, preemptions=1)
    interrupted.request = replace(interrupted.request, produced_tokens=3)
    interrupted.usage = Usage(10, 0, 3)
    cluster.entries.clear()
    follower.connected(cluster.now)
    cluster.exchange()
    told = {each.request.id: each for each in cluster.entries if isinstance(each, Readmitted)}
    assert told["m2.3"].request.preemptions == 1
    assert (told["m2.4"].prepaid, told["m2.4"].usage) == (Usage(0, 0, 0), Usage(10, 0, 3))
    counters = cluster.leader.pools["p"].scheduler.checkpoint()[""].tiers["default"].tenants
    assert counters["A"] == 3 * 10 + 2 * 3


def test_a_dispatch_whose_client_left_before_it_was_carried_out_is_charged_by_no_leader():
    cluster = Cluster()
    cluster.submit("m2", "r")
    cluster.exchange()  # its Dispatch has arrived, and nothing was sent
    follower = cluster.followers["m2"]
    follower.lost(cluster.now)
    cluster.leader.lost("m2", cluster.now)
    follower.cancel("r")
    follower.connected(cluster.now)
    cluster.exchange()
    counters = cluster.leader.pools["p"].scheduler.checkpoint()[""].tiers["default"].tenants
    assert counters["A"] == 0


def told_on_joining(follower):
    follower.lost(0.0)
    follower.connected(0.0)
    follower.received(Frame(2, "", (Welcome("m3"),)), 0.0)
    return [message for frame in follower.link.frames(0.0) for message in frame.messages if isinstance(message, Has)]


def test_a_limit_per_minute_holds_for_requests_that_waited_while_leaders_changed():
    cluster = Cluster()
    cluster.tenants["A"] = Tenant("A", requests_per_minute_max=1)
    follower = cluster.followers["m3"] = Follower("m3", wait_s_max=10.0)
    for request_id in ("x", "y"):  # no leader is there
        cluster.submit("m3", request_id)
    follower.connected(cluster.now)
    ends = {action.request_id: getattr(action, "reason", "dispatched") for action in cluster.actions("m3")}
    assert ends == {"x": "dispatched", "y": Reason.RATE_LIMITED}


def test_a_follower_whose_leader_was_elected_again_is_told_at_once_and_joins_anew():
    member = Member("m1", make_scheduler=lambda _: Scheduler(), tenant_of={}.get, wait_s_max=10.0, now=0.0)
    follower = Follower("m2", wait_s_max=10.0)
    for epoch in (1, 2):
        member.appoint("m1", epoch, 0.0, expected=("m1", "m2"))
        member.tick(0.0)
        if epoch == 1:
            follower.connected(0.0)
        for _ in range(3):
            for frame in follower.link.frames(0.0):
                member.received_from("m2", frame, 0.0)
            member.tick(0.0)
            for to, frame in member.frames(0.0):
                if to == "m2":
                    follower.received(frame, 0.0)
        follower.submit("p", Request(f"r{epoch}", "A", "m", 0.0, 10, 20), 0.0)
    for frame in follower.link.frames(0.0):
        member.received_from("m2", frame, 0.0)
    for to, frame in member.frames(0.0):
        assert to == "m2"
        follower.received(frame, 0.0)
    assert follower.link.closes(0.0) == "it leads no more"


def test_what_ran_while_its_link_was_gone_is_charged_once():
    cluster = Cluster()
    follower = cluster.followers["m2"]
    cluster.submit("m2", "r")
    assert [type(action) for action in cluster.actions("m2")] == [Dispatch]
    follower.lost(cluster.now)
    follower.usage.used(follower.requests.find("r"), Usage(10, 0, 7), cluster.now)
    follower.connected(cluster.now)
    cluster.exchange()
    assert used(cluster) == Usage(10, 0, 7)
    follower.lost(cluster.now)
    follower.finished("r", Outcome.COMPLETED, cluster.now, None, Usage(10, 0, 9))
    for _ in range(2):
        follower.lost(cluster.now)
        follower.connected(cluster.now)
        cluster.exchange()
        assert used(cluster) == Usage(10, 0, 9)


def test_a_leader_takes_in_what_its_own_process_has_before_it_decides():
    """Else its first Pong ends what that process keeps for a leader: ends that nothing has charged yet."""
    leader = Leader(1, "m1", make_scheduler=lambda _: Scheduler(), tenant_of={}.get)
    follower = Follower("m1", wait_s_max=10.0)
    follower.connected(0.0)
    for _ in range(4):
        leader.turn(0.0)
        assert leader.is_deciding <= (follower.link.leader is not None), "it has told nothing yet"
        for frame in follower.link.frames(0.0):
            leader.received("m1", frame, 0.0)
        for _, frame in leader.frames(0.0):
            follower.received(frame, 0.0)
    assert leader.is_deciding


def cut_after(usage, *, told, cluster):
    """A stream of m2 that was told to have used `told`, and whose backend fails after `usage`."""
    request = Request("r", "A", "m", cluster.now, 10, 20, is_resumable=True)
    follower = cluster.followers["m2"]
    follower.submit("p", request, cluster.now)
    assert [type(action) for action in cluster.actions("m2")] == [Dispatch]
    follower.usage.used(follower.requests.find("r"), told, cluster.now)
    cluster.exchange()
    follower.lost(cluster.now)
    follower.told(Interrupted(cluster.now, "r", usage))
    return follower


def used(cluster):
    return cluster.leader.pools["p"].scheduler.snapshot(cluster.now).tenants["A"].used


def test_beyond_what_was_expected_a_usage_is_told_with_each_block_and_at_most_every_step():
    cluster = Cluster()
    cluster.submit("m2", "r")
    assert [type(action) for action in cluster.actions("m2")] == [Dispatch]
    follower, told = cluster.followers["m2"], []
    own, begun_at = follower.requests.find("r"), cluster.now
    own.dispatch = msgspec.structs.replace(own.dispatch, quiet_tokens=40.0)
    for after_s, tokens in ((0.0, 1), (0.1, 39), (0.2, 41), (0.3, 47), (0.4, 48), (0.41, 64), (0.43, 65), (0.5, 79)):
        follower.usage.used(own, Usage(10, 0, tokens), begun_at + after_s)
        told.append(own.told.output_tokens)
    assert told == [1, 1, 41, 41, 48, 48, 65, 65]


def test_a_follower_that_has_told_all_sleeps_until_usage_is_due_again():
    cluster = Cluster()
    follower = cluster.followers["m2"]
    for _ in range(3):
        assert follower.usage.is_due(cluster.now)
        follower.tick(cluster.now)
        cluster.exchange()
        assert cluster.now < follower.due() <= follower.usage.due() == cluster.now + UNTOLD_S
        cluster.now = follower.usage.due()


def test_an_answer_that_was_cut_while_its_link_was_gone_is_continued_and_charged_once():
    cluster = Cluster()
    follower = cut_after(Usage(10, 0, 8), told=Usage(10, 0, 5), cluster=cluster)
    follower.connected(cluster.now)
    assert [type(action) for action in cluster.actions("m2")] == [Dispatch]
    assert used(cluster) == Usage(10, 0, 8)
    follower.finished("r", Outcome.COMPLETED, cluster.now, None, Usage(10, 0, 9))
    cluster.exchange()
    assert used(cluster) == Usage(10, 0, 9)


@pytest.mark.parametrize("waits", [True, False])
def test_a_member_that_was_given_up_returns_with_its_cut_answer_and_nothing_is_charged_twice(waits):
    cluster = Cluster()
    follower = cut_after(Usage(10, 0, 8), told=Usage(10, 0, 5), cluster=cluster)
    if waits:
        cluster.leader.intake.told("p", LoadChanged(cluster.now, (BackendLoad("gpu", available=False),)))
    follower.connected(cluster.now)
    assert len(cluster.actions("m2")) == (0 if waits else 1)
    del cluster.followers["m2"]
    cluster.leader.lost("m2", cluster.now, is_dead=False)
    cluster.later(LEASE_S)
    assert used(cluster) == Usage(10, 0, 8), "its client may have gone, but has this"
    cluster.followers["m2"] = follower
    follower.lost(cluster.now)
    follower.connected(cluster.now)
    cluster.exchange()
    assert used(cluster) == Usage(10, 0, 8)


def test_a_request_that_is_read_after_its_connections_end_is_dispatched_only_when_its_member_is_back():
    cluster = Cluster()
    follower = cluster.followers["m2"]
    cluster.submit("m2", "r")
    for frame in follower.link.frames(cluster.now):
        cluster.leader.received("m2", frame, cluster.now)
    cluster.leader.lost("m2", cluster.now)
    cluster.leader.turn(cluster.now)
    assert "Parked" in [type(entry).__name__ for entry in cluster.entries]
    follower.lost(cluster.now)
    follower.connected(cluster.now)
    assert [type(action) for action in cluster.actions("m2")] == [Dispatch]


def test_a_request_that_lay_unread_while_its_leader_stood_still_is_as_old_as_its_member_says():
    cluster = Cluster()
    cluster.leader.intake.told("p", LoadChanged(cluster.now, (BackendLoad("gpu", available=False),)))
    follower = cluster.followers["m2"]
    cluster.submit("m2", "r")
    arrived_at, frames = cluster.now, list(follower.link.frames(cluster.now))
    cluster.now += 1.5
    for frame in frames:
        cluster.leader.received("m2", frame, cluster.now)
    cluster.leader.lost("m2", cluster.now)
    follower.lost(cluster.now)
    cluster.leader.turn(cluster.now)
    follower.connected(cluster.now)
    cluster.exchange()
    again = [entry.request for entry in cluster.entries if isinstance(entry, Readmitted)]
    assert [each.arrived_at for each in again] == [arrived_at]


def test_a_leader_waits_for_the_members_of_the_last_list():
    leader = Leader(1, "m1", make_scheduler=lambda _: Scheduler(), tenant_of={}.get, waits={"m1": 2.0, "m2": 2.0})
    follower = Follower("m1", wait_s_max=10.0)
    follower.connected(0.0)
    for now in (0.0, 0.1, 0.2):
        for frame in follower.link.frames(now):
            leader.received("m1", frame, now)
        leader.turn(now)
        for _, frame in leader.frames(now):
            follower.received(frame, now)
    assert not leader.is_deciding


def test_a_rejection_of_what_another_leader_may_have_dispatched_is_an_end_that_later_leaders_are_told():
    follower = Follower("m2", wait_s_max=10.0)
    for epoch in (1, 2):
        follower.lost(0.0)
        follower.connected(0.0)
        follower.received(Frame(epoch, "", (Welcome("m1"), Pong(0.0, 2.0))), 0.0)
        if epoch == 1:
            follower.submit("p", Request("r", "A", "m", 0.0, 10, 20), 0.0)
    follower.received(Frame(2, "p", (Refused(1, Reason.RATE_LIMITED, 1.0),)), 0.0)
    assert [entry.number for _, entry in follower.reports.log] == [1]


def test_a_preemption_counts_although_what_says_so_was_lost_with_its_connection():
    cluster = Cluster()
    follower = cluster.followers["m2"]
    cluster.submit("m2", "r")
    assert [type(action) for action in cluster.actions("m2")] == [Dispatch]
    follower.received(Frame(1, "p", (Withdraw(1),)), cluster.now)
    assert follower.poll("p", cluster.now) == [Preempt("r")]
    follower.lost(cluster.now)
    follower.told(Returned(cluster.now, "r", cause=Cause.PREEMPTED))
    follower.connected(cluster.now)
    cluster.exchange()
    told = [type(entry).__name__ for entry in cluster.entries]
    assert ("Returned" in told, "Undelivered" in told) == (True, False)


def test_the_next_leader_is_told_what_the_client_of_a_cut_answer_has():
    cluster = Cluster()
    (has,) = told_on_joining(cut_after(Usage(10, 0, 8), told=Usage(10, 0, 5), cluster=cluster))
    assert (has.backend_id, has.usage) == (None, Usage(10, 0, 8))
    assert (has.request.produced_tokens, has.request.ran_at) == (8, "gpu")


def test_without_a_leader_a_cut_answer_waits_anew():
    follower = Follower("m2", wait_s_max=10.0)
    follower.connected(0.0)
    follower.received(Frame(1, "", (Welcome("m1"), Pong(0.0, 2.0))), 0.0)
    follower.submit("p", Request("r", "A", "m", 0.0, 10, 20, is_resumable=True), 0.0)
    follower.received(Frame(1, "p", (Dispatched(1, "gpu"),)), 0.0)
    assert len(follower.poll("p", 0.0)) == 1
    follower.lost(50.0)  # long after the deadline of its arrival
    follower.told(Interrupted(50.0, "r", Usage(10, 0, 8)))
    assert follower.poll("p", 54.0) == []
    (refused,) = follower.poll("p", 55.0)
    assert isinstance(refused, Reject)
    assert refused.reason is Reason.NO_BACKEND


@pytest.mark.parametrize(("others", "steps_down"), [(True, False), (False, True)])
def test_a_leader_is_blind_where_its_polls_reach_no_backend_at_all(others, steps_down):
    """One that is down is polled again and again; the others, which are polled rarely (`busy_s`), were reached."""
    cluster = Cluster()
    down, other = replace(GPU, available=False), BackendLoad("other", available=others, requests_running=0)
    cluster.leader.intake.told("p", LoadChanged(cluster.now, (GPU, other)))
    cluster.submit("m2", "r")
    assert [type(action) for action in cluster.actions("m2")] == [Dispatch]
    cluster.leader.intake.told("p", Measured(cluster.now, replace(down, measured_at=cluster.now)))
    cluster.later(1.25)
    follower = cluster.followers["m2"]
    follower.usage.used(follower.requests.find("r"), Usage(10, 0, 5), cluster.now)
    cluster.exchange()
    assert bool(cluster.wishes(StepDown)) is steps_down
