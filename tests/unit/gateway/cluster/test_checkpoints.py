"""Checkpoints are told by what has changed, and whole to members that lack the one before."""

import pytest

from gateway.cluster.checkpoints import Mark, NewestCheckpoint
from gateway.cluster.leader.kept_windows import KeptWindows
from gateway.cluster.leader.leader import Leader
from gateway.cluster.leader.pool_journal import CHANGES_MAX, WRITTEN_MAX
from gateway.cluster.promise import SILENT_S
from gateway.cluster.records import (
    GONE,
    SLICE_RECORDS,
    Taken,
    charged_record,
    compose,
    learnt_record,
    levels_record,
    member_record,
    parse_key,
    service_records,
    session_records,
    window_records,
)
from gateway.cluster.wire import CheckpointPart, Finish, Frame, Join, Ping, Spend, Submit, ToldAll, decode, encode
from gateway.cluster.wishes import StoreCheckpoint
from policies.accounts.checkpoint import QueueCheckpoint, TierCheckpoint
from policies.admission.rate_limit import RateLimiter
from policies.admission.rate_window import Booked, MinuteCheckpoint
from policies.facts import LoadChanged
from policies.scheduler import Scheduler
from policies.sessions.checkpoint import SessionRecord, SessionsCheckpoint
from policies.types import BackendLoad, Outcome, ReplicaShare, Request, Tenant, Usage


class Cluster:
    """A leader whose own client is m1, and m2 as it would speak to it."""

    def __init__(self, tenants=3, checkpoint=None, epoch=1, now=100.0, **limits):
        self.now = now
        self.tenants = {f"t{number}": Tenant(f"t{number}", **limits) for number in range(tenants)}
        self.leader = Leader(
            epoch,
            "m1",
            make_scheduler=lambda _: Scheduler(admission=[RateLimiter(lambda _: 10.0)]),
            tenant_of=self.tenants.get,
            waits={"m1": now + SILENT_S},
            checkpoint=checkpoint,
        )
        self.parts, self.stored, self.numbers, self.entries = {}, [], {}, {}
        self.held = {"m1": NewestCheckpoint(), "m2": NewestCheckpoint()}
        self.join("m1")

    def join(self, member, mark=(0, 0, "")):
        self.hear(member, "", Join(member, mark), Ping(self.now), ToldAll())
        self.parts[member] = []

    def hear(self, member, pool, *messages):
        self.leader.received(member, Frame(self.leader.epoch, pool, messages), self.now)

    def turn(self, seconds=0.001):
        self.now += seconds
        for member in self.parts:
            self.hear(member, "", Ping(self.now))
        self.leader.turn(self.now)
        for member, frame in self.leader.frames(self.now):
            for body in encode(frame):
                for part in decode(body).messages:
                    if isinstance(part, CheckpointPart):
                        self.parts[member].append(part)
                        self.held[member].part("leader", part)
        self.stored += [wish.body for wish in self.leader.wishes() if isinstance(wish, StoreCheckpoint)]

    def later(self, seconds):
        for _ in range(round(seconds / 0.25)):
            self.turn(0.25)
        for _ in range(10):
            self.turn()

    def measure(self):
        load = BackendLoad("gpu", requests_running_max=10**6, requests_running=0, measured_at=self.now)
        self.leader.intake.told("p", LoadChanged(self.now, (load,)))
        self.turn()

    def serve(self, tenant_id, member="m1"):
        """A request of this tenant arrives, runs and ends."""
        number = self.numbers[member] = self.numbers.get(member, 0) + 1
        self.hear(member, "p", Submit(number, Request(f"r{number}", tenant_id, "m", self.now, 10, 20)))
        self.turn()
        entry = self.entries[member] = self.entries.get(member, 0) + 1
        self.hear(member, "p", Finish(number, Outcome.COMPLETED, Usage(10, 0, 5), None, entry))
        self.turn()

    def counters(self):
        return self.leader.pools["p"].scheduler.checkpoint()


def running(**given):
    cluster = Cluster(**given)
    cluster.turn()
    cluster.measure()
    return cluster


