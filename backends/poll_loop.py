"""Poll loop: asks every backend in rounds for its health, metrics, plugin reports, models and tokenizer.

One task per backend runs the rounds: /health, then /metrics, and every `models_s` /v1/models. Some kinds of server
publish their size at a path of their own. A separate task asks for it, so that a slow answer does not delay the round.
Every call of a round has a time limit, and every answer a size limit. The answers are written into the LiveBackend.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from random import Random
from typing import Protocol

from backends.catalog import read_models
from backends.health import Evidence, HealthState
from backends.kinds import BACKEND_KINDS, VLLM, Sizes, kind_by_metrics, kind_by_owner
from backends.live_backend import LiveBackend
from backends.metrics import SCRAPE_BYTES_MAX, EngineMetrics, parse_metrics
from backends.model_identity import NO_TOKENIZER, TEXT, tokenizer_fingerprint
from backends.plugin_reports import REPORTS_BYTES_MAX
from backends.poll import Poller, PollTimes, UnansweredError

MODELS_BYTES_MAX = 4 << 20
PROBE_BYTES_MAX = 4 << 20
TOKENS_BYTES_MAX = 1 << 20
PROBE_WAIT_S = 0.5  # the first report of a backend's models waits so long for its kind and size
COUNT_S_MAX = 0.5  # a call whose client disconnected waits so long for its charge: two rounds of a busy backend
JITTER_RATIO = 0.1  # spreads the rounds of many gateways and backends

log = logging.getLogger(__name__)


class Polled(Protocol):
    """What is told of the answers: a BackendPool. Its methods run on the event loop."""

    def settle(self, backend: LiveBackend, was: HealthState, why: str) -> None:
        """A round has ended; its health was this before, and `why` is the error, "" without one."""
        ...

    def serves(self, backend: LiveBackend) -> None:
        """Its models or its size were read."""
        ...


class PollLoop:
    """Polls the backends of one gateway. Where processes share an order, the one that leads polls, and tells the others
    (gateway/shared_order/backends.py).
    """

    is_asking = True
    """Whether this process finds out what the backends are like, and decides on their health."""

    def __init__(self, times: PollTimes, *, clock: Callable[[], float], rng: Random) -> None:
        self._times = times
        self.clock = clock
        self._rng = rng
        self._backends: Mapping[str, LiveBackend] = {}
        self._pool: Polled
        self._poller = Poller(times.timeout_s)
        self._is_running = False

    def begin(self, backends: Mapping[str, LiveBackend], pool: Polled) -> None:
        """Poll these backends, which change, from `start` on."""
        self._backends, self._pool = backends, pool

    def report(self, backend: LiveBackend, evidence: Evidence, ago_s: float) -> None:
        """Tell the process that decides on its health of what the relay observed, where this one does not."""

    async def start(self) -> None:
        """Poll every backend once, waiting at most `start_s`, and keep polling. A backend that is down is no error."""
        self._poller.start()
        self._is_running = True
        first = [self._watch(backend) for backend in self._backends.values()]
        if first:
            waits = [asyncio.ensure_future(event.wait()) for event in first]
            _, late = await asyncio.wait(waits, timeout=self._times.start_s)
            for wait in late:
                wait.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def stop(self) -> None:
        """Stop polling, and close all connections for it. Polling may be started again."""
        self._is_running = False
        await _cancel(self._backends.values())
        await self._poller.stop()

    def add(self, backend: LiveBackend) -> None:
        """Poll this backend from now on, or from `start` on."""
        if self._is_running:
            self._watch(backend)

    async def remove(self, backend: LiveBackend) -> None:
        """Stop polling this backend."""
        await _cancel([backend])

    async def count_now(self, backend: LiveBackend) -> None:
        """Poll this backend now for its step counts, if it has any. Waits at most COUNT_S_MAX."""
        if self._is_running and backend.step_counts.is_counting:
            backend.ask_now.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(COUNT_S_MAX):
                    await backend.asked.wait()

    def _watch(self, backend: LiveBackend) -> asyncio.Event:
        """Start polling the backend. The event is set at the end of the first round, even without an answer."""
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
                backend.health.poll_failed(self.clock())
                backend.metrics = backend.metrics.sizes()
                backend.step_times.silent()
                backend.step_counts.silent()
                backend.plugin.silent()
            except Exception:  # no answer may end the polling of its backend
                log.exception("backend %s: a poll went wrong", backend.spec.id)
            backend.last_error = why
            self._pool.settle(backend, was, why)
            answered.set()
            backend.asked.set()
            backend.asked = asyncio.Event()
            await self._pause(backend)

    async def _pause(self, backend: LiveBackend) -> None:
        # A backend that gets no calls, or has just not answered, is asked as often as a busy one: calls may wait for
        # its return, and those that it has for the news that it is down.
        busy = bool(
            backend.metrics.requests_running
            or backend.metrics.requests_waiting
            or backend.last_error
            or not backend.health.available
        )
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
        backend.health.poll_answered(self.clock())
        if silent:  # it may be another server now: forget the old one
            backend.metrics, backend.models_at = EngineMetrics(), float("-inf")
            backend.kind, backend.sizes = BACKEND_KINDS.get(backend.spec.kind or ""), Sizes()
            backend.tokenizer = None
        await self._ask_metrics(backend)
        if backend.kind is VLLM:
            await self._ask_plugin(backend)
        if self.clock() - backend.models_at >= self._times.models_s:
            await self._ask_models(backend)
        if backend.tokenizer is None and backend.cards and backend.kind is not None and backend.kind.has_token_ids:
            await self._ask_tokenizer(backend)

    async def _ask_health(self, backend: LiveBackend) -> None:
        """Check the backend's health; a server without /health is healthy when it answers /v1/models."""
        try:
            await self._poller.get(backend.spec, "/health", bytes_max=0)
        except UnansweredError as error:
            if error.status not in (404, 405):
                raise
            await self._poller.get(backend.spec, "/v1/models", bytes_max=0)

    async def _ask_metrics(self, backend: LiveBackend) -> None:
        asked_at = self.clock()
        try:
            body = await self._poller.get(backend.spec, "/metrics", bytes_max=SCRAPE_BYTES_MAX)
        except UnansweredError:
            backend.metrics = backend.metrics.sizes()
            backend.step_times.silent()
            backend.step_counts.silent()
            return
        text = body.decode("utf-8", "replace")
        backend.metrics, backend.measured_at = parse_metrics(text), self.clock()
        backend.step_times.scraped(backend.metrics, now=backend.measured_at)
        backend.step_counts.scraped(backend.metrics, at=(asked_at + backend.measured_at) / 2)
        if backend.kind is None:
            backend.kind = kind_by_metrics(text)

    async def _ask_plugin(self, backend: LiveBackend) -> None:
        """Fetch the steps since the previous round, if the backend has the plugin."""
        now = self.clock()
        path = backend.plugin.path(now)
        if path is None:
            return
        try:
            reports = backend.plugin.read(await self._poller.get(backend.spec, path, bytes_max=REPORTS_BYTES_MAX))
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
        if cards != backend.cards:
            backend.tokenizer = None
        backend.models_at, backend.models_error, backend.cards = self.clock(), "", cards
        if backend.kind is None:
            backend.kind = kind_by_owner(
                owner for card in cards if isinstance(owner := card.entry.get("owned_by"), str)
            )
        if backend.probe is None or backend.probe.done():
            backend.probe = asyncio.create_task(self._probe(backend), name=f"probe {backend.spec.id}")
            await asyncio.wait([backend.probe], timeout=PROBE_WAIT_S)
        self._pool.serves(backend)

    async def _ask_tokenizer(self, backend: LiveBackend) -> None:
        """Learn the fingerprint of the backend's tokenizer once; if the server fails to answer, the next round asks
        again.
        """
        model = next((card.id for card in backend.cards if card.parent is None), backend.cards[0].id)
        asks = {"model": model, "prompt": TEXT}
        try:
            body = await self._poller.get(backend.spec, "/tokenize", bytes_max=TOKENS_BYTES_MAX, asks=asks)
            backend.tokenizer = tokenizer_fingerprint(body)
        except (UnansweredError, ValueError, RecursionError) as error:
            log.debug("backend %s: no tokens: %s", backend.spec.id, error)
            if not isinstance(error, UnansweredError) or 400 <= (error.status or 500) < 500:
                backend.tokenizer = NO_TOKENIZER

    async def _probe(self, backend: LiveBackend) -> None:
        """Fetch the server's size from the path that its kind has for it, or from the paths of all kinds while it is
        unknown.
        """
        for kind in BACKEND_KINDS.values() if backend.kind is None else [backend.kind]:
            if kind.sizes_path is None:
                continue
            try:
                body = await self._poller.get(backend.spec, kind.sizes_path, bytes_max=PROBE_BYTES_MAX)
                document = json.loads(body)
            except (UnansweredError, ValueError, RecursionError) as error:
                log.debug("backend %s: %s", backend.spec.id, error)
                continue
            sizes = kind.sizes(document) if isinstance(document, dict) else None
            if sizes is not None:
                backend.kind, backend.sizes = kind, sizes
                self._pool.serves(backend)
                break


async def _cancel(backends: Collection[LiveBackend]) -> None:
    tasks = [task for each in backends for task in (each.probe, each.task) if task is not None]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for each in backends:
        each.probe = each.task = None
