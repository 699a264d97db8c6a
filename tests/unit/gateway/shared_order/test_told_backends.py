"""What followers are told of backends: enough to know whether two serve the same model."""

import asyncio
from random import Random
from types import SimpleNamespace

from backends.catalog import ModelCard
from backends.pool import BackendPool
from backends.spec import BackendSpec
from gateway.shared_order.backends import Announcer, SharedBackends

SPECS = [BackendSpec("a", "http://127.0.0.1:1"), BackendSpec("b", "http://127.0.0.1:2", revision="v2")]
CARDS = (ModelCard("tiny", "org/tiny", None, 4096, {}),)


def nothing(*_args):
    pass


def options():
    return {
        "on_change": nothing,
        "on_load": nothing,
        "clock": asyncio.get_running_loop().time,
        "rng": Random(1),
    }


async def test_a_follower_knows_which_model_a_backend_serves():
    led = BackendPool(SPECS, **options())
    for backend_id in "ab":
        led[backend_id].cards, led[backend_id].tokenizer = CARDS, "tokens"
    told = {}
    leader = SimpleNamespace(share=told.__setitem__)
    Announcer(SimpleNamespace(leader=leader, soon=nothing), led).announce()
    following = SharedBackends(SPECS, SimpleNamespace(), member="m", is_leading=False, told=told, **options())
    await following.start()
    for backend_id in "ab":
        assert following[backend_id].identified("tiny")() == led[backend_id].identified("tiny")() is not None
    assert following["a"].identified("tiny")().difference(following["b"].identified("tiny")()) == "revision"
    await following.stop()
