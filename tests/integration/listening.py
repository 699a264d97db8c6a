"""Servers of tests, each on a free port of 127.0.0.1 while a context lasts."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def listening(served: web.Application | list[web.RouteDef] | Handler) -> AsyncIterator[str]:
    """Serve an application, these routes, or a handler of all requests; give its URL."""
    if isinstance(served, list):
        routes, served = served, web.Application()
        served.add_routes(routes)
    runner = (
        web.AppRunner(served, shutdown_timeout=0.1)
        if isinstance(served, web.Application)
        else web.ServerRunner(web.Server(served), shutdown_timeout=0.1)
    )
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def backend_listening(backend):
    """Serve a backend that answers in bytes (`serve`, `close`); set its `url`, and give it."""
    server = await asyncio.start_server(backend.serve, "127.0.0.1", 0)
    backend.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield backend
    finally:
        server.close()
        await backend.close()
        await server.wait_closed()
