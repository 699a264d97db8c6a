"""Which process may try to lead: what a candidate asks of the store, and what it makes of the answers."""

from math import inf

import pytest

from gateway.cluster.election import Candidate
from gateway.cluster.election_store import Ask, StoreView
from gateway.cluster.listed_members import ABORT_S, JOIN_S
from gateway.cluster.promise import LEASE_MARGIN_S, LEASE_S, SILENT_S, Grants, Promise


def elected(now=SILENT_S, *, counter=0, known=0):
    candidate = Candidate("m1", now=0.0)
    candidate.knows(known)
    call = candidate.call(now)
    epoch = max(counter, known) + 1
    candidate.answered(call, StoreView("m1", epoch, {"m1": "a", "m2": "b"}, counter), now + 0.01)
    return candidate


def test_after_a_new_connection_a_member_looks_until_every_lease_has_ended():
    candidate = Candidate("m1", now=0.0)
    assert candidate.call(0.0).ask is Ask.LOOK
    assert elected().key.led_epoch == 1


def test_a_lease_counts_from_before_its_renewal_was_sent_less_a_margin():
    candidate = elected()
    assert candidate.key.lease_until == SILENT_S + LEASE_S - LEASE_MARGIN_S
    call = candidate.call(SILENT_S + 0.5)
    assert (call.ask, call.epoch) == (Ask.RENEW, 1)
    candidate.answered(call, StoreView("m1", 1, {}, 1), SILENT_S + 0.9)
    assert candidate.key.lease_until == pytest.approx(SILENT_S + 0.5 + LEASE_S - LEASE_MARGIN_S)


def test_an_answer_that_comes_too_late_renews_nothing():
    candidate = elected()
    call = candidate.call(SILENT_S + 0.5)
    candidate.call(SILENT_S + 1.6)  # it counts as failed
    candidate.answered(call, StoreView("m1", 1, {}, 1), SILENT_S + 1.7)
    assert candidate.key.lease_until == SILENT_S + LEASE_S - LEASE_MARGIN_S


def test_a_member_whose_key_is_gone_leads_no_more():
    candidate = elected()
    candidate.answered(candidate.call(SILENT_S + 0.5), StoreView("m2", 2, {}, 2), SILENT_S + 0.6)
    assert (candidate.key.led_epoch, candidate.key.leader, candidate.epoch) == (0, "m2", 2)


def test_a_store_that_knows_less_than_a_member_has_forgotten():
    assert not elected(counter=3, known=3).listed.has_forgotten
    candidate = elected(counter=0, known=3)
    assert candidate.listed.has_forgotten
    assert candidate.key.led_epoch == 4


def test_members_of_the_last_list_are_kept_though_the_store_forgets_them():
    candidate = elected()
    candidate.answered(candidate.call(SILENT_S + 0.5), StoreView("m1", 1, {"m1": "a"}, 1), SILENT_S + 0.6)
    assert candidate.listed.addresses == {"m1": "a", "m2": "b"}
    candidate.answered(candidate.call(3 * SILENT_S), StoreView("m1", 1, {"m1": "a"}, 1), 3 * SILENT_S)
    assert candidate.listed.addresses == {"m1": "a"}


def test_a_leader_that_stops_gives_its_key_back_and_stands_no_more():
    candidate = elected()
    call = candidate.release(SILENT_S + 0.2)
    assert (call.ask, call.epoch) == (Ask.RELEASE, 1)
    candidate.answered(call, StoreView(None, 0, {}, 1), SILENT_S + 0.3)
    assert candidate.call(10.0).ask is Ask.LOOK


def test_a_promise_is_shorter_than_the_lease_by_more_than_two_clocks_differ():
    promise = Promise()
    promise.ponged(10.0, 1.0)
    assert promise.holds(10.97)
    assert not promise.holds(10.98)
    promise.release()
    assert not promise.holds(10.0)


def test_a_member_that_did_not_run_hears_the_store_before_it_takes_it_for_gone():
    candidate = Candidate("m1", now=0.0)
    first = candidate.call(0.0)
    candidate.answered(first, StoreView(None, 0, {"m1": ""}), 0.0)
    assert not candidate.asking.is_reached(3.0)
    candidate.overslept(3.0, 3.0)
    assert candidate.asking.is_reached(3.0)
    assert not candidate.asking.is_reached(5.0)


