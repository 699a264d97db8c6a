"""Two replicas that share one Redis are replaced by a newer version one by one, and back again: every call is answered,
changes by either version are seen by the other, and usage adds up over all of it.

The versions are this one and a next one, whose members speak another version of the protocol and write fields that this
one does not know; and this one and the last commit before replicas shared one order, whose exchange by Redis and state
file are others. That commit reads no audit entry of a later one, so it sees no change made by the admin API there.
"""

import asyncio
import contextlib
import signal
import subprocess
from collections import Counter
from itertools import count
from pathlib import Path

import pytest
from gateway_process import serving
from gateway_rig import engine
from redis_server import RedisServer

from gateway.store.base import UsageQuery
from gateway.store.redis_store import RedisStore

ROOT = Path(__file__).parents[2]
BEFORE_ONE_ORDER = "e90e5a05d6"
SERVE = "from gateway.cli import main; main()"
SERVE_NEXT = f"""
import gateway.cluster.wire as wire
import gateway.store.redis_store as redis_store
wire.VERSION += 1
made_by = redis_store._made_by
redis_store._made_by = lambda *fields: {{**made_by(*fields), "of_the_next_version": 1}}
{SERVE}
"""
TOKENS = 4
CALLS = 60  # of each stage
SEEN_S = 10.0  # a change at one replica is known to the other, on a busy machine


def older_checkout(folder):
    """The source of the older version."""
    packed = subprocess.run(
        ["git", "archive", BEFORE_ONE_ORDER, "gateway", "backends", "policies"],
        cwd=ROOT, capture_output=True, check=False,
    )  # fmt: skip
    if packed.returncode:
        pytest.skip("the older commit is not in this checkout")
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
    return folder


class Fleet:
    """Two replicas with folders of their own, and clients that call those that are not about to end."""

    def __init__(self, folder, redis_url, backend):
        self.live, self.statuses, self.stopping = {}, Counter(), False
        self._folder, self._backend, self._stacks, self._numbers = folder, backend, {}, count()
        self._settings = {
            "auth": {"secret": "0123456789abcdef", "trusted_proxies": ["127.0.0.1"]},
            "state": {"redis": {"url": redis_url}},
            "shutdown": {"lame_duck_s": 0.0, "drain_s": 10.0},
        }

    async def start(self, name, version):
        folder = self._folder / f"replica-{next(self._numbers)}"  # an empty one, as a pod has
        folder.mkdir()
        source, program = version
        stack = self._stacks[name] = contextlib.AsyncExitStack()
        process = await stack.enter_async_context(
            serving(
                folder, self._backend, settings=self._settings, environment={"PYTHONPATH": str(source)}, program=program
            )
        )
        async with asyncio.timeout(SEEN_S * 2):
            while await status(process, "/readyz") != 200:  # noqa: ASYNC110 - until it has a leader, or is alone
                await asyncio.sleep(0.05)
        self.live[name] = process

    async def replace(self, name, version):
        process = self.live.pop(name)
        await asyncio.sleep(0.5)  # calls on their way there have arrived, as with a lame duck's time
        await process.end(signal.SIGTERM)
        assert process._process.returncode == 0
        await self._stacks.pop(name).aclose()
        await self.start(name, version)

    async def end(self):
        for name in list(self.live):
            await self.live.pop(name).end(signal.SIGTERM)
            await self._stacks[name].aclose()

    async def close(self):
        for stack in self._stacks.values():
            await stack.aclose()

    async def call_on(self):
        for number in count():
            if self.stopping:
                return
            live = list(self.live.values())
            self.statuses[await live[number % len(live)].ask(f"tenant-{number % 3}", max_tokens=TOKENS)] += 1

    async def serves(self):
        """Wait until so many more calls were answered."""
        before = self.statuses.total()
        async with asyncio.timeout(60):
            while self.statuses.total() < before + CALLS:  # noqa: ASYNC110 - of any client
                await asyncio.sleep(0.02)

    async def shares_changes(self, label):
        """A tenant that is made at one replica is known at the other, each way."""
        for maker, reader in (("a", "b"), ("b", "a")):
            name = f"{label}-by-{maker}"
            made, body = await self.live[maker].admin("POST", "/admin/v1/tenants", {"id": name, "weight": 3})
            assert made == 201, body
            async with asyncio.timeout(SEEN_S):
                while (await self.live[reader].admin("GET", f"/admin/v1/tenants/{name}"))[0] != 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)


async def status(process, path):
    async with process.session.get(process.url + path) as answer:
        return answer.status


async def usage(redis_url):
    shared = RedisStore(redis_url)
    rows = await shared.usage(UsageQuery("2000-01-01", "2999-12-31"))
    await shared.close()
    return sum(row.totals.requests for row in rows), sum(row.totals.output_tokens for row in rows)


@pytest.mark.parametrize("pair", ["older and this", "this and next"])
async def test_forwards_and_back_nothing_fails_and_totals_keep(tmp_path, figure, pair):
    this = (ROOT, SERVE)
    if pair == "older and this":
        before, after = (older_checkout(tmp_path / "older"), SERVE), this
    else:
        before, after = this, (ROOT, SERVE_NEXT)
    with RedisServer(tmp_path) as redis:
        async with engine(speed=0.2) as backend:
            fleet = Fleet(tmp_path, redis.url, backend)
            try:
                await asyncio.gather(fleet.start("a", before), fleet.start("b", before))
                clients = [asyncio.create_task(fleet.call_on()) for _ in range(6)]
                await fleet.serves()
                for number, (name, version) in enumerate([("a", after), ("b", after), ("b", before), ("a", before)]):
                    await fleet.replace(name, version)
                    await fleet.serves()
                    if before is this:
                        await fleet.shares_changes(f"stage-{number}")
                    assert not any(client.done() for client in clients), clients
                fleet.stopping = True
                await asyncio.gather(*clients)
                await fleet.end()
            finally:
                await fleet.close()
            requests, tokens = await usage(redis.url)
    answered = fleet.statuses[200]
    figure(62, f"calls that failed, of {fleet.statuses.total()}, {pair}", fleet.statuses.total() - answered, target="0")
    figure(62, f"calls in the totals, of {answered} answered, {pair}", requests, target="all")
    assert fleet.statuses == {200: answered}
    assert (requests, tokens) == (answered, answered * TOKENS)
