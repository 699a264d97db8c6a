"""Deciding: the times of a pool's decisions: once per turn of the loop (a tick), and at the Scheduler's wake-ups."""

import asyncio
from collections.abc import Callable, Collection
from typing import Protocol

from policies.scheduler_protocol import ViewedSchedulerProtocol
from policies.types import Request, Tenant, Wait


class QueueWatch(Protocol):
    """An observer that is told, for the trace of one queued request, why it waits and by how much the counter of its
    tenant (its service so far) was lifted. Only traced requests have one, because it costs more than queueing itself.
    """

    def lifted(self, service: float) -> None:
        """The counter of the request's tenant, which was idle, was lifted by this much service over weight."""
        ...

    def waits(self, reason: Wait) -> None:
        """The request was not dispatched at once, for this reason."""
        ...


class Decides(Protocol):
    """The interface that a Dispatcher has for Deciding, the timing of a pool's decisions: Deciding calls it when it is
    time to report usage to the Scheduler, and to let the Scheduler decide.
    """

    now: Callable[[], float]

    def report(self, now: float, *, brings_all: bool) -> None:
        """Report the recorded usage to the Scheduler; with `brings_all` also usage that was not recorded."""
        ...

    def decide(self, now: float, arriving: Request | None = None) -> None:
        """Poll the Scheduler, or pass it an arriving request, and carry out its decisions."""
        ...


class Deciding:
    """The timing of one pool's decisions. It makes the Dispatcher poll its Scheduler in each turn of the loop after a
    fact was reported, and at the time that the Scheduler asked for. Where processes share one order (a leader decides
    for all), SharedDeciding (gateway/shared_order/deciding.py) replaces it.
    """

    tells_all = False
    """Whether each fact asks for a decision, though nothing waits here: another process is told of it."""

    def __init__(self, scheduler: ViewedSchedulerProtocol) -> None:
        self._scheduler = scheduler
        self._loop = asyncio.get_running_loop()
        self._of: Decides
        self.is_due = False
        """Whether it is decided in the next turn of the loop."""
        self._is_decided = False  # nothing is left to decide in this tick
        self._has_more = False  # to decide at once
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def begin(self, of: Decides) -> None:
        """Set the Dispatcher to drive."""
        self._of = of

    def soon(self) -> None:
        """A fact was reported: decide in the next turn of the loop."""
        self._is_decided = False
        if not self.is_due:
            self.is_due = True
            self._loop.call_soon(self._pump)

    def first(self, arriving: Request | None) -> None:
        """Decide at once on the first request of this tick, if no request waits; otherwise it would wait for two turns
        of the loop. Later requests of the same tick are decided together. None: the request was submitted already.
        """
        self._is_decided = True
        self._of.decide(self._of.now(), arriving)

    def recorded(self) -> None:
        """Usage was recorded; nothing to do here."""

    def decided(self, now: float, wakeup_at: float | None) -> None:
        """A poll is over; the next one is due at `wakeup_at` (None: no time is known)."""
        self._has_more = wakeup_at is not None and wakeup_at <= now
        if self._has_more:  # more than one poll decides: streams are relayed in between
            self.soon()
            wakeup_at = None
        if self._timer is not None:
            if wakeup_at == self._timer_at:
                return
            self._timer.cancel()
            self._timer = None
        if wakeup_at is not None:
            self._timer_at = wakeup_at
            self._timer = self._loop.call_at(wakeup_at, self._on_timer)

    def submit_watched(self, request: Request, watch: QueueWatch) -> None:
        """Submit a request that has a watch."""
        before = self._scheduler.counter(request.tenant_id)
        self._scheduler.submit(request, self._of.now())
        if (lift := self._scheduler.counter(request.tenant_id) - before) > 0:
            watch.lifted(lift)
        self.ask_why(request.id, watch)

    def ask_why(self, request_id: str, watch: QueueWatch) -> None:
        """Report to the watch why the request waits, once all is decided: at the earliest in the tick after next,
        because the next tick decides.
        """

        def tell() -> None:
            if self._has_more:
                self._loop.call_soon(tell)
                return
            reason = self._scheduler.waits_for(request_id, self._of.now())
            if reason is not None:
                watch.waits(reason)

        self._loop.call_soon(self._loop.call_soon, tell)

    def dispatched(self, request_id: str, watch: QueueWatch) -> None:
        """A request that has a watch was dispatched."""

    def tenants_elsewhere(self) -> Collection[Tenant]:
        """The tenants of all processes, if this process knows them."""
        return ()

    def serves_elsewhere(self, tenant_id: str) -> bool:
        """Whether another process has a request of this tenant, as far as this process knows."""
        return False

    def _pump(self) -> None:
        self.is_due = False
        if not self._is_decided:
            self._of.decide(self._of.now())

    def _on_timer(self) -> None:
        self._timer = None
        # A timer may fire slightly early by the loop's own clock: what it was set for counts as due.
        self._of.decide(max(self._of.now(), self._timer_at))
