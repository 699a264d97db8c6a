"""Backend pool: the live set of one gateway's backends, their health, the models that they serve, and their load.

The poll loop asks every backend. The answers become a BackendLoad for the scheduler, models for the catalog and
evidence for the health; they also identify the kind of server. Exchanges of the relay count as evidence, too
(`report`); a connection that fails or breaks starts the next round early. Callbacks report changes.

A backend that is down at the start is kept and polled. A backend without /metrics is served without measurements.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from backends.catalog import Catalog
from backends.health import BackendHealth, Evidence, HealthState, keep_half
from backends.live_backend import LiveBackend
from backends.poll_loop import PollLoop
from backends.spec import BackendSpec
from backends.step_times import StepTimes
from policies.step_time import StepTime
from policies.types import BackendLoad

BACKENDS_MAX = 1024

log = logging.getLogger(__name__)


class BackendPool:
    """The backends of one gateway, with the health, models and load of each. `on_load` gets the id of a backend whose
    load changed; `on_change` reports that the backends or their models changed. These callbacks run on the event loop
    and must return at once. Mutable.
    """

    def __init__(
        self,
        specs: Iterable[BackendSpec],
        *,
        polls: PollLoop,
        on_change: Callable[[], None],
        on_load: Callable[[str], None],
        member: str = "",
    ) -> None:
        """`polls` is the loop that polls the backends; the caller starts and stops it. `member` names this process,
        where several processes are one gateway.
        """
        self._member = member
        self._step_time_of: Callable[[BackendSpec], StepTime | None] = lambda spec: spec.step_time
        self._backends = {spec.id: self._make_backend(spec) for spec in specs}
        assert len(self._backends) <= BACKENDS_MAX, "the configuration is checked before it comes here"
        pools = {b.spec.id: b.spec.pool for b in self._backends.values() if b.spec.pool is not None}
        self.catalog = Catalog(list(self._backends), pools=pools)
        self._on_change = on_change
        self._on_load = on_load
        self._clock = polls.clock
        self.polls = polls
        polls.begin(self._backends, self)

    def remember(self, step_time_of: Callable[[BackendSpec], StepTime | None]) -> None:
        """Set the function that gives a backend's step time before any step is observed; the default is the spec's."""
        self._step_time_of = step_time_of
        for backend in self._backends.values():
            backend.step_times = StepTimes(backend.spec.id, step_time_of(backend.spec))

    def add(self, spec: BackendSpec) -> None:
        """Add a backend and poll it from now on. Raises ValueError if there are BACKENDS_MAX already."""
        assert spec.id not in self._backends, "a backend is there once"
        if len(self._backends) >= BACKENDS_MAX:
            raise ValueError(f"there are {BACKENDS_MAX} backends")
        backend = self._backends[spec.id] = self._make_backend(spec)
        self.catalog.add(spec.id, spec.pool)
        log.info("backend %s: new, at %s", spec.id, spec.url)
        self.polls.add(backend)

    def drain(self, backend_id: str, *, draining: bool) -> None:
        """Stop dispatching to a backend, or start again. Requests that it runs continue."""
        backend = self._backends[backend_id]
        if backend.draining != draining:
            backend.draining = draining
            backend.load = self._load(backend)
            self._on_load(backend_id)

    def retire(self, backend_id: str) -> None:
        """Remove a backend from the catalog and dispatch no more requests to it. Its running requests continue, and may
        still be reported, until `forget`.
        """
        backend = self._backends[backend_id]
        if not backend.leaving:
            backend.leaving = backend.draining = True
            log.info("backend %s: leaves, and is sent nothing more", backend_id)
            self.catalog.remove(backend_id)
            self._on_change()

    async def forget(self, backend_id: str) -> None:
        """Stop polling a retired backend that runs no requests any more, and drop it."""
        backend = self._backends[backend_id]
        assert backend.leaving, "it is retired first"
        await self.polls.remove(backend)
        del self._backends[backend_id]
        log.info("backend %s: gone", backend_id)

    def backend_ids(self) -> list[str]:
        """Return all backends that are not retired."""
        return [backend_id for backend_id, backend in self._backends.items() if not backend.leaving]

    def leaving_ids(self) -> list[str]:
        """Return the backends that are retired and not yet forgotten."""
        return [backend_id for backend_id, backend in self._backends.items() if backend.leaving]

    def resize(self, spec: BackendSpec) -> None:
        """Replace the configuration of a backend: sizes and step time; None for values to be learnt. New coefficients
        replace the learnt ones; learning continues from them.
        """
        backend = self._backends[spec.id]
        if spec != backend.spec:
            if spec.step_time not in (None, backend.spec.step_time):
                backend.step_times = StepTimes(spec.id, spec.step_time)
            backend.spec = spec
            backend.load = self._load(backend)
            self._on_load(spec.id)

    def __getitem__(self, backend_id: str) -> LiveBackend:
        """Return a backend, even a retired one. KeyError for an unknown id."""
        return self._backends[backend_id]

    def loads(self) -> dict[str, tuple[BackendLoad, ...]]:
        """Return the load of every backend whose pool is known, by pool, in the configured order. A pool is still
        listed, empty, when all its backends have come to serve other models.
        """
        return {pool: self.loads_of(pool) for pool in self.catalog.pools}

    def loads_of(self, pool: str) -> tuple[BackendLoad, ...]:
        """Return the load of every backend of this pool, in the configured order."""
        return tuple(self.load(backend_id) for backend_id in self.catalog.backends_of(pool))

    def load(self, backend_id: str) -> BackendLoad:
        """Return the load of this backend as last reported."""
        backend = self._backends[backend_id]
        return backend.load or self._load(backend)

    def states(self) -> dict[str, HealthState]:
        """Return the health of every backend, retired ones included."""
        return {backend_id: backend.health.state for backend_id, backend in self._backends.items()}

    def is_away(self, backend_id: str) -> bool:
        """Whether the backend answers no polls, and its requests can go elsewhere: to another available backend of its
        pool or, if the backend is retired, to any.
        """
        backend = self._backends.get(backend_id)
        if backend is None or backend.health.state is not HealthState.DOWN:
            return False
        return backend.leaving or any(each.health.available and not each.draining for each in self._pool_mates(backend))

    def decoded(self, backend_id: str, begun_s: float, ended_s: float) -> float | None:
        """Return the number of tokens that one sequence at the backend got from `begun_s` to `ended_s` seconds ago.
        None if the backend counts no steps.
        """
        now = self._clock()
        return self._backends[backend_id].step_counts.tokens_between(now - begun_s, now - ended_s)

    async def count_now(self, backend_id: str) -> None:
        """Poll this backend now for its step counts, if it counts steps. Waits at most 0.5 s."""
        await self.polls.count_now(self._backends[backend_id])

    def measure_anew(self, backend_ids: Iterable[str] | None = None) -> None:
        """Poll these backends now (None: all), and report their loads even if unchanged: a new scheduler waits for
        them.
        """
        known = self._backends.keys() if backend_ids is None else self._backends.keys() & set(backend_ids)
        for backend_id in known:
            self._backends[backend_id].load = None
            self._backends[backend_id].ask_now.set()

    def report(self, backend_id: str, evidence: Evidence, *, sent_at: float, now: float) -> None:
        """Apply the outcome of one exchange that the relay observed; `sent_at` and `now` are on the pool's clock."""
        backend = self._backends[backend_id]
        if not self.polls.is_asking:
            self.polls.report(backend, evidence, now - sent_at)
            return
        was = backend.health.state
        backend.health.report(evidence, sent_at=sent_at, now=now)
        if evidence in {Evidence.UNREACHABLE, Evidence.BROKEN}:
            backend.ask_now.set()
        if backend.health.state is not was:
            self.settle(backend, was, evidence)

    def _make_backend(self, spec: BackendSpec) -> LiveBackend:
        step_times = StepTimes(spec.id, self._step_time_of(spec))
        return LiveBackend(spec, BackendHealth(spec.id), step_times, self._member)

    def serves(self, backend: LiveBackend) -> None:
        """Report the backend's models to the catalog if they, or their context lengths, changed."""
        context = backend.sizes.context_tokens_max
        cards = tuple(
            replace(card, max_model_len=context) if card.max_model_len is None else card for card in backend.cards
        )
        if not backend.leaving and self.catalog.update(backend.spec.id, cards):
            log.info("backend %s serves %s", backend.spec.id, ", ".join(card.id for card in cards[:8]))
            self._on_change()

    def settle(self, backend: LiveBackend, was: HealthState, why: str) -> None:
        """After a change of one backend: keep its pool in service, and report every load that changed."""
        if backend.health.state is not was:
            pool = self._pool_mates(backend)
            kept = keep_half((mate.health for mate in pool), self._clock())
            _log_state(backend.health, was, why)
            for health in kept:
                if health is not backend.health:
                    _log_state(health, HealthState.EJECTED, "at most half of the pool is ejected")
        else:
            pool = [backend]
        for mate in pool:
            mate.note_availability(self._clock())
            load = self._load(mate)
            if load != mate.load:
                mate.load = load
                self._on_load(mate.spec.id)

    def _pool_mates(self, backend: LiveBackend) -> list[LiveBackend]:
        pool = self.catalog.pool_of_backend(backend.spec.id)
        if pool is None or backend.leaving:
            return [backend]
        return [self._backends[backend_id] for backend_id in self.catalog.backends_of(pool)]

    def _load(self, backend: LiveBackend) -> BackendLoad:
        load = backend.measured()
        is_trial = backend.health.state is HealthState.TRIAL
        if is_trial and any(mate.health.state is HealthState.HEALTHY for mate in self._pool_mates(backend)):
            return replace(load, requests_running_max=1)  # half open: one request, the others carry the rest
        return load


def _log_state(health: BackendHealth, was: HealthState, why: str) -> None:
    """Log one line per change of state: INFO when it improves, else WARNING."""
    is_better = health.available and was not in {HealthState.HEALTHY, health.state}
    level = logging.INFO if is_better else logging.WARNING
    log.log(level, "backend %s: %s, was %s%s", health.backend_id, health.state, was, f". {why}" if why else "")