def test_records_make_the_checkpoint_that_they_were_made_of():
    group = TierCheckpoint(4.0, 1.0, {"C": 2.0})
    tier = TierCheckpoint(7.0, 0.5, {"A": 3.0}, {"g": group})
    service = {"": QueueCheckpoint(1.0, {"default": tier, "empty": TierCheckpoint(2.0)})}
    windows = {"A": MinuteCheckpoint((Booked(50.0, 2), Booked(1.5, 1)), (Booked(3.0, 70_000),))}
    records = (
        service_records("p", service, ["A", "C", "gone"])
        | levels_record("p", service)
        | window_records("p", windows, ["A", "B"], at=10.0)
        | charged_record("p", "m1.1", Usage(10, 0, 3))
        | member_record("m1", Taken(7, 9))
    )
    assert [parse_key(key) for key, body in records.items() if body == GONE] == [("s", "p", "gone"), ("w", "p", "B")]
    found = compose({key: body for key, body in records.items() if body != GONE}, at=25.0)
    assert found.pools["p"].service == service
    assert found.pools["p"].charged == {"m1.1": Usage(10, 0, 3)}
    assert found.taken == {"m1": Taken(7, 9)}
    assert dict(found.pools["p"].windows) == {"A": MinuteCheckpoint((Booked(16.5, 1),), (Booked(18.0, 70_000),))}


def test_records_of_sessions_are_written_as_they_change_and_by_one_clock():
    known = SessionRecord(5_000, "gpu", is_admitted=True, idle_since=90.0, turns=3, shared=((-7, 256),), parent_id="q")
    changes = {("A", "s"): known, ("A", "gone"): None}
    records = session_records("p", changes, later_s=10.0) | learnt_record(
        "p", SessionsCheckpoint({}, {"gpu": 0.6}, True)
    )
    assert [parse_key(key) for key, body in records.items() if body == GONE] == [("a", "p", "A\0gone")]
    found = compose({key: body for key, body in records.items() if body != GONE}, at=130.0).pools["p"].sessions
    assert found == SessionsCheckpoint({("A", "s"): known._replace(idle_since=100.0)}, {"gpu": 0.6}, True, 130.0)


def test_what_counted_under_the_leader_before_is_restored_once_and_as_old_as_it_is_by_then():
    windows = {"A": MinuteCheckpoint((Booked(40.0, 2), Booked(10.0, 4)), ()), "B": MinuteCheckpoint((), ())}
    kept = KeptWindows(windows, since=5.0, share=ReplicaShare(2, 0))
    assert kept.take(["A", "C"], now=30.0) == {"A": MinuteCheckpoint((Booked(35.0, 2),), ())}
    assert kept.take(["A"], now=30.0) == {}
    assert "B" in kept
    assert kept.take(["B"], now=70.0) == {}
    assert not kept


def test_the_newest_checkpoint_counts_from_any_source():
    newest = NewestCheckpoint()
    other = NewestCheckpoint()
    other.change(Mark(2, 1, "m3"), 5.0, {"a": b"1"}, is_kept=True)
    *_, body = other.encoding()
    newest.told(body)
    newest.told(b"damaged")
    newest.part("m2", CheckpointPart({"a": b"2"}, begins=True))
    newest.part("m2", CheckpointPart({}, Mark(1, 9, "m2")))
    assert (newest.mark, newest.at, newest.records) == (Mark(2, 1, "m3"), 5.0, {"a": b"1"})


def test_changes_count_where_the_checkpoint_before_is_there_and_all_of_them_came():
    newest = NewestCheckpoint()
    newest.change(Mark(1, 1, "m1"), 0.0, {"a": b"1", "b": b"1"}, is_kept=False)
    newest.part("m1", CheckpointPart({"a": b"2"}))
    assert newest.records == {"a": b"1", "b": b"1"}
    newest.part("m1", CheckpointPart({"b": GONE}, Mark(1, 2, "m1"), Mark(1, 1, "m1")))
    assert newest.records == {"a": b"2"}
    newest.part("m1", CheckpointPart({"a": b"4"}, Mark(1, 4, "m1"), Mark(1, 3, "m1")))
    newest.part("m1", CheckpointPart({"a": b"5"}))
    newest.forget("m1")
    newest.part("m1", CheckpointPart({}, Mark(1, 3, "m1"), Mark(1, 2, "m1")))
    assert (newest.mark, newest.records) == (Mark(1, 3, "m1"), {"a": b"2"})


