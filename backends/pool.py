"""The backends of one gateway: which there are, their health, the models that they serve, and their load.

One task per backend polls it in rounds: /health, then /metrics, and every `models_s` /v1/models. The answers become a
BackendLoad for the scheduler, models for the catalog and evidence for the health; they also identify the kind of
server. Some kinds publish their size at a path of their own. A separate task asks for it, so that a slow answer does
not delay the round. What the relay observes counts as evidence too (`report`); a connection that fails or breaks starts
the next round early. Callbacks report changes.

A backend that is down at the start is kept and polled. A backend without /metrics is served without measurements. Every
call of a round has a time limit, and every answer a size limit.
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
    GENERIC,
    GENERIC_WITHOUT_OPTIONS,
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
PROBE_WAIT_S = 0.5  # the first report of a backend's models waits so long for its kind and size
COUNT_S_MAX = 0.5  # a call whose client disconnected waits so long for its charge: two rounds of a busy backend
JITTER_RATIO = 0.1  # spreads the rounds of many gateways and backends

log = logging.getLogger(__name__)


class BackendPool:
    """The backends of one gateway. The callbacks run on the event loop and must only take note: `on_load` gets the id
    of a backend whose load changed; `on_change` says that the backends or their models changed.
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
        """Set the step time that each backend starts from before any step is observed. The default is its spec's."""
        self._step_time_of = step_time_of
        for backend in self._backends.values():
            backend.step_times = StepTimes(backend.spec.id, step_time_of(backend.spec))

    async def start(self) -> None:
        """Poll every backend once, waiting at most `start_s`, and keep polling. A backend that is down is no error."""
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
        """Stop polling and close all connections of the polling."""
        probes = [backend.probe for backend in self._backends.values() if backend.probe is not None]
        tasks = [*probes, *(backend.task for backend in self._backends.values() if backend.task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._poller.stop()

    def add(self, spec: BackendSpec) -> None:
        """Add a backend and poll it from now on. Raises ValueError if there are BACKENDS_MAX already."""
        assert spec.id not in self._backends, "a backend is there once"
        if len(self._backends) >= BACKENDS_MAX:
            raise ValueError(f"there are {BACKENDS_MAX} backends")
        backend = self._backends[spec.id] = self._make_backend(spec)
        self._catalog.add(spec.id, spec.pool)
        log.info("backend %s: new, at %s", spec.id, spec.url)
        if self._running:
            self._watch(backend)

    def drain(self, backend_id: str, *, draining: bool) -> None:
        """Stop dispatching to a backend, or start again. Requests that it runs continue."""
        backend = self._backends[backend_id]
        if backend.draining != draining:
            backend.draining = draining
            backend.load = self._load(backend)
            self._on_load(backend_id)

    def retire(self, backend_id: str) -> None:
        """Remove a backend from the catalog and dispatch nothing more to it. Requests that it runs continue, and may be
        reported on, until `forget`.
        """
        backend = self._backends[backend_id]
        if not backend.leaving:
            backend.leaving = backend.draining = True
            log.info("backend %s: leaves, and is sent nothing more", backend_id)
            self._catalog.remove(backend_id)
            self._on_change()

    async def forget(self, backend_id: str) -> None:
        """Stop polling a retired backend that runs nothing any more, and drop it. It is leaving until this returns."""
        backend = self._backends[backend_id]
        assert backend.leaving, "it is retired first"
        tasks = [task for task in (backend.task, backend.probe) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        del self._backends[backend_id]
        log.info("backend %s: gone", backend_id)

    def backend_ids(self) -> list[str]:
        """Return all backends that are not retired."""
        return [backend_id for backend_id, backend in self._backends.items() if not backend.leaving]

    def leaving(self, backend_id: str) -> bool:
        """Whether this backend is retired and not yet forgotten."""
        backend = self._backends.get(backend_id)
        return backend is not None and backend.leaving

    def leaving_ids(self) -> list[str]:
        """Return the backends that are retired and not yet forgotten."""
        return [backend_id for backend_id, backend in self._backends.items() if backend.leaving]

    def resize(self, spec: BackendSpec) -> None:
        """Replace what is configured of a backend: sizes and step time, None where they are to be learnt. New
        coefficients replace what was learnt of its steps; learning continues from them.
        """
        backend = self._backends[spec.id]
        if spec != backend.spec:
            if spec.step_time not in (None, backend.spec.step_time):
                backend.step_times = StepTimes(spec.id, spec.step_time)
            backend.spec = spec
            backend.load = self._load(backend)
            self._on_load(spec.id)

    def has_learnt_steps(self, backend_id: str) -> bool:
        """Whether this backend's step time was learnt, not only configured or stored."""
        return self._backends[backend_id].step_times.has_learnt

    def draining(self, backend_id: str) -> bool:
        """Whether nothing more is dispatched to this backend."""
        return self._backends[backend_id].draining

    def last_error(self, backend_id: str) -> str:
        """Return why its last round failed, "" if it did not."""
        return self._backends[backend_id].last_error

    def spec(self, backend_id: str) -> BackendSpec:
        """Return a backend's URL, credentials and configured sizes. KeyError for an unknown id."""
        return self._backends[backend_id].spec

    def kind(self, backend_id: str) -> BackendKind:
        """Return the kind of server, which says what it supports; while it is unknown, a plain OpenAI server."""
        return self._backends[backend_id].kind or GENERIC

    def plugin_name(self, backend_id: str) -> str | None:
        """Return the gateway's name at the plugin inside this backend, None if it has no plugin that answers."""
        plugin = self._backends[backend_id].plugin
        return None if plugin.engines is None else plugin.gateway

    def reads_priority(self, backend_id: str) -> bool:
        """Whether this backend is known to order its own queue by the priority of each call."""
        backend = self._backends[backend_id]
        if backend.spec.reads_priority is not None:
            return backend.spec.reads_priority
        return bool(backend.plugin.engines and backend.plugin.engines.reads_priority)

    def options_refused(self, backend_id: str) -> None:
        """Record that this backend rejects `stream_options`."""
        self._backends[backend_id].kind = GENERIC_WITHOUT_OPTIONS

    def loads(self) -> dict[str, tuple[BackendLoad, ...]]:
        """Return the load of every backend whose pool is known, by pool, in the configured order.

        A pool is still listed, empty, when all its backends have come to serve something else.
        """
        return {pool: self.loads_of(pool) for pool in self._catalog.pools}

    def loads_of(self, pool: str) -> tuple[BackendLoad, ...]:
        """Return the load of every backend of this pool, in the configured order."""
        return tuple(self.load(backend_id) for backend_id in self._catalog.backends_of(pool))

    def load(self, backend_id: str) -> BackendLoad:
        """Return the load of this backend as last reported."""
        backend = self._backends[backend_id]
        return backend.load or self._load(backend)

    def models(self) -> list[Mapping[str, Any]]:
        """Return the entries of /v1/models, one per id, as the backends wrote them."""
        return [card.entry for card in self._catalog.models()]

    def model_card(self, model: str) -> ModelCard | None:
        """Return what the backends say of this model, None for a model that no backend is known to serve."""
        return self._catalog.model(model)

    def pool_of(self, model: str) -> str | None:
        """Return the pool that serves this model (or adapter), healthy or not."""
        return self._catalog.pool_of_model(model)

    def serves(self, backend_id: str, model: str) -> bool:
        """Whether this backend has the model: adapters may be loaded on only some backends of a pool."""
        return self._catalog.serves(backend_id, model)

    def pool_of_backend(self, backend_id: str) -> str | None:
        """Return its pool, None while that is not known."""
        return self._catalog.pool_of_backend(backend_id)

    def models_of(self, backend_id: str) -> list[str]:
        """Return the models that this backend was last seen to serve."""
        return [card.id for card in self._backends[backend_id].cards]

    def undiscovered(self) -> list[str]:
        """Return the backends whose models are not known yet: one may serve a model that no other backend has."""
        return [backend_id for backend_id in self.backend_ids() if not self._catalog.known(backend_id)]

    def states(self) -> dict[str, HealthState]:
        """Return the health of every backend, retired ones included."""
        return {backend_id: backend.health.state for backend_id, backend in self._backends.items()}

    def metrics(self, backend_id: str) -> EngineMetrics:
        """Return the last scrape; only the sizes if the last round got none."""
        return self._backends[backend_id].metrics

    def sent(self, backend_id: str) -> None:
        """Record that a request is being sent to this backend."""
        self._backends[backend_id].step_counts.sent(self._clock())

    def decoded(self, backend_id: str, begun_s: float, ended_s: float) -> float | None:
        """Return the tokens that each sequence got which the backend decoded from `begun_s` to `ended_s` seconds ago.
        None if the backend counts no steps.
        """
        now = self._clock()
        return self._backends[backend_id].step_counts.tokens_between(now - begun_s, now - ended_s)

    async def count_now(self, backend_id: str) -> None:
        """Poll this backend now for its step counts, if it counts steps, and wait at most COUNT_S_MAX."""
        backend = self._backends[backend_id]
        if self._running and backend.step_counts.is_counting:
            backend.ask_now.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(COUNT_S_MAX):
                    await backend.asked.wait()

    def report(self, backend_id: str, evidence: Evidence, *, sent_at: float, now: float) -> None:
        """Take in the outcome of one exchange that the relay observed; `sent_at` and `now` are on the pool's clock."""
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
        """Start polling it. The event is set at the end of the first round, answered or not."""
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
            except Exception:  # no answer may end the polling of its backend
                log.exception("backend %s: a poll went wrong", backend.spec.id)
            backend.last_error = why
            self._settle(backend, was, why=why)
            answered.set()
            backend.asked.set()
            backend.asked = asyncio.Event()
            await self._pause(backend)

    async def _pause(self, backend: LiveBackend) -> None:
        busy = bool(backend.metrics.requests_running or backend.metrics.requests_waiting)
        pause_s = self._times.busy_s if busy else self._times.idle_s
        pause_s *= 1 + JITTER_RATIO * self._rng.uniform(-1, 1)
        await asyncio.sleep(pause_s / 10)  # evidence from the relay ends the pause early, but not at once
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s * 0.9):
                await backend.ask_now.wait()

    async def _ask(self, backend: LiveBackend) -> None:
        """Run one round. Raises UnansweredError when the health check fails."""
        await self._ask_health(backend)
        silent = backend.health.state in {HealthState.UNKNOWN, HealthState.DOWN}
        backend.health.poll_answered(self._clock())
        if silent:  # it may be another server now: forget the old one
            backend.metrics, backend.running_limit, backend.models_at = EngineMetrics(), RunningLimit(), float("-inf")
            backend.kind, backend.sizes = BACKEND_KINDS.get(backend.spec.kind or ""), Sizes()
        await self._ask_metrics(backend)
        if backend.kind is VLLM:
            await self._ask_plugin(backend)
        if self._clock() - backend.models_at >= self._times.models_s:
            await self._ask_models(backend)

    async def _ask_health(self, backend: LiveBackend) -> None:
        """Check the health; a server without /health is healthy when it answers /v1/models."""
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
        """Fetch the steps since the last round, if the backend has the plugin."""
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
            if str(error) != backend.models_error:  # asked again every round, but logged once
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
        """Fetch its size from the path that its kind has for that. While the kind is unknown, try the paths of all
        kinds.
        """
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
        """Report its models to the catalog if they, or their context lengths, changed."""
        context = backend.sizes.context_tokens_max
        cards = tuple(
            replace(card, max_model_len=context) if card.max_model_len is None else card for card in backend.cards
        )
        if not backend.leaving and self._catalog.update(backend.spec.id, cards):
            log.info("backend %s serves %s", backend.spec.id, ", ".join(card.id for card in cards[:8]))
            self._on_change()

    def _settle(self, backend: LiveBackend, was: HealthState, *, why: str) -> None:
        """After a change of one backend: keep its pool in service, and report every load that changed."""
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
            return replace(load, requests_running_max=1)  # half open: one request, the others carry the rest
        return load


def _tell_state(health: BackendHealth, was: HealthState, why: str) -> None:
    """Log one line per change of state: INFO when it improves, else WARNING."""
    is_better = health.available and was not in {HealthState.HEALTHY, health.state}
    level = logging.INFO if is_better else logging.WARNING
    log.log(level, "backend %s: %s, was %s. %s", health.backend_id, health.state, was, why)
