"""Discrete-event simulation of a pool: the real Scheduler and the real engine under a virtual clock.

The world keeps a heap of events and jumps from instant to instant. At each instant it handles all events and reports
them to the Scheduler. It polls the Scheduler until no decision is due, passes dispatched requests to the engines, and
starts the next step of every idle engine. The gateway does the same in one or several iterations of its event loop, so
it would make the same decisions. Tokens are reported when they matter (before a poll, and when their request ends); a
token alone causes no poll. The network is left out: a fact is known when it happens, and a dispatch arrives at once.

Steps of an engine in which every sequence only gets one more token are done in one leap, up to the next event.

A Scheduler that lets a request wait for ever has a bug: the world asserts that there is a next event while any request
is alive.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import inf

from backends.engine.engine import Engine, StepPlan
from backends.engine.sequence import EngineRequest
from backends.simulation.answer_pace import AnswerPace
from backends.simulation.requests import BLOCK_BITS, Arrival, RequestRecord
from backends.simulation.scrapes import ScrapedSteps
from policies.facts import Cancelled, Interrupted, LoadChanged, Measured, Returned
from policies.scheduler_protocol import SchedulerProtocol
from policies.step_time.model import StepTime
from policies.types import Action, BackendLoad, Cause, Dispatch, Outcome, Reason, Reject, Request, SloEnvelope, Usage

METRICS_EVERY_S = 1.0  # as the gateway polls /metrics
SENDER = ""  # of all requests: one gateway

Happening = Callable[[float], None]


@dataclass(slots=True)
class SimulatedCall:
    """The state of one simulated request, between its arrival and its end. Mutable."""

    request: Request
    arrival: Arrival
    slot: "Slot | None" = None
    quiet_tokens: float = 0.0
    cached_tokens: int = 0
    emitted: int = 0
    reported: int = 0  # emitted tokens that were reported to the scheduler
    first_token_at: float | None = None
    continued_from: int = 0  # emitted before it was interrupted last
    interruptions: int = 0
    recomputed_tokens: int = 0
    pace: AnswerPace | None = None  # for a request with an envelope


@dataclass(frozen=True, slots=True)
class KnownSteps:
    """What the gateway knows about the engines' steps in a simulation: step-time model, batching rule, tokens per step.
    By default it knows none. `learnt`: it learns them from the counters of every scrape, as for a server without
    configured values. `budget_for`: every engine reports, after each step, its prefill admission budget for this
    envelope, as an engine with the plugin does.
    """

    time: StepTime | None = None
    batching: str = "vllm"
    tokens_max: int | None = None
    learnt: bool = False
    budget_for: SloEnvelope | None = None


@dataclass(slots=True)
class Slot:
    """One simulated engine, with the step that it computes now and what it last reported. Mutable."""

    backend_id: str
    engine: Engine
    scrapes: ScrapedSteps | None = None
    plan: StepPlan | None = None
    step_s: float = 0.0  # of the last step
    passed_over: int = 0  # requests that it could not take: only these wait, by vLLM's metrics
    dispatches: int = 0
    budget: tuple[float, int] | None = None  # as last reported, and the dispatches that it includes
    is_budget_reported: bool = True


class World:
    """A simulation of one pool: a Scheduler and simulated engines under a virtual clock. It takes arrivals, and returns
    the record of each request when the request has ended. `requests_running_max` is max_num_seqs of every engine, if
    the operator has configured it; `steps` says which of the engines' step times and limits the gateway knows.
    """

    def __init__(
        self,
        scheduler: SchedulerProtocol,
        engines: Mapping[str, Engine],
        *,
        requests_running_max: int | None = None,
        metrics_every_s: float = METRICS_EVERY_S,
        steps: KnownSteps | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._requests_running_max = requests_running_max
        self._metrics_every_s = metrics_every_s
        self._steps = steps or KnownSteps()
        self._slots = {
            backend_id: Slot(backend_id, engine, ScrapedSteps(backend_id, engine) if self._steps.learnt else None)
            for backend_id, engine in engines.items()
        }
        self._happenings: list[tuple[float, int, Happening]] = []
        self._numbers = count()
        self._calls: dict[str, SimulatedCall] = {}
        self._in_flight: dict[str, SimulatedCall] = {}
        self._is_poll_due = False
        self._arrivals: Iterator[Arrival] = iter(())
        self._upcoming: Arrival | None = None
        self._waiting: defaultdict[int, list[Arrival]] = defaultdict(list)  # by the number of what they wait for
        self._of_loop: defaultdict[int, list[int]] = defaultdict(list)  # heaps: numbers of calls that have not ended
        self._thinking = 0  # clients that will call
        self._ended: list[RequestRecord] = []
        self._wakeup_at = inf
        self.now = 0.0

    def run(self, arrivals: Iterable[Arrival]) -> Iterator[RequestRecord]:
        """Handle the arrivals, which are in order of time, until the last request has ended; yield a record for each.
        An arrival that waits for another's end stands after that arrival, and before all that come after its end.
        """
        self._arrivals = iter(arrivals)
        self._expect_arrival()
        for slot in self._slots.values():
            self._note_budget(slot, self.now)
        self._measure(self.now)
        while (now := self._next_instant()) is not None:
            assert now >= self.now, "time goes forward"
            self.now = now
            while self._happenings and self._happenings[0][0] == now:
                heappop(self._happenings)[2](now)
            if self._is_poll_due or now == self._wakeup_at:
                self._decide(now)
            self._begin_steps(now)
            yield from self._ended
            self._ended.clear()

    def _next_instant(self) -> float | None:
        at = min(self._happenings[0][0] if self._happenings else inf, self._wakeup_at if self._calls else inf)
        assert at < inf or not self._calls, "something lives and nothing will ever happen"
        return at if at < inf else None

    def _at(self, at: float, happening: Happening) -> None:
        heappush(self._happenings, (at, next(self._numbers), happening))

    # -- events -----------------------------------------------------------------------------------------------

    def _expect_arrival(self) -> None:
        for arrival in self._arrivals:
            if arrival.waited_for is None:
                self._upcoming = arrival
                self._at(arrival.at_s, self._arrive)
                return
            self._waiting[arrival.waited_for].append(arrival)
        self._upcoming = None

    def _arrive(self, now: float) -> None:
        arrival = self._upcoming
        assert arrival is not None
        self._submit(arrival, now)
        self._expect_arrival()

    def _call_again(self, arrival: Arrival, now: float) -> None:
        self._thinking -= 1
        self._submit(arrival, now)

    def _submit(self, arrival: Arrival, now: float) -> None:
        prefix, session = arrival.prefix, arrival.of_session
        if session is not None:
            prefix = session.blocks(arrival.prompt_tokens, int(self._block_tokens()))
        request = Request(
            id=f"r{next(self._numbers)}",
            tenant_id=arrival.tenant_id,
            model=arrival.model,
            arrived_at=now,
            prompt_tokens=arrival.prompt_tokens,
            output_tokens_max=arrival.output_tokens_max,
            prefix=prefix,
            prefix_block_tokens=self._block_tokens() if prefix else 0.0,
            output_tokens_known=arrival.output_tokens,
            program_id=arrival.program_id,
            endpoint=arrival.endpoint,
            uses_tools=arrival.uses_tools,
            envelope=arrival.envelope,
            is_resumable=arrival.is_resumable,
            parent_id=arrival.parent_id,
            ends_session=arrival.ends_session,
        )
        pace = None if arrival.envelope is None else AnswerPace(request)
        self._calls[request.id] = SimulatedCall(request, arrival, pace=pace)
        if arrival.loop is not None and arrival.number is not None:
            heappush(self._of_loop[arrival.loop], arrival.number)
        self._report_budgets(now)
        self._scheduler.submit(request, now)
        self._is_poll_due = True
        if arrival.patience_s is not None:
            self._at(now + arrival.patience_s, partial(self._give_up, request.id))

    def _give_up(self, request_id: str, now: float) -> None:
        call = self._calls.get(request_id)
        if call is None:
            return
        if call.slot is None:
            self._scheduler.told(Cancelled(now, request_id))
            self._is_poll_due = True
        else:
            call.slot.engine.abort(request_id)
            self._finish(call, Outcome.CLIENT_DISCONNECTED, now)
        self._end(call, total_latency_s=None)

    def _end_step(self, slot: Slot, now: float) -> None:
        report = slot.engine.step_end()
        if slot.scrapes is not None:
            slot.scrapes.ended(report)
        slot.plan = None
        self._note_budget(slot, now)
        in_flight = self._in_flight
        for request_id in report.emitted:
            call = in_flight[request_id]
            call.emitted += 1
            if call.pace is not None:
                call.pace.emitted(1, now)
        for request_id, cached_tokens in report.prefilled.items():
            call = in_flight[request_id]
            if call.continued_from:
                call.recomputed_tokens += call.request.prompt_tokens + call.continued_from - cached_tokens
            else:
                call.first_token_at, call.cached_tokens = now, cached_tokens
            self._is_poll_due |= self._somebody_waits  # the prompt's true size is known now
        for request_id in report.finished:
            call = in_flight[request_id]
            self._finish(call, Outcome.COMPLETED, now)
            self._end(call, total_latency_s=now - call.request.arrived_at)

    def _finish(self, call: SimulatedCall, outcome: Outcome, now: float) -> None:
        self._report_tokens(call, now)
        del self._in_flight[call.request.id]
        timing = None if call.pace is None else call.pace.timeliness.timing()
        self._scheduler.finished(call.request.id, outcome, now, timing)
        self._is_poll_due |= self._somebody_waits

    @property
    def _somebody_waits(self) -> bool:
        return len(self._calls) > len(self._in_flight)

    def _report_tokens(self, call: SimulatedCall, now: float) -> None:
        if call.emitted > call.reported:
            call.reported = call.emitted
            usage = Usage(call.request.prompt_tokens, call.cached_tokens, call.emitted)
            self._scheduler.tokens(call.request.id, usage, now)

    def _measure(self, now: float) -> None:
        for call in self._in_flight.values():
            self._report_tokens(call, now)
        for slot in self._slots.values():
            if slot.scrapes is not None:
                slot.scrapes.scraped(now)
        self._report([self._load(slot) for slot in self._slots.values()], now)
        if self._calls or self._thinking or self._upcoming is not None:
            self._at(now + self._metrics_every_s, self._measure)

    def _note_budget(self, slot: Slot, now: float) -> None:
        """Take the engine's report after a step that ended at `now`; the scheduler gets it before its next decision."""
        if self._steps.budget_for is not None:
            slot.budget = slot.engine.prefill_budget(now, self._steps.budget_for), slot.dispatches
            slot.is_budget_reported = False

    def _report_budgets(self, now: float) -> None:
        for slot in self._slots.values():
            if not slot.is_budget_reported:
                slot.is_budget_reported = True
                self._scheduler.told(Measured(now, self._load(slot)))

    def _report(self, loads: Sequence[BackendLoad], now: float) -> None:
        self._scheduler.told(LoadChanged(now, tuple(loads)))
        self._is_poll_due = True

    # -- decisions --------------------------------------------------------------------------------------------

    def _decide(self, now: float) -> None:
        for call in self._in_flight.values():
            # After the first report, tokens are reported only when the scheduler's decisions may depend on them.
            if call.emitted > call.quiet_tokens or not call.reported:
                self._report_tokens(call, now)
        self._report_budgets(now)
        preempted: list[tuple[SimulatedCall, Cause]] = []
        for action in self._poll(now):
            call = self._calls[action.request_id]
            if isinstance(action, Dispatch):
                call.quiet_tokens = action.quiet_tokens
                self._dispatch(call, self._slots[action.backend_id], now)
            elif isinstance(action, Reject):
                self._end(call, total_latency_s=None, rejected=action.reason)
            elif not call.emitted or call.request.is_resumable:
                preempted.append((call, action.cause))
        for call, cause in preempted:
            self._preempt(call, now, cause)
        if preempted:
            self._decide(now)  # for the requests whose place this frees
            return
        self._is_poll_due = False
        wakeup_at = self._scheduler.next_wakeup()
        assert wakeup_at is None or wakeup_at > now, "a poll leaves nothing to do at its own instant"
        self._wakeup_at = inf if wakeup_at is None else wakeup_at

    def _poll(self, now: float) -> Iterator[Action]:
        """Poll the Scheduler until no decision is left at this instant."""
        while True:
            yield from self._scheduler.poll(now)
            wakeup_at = self._scheduler.next_wakeup()
            if wakeup_at is None or wakeup_at > now:
                return

    def _dispatch(self, call: SimulatedCall, slot: Slot, now: float) -> None:
        call.slot = slot
        slot.dispatches += 1
        self._in_flight[call.request.id] = call
        request = EngineRequest(
            id=call.request.id,
            prompt_tokens=call.request.prompt_tokens + call.continued_from,
            output_tokens=call.arrival.output_tokens - call.continued_from,
            prefix=self._blocks(call),
            tenant_id=call.request.tenant_id,
            envelope=call.request.envelope,
            arrived_at=call.request.arrived_at,
        )
        slot.engine.submit(request, now)

    def _preempt(self, call: SimulatedCall, now: float, cause: Cause) -> None:
        assert call.slot is not None
        call.slot.engine.abort(call.request.id)
        self._wait_again(call, now, hold_s=0.0, cause=cause)

    def _wait_again(self, call: SimulatedCall, now: float, *, hold_s: float, cause: Cause) -> None:
        """Return a call that has left its engine to the queue, to begin or to be continued at any engine."""
        call.slot = None
        del self._in_flight[call.request.id]
        if call.emitted > call.continued_from:
            call.interruptions += 1
            call.continued_from = call.reported = call.emitted
            usage = Usage(call.request.prompt_tokens, call.cached_tokens, call.emitted)
            self._scheduler.told(Interrupted(now, call.request.id, usage, hold_s, cause))
        else:
            self._scheduler.told(Returned(now, call.request.id, hold_s, cause=cause))

    def _blocks(self, call: SimulatedCall) -> tuple[int, ...]:
        """The hashes of the call's leading blocks. A turn of a session, or a resumable call, has a hash for every block
        up to its end: the engine caches outputs, too, and finds them again. Those made here are negative.
        """
        prefix = call.request.prefix
        tokens = call.request.prompt_tokens + call.arrival.output_tokens
        if call.arrival.of_session is not None:
            return call.arrival.of_session.blocks(tokens, int(self._block_tokens()))
        if not call.request.is_resumable:
            return prefix
        own = range(len(prefix), tokens // int(self._block_tokens()))
        first = int(call.request.id[1:]) << BLOCK_BITS
        return (*prefix, *(-1 - first - number for number in own))

    def _begin_steps(self, now: float) -> None:
        for slot in self._slots.values():
            if slot.plan is not None:
                continue
            began_at = self._leap(slot, now)
            slot.plan = slot.engine.step_begin(began_at)
            if slot.plan is not None:
                slot.step_s, slot.passed_over = slot.plan.duration_s, slot.engine.snapshot().requests_waiting
                self._at(began_at + slot.plan.duration_s, partial(self._end_step, slot))

    def _leap(self, slot: Slot, now: float) -> float:
        """Skip the engine's steps without events; return the time at which it continues."""
        before = self._next_instant() or inf
        if before - now < slot.step_s:
            return now  # an event comes before the step ends: no leap
        leap = slot.engine.leap(now, before)
        if leap is None:
            return now
        if slot.scrapes is not None:
            slot.scrapes.leapt(leap)
        for request_id in leap.emitted:
            call = self._in_flight[request_id]
            call.emitted += leap.steps
            if call.pace is not None:
                call.pace.emitted(leap.steps, leap.ended_at)
        self._note_budget(slot, leap.ended_at)
        return leap.ended_at

    def _end(self, call: SimulatedCall, *, total_latency_s: float | None, rejected: Reason | None = None) -> None:
        del self._calls[call.request.id]
        number = call.arrival.number
        if number is not None:
            if call.arrival.loop is not None:  # it stands for the one of its loop that ended first
                number = heappop(self._of_loop[call.arrival.loop])
            for arrival in self._waiting.pop(number, ()):
                self._thinking += 1
                self._at(self.now + arrival.think_s, partial(self._call_again, arrival))
        arrived_at, first_at, pace = call.request.arrived_at, call.first_token_at, call.pace
        self._ended.append(
            RequestRecord(
                tenant_id=call.request.tenant_id,
                arrived_at=arrived_at,
                prompt_tokens=call.request.prompt_tokens,
                output_tokens=call.emitted,
                first_token_latency_s=None if first_at is None else first_at - arrived_at,
                total_latency_s=total_latency_s,
                rejected=rejected,
                tpot_s=None if pace is None else pace.timeliness.timing().tpot_s,
                tpot_envelope_s=None if pace is None else pace.tpot_envelope_s,
                interruptions=call.interruptions,
                came_before=call.arrival.came_before,
                backend_id=None if call.slot is None else call.slot.backend_id,
                recomputed_tokens=call.recomputed_tokens,
            )
        )

    def _block_tokens(self) -> float:
        return float(next(iter(self._slots.values())).engine.block_tokens)

    def _load(self, slot: Slot) -> BackendLoad:
        """The load that the gateway would know from its configuration and from /metrics."""
        gauges = slot.engine.snapshot()
        tokens_max, step_time = self._steps.tokens_max, self._steps.time
        if slot.scrapes is not None:
            tokens_max, step_time = slot.scrapes.learnt.tokens_max, slot.scrapes.learnt.step_time
        return BackendLoad(
            backend_id=slot.backend_id,
            kv_tokens_max=slot.engine.kv_tokens_max,
            kv_block_tokens=slot.engine.block_tokens,
            requests_running_max=self._requests_running_max,
            requests_running=gauges.requests_running,
            requests_waiting=min(gauges.requests_waiting, slot.passed_over),
            kv_used_ratio=gauges.kv_used_ratio,
            preemptions_total=gauges.preemptions_total,
            step_tokens_max=tokens_max,
            batching=self._steps.batching,
            step_time=step_time,
            pab_tokens=None if slot.budget is None else slot.budget[0],
            pab_dispatches=None if slot.budget is None else {SENDER: slot.budget[1]},
        )