def test_a_checkpoint_of_the_same_number_by_another_leader_is_another_one():
    newest = NewestCheckpoint()
    newest.change(Mark(1, 1, "m1"), 0.0, {"a": b"1"}, is_kept=False)
    newest.part("m2", CheckpointPart({"a": b"2"}, Mark(1, 2, "m2"), Mark(1, 1, "m2")))
    assert newest.records == {"a": b"1"}


def test_an_entry_of_a_log_is_taken_when_every_later_leader_has_it():
    newest = NewestCheckpoint()
    for number in range(1, 6):
        newest.change(Mark(1, 2 * number), 0.0, member_record("m1", Taken(0, 10 * number)), is_kept=True)
        newest.change(Mark(1, 2 * number + 1), 0.0, {}, is_kept=False)
        assert newest.taken_of("m1") == max(0, number - 3) * 10


def test_a_second_tells_the_records_that_changed_in_it():
    cluster = running()
    cluster.join("m2")
    for tenant_id in cluster.tenants:
        cluster.serve(tenant_id)
    cluster.later(1.25)
    cluster.parts["m2"].clear()
    cluster.serve("t1")
    cluster.later(1.25)
    names = {parse_key(key) for part in cluster.parts["m2"] for key in part.records}
    assert names == {("s", "p", "t1"), ("l", "p", ""), ("m", "", "m1")}
    assert cluster.held["m2"].records == cluster.leader._checkpoint.records
    assert cluster.held["m2"].read().pools["p"].service == cluster.counters()


def test_a_member_without_the_checkpoint_is_told_all_records_in_slices_while_more_change():
    many = 3 * SLICE_RECORDS
    cluster = running(tenants=many)
    for tenant_id in cluster.tenants:
        cluster.serve(tenant_id)
    cluster.later(1.25)
    cluster.join("m2")
    cluster.turn()
    assert cluster.parts["m2"][0].begins
    requests = [Request(f"r{number}", f"t{number}", "m", cluster.now, 10, 20) for number in range(CHANGES_MAX)]
    submits = [Submit(cluster.numbers["m1"] + number + 1, request) for number, request in enumerate(requests)]
    cluster.hear("m1", "p", *submits)
    cluster.later(1.25)
    parts = cluster.parts["m2"]
    assert max(len(part.records) for part in parts) <= SLICE_RECORDS
    assert [part.begins for part in parts].count(True) == 1
    assert cluster.held["m2"].records == cluster.leader._checkpoint.records
    assert cluster.held["m2"].read().pools["p"].service == cluster.counters()
    assert len(cluster.held["m2"].records) > many


def test_what_is_spent_without_a_request_is_told():
    cluster = running()
    cluster.serve("t0")
    cluster.later(1.25)
    cluster.hear("m1", "p", Spend("t1", Usage(10, 0, 5), "", 2))
    cluster.later(1.25)
    assert cluster.leader._checkpoint.read().pools["p"].service == cluster.counters()
    assert "t1" in cluster.counters()[""].tiers["default"].tenants


def test_a_member_that_has_the_checkpoint_is_told_changes_alone():
    cluster = running()
    cluster.serve("t0")
    cluster.later(1.25)
    cluster.held["m2"].told(cluster.stored[-1])
    cluster.join("m2", cluster.held["m2"].mark)
    cluster.serve("t1")
    cluster.later(1.25)
    assert not any(part.begins for part in cluster.parts["m2"])
    assert cluster.held["m2"].records == cluster.leader._checkpoint.records


