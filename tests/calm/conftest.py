"""The checks run on the loop that `fairlead serve` runs on."""

import asyncio

import uvloop


def pytest_asyncio_loop_factories(config, item):
    return {"uvloop": uvloop.new_event_loop} if item.path.parent.name == "calm" else {"asyncio": asyncio.new_event_loop}
