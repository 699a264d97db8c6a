"""What is killed in the tests of durability: a registry and a book of usage that say what they were told, at once.

Its module is loaded by a fork server, so that a round costs a fork and not an interpreter.
"""

import asyncio
import itertools
import time
from multiprocessing.connection import Connection
from pathlib import Path

from gateway.budgets import usage
from gateway.registry.registry import Registry
from gateway.store.base import Store
from gateway.store.mirrored import MirroredStore
from gateway.store.redis_store import RedisStore
from gateway.store.sqlite import SqliteStore

NAMES = 10
USED_EVERY_S = 0.001


def work(said: Connection, path: Path, redis_url: str | None, flush_s: float) -> None:
    """Write until killed. Says ("writer", id), ("wrote", version, name, weight), ("used", count), and at the end of a
    flush that began after this count, ("flushed", count).
    """
    usage.FLUSH_S = flush_s
    asyncio.run(_work(said, path, redis_url))


async def _work(said: Connection, path: Path, redis_url: str | None) -> None:
    store: Store = SqliteStore(path)
    if redis_url is not None:
        store = MirroredStore(RedisStore(redis_url, settle_s=0.0), store, sync_s=0.01)
    registry = Registry(store, {})
    await registry.start()
    book = _SaidBook(store, said)
    said.send(("writer", book.writer))
    book.start()
    await asyncio.gather(_write(said, registry), _use(said, book))


class _SaidBook(usage.UsageBook):
    """Usage that says what of it is kept."""

    def __init__(self, store: Store, said: Connection) -> None:
        super().__init__(store)
        self._said = said
        self.count = 0

    async def flush(self) -> None:
        count = self.count
        await super().flush()
        self._said.send(("flushed", count))


async def _write(said: Connection, registry: Registry) -> None:
    started = time.monotonic_ns()
    for number in itertools.count():
        weight = float(started + number)  # more than any before, in this life or an earlier one
        entry = await registry.changes.put("tenants", f"t{number % NAMES}", {"weight": weight}, actor="ann")
        said.send(("wrote", entry.version, entry.name, weight))


async def _use(said: Connection, book: _SaidBook) -> None:
    for count in itertools.count(1):
        book.used("alice", key="k1", model="m", prompt_tokens=3, cached_tokens=1, output_tokens=2)
        book.count = count
        said.send(("used", count))
        await asyncio.sleep(USED_EVERY_S)
