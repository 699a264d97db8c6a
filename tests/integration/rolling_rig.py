"""Gateways behind haproxy that are ended and started again one after the other, as a cluster restarts them."""

import asyncio
import contextlib
import csv
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import aiohttp
import pytest
from redis_server import free_port

ROOT = Path(__file__).parents[2]
HAPROXY = shutil.which("haproxy", path=os.environ.get("PATH", "") + ":/usr/sbin")
NEEDS_HAPROXY = pytest.mark.skipif(HAPROXY is None, reason="haproxy is not installed (apt-get install haproxy)")
CALLS_EACH = 3  # that a replica has to serve before the next one goes
LAME_DUCK_S = 1.0  # five checks
SERVES_S_MAX = 60.0  # from a start, on a machine that others use too

# Nothing is tried again: a connection that a gateway would drop is a call that fails.
HAPROXY_CONFIG = """
defaults
    mode http
    retries 0
    timeout connect 2s
    timeout client 30s
    timeout server 30s
    timeout check 2s

listen gateways
    bind 127.0.0.1:{port}
    balance roundrobin
    option httpchk GET /readyz
    default-server check inter 200ms fall 1 rise 1
    {servers}

listen stats
    bind 127.0.0.1:{stats_port}
    stats enable
    stats uri /
"""


class Replica:
    """`fairlead serve` at a port and with files of its own, which it has again when it is started again."""

    def __init__(self, folder, name, *, backend, redis_url, source=ROOT, **settings):
        """`backend`: its entry in the configuration; `source`: the checkout to run; `settings`: further sections."""
        self.name, self.port, self.source = name, free_port(), source
        self._folder = folder / name
        self._folder.mkdir()
        self._config = self._folder / "fairlead.yaml"
        config = {
            "listen": {"port": self.port},
            "backends": [backend],
            "state": {"redis": {"url": redis_url, "timeout_ms": 5000}},
            "access_log": {"enabled": False},
            "shutdown": {"lame_duck_s": LAME_DUCK_S, "drain_s": 20.0},
            **settings,
        }
        self._config.write_text(json.dumps(config))  # JSON is YAML
        self._process = None

    async def start(self):
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "from gateway.cli import main; main()", "serve", "--config", str(self._config),
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, cwd=self._folder,
            env={"PATH": "/usr/bin:/bin", "HOME": str(self._folder), "PYTHONPATH": str(self.source)},
        )  # fmt: skip

    async def terminate(self):
        self._process.send_signal(signal.SIGTERM)
        _, errors = await asyncio.wait_for(self._process.communicate(), 30.0)
        assert self._process.returncode == 0, errors.decode()

    async def assert_alive(self):
        assert self._process.returncode is None, (await self._process.stderr.read()).decode()

    async def kill(self):
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.communicate()


class Haproxy:
    """In front of the replicas; `servers()` is what it knows of each."""

    def __init__(self, replicas):
        self.url, self._stats_url = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        servers = [f"server {replica.name} 127.0.0.1:{replica.port}" for replica in replicas]
        self.config = HAPROXY_CONFIG.format(
            port=self.url.rpartition(":")[2],
            stats_port=self._stats_url.rpartition(":")[2],
            servers="\n    ".join(servers),
        )

    @contextlib.asynccontextmanager
    async def running(self, folder):
        path = folder / "haproxy.cfg"
        path.write_text(self.config)
        quiet = {"stdout": asyncio.subprocess.DEVNULL, "stderr": asyncio.subprocess.DEVNULL}
        process = await asyncio.create_subprocess_exec(HAPROXY, "-db", "-f", str(path), **quiet)
        try:
            yield self
        finally:
            process.kill()
            await process.wait()

    async def servers(self, session):
        """Status and number of calls by name."""
        async with session.get(f"{self._stats_url}/;csv") as answer:
            rows = csv.DictReader((await answer.text()).removeprefix("# ").splitlines())
            return {row["svname"]: (row["status"], int(row["stot"])) for row in rows if row["pxname"] == "gateways"}

    async def until_serving(self, session, replicas, *, more=CALLS_EACH):
        """Until each of these is up, and was sent so many calls from then on."""
        deadline, since = time.monotonic() + SERVES_S_MAX, None
        while True:
            for replica in replicas:
                await replica.assert_alive()
            with contextlib.suppress(aiohttp.ClientConnectorError):  # haproxy itself is about to start
                servers = await self.servers(session)
                now = [servers[replica.name] for replica in replicas]
                if since is None and all(status == "UP" for status, _ in now):
                    since = now
                if since is not None and all(
                    calls >= was + more for (_, calls), (_, was) in zip(now, since, strict=True)
                ):
                    return
            assert time.monotonic() < deadline, "haproxy sends nothing there"
            await asyncio.sleep(0.05)