@pytest.mark.interpreted
def test_many_changes_are_written_in_several_turns_and_make_one_checkpoint():
    many = 3 * WRITTEN_MAX
    cluster = running(tenants=many)
    for tenant_id in cluster.tenants:
        cluster.serve(tenant_id)
    cluster.later(1.25)
    cluster.join("m2", cluster.leader._checkpoint.mark)
    cluster.held["m2"].told(cluster.stored[-1])
    asked = []
    scheduler = cluster.leader.pools["p"].scheduler
    checkpoint = scheduler.checkpoint
    scheduler.checkpoint = lambda ids: asked.append(len(ids)) or checkpoint(ids)
    cluster.leader.pools["p"].journal.all_changed()
    before = cluster.leader._checkpoint.mark.number
    for _ in range(8):
        cluster.turn()
    assert max(asked) <= WRITTEN_MAX
    assert sum(asked) == many
    assert cluster.leader._checkpoint.mark.number == before + 1


def test_the_store_has_a_whole_checkpoint_each_second_and_a_last_one():
    cluster = running()
    cluster.serve("t0")
    cluster.later(3.0)
    assert 3 <= len(cluster.stored) <= 5
    cluster.serve("t1")
    expected = cluster.counters()
    cluster.leader.resign(cluster.now, returns=False)
    (wish,) = (each for each in cluster.leader.wishes() if isinstance(each, StoreCheckpoint))
    newest = NewestCheckpoint()
    newest.told(wish.body)
    assert newest.read().pools["p"].service == expected
    assert newest.read().taken["m1"] == Taken(2, 2)


def test_a_next_leader_goes_on_from_records_of_tenants_that_it_never_met():
    cluster = running(requests_per_minute_max=2)
    for tenant_id in ("t0", "t0", "t1"):
        cluster.serve(tenant_id)
    cluster.later(1.25)
    checkpoint = NewestCheckpoint()
    checkpoint.told(cluster.stored[-1])
    again = running(epoch=2, now=9_000.0, checkpoint=checkpoint, requests_per_minute_max=2)
    again.numbers["m1"] = again.entries["m1"] = 3
    again.serve("t2")
    again.later(1.25)
    third = NewestCheckpoint()
    third.told(again.stored[-1])
    pool = third.read().pools["p"]
    assert pool.service[""].tiers["default"].tenants.keys() == {"t0", "t1", "t2"}
    assert [sum(amount for _, amount in pool.windows[each].requests) for each in ("t0", "t1", "t2")] == [2, 1, 1]
    assert pool.windows["t0"].requests[0].age_s == pytest.approx(2.5, abs=1.5)
    limits = again.leader.pools["p"].tenants
    again.serve("t1")
    assert limits.rate_limits(("t1", ""), again.now).requests.remaining == 0
    again.later(5.0)
    third.told(again.stored[-1])
    (booked,) = third.read().pools["p"].windows["t2"].requests
    assert booked.age_s == pytest.approx(6.0, abs=1.0), "what the next leader writes has the time of the records"


def test_what_counts_no_more_leaves_the_records_after_a_minute():
    cluster = running(requests_per_minute_max=2)
    cluster.serve("t0")
    cluster.later(1.25)
    assert any(key.startswith("w") for key in cluster.leader._checkpoint.records)
    cluster.later(61.0)
    cluster.serve("t1")
    cluster.later(1.25)
    assert [parse_key(key)[2] for key in cluster.leader._checkpoint.records if key.startswith("w")] == ["t1"]


def test_a_record_of_a_later_slice_is_as_it_is_by_then():
    newest, keys = NewestCheckpoint(), [f"charged/p/{number}" for number in range(2 * SLICE_RECORDS)]
    newest.change(Mark(1, 1, "m1"), 0.0, dict.fromkeys(keys, b"old"), is_kept=False)
    rest = newest.whole()
    assert set(next(rest).values()) == {b"old"}
    newest.change(Mark(1, 2, "m1"), 0.0, dict.fromkeys(keys, b"new"), is_kept=False)
    later = next(rest)
    assert len(later) == SLICE_RECORDS
    assert set(later.values()) == {b"new"}
