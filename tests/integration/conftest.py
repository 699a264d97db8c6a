"""The gateway's tests run on the loop that `fairlead serve` runs on."""

import asyncio

import uvloop


def pytest_asyncio_loop_factories(config, item):
    gateway = item.path.name.startswith(("test_gateway_", "test_admin_"))
    return {"uvloop": uvloop.new_event_loop} if gateway else {"asyncio": asyncio.new_event_loop}
