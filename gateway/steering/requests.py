"""Requests of a gateway, one by one: the waiting, the running and the last ended ones, and the cancelling of one.

Each process knows those that it accepted, and asks the others for theirs. The process that leads knows why queued
requests wait. Only facts that are also in the access log are stored of a call; there is no text.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from heapq import nsmallest
from itertools import islice
from typing import Any, Final, Literal, NamedTuple

import msgspec

from gateway.config.amounts import to_text
from gateway.forwarding.active_calls import ActiveCall, ActiveCalls
from gateway.observability.telemetry import CallTrace
from gateway.others import Others
from gateway.scheduling.pools import Pools
from gateway.scheduling.urgency import slack_s
from gateway.store.base import StoreFull, StoreUnavailable
from policies.types import Reason, Request, Usage, WaitView

ENDED_MAX: Final = 10_000  # rows of half a kilobyte, in each process
VIEWS_AT_ONCE: Final = 100  # of waits, between turns of the event loop: some milliseconds
SERVICE, CANCEL_SERVICE, WAITS_SERVICE = "requests", "cancel", "waits"

State = Literal["queued", "running", "ended"]
Place = tuple[float, str]
"""The place of a row in a list: lists are ascending by time and id. Times of ended requests are negative, so the newest
comes first.
"""


class RequestRow(msgspec.Struct, array_like=True, gc=False, kw_only=True):
    """One request of a gateway, as an operator sees it. `arrived_at` and `ended_at` are seconds since 1970; other times
    are durations in seconds. `scheduler_id` is its id at the Scheduler that decides on it.
    """

    id: str
    pool: str | None
    tenant: str
    model: str | None
    endpoint: str
    state: State
    backend: str | None
    arrived_at: float
    age_s: float
    queue_s: float | None
    prefill_s: float | None
    decode_s: float | None
    prompt_tokens: int
    output_tokens: int
    output_tokens_max: int | None
    process: str
    slack_s: float | None = None
    outcome: str | None = None
    status: int | None = None
    ended_at: float | None = None
    scheduler_id: str = ""
    cost: str | None = None  # of one that has ended, in units of `currency`
    currency: str | None = None
    key: str = ""  # the id of its API key, where it has one
    trace_id: str | None = None

    @property
    def place(self) -> Place:
        return (self.arrived_at if self.ended_at is None else -self.ended_at, self.id)


class RequestQuery(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """A query for at most `limit` requests in this state (None: queued and running), that come after the row at the
    position `after` (its time and id). The other fields select requests by id, tenant, key, pool, model, backend and
    outcome (None: any).
    """

    state: State | None = None
    tenant: str | None = None
    pool: str | None = None
    id: str | None = None
    after: Place | None = None
    limit: int = 100
    key: str | None = None
    model: str | None = None
    backend: str | None = None
    outcome: str | None = None

    def takes(self, place: Place, *has: str | None) -> bool:
        """Whether a request at this place matches the query, apart from its state and its id. It `has` this tenant,
        key, pool, model, backend and outcome.
        """
        wanted = self.tenant, self.key, self.pool, self.model, self.backend, self.outcome
        is_after = self.after is None or place > self.after
        return is_after and all(each in (None, value) for each, value in zip(wanted, has, strict=True))


class Cancelling(StrEnum):
    """The result of trying to cancel a request: it is cancelled, it had ended before, or it is not known."""

    DONE = "done"
    ENDED = "ended"  # before
    UNKNOWN = "unknown"


class EndedRequests:
    """The last ENDED_MAX requests that ended in this process. Mutable; a CallObserver, which gets each ended call."""

    def __init__(self, process: str, pool_of: Callable[[str], str | None]) -> None:
        """`pool_of` finds the pool of a model."""
        self._process = process
        self._pool_of = pool_of
        self._rows: deque[RequestRow] = deque()
        self.by_id: dict[str, RequestRow] = {}
        """The last of each id, which clients may use again. To read."""

    def ended(self, trace: CallTrace) -> None:
        """Store a call that has ended. Calls of unknown callers and models are left out."""
        if trace.tenant_id is None or not trace.is_routed:
            return
        row = self._row(trace, trace.tenant_id)
        if len(self._rows) == ENDED_MAX:
            oldest = self._rows.popleft()
            if self.by_id.get(oldest.id) is oldest:
                del self.by_id[oldest.id]
        self._rows.append(row)
        self.by_id[row.id] = row

    def newest_first(self) -> Iterator[RequestRow]:
        return reversed(self._rows)

    def _row(self, trace: CallTrace, tenant_id: str) -> RequestRow:
        usage, request = trace.usage, trace.request
        is_cancelled = trace.reason == Reason.CANCELLED
        return RequestRow(
            **_times(trace, is_dispatched=trace.dispatched_s is not None),
            id=trace.request_id,
            pool=None if trace.model is None else self._pool_of(trace.model),
            tenant=tenant_id,
            model=trace.model,
            endpoint=trace.endpoint,
            state="ended",
            backend=trace.backend_id,
            prompt_tokens=usage.prompt_tokens if usage else request.prompt_tokens if request else 0,
            output_tokens=usage.output_tokens if usage else 0,
            output_tokens_max=_at_most(request, usage) if request else None,
            process=self._process,
            outcome=trace.reason if is_cancelled else trace.outcome or trace.reason,
            status=trace.status,
            ended_at=time.time(),
            cost=None if trace.cost is None else to_text(trace.cost),
            currency=trace.currency,
            key=trace.key_id,
            trace_id=trace.trace_id,
        )


class FoundRequests(NamedTuple):
    """The answer to a RequestQuery: the rows found in all processes, and the processes that did not answer (`missing`).
    `waits` has the reasons why queued requests wait, by `scheduler_id`.
    """

    rows: list[RequestRow]
    waits: Mapping[str, WaitView]
    missing: list[str]


class AllRequests:
    """A finder of requests in all processes of a gateway: queued, running and recently ended ones. Each process answers
    for the requests that it has accepted.
    """

    def __init__(self, others: Others, pools: Pools, active: ActiveCalls, ended: EndedRequests) -> None:
        self._others = others
        others.services |= {
            SERVICE: self._answer,
            CANCEL_SERVICE: self._answer_cancel,
            WAITS_SERVICE: self._answer_waits,
        }
        self._pools = pools
        self._active = active
        self._ended = ended

    async def find(self, query: RequestQuery) -> FoundRequests:
        """The rows that match the query. Without an answer of the leader, the reasons for waiting are not known."""
        answers, missing = await self._others.ask_all(self._others.names(), SERVICE, _pack(query))
        rows = self._rows(query)
        for answer in answers:
            rows += _ROWS.decode(answer)
        rows = nsmallest(query.limit, rows, key=lambda row: row.place)
        return FoundRequests(rows, await self._why(rows), missing)

    async def cancel(self, request_id: str) -> Cancelling:
        """Cancel the request with this id, whichever process has it."""
        found = self._cancel(request_id)
        if found is Cancelling.DONE:
            return found
        answers, _ = await self._others.ask_all(self._others.names(), CANCEL_SERVICE, request_id.encode())
        all_found = {found, *(Cancelling(answer.decode()) for answer in answers)}
        return next(each for each in Cancelling if each in all_found)

    async def _why(self, rows: Sequence[RequestRow]) -> dict[str, WaitView]:
        queued: dict[str, list[str]] = {}
        for row in rows:
            if row.state == "queued" and row.pool is not None:
                queued.setdefault(row.pool, []).append(row.scheduler_id)
        if self._others.is_leading or not queued:
            return await self._waits(queued)
        with suppress(StoreUnavailable, StoreFull):
            return _WAITS.decode(await self._others.ask_leader(WAITS_SERVICE, _pack(queued)))
        return {}

    # -- of this process -------------------------------------------------------------------------------------

    def _rows(self, query: RequestQuery) -> list[RequestRow]:
        """The rows of this process, in the order of their places."""
        if query.state == "ended":
            return list(islice(self._ended_rows(query), query.limit))
        pools = {id(dispatcher): pool for pool, dispatcher in self._pools.dispatchers.items()}
        wanted = [
            (call.trace.arrived_at, request_id, call)
            for call in self._active.all()
            if _is_meant(call, request_id := call.lease.request.id, pools.get(id(call.dispatcher)), query)
        ]
        shown = nsmallest(query.limit, wanted)
        return [self._row(call, pools.get(id(call.dispatcher))) for _, _, call in shown]

    def _cancel(self, request_id: str) -> Cancelling:
        """Cancel the request with this id, if this process has it and it has not ended."""
        call = self._active.find(request_id)
        if call is not None and call.dispatcher.cancel(request_id):
            return Cancelling.DONE
        return Cancelling.UNKNOWN if self._ended.by_id.get(request_id) is None else Cancelling.ENDED

    async def _waits(self, queued: Mapping[str, Sequence[str]]) -> dict[str, WaitView]:
        """The reasons why requests wait, by their ids at the Scheduler, which are given by pool. Called where this
        process leads.
        """
        waits: dict[str, WaitView] = {}
        for pool, ids in queued.items():
            for start in range(0, len(ids), VIEWS_AT_ONCE):
                dispatcher = self._pools.dispatchers.get(pool)
                waits |= {} if dispatcher is None else dispatcher.wait_views(ids[start : start + VIEWS_AT_ONCE])
                await asyncio.sleep(0)
        return waits

    async def _answer(self, body: bytes) -> bytes:
        return _pack(self._rows(_QUERY.decode(body)))

    async def _answer_cancel(self, body: bytes) -> bytes:
        return self._cancel(body.decode()).encode()

    async def _answer_waits(self, body: bytes) -> bytes:
        return _pack(await self._waits(_QUEUED.decode(body)))

    def _ended_rows(self, query: RequestQuery) -> Iterator[RequestRow]:
        found = self._ended.newest_first()
        if query.id is not None:
            one = self._ended.by_id.get(query.id)
            found = iter(() if one is None else (one,))
        for row in found:
            if query.takes(row.place, row.tenant, row.key, row.pool, row.model, row.backend, row.outcome):
                yield row

    def _row(self, call: ActiveCall, pool: str | None) -> RequestRow:
        lease, trace = call.lease, call.trace
        request, usage = lease.request, lease.usage_passed() or trace.usage
        slack = slack_s(lease, call.dispatcher.now())
        return RequestRow(
            **_times(trace, is_dispatched=bool(lease.backend_id)),
            id=request.id,
            pool=pool,
            tenant=request.tenant_id,
            model=request.model,
            endpoint=request.endpoint,
            state="running" if lease.backend_id else "queued",
            backend=lease.backend_id or None,
            prompt_tokens=(usage.prompt_tokens if usage else 0) or request.prompt_tokens,
            output_tokens=usage.output_tokens if usage else 0,
            output_tokens_max=_at_most(request, usage),
            process=self._others.name,
            slack_s=slack if slack < float("inf") else None,
            scheduler_id=self._others.scheduler_id(request.id),
            key=trace.key_id,
            trace_id=trace.trace_id,
        )


def _times(trace: CallTrace, *, is_dispatched: bool) -> dict[str, Any]:
    """The times of a row: when it arrived, its age, and the seconds in the queue, from dispatch to first token, and
    since then, as far as the request has come. An answer that is not streamed has its first token at its end.
    """
    now_s, queued_s, first_s = time.perf_counter(), trace.queued_s, trace.first_token_s
    sent_s = trace.dispatched_s if is_dispatched else None
    return {
        "arrived_at": trace.arrived_at,
        "age_s": now_s - trace.started_s,
        "queue_s": None if queued_s is None else (now_s if sent_s is None else sent_s) - queued_s,
        "prefill_s": None if sent_s is None else (now_s if first_s is None else first_s) - sent_s,
        "decode_s": None if sent_s is None or first_s is None else now_s - first_s,
    }


def _at_most(request: Request, usage: Usage | None) -> int:
    """The most output tokens of a request. Where the model's context limits them, they were computed from the estimated
    prompt; the backend counts the true one, and may give some tokens more.
    """
    return max(request.output_tokens_max, usage.output_tokens if usage else 0)


def _is_meant(call: ActiveCall, request_id: str, pool: str | None, query: RequestQuery) -> bool:
    lease, place = call.lease, (call.trace.arrived_at, request_id)
    if query.state not in (None, "running" if lease.backend_id else "queued") or query.id not in (None, request_id):
        return False
    return query.takes(
        place, lease.request.tenant_id, call.trace.key_id, pool, lease.request.model, lease.backend_id, None
    )


_pack: Final = msgspec.msgpack.Encoder().encode
_QUERY: Final = msgspec.msgpack.Decoder(RequestQuery)
_QUEUED: Final = msgspec.msgpack.Decoder(dict[str, list[str]])
_WAITS: Final = msgspec.msgpack.Decoder(dict[str, WaitView])
_ROWS: Final = msgspec.msgpack.Decoder(list[RequestRow])
