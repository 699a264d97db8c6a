"""`fairlead serve` with several workers, and connections to a worker of choice.

The kernel gives a new connection to a worker that accepts. So a connection comes to one worker when the others are
stopped for a moment, shorter than the silence after which they would be taken for lost.
"""

import asyncio
import contextlib
import json
import os
import signal
import ssl
from pathlib import Path
from typing import Any

import aiohttp
from gateway_process import Process, serving
from gateway_rig import CHAT, PATIENCE_S, call

CONNECT_S_MAX = 0.4
SETTINGS = {"workers": 2, "auth": {"trusted_proxies": ["127.0.0.1"], "tenant_from": "key"}}


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Clients:
    """Connections of one tenant to one worker."""

    def __init__(self, url: str, tenant: str, session: aiohttp.ClientSession) -> None:
        self._url, self._session = url, session
        self._headers = {"X-Tenant-Id": tenant, "Authorization": "Bearer k", "Content-Type": "application/json"}

    async def ask(self, **fields: Any) -> int:
        """The status of a whole answer; 0: the connection was lost."""
        try:
            async with self._session.post(
                self._url + CHAT, data=json.dumps(call(**fields)), headers=self._headers
            ) as answer:
                await answer.read()
                return answer.status
        except aiohttp.ClientError:
            return 0

    @contextlib.asynccontextmanager
    async def streaming(self, **fields: Any):
        """The response of a streamed call, once it has begun."""
        body = json.dumps(call(stream=True, **fields))
        async with self._session.post(self._url + CHAT, data=body, headers=self._headers) as answer:
            yield answer

    async def get(self, path: str) -> int:
        async with self._session.get(self._url + path, headers=self._headers) as answer:
            await answer.read()
            return answer.status

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        """Status and JSON of an answer."""
        async with self._session.post(self._url + path, data=json.dumps(body), headers=self._headers) as answer:
            return answer.status, json.loads(await answer.read())


class Workers:
    """A gateway of several workers; `pids` are theirs, worker 0's first."""

    def __init__(self, process: Process, trusted: ssl.SSLContext | None = None) -> None:
        self.process = process
        self._trusted = trusted
        self.parent = process._process.pid
        self.url = process._url
        self.pids = children(self.parent)

    @contextlib.asynccontextmanager
    async def clients(self, tenant: str, pid: int, connections: int = 1):
        """So many connections of this tenant to this worker, once it accepts."""
        tls = self._trusted or True
        connector = aiohttp.TCPConnector(limit=connections, keepalive_timeout=PATIENCE_S * 4, ssl=tls)
        timeout = aiohttp.ClientTimeout(total=4 * PATIENCE_S)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            clients = Clients(self.url, tenant, session)
            async with asyncio.timeout(PATIENCE_S):
                while not await self._connect(clients, pid, connections):  # noqa: ASYNC110 - it is a process
                    await asyncio.sleep(0.2)
            yield clients

    async def _connect(self, clients: Clients, pid: int, connections: int) -> bool:
        others = [each for each in self.pids if each != pid]
        for other in others:
            os.kill(other, signal.SIGSTOP)
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                await asyncio.gather(*(clients.get("/livez") for _ in range(connections)))
        except TimeoutError:
            return False
        else:
            return True
        finally:
            for other in others:
                os.kill(other, signal.SIGCONT)

    async def services(self) -> dict[str, float]:
        """What each tenant was charged until now, at whichever worker."""
        by_labels = await self.process.metric("fairlead_tenant_service_total")
        return {labels.rsplit('tenant="', 1)[1].split('"')[0]: service for labels, service in by_labels.items()}

    async def restarted(self, pid: int) -> int:
        """The process that follows this one, which was killed."""
        async with asyncio.timeout(PATIENCE_S):
            while not (new := set(children(self.parent)) - set(self.pids)):  # noqa: ASYNC110 - it is a process
                await asyncio.sleep(0.02)
        (started,) = new
        self.pids[self.pids.index(pid)] = started
        return started


@contextlib.asynccontextmanager
async def workers(
    folder: Path, *backends: Any, trusted: ssl.SSLContext | None = None, program: str | None = None, **settings: Any
):
    """A gateway of two workers before these engines. `trusted`: as its clients know it, where it has TLS."""
    given = SETTINGS | settings
    given["auth"] = {**SETTINGS["auth"], "secret_file": str(folder / "secret")}
    async with serving(
        folder, *backends, settings=given, **({} if program is None else {"program": program})
    ) as process:
        made = Workers(process, trusted)
        # One that starts while worker 0 is stopped, or does not get to answer, may end and be started anew.
        for pid in made.pids[1:]:
            async with made.clients("anonymous", pid):
                pass
        made.pids = children(made.parent)
        yield made
