"""The live set: which backends there are, whether they are well, what they serve and how loaded they are.

One task per backend asks it, round after round: /health (is it well), /metrics (how loaded), and now and
then /v1/models (what it serves). Answers become facts: BackendLoad for the scheduler, models for the
catalog, evidence for the health; and they give away what kind of server it is. How large it is some kinds
say at a path of their own, which is asked aside, so that a slow answer holds up nothing else. What the relay
sees counts as evidence too (`report`), and a refused connection makes the next round start at once. Whoever
listens is told when something changed.

A backend that is down at the start is kept and asked again. One that has no /metrics is served without
measurements. Nothing of a round outlives its time limit, and no answer is read beyond its size limit.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

from backends.catalog import Catalog, ModelCard, read_models
from backends.health import BackendHealth, Evidence, HealthState, keep_one
from backends.kinds import (
    BACKEND_KINDS,
    STRANGER,
    STRANGER_WITHOUT_OPTIONS,
    VLLM,
    BackendKind,
    Sizes,
    kind_by_metrics,
    kind_by_owner,
)
from backends.live_backend import LiveBackend
from backends.metrics import SCRAPE_BYTES_MAX, EngineMetrics, parse_metrics
from backends.plugin_reports import REPORTS_BYTES_MAX
from backends.poll import Poller, PollTimes, UnansweredError
from backends.running_limit import RunningLimit
from backends.spec import BackendSpec
from backends.step_times import StepTimes
from policies.step_time import StepTime
from policies.types import BackendLoad

BACKENDS_MAX = 1024
MODELS_BYTES_MAX = 4 << 20
PROBE_BYTES_MAX = 4 << 20
PROBE_WAIT_S = 0.5  # that the first news of a backend waits for its kind and size
COUNT_S_MAX = 0.5  # that a call whose client left waits for its charge: twice as long as between two rounds
JITTER_RATIO = 0.1  # so that the rounds of many gateways and backends do not fall together

log = logging.getLogger(__name__)


class BackendPool:
    """The backends of one gateway. What is called with news is called on the loop, and only marks that there is any:
    `on_load` with the id of a backend that was measured, `on_change` where there are other backends, or other models.
    """

    def __init__(
        self,
        specs: Iterable[BackendSpec],
        *,
        on_change: Callable[[], None],
        on_load: Callable[[str], None],
        clock: Callable[[], float],
        rng: Random,
        times: PollTimes | None = None,
    ) -> None:
        self._step_time_of: Callable[[BackendSpec], StepTime | None] = lambda spec: spec.step_time
        self._backends = {spec.id: self._make_backend(spec) for spec in specs}
        assert len(self._backends) <= BACKENDS_MAX, "the configuration is checked before it comes here"
        pools = {b.spec.id: b.spec.pool for b in self._backends.values() if b.spec.pool is not None}
        self._catalog = Catalog(list(self._backends), pools=pools)
        self._on_change = on_change
        self._on_load = on_load
        self._clock = clock
        self._rng = rng
        self._times = times or PollTimes()
        self._poller = Poller(self._times.timeout_s)
        self._running = False

    def remember(self, step_time_of: Callable[[BackendSpec], StepTime | None]) -> None:
        """What is believed of the steps of every backend before any is seen; otherwise it is what its spec says."""
        self._step_time_of = step_time_of
        for backend in self._backends.values():
            backend.step_times = StepTimes(backend.spec.id, step_time_of(backend.spec))

    async def start(self) -> None:
        """Ask every backend once, in at most `start_s`, and go on asking. Does not fail for a backend that is down."""
        self._poller.start()
        self._running = True
        first = [self._watch(backend) for backend in self._backends.values()]
        if first:
            waits = [asyncio.ensure_future(event.wait()) for event in first]
            _, late = await asyncio.wait(waits, timeout=self._times.start_s)
            for wait in late:
                wait.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def stop(self) -> None:
        probes = [backend.probe for backend in self._backends.values() if backend.probe is not None]
        tasks = [*probes, *(backend.task for backend in self._backends.values() if backend.task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._poller.stop()

    def add(self, spec: BackendSpec) -> None:
        """One more backend, asked from now on. ValueError where there are as many as there may be."""
        assert spec.id not in self._backends, "a backend is there once"
        if len(self._backends) >= BACKENDS_MAX:
            raise ValueError(f"there are {BACKENDS_MAX} backends")
        backend = self._backends[spec.id] = self._make_backend(spec)
        self._catalog.add(spec.id, spec.pool)
        log.info("backend %s: new, at %s", spec.id, spec.url)
        if self._running:
            self._watch(backend)

    def drain(self, backend_id: str, *, draining: bool) -> None:
        """Send it nothing more, or send to it again. What it runs goes on."""
        backend = self._backends[backend_id]
        if backend.draining != draining:
            backend.draining = draining
            backend.load = self._load(backend)
            self._on_load(backend_id)

    def retire(self, backend_id: str) -> None:
        """It is gone for whoever looks for a backend. What it runs goes on, and may be reported on, until `forget`."""
        backend = self._backends[backend_id]
        if not backend.leaving:
            backend.leaving = backend.draining = True
            log.info("backend %s: leaves, and is sent nothing more", backend_id)
            self._catalog.remove(backend_id)
            self._on_change()

    async def forget(self, backend_id: str) -> None:
        """A retired backend runs nothing any more: ask it no more. Until this returns it is still leaving."""
        backend = self._backends[backend_id]
        assert backend.leaving, "it is retired first"
        tasks = [task for task in (backend.task, backend.probe) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        del self._backends[backend_id]
        log.info("backend %s: gone", backend_id)

    def backend_ids(self) -> list[str]:
        """All that are there, but for those that are retired."""
        return [backend_id for backend_id, backend in self._backends.items() if not backend.leaving]

    def leaving(self, backend_id: str) -> bool:
        """Whether it is retired, and not forgotten yet."""
        backend = self._backends.get(backend_id)
        return backend is not None and backend.leaving

    def leaving_ids(self) -> list[str]:
        return [backend_id for backend_id, backend in self._backends.items() if backend.leaving]

    def resize(self, spec: BackendSpec) -> None:
        """It is known to be of this size, and its steps to take so long; None: it is to be found out. Coefficients that
        are new are learnt on from, instead of what was learnt.
        """
        backend = self._backends[spec.id]
        if spec != backend.spec:
            if spec.step_time not in (None, backend.spec.step_time):
                backend.step_times = StepTimes(spec.id, spec.step_time)
            backend.spec = spec
            backend.load = self._load(backend)
            self._on_load(spec.id)

    def has_learnt_steps(self, backend_id: str) -> bool:
        """Whether its step time is learnt, not what was known before it was seen."""
        return self._backends[backend_id].step_times.has_learnt

    def draining(self, backend_id: str) -> bool:
        return self._backends[backend_id].draining

    def trouble(self, backend_id: str) -> str:
        """Why its last round failed, "" where it did not."""
        return self._backends[backend_id].trouble

    def spec(self, backend_id: str) -> BackendSpec:
        """Return where a backend is and how to sign in. KeyError for an id that is not configured."""
        return self._backends[backend_id].spec

    def kind(self, backend_id: str) -> BackendKind:
        """Return what it can do; that of a stranger while nothing is known."""
        return self._backends[backend_id].kind or STRANGER

    def plugin_name(self, backend_id: str) -> str | None:
        """Return our name at the scheduler inside this backend, None where it has none that listens to us."""
        plugin = self._backends[backend_id].plugin
        return None if plugin.engines is None else plugin.gateway

    def reads_priority(self, backend_id: str) -> bool:
        """Whether this backend is known to order its own queue by the priority of each call."""
        backend = self._backends[backend_id]
        if backend.spec.reads_priority is not None:
            return backend.spec.reads_priority
        return bool(backend.plugin.engines and backend.plugin.engines.reads_priority)

    def options_refused(self, backend_id: str) -> None:
        """It turned out to take no `stream_options`."""
        self._backends[backend_id].kind = STRANGER_WITHOUT_OPTIONS

    def loads(self) -> dict[str, tuple[BackendLoad, ...]]:
        """Return the load of every backend whose pool is known, by pool, in the configured order.

        A pool whose backends have all come to serve something else is there with none.
        """
        return {pool: self.loads_of(pool) for pool in self._catalog.pools}

    def loads_of(self, pool: str) -> tuple[BackendLoad, ...]:
        """Return the load of every backend of this pool, in the configured order."""
        return tuple(self.load(backend_id) for backend_id in self._catalog.backends_of(pool))

    def load(self, backend_id: str) -> BackendLoad:
        """Return the load of this backend as it was told last."""
        backend = self._backends[backend_id]
        return backend.load or self._load(backend)

    def models(self) -> list[Mapping[str, Any]]:
        """Return the entries of /v1/models, one per id, as the backends wrote them."""
        return [card.entry for card in self._catalog.models()]

    def model_card(self, model: str) -> ModelCard | None:
        """Return what the backends say of this model, None for one that nobody is known to serve."""
        return self._catalog.model(model)

    def pool_of(self, model: str) -> str | None:
        """Return the pool that serves this model (or adapter), whether it is well or not."""
        return self._catalog.pool_of_model(model)

    def serves(self, backend_id: str, model: str) -> bool:
        """Whether this one backend has the model: adapters may be loaded on a part of their pool."""
        return self._catalog.serves(backend_id, model)

    def pool_of_backend(self, backend_id: str) -> str | None:
        """Return its pool, None while that is not known."""
        return self._catalog.pool_of_backend(backend_id)

    def models_of(self, backend_id: str) -> list[str]:
        """Return what this one backend was last seen to serve."""
        return [card.id for card in self._backends[backend_id].cards]

    def undiscovered(self) -> list[str]:
        """Return the backends whose models are not known yet: one of them may serve what nobody else does."""
        return [backend_id for backend_id in self.backend_ids() if not self._catalog.known(backend_id)]

    def states(self) -> dict[str, HealthState]:
        return {backend_id: backend.health.state for backend_id, backend in self._backends.items()}

    def metrics(self, backend_id: str) -> EngineMetrics:
        """Return the last scrape; without measurements if that is not fresh."""
        return self._backends[backend_id].metrics

    def sent(self, backend_id: str) -> None:
        """The backend is being sent a request."""
        self._backends[backend_id].step_counts.sent(self._clock())

    def decoded(self, backend_id: str, begun_s: float, ended_s: float) -> float | None:
        """Return how many tokens each sequence got that the backend began to decode and ended so many seconds ago; None
        where it does not count.
        """
        now = self._clock()
        return self._backends[backend_id].step_counts.tokens_between(now - begun_s, now - ended_s)

    async def count_now(self, backend_id: str) -> None:
        """Let the backend say what it has counted by now, where it counts, unless that takes COUNT_S_MAX."""
        backend = self._backends[backend_id]
        if self._running and backend.step_counts.is_counting:
            backend.ask_now.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(COUNT_S_MAX):
                    await backend.asked.wait()

    def report(self, backend_id: str, evidence: Evidence, *, sent_at: float, now: float) -> None:
        """Take in how one exchange with a backend went, seen by whoever relayed it."""
        backend = self._backends[backend_id]
        was = backend.health.state
        backend.health.report(evidence, sent_at=sent_at, now=now)
        if evidence in {Evidence.UNREACHABLE, Evidence.BROKEN}:
            backend.ask_now.set()
        if backend.health.state is not was:
            self._settle(backend, was, why=evidence)

    def _make_backend(self, spec: BackendSpec) -> LiveBackend:
        return LiveBackend(spec, BackendHealth(spec.id), StepTimes(spec.id, self._step_time_of(spec)))

    def _watch(self, backend: LiveBackend) -> asyncio.Event:
        """Ask it from now on. The event says that it has answered, or has not."""
        answered = asyncio.Event()
        backend.task = asyncio.create_task(self._ask_forever(backend, answered), name=f"poll {backend.spec.id}")
        return answered

    async def _ask_forever(self, backend: LiveBackend, answered: asyncio.Event) -> None:
        while True:
            backend.ask_now.clear()
            was, why = backend.health.state, ""
            try:
                await self._ask(backend)
            except UnansweredError as error:
                why = str(error)
                backend.health.poll_failed(self._clock())
                backend.metrics = backend.metrics.sizes()
                backend.step_times.silent()
                backend.step_counts.silent()
                backend.plugin.silent()
            except Exception:  # whatever one answer does to us, its backend has to stay watched
                log.exception("backend %s: a poll went wrong", backend.spec.id)
            backend.trouble = why
            self._settle(backend, was, why=why)
            answered.set()
            backend.asked.set()
            backend.asked = asyncio.Event()
            await self._pause(backend)

    async def _pause(self, backend: LiveBackend) -> None:
        busy = bool(backend.metrics.requests_running or backend.metrics.requests_waiting)
        pause_s = self._times.busy_s if busy else self._times.idle_s
        pause_s *= 1 + JITTER_RATIO * self._rng.uniform(-1, 1)
        await asyncio.sleep(pause_s / 10)  # bad news from the relay ends the pause early, but not at once
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s * 0.9):
                await backend.ask_now.wait()

    async def _ask(self, backend: LiveBackend) -> None:
        """One round. Raises UnansweredError when it does not say that it is well."""
        await self._ask_health(backend)
        silent = backend.health.state in {HealthState.UNKNOWN, HealthState.DOWN}
        backend.health.poll_answered(self._clock())
        if silent:  # perhaps another server than before: what was known of it may be wrong
            backend.metrics, backend.running_limit, backend.models_at = EngineMetrics(), RunningLimit(), float("-inf")
            backend.kind, backend.sizes = BACKEND_KINDS.get(backend.spec.kind or ""), Sizes()
        await self._ask_metrics(backend)
        if backend.kind is VLLM:
            await self._ask_plugin(backend)
        if self._clock() - backend.models_at >= self._times.models_s:
            await self._ask_models(backend)

    async def _ask_health(self, backend: LiveBackend) -> None:
        """Ask whether it is well; a server that has no path for that is well when it can say what it serves."""
        try:
            await self._poller.get(backend.spec, "/health", bytes_max=0)
        except UnansweredError as error:
            if error.status not in (404, 405):
                raise
            await self._poller.get(backend.spec, "/v1/models", bytes_max=0)

    async def _ask_metrics(self, backend: LiveBackend) -> None:
        asked_at = self._clock()
        try:
            body = await self._poller.get(backend.spec, "/metrics", bytes_max=SCRAPE_BYTES_MAX)
        except UnansweredError:
            backend.metrics = backend.metrics.sizes()
            backend.step_times.silent()
            backend.step_counts.silent()
            return
        text = body.decode("utf-8", "replace")
        backend.metrics, backend.measured_at = parse_metrics(text), self._clock()
        backend.running_limit.observe(backend.metrics, now=backend.measured_at)
        backend.step_times.scraped(backend.metrics, now=backend.measured_at)
        backend.step_counts.scraped(backend.metrics, at=(asked_at + backend.measured_at) / 2)
        if backend.kind is None:
            backend.kind = kind_by_metrics(text)

    async def _ask_plugin(self, backend: LiveBackend) -> None:
        """Ask for the steps since the last round, where there is a plugin that tells."""
        now = self._clock()
        path = backend.plugin.path(now)
        if path is None:
            return
        try:
            reports = backend.plugin.told(await self._poller.get(backend.spec, path, bytes_max=REPORTS_BYTES_MAX))
        except (UnansweredError, ValueError, RecursionError) as error:
            log.debug("backend %s: no reports of steps: %s", backend.spec.id, error)
            backend.plugin.absent(now)
        else:
            backend.step_times.reported(reports, now=now)

    async def _ask_models(self, backend: LiveBackend) -> None:
        try:
            body = await self._poller.get(backend.spec, "/v1/models", bytes_max=MODELS_BYTES_MAX)
            cards = read_models(json.loads(body))
        except (UnansweredError, ValueError, RecursionError) as error:
            if str(error) != backend.models_error:  # asked again every round, but said once
                log.warning("backend %s: its models are not known: %s", backend.spec.id, error)
            backend.models_error = str(error)
            return
        backend.models_at, backend.models_error, backend.cards = self._clock(), "", cards
        if backend.kind is None:
            backend.kind = kind_by_owner(
                owner for card in cards if isinstance(owner := card.entry.get("owned_by"), str)
            )
        if backend.probe is None or backend.probe.done():
            backend.probe = asyncio.create_task(self._probe(backend), name=f"probe {backend.spec.id}")
            await asyncio.wait([backend.probe], timeout=PROBE_WAIT_S)
        self._serves(backend)

    async def _probe(self, backend: LiveBackend) -> None:
        """Ask it for its size, where its kind has a path for that; one of no known kind at the paths of all kinds."""
        for kind in BACKEND_KINDS.values() if backend.kind is None else [backend.kind]:
            if kind.sizes_path is None:
                continue
            try:
                body = await self._poller.get(backend.spec, kind.sizes_path, bytes_max=PROBE_BYTES_MAX)
                said = json.loads(body)
            except (UnansweredError, ValueError, RecursionError) as error:
                log.debug("backend %s: %s", backend.spec.id, error)
                continue
            sizes = kind.sizes(said) if isinstance(said, dict) else None
            if sizes is not None:
                backend.kind, backend.sizes = kind, sizes
                self._serves(backend)
                break

    def _serves(self, backend: LiveBackend) -> None:
        """Its models, or what is known of them, may be news."""
        context = backend.sizes.context_tokens_max
        cards = tuple(
            replace(card, max_model_len=context) if card.max_model_len is None else card for card in backend.cards
        )
        if not backend.leaving and self._catalog.update(backend.spec.id, cards):
            log.info("backend %s serves %s", backend.spec.id, ", ".join(card.id for card in cards[:8]))
            self._on_change()

    def _settle(self, backend: LiveBackend, was: HealthState, *, why: str) -> None:
        """After news of one backend: keep its pool in service, and tell the listener what it does not know."""
        if backend.health.state is not was:
            pool = self._pool_mates(backend)
            kept = keep_one((mate.health for mate in pool), self._clock())
            _tell_state(backend.health, was, why)
            if kept is not None and kept is not backend.health:
                _tell_state(kept, HealthState.EJECTED, "there is no other")
        else:
            pool = [backend]
        for mate in pool:
            load = self._load(mate)
            if load != mate.load:
                mate.load = load
                self._on_load(mate.spec.id)

    def _pool_mates(self, backend: LiveBackend) -> list[LiveBackend]:
        pool = self._catalog.pool_of_backend(backend.spec.id)
        if pool is None or backend.leaving:
            return [backend]
        return [self._backends[backend_id] for backend_id in self._catalog.backends_of(pool)]

    def _load(self, backend: LiveBackend) -> BackendLoad:
        load = backend.measured(self._clock())
        is_trial = backend.health.state is HealthState.TRIAL
        if is_trial and any(mate.health.state is HealthState.HEALTHY for mate in self._pool_mates(backend)):
            return replace(load, requests_running_max=1)  # half open: others can carry the rest
        return load


def _tell_state(health: BackendHealth, was: HealthState, why: str) -> None:
    """One line in the log: lost and found, better and worse."""
    is_better = health.available and was not in {HealthState.HEALTHY, health.state}
    level = logging.INFO if is_better else logging.WARNING
    log.log(level, "backend %s: %s, was %s. %s", health.backend_id, health.state, was, why)
