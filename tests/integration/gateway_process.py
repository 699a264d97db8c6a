"""`fairlead serve` as a process of its own, which can be killed, with its state beside its configuration."""

import asyncio
import contextlib
import json
import os
import re
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from forked import FAIRLEAD, fork
from gateway_rig import CHAT, PATIENCE_S, call

from gateway.scheduling.checkpoint.documents import read_document

START_S_MAX = 60.0  # it imports all that it serves with, on a machine that others use too


class Process:
    """A gateway that serves, and a client that calls it. `said` is what it said on stderr until it served."""

    def __init__(self, process, session, url, admin_url, admin_key, *, said):
        self._process, self._session, self.said = process, session, said
        self._url, self._admin_url, self._admin_key = url, admin_url, admin_key

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def url(self) -> str:
        return self._url

    @property
    def admin_url(self) -> str:
        return self._admin_url

    @property
    def session(self) -> aiohttp.ClientSession:
        return self._session

    async def ask(self, tenant: str, **fields: Any) -> int | None:
        """Status of a call; None: the connection was lost. The tenant has a name where its proxy is trusted."""
        headers = {"Authorization": f"Bearer {tenant}", "X-Tenant-Id": tenant, "Content-Type": "application/json"}
        try:
            async with self._session.post(self._url + CHAT, data=json.dumps(call(**fields)), headers=headers) as answer:
                await answer.read()
                return answer.status
        except aiohttp.ClientError:
            return None

    async def admin(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and body of what the admin port says; its body is text where it is no JSON."""
        headers = {"Authorization": f"Bearer {self._admin_key}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        async with self._session.request(method, self._admin_url + path, data=data, headers=headers) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if "json" in answer.content_type else text

    async def requests(self, count: int, query: str = "") -> list[Any]:
        """The requests that the admin port lists, once there are so many and no process is missing."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                status, found = await self.admin("GET", f"/admin/v1/requests{query}")
                if status == 200 and len(found["items"]) == count and not found["missing"]:
                    return found["items"]
                await asyncio.sleep(0.05)

    async def metric(self, name: str) -> dict[str, float]:
        """The values of a family, by its labels as text."""
        _, text = await self.admin("GET", "/metrics")
        return {labels: float(value) for labels, value in re.findall(rf"^{name}{{(.*?)}} (\S+)$", text, re.MULTILINE)}

    async def end(self, signal_number: int) -> str:
        """What it said on stderr until it ended."""
        self._process.send_signal(signal_number)
        _, errors = await asyncio.wait_for(self._process.communicate(), PATIENCE_S)
        return errors.decode()


@contextlib.asynccontextmanager
async def serving(
    folder: Path,
    *backends: Any,
    environment: dict[str, str] | None = None,
    settings: dict[str, Any] | None = None,
    program: str = FAIRLEAD,
    runner: tuple[str, ...] = (),
    **config: Any,
):
    """A Process before these backends, entries of the configuration or servers that are configured so. `runner`: what
    the command line begins with.
    """
    entries = [
        backend if isinstance(backend, dict) else {"name": f"b{number}", "url": backend.url, **config}
        for number, backend in enumerate(backends)
    ]
    configured = {
        "listen": {"port": 0},
        "backends": entries,
        "access_log": {"enabled": False},
        "admin": {"enabled": True, "port": 0, "key_file": str(folder / "admin-key")},
        "auth": {"secret_file": str(folder / "secret")},
        "health": {"idle_s": 0.1, "busy_s": 0.05},
        "shutdown": {"lame_duck_s": 0.0, "drain_s": 0.1},
        **(settings or {}),
    }
    file = folder / "fairlead.yaml"
    file.write_text(yaml.safe_dump(configured))
    # Workers have sockets there, whose paths are short; a parent that is killed leaves them behind.
    temporary = tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True)
    variables = {**os.environ, "TMPDIR": temporary.name, **(environment or {})}
    process: Any
    if runner or "LD_PRELOAD" in variables:
        process = await asyncio.create_subprocess_exec(
            *runner, sys.executable, "-c", program, "serve", "--config", str(file),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=folder, env=variables,
        )  # fmt: skip
    else:
        process = await fork(program, "serve", "--config", str(file), folder=folder, environment=variables)
    try:
        said = ""
        async with asyncio.timeout(START_S_MAX):
            while "admin port is" not in said:
                line = (await process.stderr.readline()).decode()
                assert line, said
                said += line
        url, admin_url = re.findall(r"https?://[\d.]+:\d+(?=\.)", said)
        connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=2 * PATIENCE_S)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            yield Process(process, session, url, admin_url, (folder / "admin-key").read_text().strip(), said=said)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
        temporary.cleanup()


def kept(folder: Path, name: str, kind: type) -> Any:
    """What the process has kept of what it has learnt by now, read without disturbing it."""
    with contextlib.closing(sqlite3.connect(f"file:{folder}/fairlead.db?mode=ro", uri=True)) as database:
        row = database.execute("SELECT body FROM learnt WHERE name = ?", (name,)).fetchone()
    return kind() if row is None else read_document(kind, row[0])
