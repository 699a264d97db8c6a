"""One pool's Scheduler on the event loop: leases in, decisions out.

The Scheduler is told every fact with the loop's time and asked once per loop tick (`_pump_soon` once, however
many facts arrived), so facts of one tick are decided together. Where there is more to decide than one poll does, the
next tick goes on. One timer stands for everything else it wants to be woken for. A request holds a Lease from its
arrival to its end, on every path: waiting for a backend, sent to one, put back, refused, finished, or left by its
client.

Tokens that no decision depends on (`Dispatch.quiet_tokens`) are not told one by one: a lease knows what has passed,
and is asked when somebody looks at the books or its request ends. All others are kept, newest only, and told before
the next decision. Either way whoever reads a counter sees every token that has passed.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from backends.upstream import UpstreamError
from policies.accounts.checkpoint import ServiceCheckpoint
from policies.scheduler_protocol import SchedulerProtocol
from policies.slo.timeliness import Timeliness
from policies.types import (
    BackendLoad,
    Dispatch,
    LimitKind,
    Outcome,
    PolicyChoice,
    Preempt,
    RateLimits,
    Reason,
    Reject,
    Request,
    Snapshot,
    Tenant,
    TenantView,
    Tier,
    Timing,
    Usage,
    Wait,
)

T = TypeVar("T")

NO_USAGE = Usage(0, 0, 0)
CLOSED_RETRY_S = 1.0  # by then somebody else answers


class Rejected(Exception):  # noqa: N818 - a decision, not an error
    """The scheduler refused the request, where one of its tenant's limits did by that."""

    def __init__(self, reason: Reason, retry_after_s: float, limit: LimitKind | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_s = retry_after_s
        self.limit = limit


class Preempted(Exception):  # noqa: N818 - a decision, not an error
    """The scheduler wants the request back: its client has been sent nothing yet."""


class QueueWatch(Protocol):
    """What became of this request in the queue? Asked of few: telling costs more than the queue does."""

    def lifted(self, service: float) -> None:
        """Its tenant, back from idleness, was credited with so much service over weight, which others had received."""
        ...

    def waits(self, reason: Wait) -> None:
        """It was not sent at once."""
        ...


class Dispatcher:
    """Drives one Scheduler. All methods are called on the loop that runs it."""

    def __init__(self, scheduler: SchedulerProtocol) -> None:
        self._scheduler = scheduler
        self._loop = asyncio.get_running_loop()
        self.now: Callable[[], float] = self._loop.time
        """Seconds on the clock that all facts are told with; requests arrive at this time too."""
        self._waiting: dict[str, asyncio.Future[Dispatch]] = {}
        self._in_flight: dict[str, str] = {}  # the backend, by request
        self._running: dict[str, dict[str, Lease]] = {}  # by backend and request
        self._usages: dict[str, Usage] = {}  # passed since the scheduler was last told
        self._tenants: dict[str, Tenant] = {}
        self._leases: dict[str, Lease] = {}  # by request
        self._tenant_leases: Counter[str] = Counter()
        self._pumping = False
        self._has_more = False  # to decide at once
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def lease(self, request: Request, tenant: Tenant, watch: QueueWatch | None = None) -> "Lease":
        """A place for the request, to be entered; raises Rejected there. `watch` is told how it fares in the queue."""
        self._know(tenant)
        return Lease(self, request, watch)

    def spent(self, tenant: Tenant, usage: Usage) -> None:
        """The tenant used this much by a call that was never queued."""
        self._know(tenant)
        self._scheduler.spent(tenant.id, usage, self.now())

    def load_changed(self, loads: tuple[BackendLoad, ...]) -> None:
        """These are all the backends there are."""
        # What is not known to be ours by now would look like somebody else's.
        self._tell_all_usages()
        self._scheduler.load_changed(loads, self.now())
        self._pump_soon()

    def measured(self, load: BackendLoad) -> None:
        """One of the backends was measured; the others are as they were told. What runs elsewhere is not looked at."""
        self._tell_usages()
        self._tell_passed(load.backend_id)
        self._scheduler.measured(load, self.now())
        self._pump_soon()

    def policy_changed(
        self,
        *,
        fairness: PolicyChoice | None = None,
        prediction: PolicyChoice | None = None,
        sizing: PolicyChoice | None = None,
        placement: PolicyChoice | None = None,
    ) -> None:
        """Schedule by these policies from now on; None leaves one as it is. Raises ValueError where there is no such
        policy or parameter.
        """
        self._tell_all_usages()
        self._scheduler.policy_changed(
            fairness=fairness, prediction=prediction, sizing=sizing, placement=placement, now=self.now()
        )
        self._pump_soon()

    def tenant_changed(self, tenant: Tenant) -> None:
        """The tenant has other settings; one that has not been here is not made known."""
        if tenant.id in self._tenants:
            self._know(tenant)
            self._pump_soon()

    def tiers_changed(self, tiers: Sequence[Tier]) -> None:
        """These tiers are new, or have other settings."""
        self._tell_all_usages()
        self._scheduler.tenants_changed(tiers=tiers, now=self.now())
        self._pump_soon()

    def tiers_removed(self, tier_ids: Collection[str]) -> None:
        """These tiers are gone: each with the last of its tenants."""
        self._scheduler.tenants_changed(tiers_removed=tier_ids, now=self.now())

    def restored(self, checkpoint: ServiceCheckpoint) -> None:
        """Everybody goes on from these. Told before anybody comes."""
        self._scheduler.restored(checkpoint, self.now())

    def checkpoint(self) -> ServiceCheckpoint:
        """What everybody has received by now, to be restored in another process."""
        self._tell_all_usages()
        return self._scheduler.checkpoint()

    def forget(self, tenant_id: str) -> None:
        """The tenant is gone; what it has queued is refused."""
        self._tenants.pop(tenant_id, None)  # one that has not been here may be known from before a restart
        self._scheduler.tenants_changed(removed=[tenant_id], now=self.now())
        self._pump_soon()

    def snapshot(self, tenant_ids: Iterable[str] | None = None) -> Snapshot:
        """The state by now, with these tenants alone, or all."""
        self._tell_all_usages()
        return self._scheduler.snapshot(self.now(), tenant_ids)

    def tenant_views(self, tenant_ids: Iterable[str]) -> Mapping[str, TenantView]:
        """These tenants, after a snapshot: of tokens that passed since it some may be missing."""
        return self._scheduler.snapshot(self.now(), tenant_ids).tenants

    def tenants(self) -> Collection[Tenant]:
        """All that have been here and are not forgotten, as they are now."""
        return self._tenants.values()

    def leases(self) -> "Collection[Lease]":
        """All that wait or run."""
        return self._leases.values()

    def rate_limits(self, tenant: Tenant) -> RateLimits:
        """The tenant's limits per minute as they stand, its latest request included."""
        self._know(tenant)
        return self._scheduler.rate_limits(tenant.id, self.now())

    def close(self) -> None:
        """Decide nothing more: what waits is refused, and so is what comes or comes back."""
        self._closed, self._has_more = True, False
        self._arm(None)
        waiting, self._waiting = self._waiting, {}
        for request_id, decided in waiting.items():
            self._scheduler.cancel(request_id, self.now())
            if not decided.done():
                decided.set_exception(Rejected(Reason.DRAINING, CLOSED_RETRY_S))

    @property
    def busy(self) -> bool:
        """Whether anybody holds a lease."""
        return bool(self._leases)

    def serves(self, tenant_id: str) -> bool:
        """Whether this tenant has anything queued or in flight."""
        return tenant_id in self._tenant_leases

    # -- the leases' side ------------------------------------------------------------------------------------

    def opened(self, lease: "Lease") -> None:
        self._leases[lease.request.id] = lease
        self._tenant_leases[lease.request.tenant_id] += 1

    def closed(self, lease: "Lease") -> None:
        del self._leases[lease.request.id]
        tenant_id = lease.request.tenant_id
        self._tenant_leases[tenant_id] -= 1
        if not self._tenant_leases[tenant_id]:
            del self._tenant_leases[tenant_id]

    def submit(self, request: Request, watch: QueueWatch | None) -> Coroutine[Any, Any, Dispatch]:
        """Put a request into its tenant's queue; what is returned waits for a backend."""
        if watch is None:
            self._scheduler.submit(request, self.now())
        else:
            before = self._scheduler.counter(request.tenant_id)
            self._scheduler.submit(request, self.now())
            if (lift := self._scheduler.counter(request.tenant_id) - before) > 0:
                watch.lifted(lift)
            self._ask_why(request.id, watch)
        return self._decision(request.id)

    def returned(self, request_id: str, hold_s: float, watch: QueueWatch | None) -> Coroutine[Any, Any, Dispatch]:
        """Put a dispatched request back; what is returned waits for the next backend."""
        self._left_backend(request_id)
        self._usages.pop(request_id, None)
        self._scheduler.returned(request_id, self.now(), hold_s)
        if watch is not None:
            self._ask_why(request_id, watch)
        return self._decision(request_id)

    def tokens(self, request_id: str, usage: Usage) -> None:
        self._usages[request_id] = usage

    def prefilled(self, request_id: str) -> Usage:
        """A dispatched request's prompt as far as its backend has probably got with it by now."""
        return self._scheduler.prefilled(request_id, self.now()) or NO_USAGE

    def trued_up(self) -> None:
        """A prompt's true size is known: the reservation that shrinks may let somebody in."""
        if self._waiting:
            self._pump_soon()

    def finished(self, request_id: str, outcome: Outcome, timing: Timing | None = None) -> None:
        self._left_backend(request_id)
        self._scheduler.finished(request_id, outcome, self.now(), timing, self._usages.pop(request_id, None))
        if self._waiting:
            self._pump_soon()

    def _ask_why(self, request_id: str, watch: QueueWatch) -> None:
        """Say why the request waits once all was decided: not before the tick after next, for this one ends in it."""

        def tell() -> None:
            if self._has_more:
                self._loop.call_soon(tell)
                return
            reason = self._scheduler.waits_for(request_id, self.now())
            if reason is not None:
                watch.waits(reason)

        self._loop.call_soon(self._loop.call_soon, tell)

    async def _decision(self, request_id: str) -> Dispatch:
        if self._closed:
            self._scheduler.cancel(request_id, self.now())
            raise Rejected(Reason.DRAINING, CLOSED_RETRY_S)
        decided: asyncio.Future[Dispatch] = self._loop.create_future()
        self._waiting[request_id] = decided
        self._pump_soon()
        try:
            return await decided
        except asyncio.CancelledError:
            if request_id in self._in_flight:  # its dispatch crossed with the client's leaving: nothing was sent
                self._usages[request_id] = NO_USAGE
                self.finished(request_id, Outcome.CLIENT_GONE)
            else:
                self._waiting.pop(request_id, None)
                self._scheduler.cancel(request_id, self.now())
                self._pump_soon()
            raise

    # -- the scheduler's side --------------------------------------------------------------------------------

    def _know(self, tenant: Tenant) -> None:
        if self._tenants.get(tenant.id) is not tenant:
            self._tenants[tenant.id] = tenant
            self._tell_all_usages()  # at the weight they passed with
            self._scheduler.tenants_changed(changed=[tenant], now=self.now())

    def _pump_soon(self) -> None:
        if not self._pumping and not self._closed:
            self._pumping = True
            self._loop.call_soon(self._pump)

    def _on_timer(self) -> None:
        self._timer = None
        # A timer may fire a little early by the loop's own clock: what it was set for is due all the same.
        self._decide(max(self.now(), self._timer_at))

    def _pump(self) -> None:
        self._pumping = False
        if not self._closed:
            self._decide(self.now())

    def _decide(self, now: float) -> None:
        self._tell_usages()
        for action in self._scheduler.poll(now):
            if isinstance(action, Preempt):
                self._leases[action.request_id].preempt()
                continue
            decided = self._waiting.pop(action.request_id, None)
            assert decided is not None, "only what waits is decided"
            if isinstance(action, Dispatch):
                request_id, backend_id = action.request_id, action.backend_id
                self._in_flight[request_id] = backend_id
                self._running.setdefault(backend_id, {})[request_id] = self._leases[request_id]
            if decided.cancelled():
                continue  # its task is on the way to _decision's except
            if isinstance(action, Reject):
                decided.set_exception(Rejected(action.reason, action.retry_after_s, action.limit))
            else:
                decided.set_result(action)
        wakeup_at = self._scheduler.next_wakeup()
        self._has_more = wakeup_at is not None and wakeup_at <= now
        if self._has_more:  # than one poll decides: streams go on in between
            self._pump_soon()
        self._arm(None if self._has_more else wakeup_at)

    def _tell_usages(self) -> None:
        if self._usages:
            usages, self._usages = self._usages, {}
            now, tokens = self.now(), self._scheduler.tokens
            for request_id, usage in usages.items():
                tokens(request_id, usage, now)

    def _tell_all_usages(self) -> None:
        self._tell_usages()
        for backend_id in self._running:
            self._tell_passed(backend_id)

    def _tell_passed(self, backend_id: str) -> None:
        """Tell what has passed by now of all that runs there."""
        now, tokens = self.now(), self._scheduler.tokens
        for request_id, lease in self._running.get(backend_id, NO_LEASES).items():
            usage = lease.passed()
            if usage is not None:
                tokens(request_id, usage, now)

    def _left_backend(self, request_id: str) -> None:
        backend_id = self._in_flight.pop(request_id)
        running = self._running[backend_id]
        del running[request_id]
        if not running:
            del self._running[backend_id]

    def _arm(self, wakeup_at: float | None) -> None:
        if self._timer is not None:
            if wakeup_at == self._timer_at:
                return
            self._timer.cancel()
            self._timer = None
        if wakeup_at is not None:
            self._timer_at = wakeup_at
            self._timer = self._loop.call_at(wakeup_at, self._on_timer)


class Lease:
    """One request's claim on the pool: entered when it was given a backend, left when it ended.

    An exception that leaves the block says how it ended; without one the handler sets `outcome`.
    """

    __slots__ = (
        "_dispatcher", "_sender", "_trued_up", "backend_id", "is_preempted", "may_be_preempted", "number", "outcome",
        "passed", "quiet_tokens", "request", "timeliness", "timing", "watch",
    )  # fmt: skip

    def __init__(self, dispatcher: Dispatcher, request: Request, watch: QueueWatch | None = None) -> None:
        self._dispatcher = dispatcher
        self.watch = watch
        self._trued_up = False
        self._sender: asyncio.Task[object] | None = None  # while the request can be taken back
        self.request = request
        self.may_be_preempted = False
        self.is_preempted = False  # the scheduler is taking it back
        self.backend_id = ""
        self.number = 0  # of those that the backend was sent
        self.quiet_tokens = 0.0
        self.outcome = Outcome.COMPLETED
        self.timeliness: Timeliness | None = None  # of the answer as it passes, where the request has an envelope
        self.timing: Timing | None = None  # the same when it has ended
        self.passed: Callable[[], Usage | None] = nothing
        """What has passed by now, also of what was not told; set by whoever relays."""

    async def __aenter__(self) -> Self:
        self._dispatcher.opened(self)
        try:
            self._given(await self._dispatcher.submit(self.request, self.watch))
        except BaseException:
            self._dispatcher.closed(self)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._dispatcher.closed(self)
        if not self.backend_id:
            return  # it was put back and refused then: it ended in the queue
        if error is not None:
            self.outcome = Outcome.BACKEND_FAILED if isinstance(error, UpstreamError) else Outcome.CLIENT_GONE
        if not self._trued_up:  # nothing is counted of it: then it is not charged, either
            self._dispatcher.tokens(self.request.id, NO_USAGE)
        self._dispatcher.finished(self.request.id, self.outcome, self.timing)

    def tokens(self, usage: Usage) -> float:
        """So much has been used so far. Returns how many output tokens there are when it has to be told again; the
        last usage is told in any case.
        """
        self._dispatcher.tokens(self.request.id, usage)
        if not self._trued_up:
            self._trued_up = True
            self._dispatcher.trued_up()
        return max(usage.output_tokens, self.quiet_tokens) + 1

    def prefilled(self) -> Usage:
        """Its prompt as far as its backend has probably got with it by now."""
        return self._dispatcher.prefilled(self.request.id)

    def unless_preempted(self, sending: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """What `sending` returns. Raises Preempted, having cancelled it, where the request is taken back before
        `answering` is called; it is to be returned then.
        """
        return self._watched(sending) if self.may_be_preempted else sending

    async def _watched(self, sending: Coroutine[Any, Any, T]) -> T:
        self._sender, self.is_preempted = asyncio.current_task(), False
        try:
            return await sending
        except asyncio.CancelledError:
            # The client may have left at the same time: then it is the client's leaving.
            if self.is_preempted and self._sender is not None and self._sender.uncancel() == 0:
                raise Preempted from None
            raise
        finally:
            self._sender = None

    def answering(self) -> None:
        """The client is about to be sent something: from now on it is too late to take the request back."""
        if not self.is_preempted:
            self._sender = None

    def preempt(self) -> None:
        """Take the request back, if it is not too late."""
        if self._sender is not None and not self.is_preempted:
            self.is_preempted = True
            self._sender.cancel()

    async def returned(self, hold_s: float) -> None:
        """The backend did not take it, or gave it back: wait for the next one. Raises Rejected."""
        self.backend_id, self._trued_up = "", False
        self._given(await self._dispatcher.returned(self.request.id, hold_s, self.watch))

    def _given(self, decision: Dispatch) -> None:
        self.backend_id, self.quiet_tokens = decision.backend_id, decision.quiet_tokens
        self.number = decision.number
        self.may_be_preempted = decision.may_be_preempted


NO_LEASES: Mapping[str, Lease] = {}


def nothing() -> Usage | None:
    return None
