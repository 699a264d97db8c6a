"""The gateway's tests run on the loop that `fairlead serve` runs on, or on one whose time jumps while it waits."""

import asyncio

import forked
import uvloop
from jumping_loop import JumpingLoop


def pytest_collection_finish(session):
    if session.config.getoption("workers", 0) and session.items:
        forked.share()  # it imports for a second of CPU, and each worker would start its own


def pytest_asyncio_loop_factories(config, item):
    jumping = item.get_closest_marker("jumping")  # the closest one may say that it does not
    if jumping is not None and jumping.args != (False,):
        return {"jumping": JumpingLoop}
    gateway = item.path.name.startswith(("test_gateway_", "test_admin_"))
    return {"uvloop": uvloop.new_event_loop} if gateway else {"asyncio": asyncio.new_event_loop}