def test_a_member_that_did_not_run_stands_once_a_leader_would_have_told_a_store_that_has_forgotten_it():
    candidate = Candidate("m1", now=-10.0)
    candidate.overslept(3.0, 3.0)
    assert candidate.call(3.0).ask is Ask.LOOK
    candidate.asking.failed(candidate.asking._pending, 3.0)
    assert candidate.call(3.0 + SILENT_S).ask is Ask.ACQUIRE


@pytest.mark.parametrize("returns", [False, True])
def test_when_a_leader_resigns_the_others_ask_at_once_and_wait_for_it_if_it_has_requests(returns):
    candidate = Candidate("m2", now=-10.0)
    listed = {"m1": "a", "m2": "b"}
    candidate.answered(candidate.call(0.0), StoreView("m1", 1, listed), 0.0)
    assert candidate.call(0.1) is None
    candidate.resigned_by("m1", 0.1, returns=returns)
    asked = candidate.call(0.1)
    assert asked.ask is Ask.LOOK
    assert ("m1" in candidate.listed.addresses) is returns
    candidate.answered(asked, StoreView("m1", 1, {"m2": "b"}, 1), 0.11)  # its key is there for a moment more
    asked = candidate.call(0.2)
    assert asked is not None, "it asks often until the key is free"
    candidate.answered(asked, StoreView(None, 0, {"m2": "b"}, 1), 0.21)
    assert candidate.call(0.21).ask is Ask.ACQUIRE
    assert candidate.listed.addresses == (listed if returns else {"m2": "b"})


def follower_of_m1(now=0.0, **silent_s):
    candidate = Candidate("m2", now=-10.0)
    listed = {"m1": "a", "m2": "b", "m3": "c"}
    candidate.answered(candidate.call(now), StoreView("m1", 1, listed, 1, silent_s=silent_s), now)
    return candidate


def test_a_member_that_saw_the_leader_end_says_so_at_once_and_waits_for_it_no_more():
    candidate = follower_of_m1()
    assert candidate.call(0.1) is None
    candidate.ended("m1", 0.1)
    call = candidate.call(0.1)
    assert (call.ask, call.free_epoch, call.has_ended) == (Ask.LOOK, 1, True)
    candidate.answered(call, StoreView(None, 0, {"m1": "a", "m2": "b", "m3": "c"}, 1), 0.11)
    call = candidate.call(0.11)
    assert (call.ask, call.has_ended) == (Ask.ACQUIRE, False)
    assert candidate.listed.waits(0.2)["m1"] == pytest.approx(0.1 + ABORT_S)


def test_a_member_that_ended_is_not_the_leader_that_the_store_has_now():
    candidate = follower_of_m1()
    candidate.ended("m3", 0.1)
    assert not candidate.call(0.1).has_ended


def test_a_former_leader_is_waited_for_until_its_lease_has_ended_since_the_store_heard_from_it():
    candidate = follower_of_m1()
    view = StoreView(None, 0, {"m1": "a", "m2": "b", "m3": "c"}, 1, silent_s={"m1": 2.0, "m3": 1.9})
    candidate.answered(candidate.call(0.6), view, 0.6)
    assert candidate.listed.waits(0.7) == {
        "m1": pytest.approx(0.6 + SILENT_S - 2.0),
        "m2": pytest.approx(0.6 + SILENT_S),
        "m3": pytest.approx(0.7 + JOIN_S),
    }


def test_a_member_that_the_store_has_forgotten_is_waited_for_since_it_was_listed_last():
    candidate = follower_of_m1(m1=1.0)
    candidate.answered(candidate.call(0.6), StoreView(None, 0, {"m2": "b"}, 1), 0.6)
    assert candidate.listed.waits(0.7)["m1"] == pytest.approx(SILENT_S)


def test_where_the_connection_to_the_leader_is_lost_a_member_asks_often_until_its_key_has_ended():
    candidate = follower_of_m1()
    candidate.lost("m1", 0.1)
    for now in (0.1, 0.2, 0.3):
        candidate.answered(candidate.call(now), StoreView("m1", 1, {"m1": "a", "m2": "b"}, 1), now)
    candidate.answered(candidate.call(2.4), StoreView("m1", 1, {"m1": "a", "m2": "b"}, 1), 2.4)
    assert candidate.call(2.5) is None


def test_a_member_that_helps_a_leader_does_not_stand_though_the_key_is_gone():
    candidate = follower_of_m1()
    candidate.is_bound = True
    candidate.answered(candidate.call(0.6), StoreView(None, 0, {"m1": "a"}, 1), 0.6)
    assert candidate.call(0.6).ask is Ask.LOOK


