"""Several `fairlead serve` that share a real Redis, and so one order; and calls to a replica of choice."""

import asyncio
import contextlib
import os
import re
from pathlib import Path
from typing import Any

from founding import FOUNDS
from gateway_process import Process, serving
from gateway_rig import PATIENCE_S
from redis_server import RedisServer

SECRET = "0123456789abcdef0123456789abcdef"
SETTINGS = {"auth": {"secret": SECRET, "trusted_proxies": ["127.0.0.1"], "tenant_from": "key"}}
ELECTED_S_MAX = 15.0  # a first leader: after the lease of one that may have been, on a busy machine


class Replicas:
    """Replicas by number; `processes` are those that run."""

    def __init__(self, processes: list[Process]) -> None:
        self.processes = processes

    def pid(self, number: int) -> int:
        return self.processes[number]._process.pid

    def kill(self, number: int, signal_number: int) -> None:
        os.kill(self.pid(number), signal_number)

    async def value(self, number: int, name: str) -> float:
        """The value of a family without labels, at one replica."""
        _, text = await self.processes[number].admin("GET", "/metrics")
        found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
        assert found is not None, name
        return float(found[1])

    async def leader(self, *, among: list[int] | None = None) -> int:
        """The number of the replica that leads, once there is one that these agree on."""
        numbers = range(len(self.processes)) if among is None else among
        async with asyncio.timeout(ELECTED_S_MAX):
            while True:
                leads = [await self.value(number, "fairlead_cluster_leader") for number in numbers]
                epochs = {await self.value(number, "fairlead_cluster_epoch") for number in numbers}
                if sum(leads) == 1 and len(epochs) == 1:
                    return list(numbers)[leads.index(1)]
                await asyncio.sleep(0.05)

    async def ready(self, *, among: list[int] | None = None) -> None:
        """Wait until these replicas are ready."""
        for number in range(len(self.processes)) if among is None else among:
            process = self.processes[number]
            async with asyncio.timeout(PATIENCE_S * 2):
                while True:
                    async with process._session.get(process._url + "/readyz") as answer:
                        if answer.status == 200:
                            break
                    await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def replicas(
    folder: Path, server: RedisServer, count: int, *backends: Any, program: str = FOUNDS, **settings: Any
):
    """So many replicas before these engines, all started at once."""
    given = SETTINGS | {"state": {"redis": {"url": server.url}}} | settings
    async with contextlib.AsyncExitStack() as stack:

        async def start(number: int) -> Process:
            own = folder / str(number)
            own.mkdir()
            return await stack.enter_async_context(serving(own, *backends, settings=given, program=program))

        made = Replicas(await asyncio.gather(*(start(number) for number in range(count))))
        await made.leader()
        yield made
