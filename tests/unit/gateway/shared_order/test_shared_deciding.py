"""A Dispatcher of a shared order: the process that leads is told what changes of tenants, whoever has seen them."""

from types import SimpleNamespace
from unittest.mock import ANY, Mock, call

from gateway.cluster.follower.member_requests import OwnRequest
from gateway.cluster.follower.remote_scheduler import RemoteScheduler
from gateway.cluster.wire import Dispatched
from gateway.scheduling.dispatcher import Dispatcher
from gateway.shared_order.deciding import SharedDeciding
from policies.types import Request, Tenant, Usage


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


class OwnRequests(list):
    """Of a follower: two in flight at gpu 0, and one that waits."""

    def __init__(self):
        requests = [Request(id_, "alice", "m", 9.0, 100, 10, body_bytes=7) for id_ in ("first", "second", "waits")]
        super().__init__(OwnRequest(number, "gpu", request) for number, request in enumerate(requests))
        for own in self[:2]:
            own.dispatched(Dispatched(own.number, "gpu-0", 0.0, 20), 10.0)

    def find(self, id_):
        return next((own for own in self if own.request.id == id_), None)


def follower_with(requests):
    member = SimpleNamespace(lead=SimpleNamespace(leader=None), follower=Mock(requests=requests))
    return RemoteScheduler("gpu", member, None)


def test_a_follower_estimates_how_far_a_prompt_is_by_the_time_that_one_before_took():
    follower = follower_with(OwnRequests())
    assert follower.prefilled("waits", 12.0) is None
    assert follower.prefilled("second", 12.0) == Usage(100, 20, 0), "nothing is known"
    follower.tokens("first", Usage(100, 20, 1), 20.0)
    assert follower.prefilled("second", 13.0) == Usage(20 + 30, 20, 0)
    assert follower.prefilled("second", 30.0) == Usage(100, 20, 0)


def test_a_follower_counts_its_own_requests_as_waiting_or_in_flight():
    seen = follower_with(OwnRequests()).snapshot(12.0)
    alice = seen.tenants["alice"]
    assert (alice.queued_requests, alice.queued_bytes, alice.in_flight_requests) == (1, 7, 2)
    assert (seen.queued_requests, seen.queued_bytes, seen.in_flight_requests) == (1, 7, 2)
