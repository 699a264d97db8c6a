"""What the log says of leadership: a process that stops says nothing of whether others lead."""

from types import SimpleNamespace

import pytest

from gateway.shared_order.roles import Roles


def member(*, leader=None, follows=None):
    link = SimpleNamespace(leader=follows, epoch=1)
    lead = SimpleNamespace(leader=leader, is_standalone=False)
    return SimpleNamespace(name="g1", lead=lead, follower=SimpleNamespace(link=link))


@pytest.mark.parametrize("leads", [True, False])
def test_only_a_loss_of_the_leader_is_a_warning(caplog, leads):
    caplog.set_level("INFO")
    has_leader = member(leader=SimpleNamespace(epoch=1)) if leads else member(follows="g2")
    roles = Roles("g1")
    roles.look(has_leader)
    roles.stops()
    roles.look(member())
    assert [(each.levelname, each.getMessage()) for each in caplog.records[1:]] == [
        ("INFO", "this process leaves the order: it stops")
    ]
    roles.look(has_leader)
    roles.because("g2 is silent")
    roles.look(member())
    assert (caplog.records[-1].levelname, caplog.messages[-1]) == ("WARNING", "no process leads: g2 is silent")
