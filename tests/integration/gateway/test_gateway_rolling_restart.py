"""Three gateways behind haproxy are restarted one after the other under load, as a cluster does it: nobody notices."""

import asyncio
import contextlib
import csv
import json
import os
import shutil
import signal
import sys
import time

import aiohttp
import pytest
from gateway_rig import CHAT, Reply, call, engine
from redis_server import RedisServer, free_port

from gateway.store.redis_store import RedisStore

HAPROXY = shutil.which("haproxy", path=os.environ.get("PATH", "") + ":/usr/sbin")
REPLICAS = 3
STREAMERS = 4
ASKERS = 3
TOKENS = {
    True: 25,
    False: 2,
}  # of a stream, half a second; of a whole answer, so that some call is always about to come
CALLS_EACH = 3  # that a replica has to serve before the next one goes
LAME_DUCK_S = 1.0  # five checks
SERVES_S_MAX = 60.0  # from a start, on a machine that others use too

pytestmark = pytest.mark.skipif(HAPROXY is None, reason="haproxy is not installed (apt-get install haproxy)")

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

    def __init__(self, folder, name, *, backend_url, redis_url):
        self.name, self.port = name, free_port()
        self._folder = folder / name
        self._folder.mkdir()
        self._config = self._folder / "fairlead.yaml"
        config = {
            "listen": {"port": self.port},
            "backends": [{"name": "b0", "url": backend_url}],
            "state": {"redis": {"url": redis_url, "timeout_ms": 5000}},
            "access_log": {"enabled": False},
            "shutdown": {"lame_duck_s": LAME_DUCK_S, "drain_s": 20.0},
        }
        self._config.write_text(json.dumps(config))  # JSON is YAML
        self._process = None

    async def start(self):
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "from gateway.cli import main; main()", "serve", "--config", str(self._config),
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, cwd=self._folder,
            env={"PATH": "/usr/bin:/bin", "HOME": str(self._folder)},
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


class Load:
    """Callers who call one after the other, until they are stopped."""

    def __init__(self, session, url):
        self._session, self._url = session, url
        self._stopping = False
        self.replies = []  # (streamed, reply)

    async def __aenter__(self):
        kinds = [True] * STREAMERS + [False] * ASKERS
        self._tasks = [asyncio.create_task(self._call_on(stream)) for stream in kinds]
        return self

    async def __aexit__(self, *_):
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def _call_on(self, stream):
        body = json.dumps(call(stream=stream, max_tokens=TOKENS[stream]))
        headers = {"Content-Type": "application/json", "Authorization": "Bearer alice"}
        while not self._stopping:
            async with self._session.post(self._url + CHAT, data=body, headers=headers) as answer:
                self.replies.append((stream, Reply(answer.status, answer.headers, await answer.read())))


def assert_whole(streamed, reply):
    assert reply.status == 200, reply
    if not streamed:
        assert reply.json["usage"]["completion_tokens"] == TOKENS[False]
        return
    assert reply.events[-1] == "[DONE]"
    choices = [json.loads(event)["choices"][0] for event in reply.events[:-1]]
    assert sum(bool(choice["delta"].get("content")) for choice in choices) == TOKENS[True]
    assert choices[-1]["finish_reason"] == "length"


@pytest.mark.long  # six processes; test_gateway_shutdown.py ends one at a time
async def test_no_call_fails_while_every_replica_is_restarted(tmp_path):
    with RedisServer(tmp_path) as redis:
        async with engine(speed=0.05) as backend, aiohttp.ClientSession() as session:
            replicas = [
                Replica(tmp_path, f"r{number}", backend_url=backend.url, redis_url=redis.url)
                for number in range(REPLICAS)
            ]
            try:
                await asyncio.gather(*(replica.start() for replica in replicas))
                async with Haproxy(replicas).running(tmp_path) as haproxy:
                    await haproxy.until_serving(session, replicas, more=0)
                    async with Load(session, haproxy.url) as load:
                        await haproxy.until_serving(session, replicas)
                        for replica in replicas:
                            await replica.terminate()
                            await replica.start()
                            await haproxy.until_serving(session, [replica])
                await asyncio.gather(*(replica.terminate() for replica in replicas))
            finally:
                await asyncio.gather(*(replica.kill() for replica in replicas))
        for streamed, reply in load.replies:
            assert_whole(streamed, reply)
        # Six lives have told what was used in them, and each once.
        used_tokens = sum(TOKENS[streamed] for streamed, _ in load.replies)
        assert await shared_usage(redis.url) == (len(load.replies), used_tokens)


async def shared_usage(redis_url):
    shared = RedisStore(redis_url)
    rows = await shared.usage(first_day="2000-01-01", last_day="2999-12-31")
    await shared.close()
    return sum(row.totals.requests for row in rows), sum(row.totals.output_tokens for row in rows)
