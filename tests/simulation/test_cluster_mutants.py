"""Each mechanism of the shared order is needed: without it a rule breaks in the scene that was made for it."""

import pytest

from gateway.cluster import election, leader
from gateway.cluster.checkpoints import NewestCheckpoint
from gateway.cluster.follower import Follower
from gateway.cluster.leader_link import LeaderLink
from gateway.cluster.own_request import OwnRequest
from gateway.cluster.promise import Promise
from policies.accounts.ledger import Ledger
from policies.fleet.fleet import Fleet
from tests.simulation.cluster import directed

SEEDS = range(6)


def without_promise(patch):
    patch.setattr(Promise, "holds", lambda _self, _now: True)


def without_margin(patch):
    patch.setattr(Promise.__init__, "__defaults__", (1.0,))
    patch.setitem(election.Candidate.__init__.__kwdefaults__, "margin_s", 0.0)
    patch.setitem(leader.Leader.__init__.__kwdefaults__, "silent_s", 2.0)
    patch.setattr("gateway.cluster.member.SILENT_S", 2.0)


def without_checkpoint(patch):
    patch.setattr(NewestCheckpoint, "read", lambda _self: None)


def with_facts_told_twice(patch):
    """What was said on the connection before is said again on the next one."""
    frames, tell_all = LeaderLink.frames, Follower._tell_all

    def remembered(self, now):
        said = frames(self, now)
        self.__dict__.setdefault("said", []).extend(
            (frame.pool, message) for frame in said for message in frame.messages if frame.pool
        )
        self.said = self.said[-20:]
        return said

    def again(self, now):
        tell_all(self, now)
        self.link._outbox += self.link.__dict__.get("said", [])

    patch.setattr(LeaderLink, "frames", remembered)
    patch.setattr(Follower, "_tell_all", again)


def with_adopted_usage_charged_by_the_ledger(patch):
    patch.setattr(Ledger, "adopted", Ledger.opened)


def with_adopted_usage_told_as_new(patch):
    has = OwnRequest.has

    def told_nothing(self, leadership, now):
        if self.told is not None:
            self.told = self.told._replace(prompt_tokens=0, output_tokens=0)
        return has(self, leadership, now)

    patch.setattr(OwnRequest, "has", told_nothing)


def without_a_first_measurement(patch):
    patch.setattr(Fleet, "taken_over", lambda _self, _now: None)


MUTANTS = [
    (without_promise, directed.frozen_follower),
    (without_margin, directed.lost_key),
    (without_checkpoint, directed.killed_leader),
    (with_facts_told_twice, directed.broken_links),
    (with_adopted_usage_charged_by_the_ledger, directed.killed_leader),
    (with_adopted_usage_told_as_new, directed.killed_leader),
    (without_a_first_measurement, directed.frozen_leader),
]


@pytest.mark.long
@pytest.mark.parametrize("scene", sorted({scene for _, scene in MUTANTS}, key=lambda scene: scene.__name__))
def test_with_all_mechanisms_every_rule_holds_in_these_scenes(scene):
    play(scene)


@pytest.mark.long
@pytest.mark.parametrize(("mutate", "scene"), MUTANTS, ids=[mutate.__name__ for mutate, _ in MUTANTS])
def test_a_mutant_dies(mutate, scene, monkeypatch):
    mutate(monkeypatch)
    with pytest.raises(AssertionError):  # a judge's, or one of the Scheduler's own
        play(scene)


def play(scene):
    for seed in SEEDS:
        scene(seed)
