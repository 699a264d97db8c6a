"""Demo: two tenants that call this gateway for two minutes, one now and then and one as much as it can.

A newcomer sees by them what fairness does, within a minute of `make run`: the quiet one hardly waits, though the flood
alone would fill the embedded engine. They are tenants as any other, and may be given weights meanwhile; at the end
those that the demo has made are deleted. Their keys are known to this process alone, for as long as the demo runs.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final

from gateway.config.key_file import new_key
from gateway.identity.auth import Identity
from gateway.identity.key_ring import KeyRing
from gateway.registry.registry import AlreadyThere, Registry, RegistryError
from gateway.store.base import StoreFull, StoreUnavailable

if TYPE_CHECKING:
    import aiohttp

DEMO_S: Final = 120.0
QUIET, FLOOD = "demo-quiet", "demo-flood"
QUIET_EVERY_S: Final = 1.0
QUIET_TOKENS: Final = 32
# Answers of one length would end all at once, and the quiet tenant would wait for that: real ones differ.
FLOOD_TOKENS: Final = (48, 208)
FLOOD_CALLS_MAX: Final = 256
REFUSED_S: Final = 0.5  # after an error: a demo that retries at once would be a load test
PROMPT: Final = "Say what a fair queue is, in a few words. " * 8
KIND: Final = "tenants"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoTarget:
    """What the demo calls: this gateway at `url`, for `model`, with an engine that runs `requests_max` at a time."""

    url: str
    model: str
    requests_max: int


class Demo:
    """The demo of one process. Made on the loop; `stop` it."""

    def __init__(self, registry: Registry, keys: KeyRing[Identity], target: Callable[[], DemoTarget | None]) -> None:
        """`keys` are accepted at the data port besides all others. `target` None: there is no embedded engine here."""
        self._registry = registry
        self._keys = keys
        self.target = target
        self._running: asyncio.Task[None] | None = None
        self.ends_at_s = 0.0
        """Seconds since 1970."""

    @property
    def is_running(self) -> bool:
        return self._running is not None and not self._running.done()

    def is_possible(self) -> bool:
        return self.target() is not None

    def begin(self, target: DemoTarget, *, actor: str) -> None:
        """Make the tenants, and let them call."""
        assert not self.is_running, "the caller has looked"
        self.ends_at_s = time.time() + DEMO_S
        self._running = asyncio.create_task(self._run(target, actor))

    async def stop(self) -> None:
        """End the demo now. Idempotent."""
        running = self._running
        if running is not None:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def _run(self, target: DemoTarget, actor: str) -> None:
        keys = {tenant: new_key() for tenant in (QUIET, FLOOD)}
        making = asyncio.ensure_future(self._make(actor))
        try:
            await asyncio.shield(making)  # what has begun to be written is known, and deleted again
            for tenant, key in keys.items():
                self._keys.put(tenant, self._keys.hmac_hex(key), Identity(tenant))
            with suppress(TimeoutError):
                async with asyncio.timeout(DEMO_S):
                    await _call_as_both(target, keys)
        finally:
            for tenant in keys:
                self._keys.drop(tenant)
            for tenant in await making:
                with suppress(RegistryError, StoreUnavailable, StoreFull):
                    await self._registry.delete(KIND, tenant, actor=actor)

    async def _make(self, actor: str) -> list[str]:
        """Make the tenants, and return those that were not there before."""
        made = []
        for tenant in (QUIET, FLOOD):
            try:
                await self._registry.create(KIND, tenant, {}, actor=actor)
                made.append(tenant)
            except AlreadyThere:
                continue
            except (RegistryError, StoreUnavailable, StoreFull) as error:
                log.warning("the demo cannot make %s: %s", tenant, error)
        return made


async def _call_as_both(target: DemoTarget, keys: Mapping[str, str]) -> None:
    """Call until cancelled."""
    import aiohttp  # noqa: PLC0415 - 11 MB, and few gateways show the demo

    flood = min(2 * target.requests_max, FLOOD_CALLS_MAX)
    # The certificate of this very process needs no check, and may be for another name.
    connector = aiohttp.TCPConnector(limit=0, ssl=False)
    async with aiohttp.ClientSession(target.url, connector=connector) as session, asyncio.TaskGroup() as group:
        group.create_task(_quiet(session, target.model, keys[QUIET]))
        for number in range(flood):
            group.create_task(_flood(session, target.model, keys[FLOOD], Random(number)))  # noqa: S311 - lengths


async def _quiet(session: "aiohttp.ClientSession", model: str, key: str) -> None:
    while True:
        await _call(session, model, key, QUIET_TOKENS)
        await asyncio.sleep(QUIET_EVERY_S)


async def _flood(session: "aiohttp.ClientSession", model: str, key: str, lengths: Random) -> None:
    while True:
        if not await _call(session, model, key, lengths.randint(*FLOOD_TOKENS)):
            await asyncio.sleep(REFUSED_S)


async def _call(session: "aiohttp.ClientSession", model: str, key: str, tokens: int) -> bool:
    """Make one call and read its stream; return whether it was served."""
    import aiohttp  # noqa: PLC0415 - likewise

    messages = [{"role": "user", "content": PROMPT}]
    body: dict[str, Any] = {"model": model, "messages": messages, "max_tokens": tokens, "stream": True}
    headers = {"Authorization": f"Bearer {key}"}
    try:
        async with session.post("/v1/chat/completions", json=body, headers=headers) as reply:
            async for _ in reply.content.iter_any():
                pass
            return reply.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False
