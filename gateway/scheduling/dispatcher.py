"""Dispatcher: drives the Scheduler of one pool on the event loop. Lease: the hold of one request on that Scheduler.

The dispatcher reports every event to the Scheduler with the loop's time, and polls the Scheduler once per tick of the
loop (deciding.py), so events of one tick are decided together; only the first request of a tick in which no request
waits is decided at once. If one poll does not decide all, the next tick continues. A request holds a Lease from its
arrival to its end, on every path: queued, dispatched, returned, rejected, finished, or disconnected.

Tokens that no decision depends on (`Dispatch.quiet_tokens`) are not reported one by one: the lease knows the tokens so
far, and is asked when the accounts are read or the request ends. For all other tokens, the newest usage is kept and
reported before the next decision. In both cases a reader of the accounts sees every token so far.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

from backends.upstream import UpstreamError
from gateway.scheduling.deciding import Deciding, QueueWatch
from gateway.scheduling.usage_reports import UsageReports
from policies.accounts.checkpoint import ServiceCheckpoint
from policies.call_life import ASKED, LEAVING, LIFE, Event, Life
from policies.facts import Cancelled, Fact, Interrupted, Kept, Measured, Returned, RunFact, Spent, TenantsChanged
from policies.scheduler_protocol import ViewedSchedulerProtocol
from policies.slo.timeliness import Timeliness
from policies.types import (
    KV_BLOCK_TOKENS,
    NO_USAGE,
    BackendLoad,
    Cause,
    Dispatch,
    LimitKind,
    Outcome,
    Preempt,
    RateLimits,
    Reason,
    Reject,
    Request,
    Snapshot,
    Tenant,
    TenantView,
    Timing,
    Usage,
    WaitView,
)

T = TypeVar("T")


CLOSED_RETRY_S = 1.0  # for the client of a gateway that shuts down: by then another replica answers


class Rejected(Exception):  # noqa: N818 - a decision, not an error
    """An error: the scheduler rejected the request. `retry_after_s`: the seconds after which a retry makes sense.
    `limit` is the exceeded limit; None: there was another reason.
    """

    def __init__(self, reason: Reason, retry_after_s: float, limit: LimitKind | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_s = retry_after_s
        self.limit = limit


class Preempted(Exception):  # noqa: N818 - a decision, not an error
    """An error: the scheduler preempts the dispatched request for the given cause, and the request returns to the
    queue. Either its client has been sent nothing yet, or its stream can be continued.
    """

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause)
        self.cause = cause


class Dispatcher:
    """The driver of one pool's Scheduler on the event loop: it reports facts about requests to the Scheduler, and
    carries out its decisions. All methods are called on the loop that runs it.
    """

    def __init__(self, scheduler: ViewedSchedulerProtocol, deciding: Deciding | None = None) -> None:
        self._scheduler = scheduler
        self.loop = asyncio.get_running_loop()
        self.now: Callable[[], float] = self.loop.time
        """Seconds on the clock that all facts are told with; requests arrive at this time too."""
        self._waiting: dict[str, asyncio.Future[Dispatch] | None] = {}  # None while it is decided at once
        self._at_once: Dispatch | Reject | None = None
        self._usages = UsageReports(scheduler)
        self._tenants: dict[str, Tenant] = {}
        self.leases: dict[str, Lease] = {}
        """Of all queued and running requests, to read only."""
        self._tenant_leases: defaultdict[str, int] = defaultdict(int)
        self._closed = False
        self._deciding = Deciding(scheduler) if deciding is None else deciding
        self._tells_all = self._deciding.tells_all
        self._deciding.begin(self)

    def lease(self, request: Request, tenant: Tenant, watch: QueueWatch | None = None) -> "Lease":
        """A lease for the request. Entering it waits for a backend, and raises Rejected. `watch` observes the wait."""
        if self._tenants.get(tenant.id) is not tenant:
            self._know(tenant)
        return Lease(self, request, watch)

    def spent(self, tenant: Tenant, usage: Usage, key_id: str = "") -> None:
        """Charge the tenant for a call with this key that was never queued."""
        self._know(tenant)
        self._scheduler.told(Spent(self.now(), tenant.id, usage, key_id))
        if self._tells_all:
            self._deciding.soon()

    def told(self, fact: Fact) -> None:
        """Report a change of the backends, the settings or the policies of the pool. Raises ValueError for an unknown
        policy or parameter.
        """
        # Usage that is not reported first would look like external load.
        self._usages.report_all(fact.now)
        self._scheduler.told(fact)
        self._deciding.soon()

    def measured(self, load: BackendLoad) -> None:
        """Update one backend. Only the usage of the requests that run there is brought up to date."""
        now = self.now()
        self._usages.report(now)
        self._usages.report_passed(load.backend_id, now)
        self._scheduler.told(Measured(now, load))
        self._deciding.soon()

    def tenant_changed(self, tenant: Tenant) -> None:
        """Apply changed settings of a tenant; no effect on a tenant that this pool has not seen."""
        if tenant.id in self._tenants:
            self._know(tenant)
            self._deciding.soon()
        elif self._tells_all:  # other processes may have seen it
            self._scheduler.told(TenantsChanged(self.now(), changed=(tenant,)))
            self._deciding.soon()

    def checkpoint(self) -> ServiceCheckpoint:
        """The service that all tenants have received by now, to restore in another process."""
        self._usages.report_all(self.now())
        return self._scheduler.checkpoint()

    def forget(self, tenant_id: str) -> None:
        """Forget a tenant. Its queued requests are rejected; its running requests continue."""
        self._tenants.pop(tenant_id, None)  # the scheduler may know others from a checkpoint
        self._scheduler.told(TenantsChanged(self.now(), removed=(tenant_id,)))
        self._deciding.soon()

    def snapshot(self, tenant_ids: Iterable[str] | None = None) -> Snapshot:
        """The present state of the pool, with these tenants; None: with all."""
        self._usages.report_all(self.now())
        return self._scheduler.snapshot(self.now(), tenant_ids)

    def tenant_views(self, tenant_ids: Iterable[str]) -> Mapping[str, TenantView]:
        """The views of these tenants, right after a snapshot: tokens since that snapshot may be missing."""
        return self._scheduler.snapshot(self.now(), tenant_ids).tenants

    def tenants(self) -> Collection[Tenant]:
        """All tenants that this pool has seen and not forgotten, with their present settings."""
        return self._deciding.tenants_elsewhere() or self._tenants.values()

    def rate_limits(self, tenant: Tenant, key_id: str = "") -> RateLimits:
        """The present state of the limits per minute for the tenant with this key, its latest request counted."""
        self._know(tenant)
        return self._scheduler.rate_limits(tenant.id, self.now(), key_id)

    def wait_views(self, request_ids: Iterable[str]) -> Mapping[str, WaitView]:
        """Why each queued one of these requests waits, by its id at the Scheduler."""
        return self._scheduler.wait_views(request_ids, self.now())

    def cancel(self, request_id: str) -> bool:
        """End a queued or running request; its handler gets Rejected. Returns False where there is no such request."""
        lease, decided = self.leases.get(request_id), self._waiting.get(request_id)
        if lease is None:
            return False
        if decided is None or decided.done():
            lease.cancel()
            return True
        del self._waiting[request_id]
        self._scheduler.told(Cancelled(self.now(), request_id))
        decided.set_exception(Rejected(Reason.CANCELLED, 0.0))
        self._deciding.soon()
        return True

    def close(self) -> None:
        """Stop deciding. Queued requests are rejected, and so are later ones and those that return to the queue."""
        self._closed = True
        self._deciding.decided(self.now(), None)
        waiting, self._waiting = self._waiting, {}
        for request_id, decided in waiting.items():
            self._scheduler.told(Cancelled(self.now(), request_id))
            if decided is not None and not decided.done():
                decided.set_exception(Rejected(Reason.DRAINING, CLOSED_RETRY_S))

    def serves(self, tenant_id: str) -> bool:
        """Whether this tenant has a request queued or in flight."""
        return tenant_id in self._tenant_leases or self._deciding.serves_elsewhere(tenant_id)

    # -- the leases' side ------------------------------------------------------------------------------------

    def arrived(self, lease: "Lease") -> Dispatch | None:
        """Put a request into its tenant's queue. Returns the Dispatch if it is decided at once, which happens only to
        the first request of a tick while no request waits. None: call `decision` to wait for it. Raises Rejected.
        """
        request, watch, deciding = lease.request, lease.watch, self._deciding
        self.leases[request.id] = lease
        self._tenant_leases[request.tenant_id] += 1
        if self._closed:
            raise Rejected(Reason.DRAINING, CLOSED_RETRY_S)
        is_first = not (self._waiting or deciding.is_due)
        if watch is not None:
            deciding.submit_watched(request, watch)
        elif not is_first:
            self._scheduler.submit(request, self.now())
        deciding.soon()
        if not is_first:
            return None
        self._waiting[request.id] = None
        deciding.first(request if watch is None else None)
        decided, self._at_once = self._at_once, None
        if isinstance(decided, Reject):
            raise _rejected(decided)
        return decided

    def closed(self, lease: "Lease") -> None:
        del self.leases[lease.request.id]
        tenant_id = lease.request.tenant_id
        self._tenant_leases[tenant_id] -= 1
        if not self._tenant_leases[tenant_id]:
            del self._tenant_leases[tenant_id]

    def wait_again(self, fact: RunFact, watch: QueueWatch | None) -> Coroutine[Any, Any, Dispatch]:
        """A dispatched request left its backend, and is in its queue again. The returned coroutine waits for the next
        Dispatch; it raises Rejected.
        """
        self._usages.ended(fact.request_id)
        self._scheduler.told(fact)
        if watch is not None:
            self._deciding.ask_why(fact.request_id, watch)
        self._deciding.soon()
        return self.decision(fact.request_id)

    def runs_on(self, fact: RunFact) -> None:
        """A dispatched request stays at its backend, as `fact` says."""
        self._scheduler.told(fact)
        if self._waiting or self._tells_all:
            self._deciding.soon()

    def tokens(self, request_id: str, usage: Usage, *, is_first: bool = False) -> None:
        """A request has used this much. The first report of its prompt's true size may have shrunk its reservation, so
        a queued request may fit now.
        """
        self._usages.record(request_id, usage)
        if self._tells_all:
            self._deciding.recorded()
        if is_first and (self._waiting or self._tells_all):
            self._deciding.soon()

    def prefilled(self, request_id: str) -> Usage:
        """The estimated usage of a dispatched request without tokens: its prompt tokens computed so far."""
        return self._scheduler.prefilled(request_id, self.now()) or NO_USAGE

    def finished(self, request_id: str, outcome: Outcome, timing: Timing | None = None) -> None:
        self._scheduler.finished(request_id, outcome, self.now(), timing, self._usages.ended(request_id))
        if self._waiting or self._tells_all:
            self._deciding.soon()

    async def decision(self, request_id: str) -> Dispatch:
        """Wait for the decision on a submitted request. Raises Rejected."""
        if self._closed:
            self._scheduler.told(Cancelled(self.now(), request_id))
            raise Rejected(Reason.DRAINING, CLOSED_RETRY_S)
        decided: asyncio.Future[Dispatch] = self.loop.create_future()
        self._waiting[request_id] = decided
        try:
            return await decided
        except asyncio.CancelledError:
            if self._usages.is_running(request_id):  # dispatched in the same tick as the disconnect: nothing was sent
                if not self.leases[request_id].is_continued:
                    self._usages.record(request_id, NO_USAGE)
                self.finished(request_id, Outcome.CLIENT_DISCONNECTED)
            else:
                self._waiting.pop(request_id, None)
                self._scheduler.told(Cancelled(self.now(), request_id))
                self._deciding.soon()
            raise

    # -- the scheduler's side --------------------------------------------------------------------------------

    def _know(self, tenant: Tenant) -> None:
        if self._tenants.get(tenant.id) is not tenant:
            self._tenants[tenant.id] = tenant
            self._usages.report_all(self.now())  # at the weight that applied when the tokens passed
            self._scheduler.told(TenantsChanged(self.now(), changed=(tenant,)))

    def report(self, now: float, *, brings_all: bool) -> None:
        if brings_all:
            self._usages.report_all(now)
        else:
            self._usages.report(now)

    def decide(self, now: float, arriving: Request | None = None) -> None:
        if self._closed:
            return
        self._usages.report(now)
        for action in self._scheduler.poll(now) if arriving is None else self._scheduler.arrived(arriving, now):
            if isinstance(action, Dispatch):
                lease = self.leases[action.request_id]
                self._usages.dispatched(action.request_id, action.backend_id, lease.usage_passed)
                if lease.watch is not None:
                    self._deciding.dispatched(action.request_id, lease.watch)
            elif isinstance(action, Preempt):
                self.leases[action.request_id].preempt(action.cause)
                continue
            decided = self._waiting.pop(action.request_id)
            if decided is None:
                self._at_once = action
            elif decided.cancelled():
                continue  # its task was cancelled; the handler in `decision` cleans up
            elif isinstance(action, Reject):
                decided.set_exception(_rejected(action))
            else:
                decided.set_result(action)
        self._deciding.decided(now, self._scheduler.next_wakeup())


class Lease:
    """The stay of one request in its pool, first in the queue and then at a backend, as an async context manager.
    Entering it waits for a backend; leaving it ends the request.

    `outcome` is how the request ended. The handler sets it; if an exception leaves the block, it is overwritten by what
    the exception means.
    """

    __slots__ = (
        "_dispatcher", "_sender", "_trued_up",
        "backend_id", "cut", "expected_tokens", "holder", "is_cancelled", "is_resumable", "life", "may_move", "number",
        "outcome", "passed", "quiet_tokens", "request", "timeliness", "timing", "watch",
    )  # fmt: skip

    def __init__(self, dispatcher: Dispatcher, request: Request, watch: QueueWatch | None = None) -> None:
        self._dispatcher = dispatcher
        self.watch = watch
        self.life = Life.QUEUED
        """FIXED, too, where the Scheduler dispatched it as one that is not preempted."""
        self._trued_up = False
        self._sender: asyncio.Task[object] | None = None  # set while sending can be cancelled for a preemption
        self.is_resumable = request.is_resumable
        """Whether it may be interrupted now. Set to False when it cannot be continued any more."""
        self.is_cancelled = False  # by an operator
        self.holder: asyncio.Task[object] | None = None
        """The task that works on the request now."""
        self.may_move: Callable[[], bool] = _anywhere
        """Whether another backend could go on with a stream that has begun."""
        self.cut: Callable[[], None] | None = None
        """Ends a stream that the client has been sent a part of; None: there is none."""
        self.request = request
        self.backend_id = ""  # empty while the request is queued
        self.number = 0  # the running number of this dispatch to the backend
        self.quiet_tokens = 0.0
        self.expected_tokens = 0  # of the prompt, that its backend has computed before, as far as is known
        self.outcome = Outcome.COMPLETED
        self.timeliness: Timeliness | None = None  # of the answer as it passes, where the request has an envelope
        self.timing: Timing | None = None  # the same when it has ended
        self.passed: Callable[[], Usage | None] = nothing
        """What has passed by now, also of what was not told; set by the relay."""

    async def __aenter__(self) -> Self:
        self.holder = asyncio.current_task(self._dispatcher.loop)
        try:
            self._given(self._dispatcher.arrived(self) or await self._dispatcher.decision(self.request.id))
        except BaseException:
            self._closed()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closed()
        if not self.backend_id:
            return  # it had returned to the queue and ended there
        if error is not None:
            self.outcome = Outcome.BACKEND_FAILED if isinstance(error, UpstreamError) else Outcome.CLIENT_DISCONNECTED
        if not self._trued_up:  # no usage was reported, so nothing is charged
            self._dispatcher.tokens(self.request.id, NO_USAGE)
        self._dispatcher.finished(self.request.id, self.outcome, self.timing)

    def cancel(self) -> None:
        """End the request, which is not queued. Its stream ends with an error event. If the client has been sent
        nothing, the task that holds the lease is cancelled, and `raise_if_cancelled` gives the reason. Idempotent.
        """
        if self.is_cancelled:
            return
        self.is_cancelled = True
        if self.cut is not None:
            self.cut()
        elif self.holder is not None:
            self.holder.cancel()

    def raise_if_cancelled(self) -> None:
        """Raise Rejected where the CancelledError that this task has caught comes from `cancel` alone."""
        holder = asyncio.current_task()
        if self.is_cancelled and holder is not None and holder.uncancel() == 0:
            raise Rejected(Reason.CANCELLED, 0.0) from None

    def usage_passed(self) -> Usage | None:
        """The usage so far; None: nothing is known about it."""
        return self.passed()

    def tokens(self, usage: Usage) -> float:
        """Report the cumulative usage. Returns the number of output tokens at which this method has to be called again;
        the last usage is reported in any case.
        """
        self._dispatcher.tokens(self.request.id, usage, is_first=not self._trued_up)
        self._trued_up = True
        told = max(usage.output_tokens, self.quiet_tokens)
        return told + KV_BLOCK_TOKENS - told % KV_BLOCK_TOKENS  # a reservation grows by blocks

    def prefilled(self) -> Usage:
        """The estimated usage of this request without tokens: its prompt tokens computed so far."""
        return self._dispatcher.prefilled(self.request.id)

    def unless_preempted(self, sending: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """The result of `sending`. Where the scheduler preempts the request before `answering` is called, or at any
        time while it is resumable, `sending` is cancelled, and this raises Preempted: the caller then calls `returned`.
        """
        return sending if self.life is Life.FIXED else self._watched(sending)

    async def _watched(self, sending: Coroutine[Any, Any, T]) -> T:
        if self.is_leaving:  # since its dispatch, before anything was sent
            sending.close()
            raise Preempted(LEAVING[self.life])
        self._sender = asyncio.current_task()
        try:
            return await sending
        except asyncio.CancelledError:
            # The client may have disconnected at the same time: then the disconnect wins.
            if self.is_leaving and self._sender is not None and self._sender.uncancel() == 0:
                raise Preempted(LEAVING[self.life]) from None
            raise
        finally:
            self._sender = None
            if not self.is_leaving:
                self.life = LIFE[self.life, Event.KEPT]

    def answering(self) -> None:
        """The client is about to be sent something: from now on the request is preempted only while resumable."""
        self.life = LIFE[self.life, Event.ANSWERED]

    def preempt(self, cause: Cause) -> None:
        """Preempt the request, or report that it is too late. A preemption that comes before `sending` has begun, or
        before the task knows of the dispatch, is remembered and answered, too: otherwise the scheduler would wait for
        the answer, and preempt no other request.
        """
        is_too_late = self.life in (Life.QUEUED, Life.FIXED)
        if is_too_late or (self.life is Life.ANSWERING and not (self.is_resumable and self.may_move())):
            self._dispatcher.runs_on(Kept(self._dispatcher.now(), self.request.id))
        elif not self.is_leaving:
            self.life = LIFE[self.life, ASKED[cause]]
            if self._sender is not None:
                self._sender.cancel()

    @property
    def is_leaving(self) -> bool:
        """Whether the request was preempted, and has not returned yet."""
        return self.life in LEAVING

    @property
    def is_continued(self) -> bool:
        """Whether the request was interrupted after some tokens, and waits or is continued from there."""
        return bool(self.request.produced_tokens)

    async def returned(
        self,
        cause: Cause,
        hold_s: float = 0.0,
        backend_ids: frozenset[str] | None = None,
        usage: Usage | None = None,
    ) -> None:
        """The request has left its backend for this cause: wait for the next backend, one of `backend_ids`. With
        `usage`, which has output, the request was interrupted and is continued: later usage includes this one, with the
        prompt once and the output of all backends. Raises Rejected.
        """
        self.backend_id, self.life = "", LIFE[self.life, Event.RETURNED]
        now, request_id = self._dispatcher.now(), self.request.id
        fact: RunFact = Returned(now, request_id, hold_s, backend_ids, cause)
        if usage is not None:
            assert usage.output_tokens, "without output it begins anew"
            fact = Interrupted(now, request_id, usage, hold_s, cause)
            self.request = replace(self.request, produced_tokens=usage.output_tokens)
        self._trued_up = self.is_continued
        self._given(await self._dispatcher.wait_again(fact, self.watch))

    def _closed(self) -> None:
        self.life = LIFE[self.life, Event.ENDED]
        self._dispatcher.closed(self)
        self.holder = self.cut = None  # a task that holds its lease would be a reference cycle
        self.may_move = _anywhere  # as would this

    def _given(self, decision: Dispatch) -> None:
        self.backend_id, self.quiet_tokens = decision.backend_id, decision.quiet_tokens
        self.number, self.expected_tokens = decision.number, decision.expected_tokens
        self.life = LIFE[self.life, Event.DISPATCHED]
        if not decision.may_be_preempted:
            self.life = LIFE[self.life, Event.KEPT]


def _rejected(action: Reject) -> Rejected:
    return Rejected(action.reason, action.retry_after_s, action.limit)


def _anywhere() -> bool:
    return True


def nothing() -> Usage | None:
    return None
