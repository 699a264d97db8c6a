"""A gateway that cannot be put together leaves nothing open."""

import pytest

from gateway import app
from gateway.app import EmbeddedEngine, open_gateway
from gateway.config import Config
from gateway.order import OwnOrder, Process
from gateway.store.sqlite import SqliteStore

CONFIG = Config(listen={"port": 0}, access_log={"enabled": False})


class Watched(OwnOrder):
    """An order that counts how often it is closed."""

    def __init__(self):
        super().__init__(CONFIG)
        self.closed = 0

    async def close(self):
        self.closed += 1


class Leaderless(Process):
    async def open(self):
        raise OSError("the leader does not answer")


async def test_an_order_that_does_not_open_is_closed():
    order = Watched()
    order.process = Leaderless()
    with pytest.raises(OSError, match="does not answer"):
        await open_gateway(CONFIG, SqliteStore(None), order=order)
    assert order.closed == 1


async def test_what_is_open_is_closed_where_a_part_cannot_be_made(monkeypatch):
    stopped, stop, order = [], EmbeddedEngine.stop, Watched()

    async def stops(engine):
        stopped.append(engine.is_running)
        await stop(engine)

    def no_listener(*_args, **_options):
        raise ValueError("there is no certificate")

    monkeypatch.setattr(EmbeddedEngine, "stop", stops)
    monkeypatch.setattr(app, "Listener", no_listener)
    with pytest.raises(ValueError, match="no certificate"):
        await open_gateway(CONFIG, SqliteStore(None), order=order)
    assert (order.closed, stopped) == (1, [True])


async def test_a_gateway_that_is_stopped_closes_its_order_once():
    order = Watched()
    gateway = await open_gateway(CONFIG, SqliteStore(None), order=order)
    await gateway.start()
    await gateway.stop()
    await gateway.stop()
    assert order.closed == 1
