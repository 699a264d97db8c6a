"""A gateway of several workers that are killed or stopped under load."""

import asyncio
import contextlib
import os
import signal
import ssl
from collections import Counter

import pytest
from gateway_rig import FAST, PATIENCE_S, engine, running
from redis_server import free_port
from tls_rig import NEEDS_OPENSSL, make_authority
from workers_rig import workers

from gateway.cluster.follower.leaderless import LEADERLESS_S_MAX

CONNECTIONS = 6
SLOTS = 4
STOPPED_S = 1.5  # longer than the silence after which a connection is lost (gateway/cluster/promise.py)
AT_WORK = {**FAST, "speed": 0.3, "requests_running_max": SLOTS}


class Load:
    """Connections of both workers that ask again and again; what each was answered, by worker."""

    def __init__(self, backend, sides):
        self.statuses = [Counter() for _ in sides]
        self.most = 0  # ever in flight at the backend
        self.longest_s = [0.0 for _ in sides]  # between two answers of a worker
        self._backend, self._sides = backend, sides
        self._tasks = []

    async def __aenter__(self):
        asking = [self._ask(*each) for each in enumerate(self._sides) for _ in range(CONNECTIONS)]
        self._tasks = [asyncio.create_task(each) for each in (self._look(), *asking)]
        await self.served()
        return self

    async def __aexit__(self, *_):
        for task in self._tasks:
            task.cancel()
        done = await asyncio.gather(*self._tasks, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in done), done

    async def served(self, workers=(0, 1), calls=20):
        """Wait until so many more calls were served at each of these workers."""
        goals = {worker: self.statuses[worker][200] + calls for worker in workers}
        async with asyncio.timeout(2 * PATIENCE_S):
            while any(self.statuses[worker][200] < goal for worker, goal in goals.items()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    def failed(self, worker):
        return sum(count for status, count in self.statuses[worker].items() if status != 200)

    async def _ask(self, number, clients):
        loop = asyncio.get_running_loop()
        served_at = loop.time()
        while True:
            status = await clients.ask(max_tokens=8)
            self.statuses[number][status] += 1
            if status == 200:
                self.longest_s[number] = max(self.longest_s[number], loop.time() - served_at)
                served_at = loop.time()
            else:
                await asyncio.sleep(0.05)

    async def _look(self):
        while True:
            self.most = max(self.most, running(self._backend))
            await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def under_load(tmp_path, **settings):
    async with (
        engine(**AT_WORK) as backend,
        workers(tmp_path, {"name": "b0", "url": backend.url, "requests_running_max": SLOTS}, **settings) as gateway,
        gateway.clients("alice", gateway.pids[0], CONNECTIONS) as here,
        gateway.clients("bob", gateway.pids[1], CONNECTIONS) as there,
        Load(backend, (here, there)) as load,
    ):
        yield gateway, load


@pytest.mark.parametrize("killed", [0, 1])
async def test_a_killed_worker_fails_no_call_of_the_other(tmp_path, killed):
    async with under_load(tmp_path) as (gateway, load):
        os.kill(gateway.pids[killed], signal.SIGKILL)
        await gateway.restarted(gateway.pids[killed])
        await load.served()
        other = 1 - killed
        assert load.failed(other) == 0 or load.longest_s[other] > LEADERLESS_S_MAX, "worker 0 was back in time"
        assert load.failed(killed) <= CONNECTIONS  # those that it had
        assert load.most <= SLOTS


@pytest.mark.parametrize("stopped", [(0,), (1,), (0, 1)])
async def test_a_worker_that_was_stopped_goes_on(tmp_path, stopped):
    async with under_load(tmp_path) as (gateway, load):
        for number in stopped:
            os.kill(gateway.pids[number], signal.SIGSTOP)
        await asyncio.sleep(STOPPED_S)
        for number in stopped:
            os.kill(gateway.pids[number], signal.SIGCONT)
        await load.served()
        assert (load.failed(0), load.failed(1)) == (0, 0)
        assert load.most <= SLOTS


async def test_counters_never_fall_when_workers_are_killed(tmp_path):
    admin = {"enabled": True, "port": free_port(), "key_file": str(tmp_path / "admin-key")}
    async with under_load(tmp_path, admin=admin) as (gateway, load):

        async def count():
            return sum((await gateway.process.metric("fairlead_tenant_requests_total")).values())

        counts = [await count()]
        for number in (1, 0, 1):
            os.kill(gateway.pids[number], signal.SIGKILL)
            await gateway.restarted(gateway.pids[number])
            await load.served()
            async with asyncio.timeout(PATIENCE_S):
                while not (counted := await page(count)):  # noqa: ASYNC110 - the port is worker 0's
                    await asyncio.sleep(0.02)
            counts.append(counted)
        assert counts == sorted(counts)


async def test_the_next_worker_0_has_the_counters_of_one_that_does_not_answer(tmp_path):
    """Processes start, serve and are killed, which takes seconds."""
    admin = {"enabled": True, "port": free_port(), "key_file": str(tmp_path / "admin-key")}
    async with under_load(tmp_path, admin=admin) as (gateway, load):

        async def counted(tenant):
            return sum(
                value
                for labels, value in (await gateway.process.metric("fairlead_tenant_requests_total")).items()
                if f'tenant="{tenant}"' in labels
            )

        await load.served()
        async with asyncio.timeout(PATIENCE_S):
            while not (before := await counted("bob")):  # noqa: ASYNC110 - a busy worker may not answer at once
                await asyncio.sleep(0.02)
        os.kill(gateway.pids[1], signal.SIGSTOP)
        try:
            os.kill(gateway.pids[0], signal.SIGKILL)
            await gateway.restarted(gateway.pids[0])
            async with asyncio.timeout(PATIENCE_S):
                while (after := await page(lambda: counted("bob"))) is None:  # noqa: ASYNC110 - it is a process
                    await asyncio.sleep(0.02)
        finally:
            os.kill(gateway.pids[1], signal.SIGCONT)
        assert after >= before


async def page(count):
    """What the counter says; None: the port is not there yet."""
    try:
        return await count()
    except OSError:
        return None


@NEEDS_OPENSSL
async def test_every_worker_has_the_listeners_certificate(tmp_path):
    folder = make_authority(tmp_path)
    listen = {"port": 0, "tls": {"cert_file": str(folder / "server.pem"), "key_file": str(folder / "server.key")}}
    trusted = ssl.create_default_context(cafile=folder / "ca.pem")
    async with engine() as backend, workers(tmp_path, backend, listen=listen, trusted=trusted) as gateway:
        for pid in gateway.pids:
            async with gateway.clients("alice", pid) as alice:
                assert await alice.ask() == 200
