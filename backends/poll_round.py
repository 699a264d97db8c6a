"""Poll round: asks one backend for its health, metrics, plugin reports, models and tokenizer.

A round asks /health, then /metrics, and every `models_s` /v1/models. Some kinds of server publish their size at a path
of their own. A separate task asks there, so that a slow answer does not delay the round. Every call of a round has a
time limit, and every answer a size limit. The answers are written into the LiveBackend.
"""

import asyncio
import json
import logging
from collections.abc import Callable

from backends.catalog import read_models
from backends.health import HealthState
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

log = logging.getLogger(__name__)


class PollRound:
    """One round of polls of a backend: it asks the backend, and writes the answers into its LiveBackend. It has no
    state of its own.
    """

    def __init__(
        self,
        poller: Poller,
        times: PollTimes,
        clock: Callable[[], float],
        *,
        serves: Callable[[LiveBackend], None],
    ) -> None:
        """`serves` is called when a backend's models or its size were read."""
        self._poller, self._times, self._clock, self._serves = poller, times, clock, serves

    async def ask(self, backend: LiveBackend) -> None:
        """Run one round. Raises UnansweredError when the health check fails."""
        await self._ask_health(backend)
        silent = backend.health.state in {HealthState.UNKNOWN, HealthState.DOWN}
        backend.health.poll_answered(self._clock())
        if silent:  # it may be another server now: forget the old one
            backend.metrics, backend.models_at = EngineMetrics(), float("-inf")
            backend.kind, backend.sizes = BACKEND_KINDS.get(backend.spec.kind or ""), Sizes()
            backend.tokenizer = None
        await self._ask_metrics(backend)
        if backend.kind is VLLM:
            await self._ask_plugin(backend)
        if self._clock() - backend.models_at >= self._times.models_s:
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
        backend.step_times.scraped(backend.metrics, now=backend.measured_at)
        backend.step_counts.scraped(backend.metrics, at=(asked_at + backend.measured_at) / 2)
        if backend.kind is None:
            backend.kind = kind_by_metrics(text)

    async def _ask_plugin(self, backend: LiveBackend) -> None:
        """Fetch the steps since the previous round, if the backend has the plugin."""
        now = self._clock()
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
        backend.models_at, backend.models_error, backend.cards = self._clock(), "", cards
        if backend.kind is None:
            backend.kind = kind_by_owner(
                owner for card in cards if isinstance(owner := card.entry.get("owned_by"), str)
            )
        if backend.probe is None or backend.probe.done():
            backend.probe = asyncio.create_task(self._probe(backend), name=f"probe {backend.spec.id}")
            await asyncio.wait([backend.probe], timeout=PROBE_WAIT_S)
        self._serves(backend)

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
                self._serves(backend)
                break