def test_a_member_helps_a_leader_again_when_the_store_has_its_word_no_more():
    candidate = follower_of_m1()
    assert candidate.may_grant(1)
    candidate.free_epoch = 1
    told = candidate.call(0.6)
    assert told.free_epoch == 1
    candidate.free_epoch = 0
    candidate.asking.failed(told, 0.7)  # it may have been taken in
    assert not candidate.may_grant(1)
    taken_back = candidate.call(1.3)
    assert not candidate.may_grant(1)
    candidate.answered(taken_back, StoreView("m1", 1, {}, 1), 1.4)
    assert candidate.may_grant(1)


def test_a_member_helps_no_leader_of_an_epoch_that_is_over():
    candidate = follower_of_m1()
    candidate.answered(candidate.call(0.6), StoreView(None, 0, {}, 2), 0.6)  # another one led meanwhile
    assert not candidate.may_grant(1)


def test_a_leader_needs_a_majority_of_the_list_that_the_store_has_and_of_the_one_that_it_may_have():
    candidate = elected()
    assert candidate.witnesses.of(1) == []
    candidate.witnesses.members = frozenset({"m1", "m2"})
    first = candidate.call(SILENT_S + 0.5)
    assert candidate.witnesses.of(1) == [], "the store has none"
    candidate.answered(first, StoreView("m1", 1, {}, 1), SILENT_S + 0.5)
    assert candidate.witnesses.of(1) == [{"m1", "m2"}]
    candidate.witnesses.members = frozenset({"m1", "m2", "m3"})
    second = candidate.call(SILENT_S + 1.0)
    assert candidate.witnesses.of(1) == [{"m1", "m2"}, {"m1", "m2", "m3"}]
    candidate.asking.failed(second, SILENT_S + 1.5)
    candidate.witnesses.members = frozenset({"m1", "m3"})
    assert candidate.call(SILENT_S + 2.0).witnesses == second.witnesses, "the store may have that list already"


def test_a_member_is_refused_the_key_while_the_store_gives_it_to_none():
    candidate = follower_of_m1()
    for asked_at, ask, answered_at in ((0.6, Ask.LOOK, 0.6), (0.6, Ask.ACQUIRE, 0.7), (1.2, Ask.ACQUIRE, 1.2)):
        call = candidate.call(asked_at)
        assert call.ask is ask
        candidate.answered(call, StoreView(None, 0, {}, 1), answered_at)
    assert not candidate.key.is_refused(1.65), "it is since the first answer to ACQUIRE"
    assert candidate.key.is_refused(1.75)
    candidate.answered(candidate.call(1.75), StoreView("m3", 2, {}, 1), 1.75)
    assert not candidate.key.is_refused(9.0)


def test_a_majority_grants_a_lease_and_one_less_does_not():
    grants = Grants("m1")
    names = frozenset({"m1", "m2", "m3", "m4"})
    grants.granted("m2", 5.0)
    assert grants.lease_until([names]) == -inf
    assert grants.lease_until([names - {"m4"}]) == 5.0 + LEASE_S - LEASE_MARGIN_S
    grants.granted("m3", 6.0)
    assert grants.lease_until([names]) == 5.0 + LEASE_S - LEASE_MARGIN_S
    grants.granted("m2", 7.0)
    assert grants.lease_until([names, names | {"m5"}]) == 6.0 + LEASE_S - LEASE_MARGIN_S
    assert grants.lease_until([names, frozenset({"m1"})]) == -inf, "none is a witness of a leader without others"
    assert grants.lease_until([]) == -inf


def test_a_member_that_said_it_is_free_grants_nothing_until_the_store_has_its_word_back():
    candidate = Candidate("m2", now=-10.0)
    listed = {"m1": "a", "m2": "b"}
    candidate.answered(candidate.call(0.0), StoreView("m1", 1, listed, 1), 0.0)
    assert candidate.may_grant(1)
    candidate.free_epoch = 1
    candidate.answered(candidate.call(1.0), StoreView("m1", 1, listed, 1), 1.0)
    candidate.free_epoch = 0
    assert not candidate.may_grant(1)
    candidate.answered(candidate.call(2.0), StoreView("m1", 1, listed, 1), 2.0)
    assert candidate.may_grant(1)


def test_backends_get_time_to_drop_what_a_process_ran_that_has_ended():
    candidate = Candidate("m2", now=-10.0)
    candidate.answered(candidate.call(0.0), StoreView("m1", 1, {"m1": "a", "m2": "b"}, 1), 0.0)
    candidate.ended("m1", 0.5)
    assert candidate.listed.waits(0.6)["m1"] == 0.5 + ABORT_S
