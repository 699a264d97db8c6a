"""Poll loop: polls every backend in rounds (poll_round.py), by one task each; a busy or down backend more often."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from random import Random
from typing import Protocol

from backends.health import Evidence, HealthState
from backends.live_backend import LiveBackend
from backends.poll import Poller, PollTimes, UnansweredError
from backends.poll_round import PollRound

COUNT_S_MAX = 0.5  # a call whose client disconnected waits so long for its charge: two rounds of a busy backend
JITTER_RATIO = 0.1  # spreads the rounds of many gateways and backends

log = logging.getLogger(__name__)


class Polled(Protocol):
    """The interface of the receiver of poll results, which is a BackendPool. Its methods run on the event loop."""

    def settle(self, backend: LiveBackend, was: HealthState, why: str) -> None:
        """A round of polls of the backend has ended. `was` is its health before, `why` the error, "" without one."""
        ...

    def serves(self, backend: LiveBackend) -> None:
        """The backend's models or its size were read."""
        ...


class PollLoop:
    """The tasks that poll all backends of one gateway. If several processes share their Schedulers, only the leader
    (the process that runs the Schedulers) polls. It reports changes to the others (gateway/shared_order/backends.py).
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
        self._round: PollRound
        self._is_running = False

    def begin(self, backends: Mapping[str, LiveBackend], pool: Polled) -> None:
        """Set the backends to poll from `start` on. The mapping may change later."""
        self._backends, self._pool = backends, pool
        self._round = PollRound(self._poller, self._times, self.clock, serves=pool.serves)

    def report(self, backend: LiveBackend, evidence: Evidence, ago_s: float) -> None:
        """Pass evidence from this process's relay to the process that decides on the backend's health, if another."""

    async def start(self) -> None:
        """Poll every backend once, waiting at most `start_s`, and keep polling. A backend that is down is no error."""
        self._poller.start()
        self._is_running = True
        first = [self._watch(backend) for backend in self._backends.values()]
        with suppress(TimeoutError):
            async with asyncio.timeout(self._times.start_s):
                await asyncio.gather(*(answered.wait() for answered in first))

    async def stop(self) -> None:
        """Stop polling, and close all connections of the polls. Polling may be started again."""
        self._is_running = False
        await _cancel(self._backends.values())
        await self._poller.stop()

    def add(self, backend: LiveBackend) -> None:
        """Poll this backend from now on; before `start`, from `start` on."""
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
                await self._round.ask(backend)
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


async def _cancel(backends: Collection[LiveBackend]) -> None:
    tasks = [task for each in backends for task in (each.probe, each.task) if task is not None]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for each in backends:
        each.probe = each.task = None
