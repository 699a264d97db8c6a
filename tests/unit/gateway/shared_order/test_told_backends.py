"""What followers are told of backends: enough to know whether two serve the same model."""

import asyncio
from random import Random
from types import SimpleNamespace
from unittest.mock import Mock, call

from backends.catalog import ModelCard
from backends.health import Evidence, HealthState
from backends.poll import PollTimes
from backends.pool import BackendPool
from backends.spec import BackendSpec
from gateway.shared_order.backends import SharedPolls
from gateway.shared_order.role_work import pack

SPECS = [BackendSpec("a", "http://127.0.0.1:1"), BackendSpec("b", "http://127.0.0.1:2", revision="v2")]
CARDS = (ModelCard("tiny", "org/tiny", None, 4096, {}),)


def nothing(*_args):
    pass


def polls_of(order, others=None):
    return SharedPolls(order, others, nothing, times=PollTimes(), clock=asyncio.get_running_loop().time, rng=Random(1))


async def test_a_follower_knows_which_model_a_backend_serves():
    told = {}
    leader = SimpleNamespace(members=SimpleNamespace(share=told.__setitem__))
    polls = polls_of(SimpleNamespace(leader=leader, turns=SimpleNamespace(soon=nothing)))
    led = BackendPool(SPECS, polls=polls, on_change=nothing, on_load=nothing)
    for backend_id in "ab":
        led[backend_id].cards, led[backend_id].tokenizer = CARDS, "tokens"
    polls.announcements.announce()
    hearing = polls_of(SimpleNamespace(leader=None))
    for topic, body in told.items():
        hearing.told(topic, body)
    following = BackendPool(SPECS, polls=hearing, on_change=nothing, on_load=nothing)
    await following.polls.start()
    for backend_id in "ab":
        assert following[backend_id].identified("tiny")() == led[backend_id].identified("tiny")() is not None
    assert following["a"].identified("tiny")().difference(following["b"].identified("tiny")()) == "revision"
    await following.polls.stop()


async def test_a_follower_says_which_backends_it_lacks_and_has_the_leader_decide_on_their_health():
    told, order, others = {}, Mock(leader=None), Mock()
    polls = polls_of(
        SimpleNamespace(
            leader=SimpleNamespace(members=SimpleNamespace(share=told.__setitem__)), turns=SimpleNamespace(soon=nothing)
        )
    )
    BackendPool(SPECS, polls=polls, on_change=nothing, on_load=nothing)
    polls.announcements.announce()
    hearing = polls_of(order, others)
    for topic, body in told.items():
        hearing.told(topic, body)
    following = BackendPool(SPECS[:1], polls=hearing, on_change=nothing, on_load=nothing)
    assert not order.lacks.called, "not before it is there"
    await following.polls.start()
    assert order.lacks.call_args_list == [call({"b"})]
    for evidence in (Evidence.SERVED, Evidence.UNREACHABLE):
        following.report("a", evidence, sent_at=1.0, now=3.0)
    assert others.tell.call_args_list == [call("evidence", pack(("a", Evidence.UNREACHABLE, 2.0)))]
    assert order.member.follower.out_of_reach.failed.call_args.args[0] == "a"
    assert following["a"].health.state is HealthState.UNKNOWN
    following.add(SPECS[1])
    assert order.lacks.call_args_list == [call({"b"}), call(frozenset())]
    await following.polls.stop()
