"""SIGKILL at any moment: what was acknowledged is there, and usage loses what came after the last flush at most, and
never counts twice.
"""

import asyncio
import signal
import time
from dataclasses import dataclass, field
from math import inf
from multiprocessing import connection
from random import Random

import kill_worker
import pytest
from forked import context
from redis_server import RedisServer

from gateway.store.base import Totals, UsageQuery
from gateway.store.sqlite import SqliteStore

ROUNDS, ROUNDS_LONG = 40, 200
ROUNDS_WITH_REDIS = 30
LONG_ROUNDS = 8
SOON_S = 0.01  # how often a round of milliseconds flushes usage


@dataclass
class Life:
    """What one process said before it was killed."""

    writer: str = ""
    wrote: dict[int, tuple[str, float]] = field(default_factory=dict)
    used: int = 0
    flushed: int = 0

    def heard(self, said) -> None:
        match said:
            case ("writer", writer):
                self.writer = writer
            case ("wrote", version, name, weight):
                self.wrote[version] = (name, weight)
            case ("used", count):
                self.used = count
            case ("flushed", count):
                self.flushed = count


@pytest.fixture(scope="module")
def processes():
    return context()


class Victim:
    def __init__(self, context, path, *, redis_url=None, flush_s):
        self.conn, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=kill_worker.work, args=(theirs, path, redis_url, flush_s), daemon=True)
        self._process.start()
        theirs.close()
        self.life = Life()

    def die(self):
        self._process.kill()
        try:
            while True:
                self.life.heard(self.conn.recv())
        except (EOFError, OSError):
            pass
        self._process.join()
        assert self._process.exitcode == -signal.SIGKILL, "it was alive until then"
        self._process.close()


def live_and_die(victims, lives_s, writes_min=0):
    """Let each live so long from its first word on, and until it has written so often, on a busy machine; listening so
    that none waits for us. Then kill it.
    """
    dies_at = {}
    living = dict(zip(victims, lives_s, strict=True))
    while living:
        for conn in connection.wait([victim.conn for victim in living], timeout=0.005):
            victim = next(victim for victim in living if victim.conn is conn)
            victim.life.heard(conn.recv())
            dies_at.setdefault(victim, time.monotonic() + living[victim])
        now = time.monotonic()
        due = [victim for victim in living if now >= dies_at.get(victim, inf) and len(victim.life.wrote) >= writes_min]
        for victim in due:
            victim.die()
            del living[victim]


async def check(path, lives):
    """What the state file has after these lives, against what they said; opening it must need no repair."""
    store = SqliteStore(path)
    await store.open()
    documents = {document.name: document for document in (await store.news(0)).documents}
    revisions = {entry.revision for entry in await store.audit(limit=1_000)}
    rows = await store.usage(UsageQuery("2000-01-01", "2999-12-31"))
    await store.close()
    counted = {row.writer: row.totals for row in rows}
    for life in lives:
        for version, (name, weight) in life.wrote.items():
            assert documents[name].version >= version
            assert documents[name].body["weight"] >= weight
            assert version in revisions or version <= max(revisions) - 1_000
        check_usage(life, counted.get(life.writer, Totals()))


def check_usage(life, totals):
    assert life.flushed <= totals.requests <= life.used + 1  # killed between counting and saying so
    assert totals == Totals(totals.requests, 3 * totals.requests, totals.requests, 2 * totals.requests)


async def kill_again_and_again(path, processes, *, rounds, redis_url=None):
    """Every tenth dies while it opens the store, all others while they write."""
    rng, lives = Random(1), []
    for number in range(rounds):
        victim = Victim(processes, path, redis_url=redis_url, flush_s=SOON_S)
        if number % 10 == 9:
            await asyncio.sleep(rng.uniform(0.0, 0.03))
            victim.die()
        else:
            live_and_die([victim], [rng.uniform(0.0, 0.08)], rng.randrange(1, 4))
        lives.append(victim.life)
        await check(path, lives[-1:] if number % 20 else lives)
    await check(path, lives)
    assert sum(len(life.wrote) for life in lives) > rounds, "they lived long enough to write"


@pytest.mark.parametrize("rounds", [ROUNDS, pytest.param(ROUNDS_LONG, marks=pytest.mark.long)])
async def test_killed_at_any_moment_acknowledged_changes_are_there_and_usage_never_counts_twice(
    tmp_path, processes, rounds
):
    await kill_again_and_again(tmp_path / "fairlead.db", processes, rounds=rounds)


async def test_with_redis_acknowledged_changes_are_on_the_own_disk_too(tmp_path, processes):
    with RedisServer(tmp_path) as server:
        await kill_again_and_again(tmp_path / "fairlead.db", processes, rounds=ROUNDS_WITH_REDIS, redis_url=server.url)


async def test_usage_loses_what_came_after_the_last_flush_at_most(tmp_path, processes):
    rng = Random(2)
    paths = [tmp_path / f"{number}.db" for number in range(LONG_ROUNDS)]
    victims = [Victim(processes, path, flush_s=0.4) for path in paths]
    live_and_die(victims, [rng.uniform(1.2, 2.2) for _ in victims])
    for victim, path in zip(victims, paths, strict=True):
        await check(path, [victim.life])
        assert 0 < victim.life.flushed < victim.life.used, (
            "it lived long enough to keep something and to lose something"
        )
