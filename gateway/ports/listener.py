"""Listener: binds one port to a server, with its certificate."""

from typing import Final

from aiohttp import web

from gateway.config.sections import ServerTls
from gateway.ports.certificate import Certificate

BACKLOG: Final = 4096


class Listener:
    """One port. Call `start` on the loop that runs it, and `stop`."""

    def __init__(self, server: web.Server, host: str, port: int, tls: ServerTls | None, *, stop_s_max: float) -> None:
        """`stop_s_max`: the time for responses in progress when it stops. Raises ValueError where there is no
        certificate.
        """
        self._host = host
        self._port = port
        self._runner = web.ServerRunner(server, shutdown_timeout=stop_s_max)
        self._certificate = None if tls is None else Certificate(tls)

    async def start(self) -> str:
        """Listen; return the URL. Raises OSError where the port is in use."""
        await self._runner.setup()
        context = None if self._certificate is None else self._certificate.context
        await web.TCPSite(self._runner, self._host, self._port, backlog=BACKLOG, ssl_context=context).start()
        if self._certificate is not None:
            self._certificate.start()
        host, port = self._runner.addresses[0][:2]
        scheme = "http" if context is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    async def stop(self) -> None:
        """Close every connection and the port."""
        if self._certificate is not None:
            await self._certificate.stop()
        await self._runner.cleanup()
