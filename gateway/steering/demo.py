"""Demo: two tenants that call this gateway for two minutes, one now and then and one as much as it can.

They show a new user what fairness does, within a minute of `make run`: the quiet tenant hardly waits, though the other
one alone would fill the embedded engine. They are ordinary tenants, whose weights may be changed meanwhile; at the end,
the tenants that the demo created are deleted. Their calls are trials (gateway/steering/trials.py), so they need no API
keys.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from http import HTTPStatus
from random import Random
from typing import Final

from gateway.registry.changes import AlreadyThere, RegistryError
from gateway.registry.registry import Registry
from gateway.steering.trials import TrialCall, TrialResult, Trials
from gateway.store.base import StoreFull, StoreUnavailable
from gateway.tasks import cancel

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
    """The target of the calls of the demo (two made-up tenants that call the gateway for two minutes): a `model` of the
    embedded engine, which runs at most `requests_max` requests at a time.
    """

    model: str
    requests_max: int


class Demo:
    """The demo of one process: two tenants that call this gateway for two minutes. Made on the loop; `stop` ends it."""

    def __init__(self, registry: Registry, trials: Trials, target: Callable[[], DemoTarget | None]) -> None:
        """`target` returns the target of the demo's calls; None: there is no embedded engine here."""
        self._registry = registry
        self._trials = trials
        self.target = target
        self._running: asyncio.Task[None] | None = None
        self.ends_at_s = 0.0
        """Seconds since 1970."""

    @property
    def is_running(self) -> bool:
        return self._running is not None and not self._running.done()

    def begin(self, target: DemoTarget, *, actor: str) -> None:
        """Create the tenants, and start their calls."""
        assert not self.is_running, "the caller has looked"
        self.ends_at_s = time.time() + DEMO_S
        self._running = asyncio.create_task(self._run(target, actor))

    async def stop(self) -> None:
        """End the demo now. Idempotent."""
        await cancel(self._running)

    async def _run(self, target: DemoTarget, actor: str) -> None:
        making = asyncio.ensure_future(self._make(actor))
        try:
            await asyncio.shield(making)  # what has begun to be written is known, and deleted again
            with suppress(TimeoutError):
                async with asyncio.timeout(DEMO_S):
                    await _call_as_both(self._trials, target)
        finally:
            for tenant in await making:
                with suppress(RegistryError, StoreUnavailable, StoreFull):
                    await self._registry.changes.delete(KIND, tenant, actor=actor)

    async def _make(self, actor: str) -> list[str]:
        """Make the tenants, and return those that were not there before."""
        made = []
        for tenant in (QUIET, FLOOD):
            try:
                await self._registry.changes.create(KIND, tenant, {}, actor=actor)
                made.append(tenant)
            except AlreadyThere:
                continue
            except (RegistryError, StoreUnavailable, StoreFull) as error:
                log.warning("the demo cannot make %s: %s", tenant, error)
        return made


async def _call_as_both(trials: Trials, target: DemoTarget) -> None:
    """Call until cancelled."""
    async with asyncio.TaskGroup() as group:
        group.create_task(_quiet(trials, target.model))
        for number in range(min(2 * target.requests_max, FLOOD_CALLS_MAX)):
            group.create_task(_flood(trials, target.model, Random(number)))  # noqa: S311 - lengths


async def _quiet(trials: Trials, model: str) -> None:
    while True:
        await _is_served(trials, _call(QUIET, model, QUIET_TOKENS))
        await asyncio.sleep(QUIET_EVERY_S)


async def _flood(trials: Trials, model: str, lengths: Random) -> None:
    while True:
        if not await _is_served(trials, _call(FLOOD, model, lengths.randint(*FLOOD_TOKENS))):
            await asyncio.sleep(REFUSED_S)


def _call(tenant: str, model: str, tokens: int) -> TrialCall:
    return TrialCall(tenant=tenant, model=model, prompt=PROMPT, output_tokens_max=tokens)


async def _is_served(trials: Trials, call: TrialCall) -> bool:
    """Make one call and read its stream; return whether it was served."""
    async with aclosing(trials.run(call)) as pieces:
        async for piece in pieces:
            if isinstance(piece, TrialResult):
                return piece.status == HTTPStatus.OK and piece.error is None
    raise AssertionError("a trial has a result")
