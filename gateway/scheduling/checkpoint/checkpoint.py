"""Checkpoint: writes the gateway's learnt state every CHECKPOINT_S and at shutdown, and reads it at start.

A killed process loses the changes after its last checkpoint. The state of a pool or backend that does not exist yet is
kept until the pool or backend exists, or the state is too old.

All gateways that share a store write under the same names, and the newest write wins. So a gateway that is new, or has
lost its disk, starts from another gateway's checkpoint. A restarted gateway takes the newest checkpoint, which may also
be another's: their counters differ by the service of each gateway, and their models describe the same backends. (If all
share one order, their checkpoints are the same.)
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from backends.pool import BackendPool
from backends.spec import BackendSpec
from gateway.api.token_counts import LearntPromptTokens, Ratio
from gateway.scheduling.checkpoint.documents import (
    COUNTERS_AGE_S_MAX,
    MODELS_AGE_S_MAX,
    BackendModel,
    Counters,
    LearntModels,
    PoolCounters,
    UnreadableError,
    read_document,
    trim_accounts,
    write_document,
)
from gateway.scheduling.pools import Pools
from gateway.store.base import Learnt, Store, StoreFull, StoreUnavailable
from gateway.store.periodic import Periodic
from policies.accounts.checkpoint import ServiceCheckpoint, keep_levels, without_lifted_tenants
from policies.step_time import StepTime

CHECKPOINT_S = 5.0
COUNTERS, MODELS = "counters", "models"
TICK_S = 1e-3  # each checkpoint is newer than the one before, even if the clock steps back

log = logging.getLogger(__name__)

K = TypeVar("K", Counters, LearntModels)


@dataclass(frozen=True, slots=True)
class Learning:
    """The parts of a gateway whose learnt state is stored. `is_serving`: whether this gateway accepts new calls."""

    pools: Pools
    backends: BackendPool
    prompt_tokens: LearntPromptTokens
    is_serving: Callable[[], bool]

    def step_times(self) -> Sequence[tuple[BackendSpec, StepTime]]:
        """The step time models of all backends that have one."""
        return [
            (self.backends[load.backend_id].spec, load.step_time)
            for loads in self.backends.loads().values()
            for load in loads
            if load.step_time is not None
        ]


class Checkpoint:
    """The writer and reader of a gateway's learnt state, such as counters and step time models, in the store. It writes
    every CHECKPOINT_S, and reads at the start. Mutable; used on one loop.
    """

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.time) -> None:
        """`clock` gives seconds since 1970."""
        self._store = store
        self._clock = clock
        self._pools: dict[str, PoolCounters] = {}
        self._models: dict[str, BackendModel] = {}
        self._ratios: Sequence[Ratio] = ()
        self._serving: dict[str, ServiceCheckpoint] = {}  # by pool, when the gateway last accepted new calls
        self._bodies: dict[str, bytes] = {}  # as last written
        self._at_s = 0.0
        self._source: Learning | None = None
        self._complained = ""
        self.is_writing = True
        """Whether this process writes the checkpoint: where processes share one order, only the leader does."""
        self._writer = Periodic(self.try_write, CHECKPOINT_S, "keep what was learnt")

    async def open(self) -> None:
        """Read the stored checkpoint; unreadable and outdated documents are left out."""
        now = self._clock()
        counters, models = await self._read(COUNTERS, Counters), await self._read(MODELS, LearntModels)
        if counters is not None:
            self._pools = {name: pool for name, pool in counters.pools.items() if now - pool.at_s <= COUNTERS_AGE_S_MAX}
        if models is not None:
            self._models = {
                name: model for name, model in models.backends.items() if now - model.at_s <= MODELS_AGE_S_MAX
            }
            self._ratios = models.tokens_per_byte

    def start(self, source: Learning) -> None:
        """Restore the checkpoint into these new parts, and start to write their learnt state."""
        source.pools.checkpoint_of = self.checkpoint_of
        source.backends.remember(self.step_time_of)
        source.prompt_tokens.remember(self._ratios)
        self._source = source
        self._writer.start()

    async def read_anew(self) -> None:
        """Read the stored checkpoint again, because another process has written it."""
        await self.open()
        if self._source is not None:
            self._source.backends.remember(self.step_time_of)
            self._source.prompt_tokens.remember(self._ratios)

    async def stop(self) -> None:
        """Write the last checkpoint, before the shutdown disconnects requests, so that it causes no lifts."""
        if self._writer.is_running:
            await self._writer.stop()
            await self.try_write()

    # -- restoring -----------------------------------------------------------------------------------------

    def checkpoint_of(self, pool: str) -> ServiceCheckpoint | None:
        """The service received by the tenants of this pool; None where it is not known."""
        kept = self._pools.get(pool)
        return None if kept is None else kept.fair_queues

    def step_time_of(self, spec: BackendSpec) -> StepTime | None:
        """The step time model to start a backend with. It is the stored one if it has this URL and the configured model
        has not changed since; otherwise the configured one.
        """
        kept = self._models.get(spec.id)
        configured = None if spec.step_time is None else spec.step_time.model
        if kept is None or kept.url != spec.url or kept.configured != configured:
            return spec.step_time
        return kept.step_time

    # -- writing -------------------------------------------------------------------------------------------

    async def write(self) -> None:
        """Write the state that has changed since the last write. Raises StoreUnavailable, StoreFull."""
        source = self._source
        if source is None:
            return
        for name, kept in ((COUNTERS, await self._counters(source)), (MODELS, self._learnt(source))):
            body = write_document(kept)
            if body != self._bodies.get(name):
                self._at_s = max(self._clock(), self._at_s + TICK_S)
                await self._store.put_learnt(Learnt(name, self._at_s, body))
                self._bodies[name] = body
            await asyncio.sleep(0)  # yield to the event loop

    async def _counters(self, source: Learning) -> Counters:
        now = self._clock()
        for name, dispatcher in list(source.pools.dispatchers.items()):
            checkpoint = dispatcher.checkpoint()
            if source.is_serving():
                self._serving[name] = checkpoint
            fair_queues = without_lifted_tenants(keep_levels(checkpoint, self._serving.get(name, {})))
            before = self._pools.get(name)
            if before is None or before.fair_queues != fair_queues:
                self._pools[name] = PoolCounters(now, fair_queues)
            await asyncio.sleep(0)
        return Counters(trim_accounts(self._pools))

    def _learnt(self, source: Learning) -> LearntModels:
        now = self._clock()
        for spec, step_time in source.step_times():
            configured = None if spec.step_time is None else spec.step_time.model
            before = self._models.get(spec.id)
            model = BackendModel(now, spec.url, step_time, configured)
            if not step_time.is_sure or step_time == spec.step_time:
                self._models.pop(spec.id, None)
            elif before is None or replace(before, at_s=now) != model:
                self._models[spec.id] = model
        return LearntModels(self._models, tuple(source.prompt_tokens.latest()))

    async def _read(self, name: str, kind: type[K]) -> K | None:
        try:
            found = await self._store.learnt(name)
            if found is None:
                return None
            self._at_s = max(self._at_s, found.at_s)
            return read_document(kind, found.body)
        except (StoreUnavailable, UnreadableError) as error:
            log.warning("what was kept of %s is left out: %s", name, error)
            return None

    async def try_write(self) -> None:
        """Write the changed state, if this process writes; a failure is logged."""
        if not self.is_writing:
            return
        try:
            await self.write()
        except (StoreUnavailable, StoreFull) as error:
            if str(error) != self._complained:  # retried every time, logged once
                log.warning("what was learnt is not kept: %s", error)
            self._complained = str(error)
        else:
            self._complained = ""
