"""A Dispatcher of a shared order: the process that leads is told what changes of tenants, whoever has seen them."""

from types import SimpleNamespace
from unittest.mock import ANY, Mock, call

from gateway.cluster.follower.remote_scheduler import RemoteScheduler
from gateway.scheduling.dispatcher import Dispatcher
from gateway.shared_order.deciding import SharedDeciding
from policies.types import Tenant, Usage


def dispatcher_of(leader):
    order = Mock(leader=leader, dispatchers={})
    lead = SimpleNamespace(leader=leader, told=Mock())
    order.member = SimpleNamespace(lead=lead, follower=Mock())
    scheduler = RemoteScheduler("gpu", order.member, None)
    return Dispatcher(scheduler, SharedDeciding(scheduler, order, "gpu")), order


async def test_the_leader_looks_up_a_tenant_that_another_process_may_have_seen_and_forgets_one_that_goes():
    leader = Mock()
    leader.pools.get.return_value = None
    dispatcher, order = dispatcher_of(leader)
    dispatcher.tenant_changed(Tenant("alice"))
    dispatcher.forget("bob")
    assert leader.pools.tenant_changed.call_args_list == [call("alice", ANY)]
    assert leader.pools.tenant_forgotten.call_args_list == [call("bob", ANY)]
    assert order.turns.soon.call_args_list == [call(), call()]
    assert list(dispatcher.tenants()) == []


async def test_a_follower_tells_no_leader_of_tenants_and_takes_a_turn_for_usage():
    dispatcher, order = dispatcher_of(None)
    dispatcher.tenant_changed(Tenant("alice"))
    assert not order.turns.within.called
    dispatcher.tokens("r", Usage(1, 0, 1))
    assert order.turns.within.called
