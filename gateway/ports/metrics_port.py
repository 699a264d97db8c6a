"""MetricsPort: a port for Prometheus: GET /metrics and GET /livez without a key, and nothing else.

The admin port has the same page for a key of the role viewer, which also reads tenants and the audit log. This port has
no authentication: the network decides which hosts may connect. It reads no body, and its answers repeat no input.
"""

import logging
from collections.abc import Awaitable, Callable

from aiohttp import hdrs, web

from gateway.ports.error_connection import ErrorServer
from gateway.ports.listener import Listener

KEEPALIVE_S = 120.0  # Prometheus comes back every 15 to 60 s
STOP_S_MAX = 1.0

log = logging.getLogger(__name__)

Page = Callable[[], Awaitable[web.Response]]


class MetricsPort:
    """The server of the metrics port. Made on the loop that runs it; call `start`, and `stop` at the end."""

    def __init__(self, host: str, port: int, page: Page) -> None:
        """`page` makes the response to GET /metrics. Port 0 stands for any free port."""
        self._pages: dict[str, Page] = {"/metrics": page, "/livez": _alive}
        server = ErrorServer(self._answer, log, keepalive_timeout=KEEPALIVE_S)
        self._listener = Listener(server, (host, port), None, stop_s_max=STOP_S_MAX, descriptors_ratio_max=1.0)

    async def start(self) -> str:
        """Listen; return the URL of the page. Raises OSError where the port is taken."""
        return f"{await self._listener.start()}/metrics"

    async def stop(self) -> None:
        await self._listener.stop()

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        page = self._pages.get(request.path)
        if page is None:
            response = web.Response(status=404)
        elif request.method not in (hdrs.METH_GET, hdrs.METH_HEAD):
            response = web.Response(status=405, headers={hdrs.ALLOW: "GET, HEAD"})
        else:
            response = await page()
        response.headers[hdrs.SERVER] = "fairlead"
        if not request.content.is_eof():  # a body that is not read
            response.force_close()
        return response


async def _alive() -> web.Response:
    return web.Response()
