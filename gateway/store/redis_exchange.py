"""Peer exchange over Redis: each replica publishes its message, after it has received the newest of all others.

It has a connection of its own, so that it does not wait for the store's calls.
"""

from collections.abc import Mapping
from importlib import resources
from typing import Any, NamedTuple

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.store.base import StoreUnavailable
from gateway.store.redis_store import TIMEOUT_S, connections

KEPT_MS = 60_000  # for which a message is kept: the minute of a limit


class PeerMessage(NamedTuple):
    """A message (`word`) of another replica, and its age."""

    age_s: float
    word: bytes


class ExchangeResult(NamedTuple):
    """The result of one exchange. `taken`: the message was published. Otherwise `heard` holds the latest message of
    every other replica, by name. `said` is the number of messages published so far, by all replicas.
    """

    taken: bool
    said: int
    heard: Mapping[str, PeerMessage]


class RedisExchange:
    """Publishes and receives messages. Mutable; used on one loop."""

    def __init__(
        self, url: str, *, prefix: str = "fairlead", timeout_s: float = TIMEOUT_S, options: dict[str, Any] | None = None
    ) -> None:
        """Arguments as for RedisStore."""
        self._keys = [f"{{{prefix}}}:{name}" for name in ("replicas", "said")]
        pool = connections(url, timeout_s=timeout_s, options=options or {})
        self._redis = Redis(connection_pool=pool)
        script = resources.files("gateway.store").joinpath("data", "meet.lua").read_text(encoding="utf-8")
        self._script = self._redis.register_script(script)

    async def receive_from(self, name: str, said: int) -> ExchangeResult:
        """The latest messages of the others, if any came after the first `said` ones; else `taken`. Raises
        StoreUnavailable.
        """
        return await self.publish(name, b"", said)

    async def publish(self, name: str, word: bytes, said: int) -> ExchangeResult:
        """Publish a message, unless there are messages after the first `said` ones. Raises StoreUnavailable within the
        timeout.
        """
        try:
            taken, said, *rest = await self._script(keys=self._keys, args=[name, word, said, KEPT_MS])
        except (RedisError, OSError) as error:
            raise StoreUnavailable(f"Redis: {error or type(error).__name__}") from error
        others = zip(rest[::3], rest[1::3], rest[2::3], strict=True)
        return ExchangeResult(
            bool(taken), said, {other.decode(): PeerMessage(age_ms / 1000, word) for other, age_ms, word in others}
        )

    async def close(self) -> None:
        await self._redis.aclose()
        await self._redis.connection_pool.aclose()
