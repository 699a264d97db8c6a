"""An embedded engine as a process of its own, at an address that stays: it can be ended in any way, and come back."""

import asyncio
import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

from forked import Forked, fork
from gateway_rig import FAST, PATIENCE_S

START_S_MAX = 4 * PATIENCE_S  # it imports all that it serves with, on a machine that others use too
PROGRAM = """
import asyncio, json, signal, sys
from backends.engine.http.server import EngineOptions, EngineServer

async def main(host, port, options):
    server, asked_to_end = EngineServer(EngineOptions(**options)), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked_to_end.set)
    print(await server.start(host, port), flush=True)
    await asked_to_end.wait()
    await server.stop()

asyncio.run(main(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])))
"""


class EngineProcess:
    """One engine. `url` is where it serves, each time that it is started."""

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0, **options: Any) -> None:
        """`port` 0: a free one, kept from the first start on."""
        self._host, self.port = host, port
        self._options = json.dumps({**FAST, **options})
        self._process: Forked | None = None
        self.url = ""

    async def start(self) -> None:
        arguments = (self._host, str(self.port), self._options)
        self._process = await fork(PROGRAM, *arguments, folder=Path.cwd(), environment=dict(os.environ))
        async with asyncio.timeout(START_S_MAX):
            self.url = (await self._process.stdout.readline()).decode().strip()
        assert self.url, "it has ended"
        self.port = int(self.url.rpartition(":")[2])

    async def terminate(self) -> None:
        """End it as an operator does. As vLLM, it closes the connections of what it runs."""
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """End it as a crash does. Idempotent."""
        await self._end(signal.SIGKILL)

    async def _end(self, signal_number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal_number)
            async with asyncio.timeout(PATIENCE_S):
                await self._process.communicate()


@contextlib.asynccontextmanager
async def engines(*hosts, **options):
    """Engines at these addresses, all at one port where there are several addresses."""
    started = []
    try:
        for host in hosts:
            port = started[0].port if len(set(hosts)) > 1 and started else 0
            started.append(EngineProcess(host=host, port=port, **options))
            await started[-1].start()
        yield started
    finally:
        await asyncio.gather(*(engine.kill() for engine in started))
