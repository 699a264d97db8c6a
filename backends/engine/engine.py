"""Engine simulator: continuous batching as arithmetic, requests in and steps out.

An engine computes one step at a time. `step_begin` decides what the next step computes and returns how long it takes.
The caller owns the clock: it waits for this time and calls `step_end`, which returns the result of the step. There is
no clock and no randomness here: equal calls give equal steps, in real time or in a simulation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from backends.engine.batch import Batch, Batching
from backends.engine.batching import ChunkedPrefill
from backends.engine.coefficients import StepCoefficients
from backends.engine.fair_batching import prefill_budget
from backends.engine.kv_memory import BlockMemory, KvMemory
from backends.engine.sequence import EngineRequest, Sequence
from backends.engine.slots import SlotOrder, Slots
from policies.types import SloEnvelope

BLOCK_TOKENS = 16
REQUESTS_RUNNING_MAX = 256  # vLLM's default max_num_seqs


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The plan of a step that has begun: its duration in seconds, the number of tokens that it computes (`new_tokens`)
    and of KV tokens that it reads (`context_tokens`), and the number of its requests.
    """

    begun_at: float
    duration_s: float
    new_tokens: int
    context_tokens: int
    requests: int
    preempted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of one engine step. `emitted` names every request that got one more token, in batch order."""

    plan: StepPlan
    emitted: tuple[str, ...]
    finished: tuple[str, ...]
    prefilled: Mapping[str, int]
    """Requests whose first token this is, with the prompt tokens that the prefix cache supplied."""
    prompt_tokens: int
    """The whole prompts of `prefilled`, in tokens."""


class Leap(NamedTuple):
    """The result of Engine.leap: `steps` engine steps that were computed at once, because each of them only gives one
    more token to each running request. `emitted` has the ids of these requests. `ended_at` is the end of the last step,
    in seconds of the engine's clock.
    """

    ended_at: float
    steps: int
    emitted: list[str]


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """The gauges of an engine at this moment, and its totals since the start. Values are in tokens, unless the name
    says requests or steps.
    """

    requests_running: int
    requests_waiting: int
    kv_used_ratio: float
    preemptions_total: int
    prefix_queries_total: int
    prefix_hits_total: int
    steps_total: int
    prompt_tokens_total: int
    emitted_tokens_total: int


class Engine:
    """A simulated inference engine: one model replica. By default it has vLLM's KV blocks and chunked prefill."""

    def __init__(
        self,
        coefficients: StepCoefficients,
        *,
        kv_tokens_max: int | None = None,
        block_tokens: int = BLOCK_TOKENS,
        requests_running_max: int = REQUESTS_RUNNING_MAX,
        batching: Batching | None = None,
        memory: KvMemory | None = None,
        order: SlotOrder | None = None,
    ) -> None:
        self.coefficients = coefficients
        self.kv_tokens_max = kv_tokens_max or coefficients.kv_tokens_max
        self.block_tokens = block_tokens
        blocks_max = self.kv_tokens_max // block_tokens
        self._batching = ChunkedPrefill() if batching is None else batching
        self._slots = Slots(
            memory=BlockMemory(blocks_max=blocks_max, block_tokens=block_tokens) if memory is None else memory,
            order=SlotOrder() if order is None else order,
            requests_running_max=requests_running_max,
        )
        self._sequences: dict[str, Sequence] = {}
        self._submitted = 0
        self._step: tuple[StepPlan, Batch] | None = None
        self._steps_total = 0
        self._prompt_tokens_total = 0
        self._emitted_tokens_total = 0

    def submit(self, request: EngineRequest, now: float) -> None:
        """Queue a request. Raises ValueError if its id is in flight, it has no tokens, or it does not fit the pool."""
        if request.id in self._sequences:
            raise ValueError(f"request {request.id!r} is already in flight")
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise ValueError(f"request {request.id!r} needs at least one prompt token and one output token")
        if not self._slots.memory.fits_alone(request):
            tokens = request.prompt_tokens + request.output_tokens
            raise ValueError(f"request {request.id!r} of {tokens} tokens exceeds the KV pool")
        sequence = Sequence(request, now, self._submitted)
        self._submitted += 1
        self._sequences[request.id] = sequence
        self._slots.waiting.append(sequence)

    def abort(self, request_id: str) -> bool:
        """Drop a request, whose memory and slot are free at once. Returns False if it is not in flight."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is None:
            return False
        if sequence.running:
            self._slots.leave(sequence)
        else:
            self._slots.waiting.remove(sequence)
        return True

    def step_begin(self, now: float) -> StepPlan | None:
        """Begin the next step; None if no request is in flight. The previous step must be over."""
        assert self._step is None, "one step at a time"
        if not self._sequences:
            return None
        batch = self._batching.form(self._slots, now)
        assert batch.sequences, "an engine with work makes progress"
        plan = StepPlan(
            begun_at=now,
            duration_s=self._duration_s(batch),
            new_tokens=batch.new_tokens,
            context_tokens=batch.context_tokens,
            requests=len(batch.sequences),
            preempted=tuple(victim.request.id for victim in batch.preempted),
        )
        self._step = plan, batch
        return plan

    def leap(self, now: float, before: float) -> Leap | None:
        """Do at once all steps from `now` that end before `before` and only give every running request one more token.
        No request is admitted or preempted or gets its first or last token in them. None if the next step is not like
        that. The result equals, to the last bit of the clock, that of as many calls of step_begin and step_end.
        """
        assert self._step is None, "one step at a time"
        running = self._slots.running
        steps = self._decodes_ahead(running)
        count, new_tokens = 0, len(running)
        context_tokens = sum([sequence.computed for sequence in running]) + new_tokens
        while count < steps:
            duration_s = self.coefficients.mixed_s(
                new_tokens=new_tokens, context_tokens=context_tokens, requests=new_tokens
            )
            if now + duration_s >= before:
                break
            now += duration_s
            context_tokens += new_tokens
            count += 1
        if not count:
            return None
        for sequence in running:
            grown = self._slots.memory.grow(sequence, count)
            assert grown, "memory said so"
            sequence.computed += count
            sequence.present += count
            sequence.emitted += count
        self._batching.decoded(count)
        self._steps_total += count
        self._emitted_tokens_total += count * new_tokens
        return Leap(now, count, [sequence.request.id for sequence in running])

    def _decodes_ahead(self, running: list[Sequence]) -> float:
        """The number of steps before the next one that does more than decode."""
        steps = self._batching.decodes_ahead(self._slots) if running else 0
        for sequence in running:
            if sequence.present - sequence.computed != 1 or not sequence.emitted:  # it may be the end of a prompt
                return 0
            steps = min(steps, sequence.request.output_tokens - sequence.emitted - 1)
        return steps and min(steps, self._slots.memory.decodes_ahead(running))

    def step_end(self) -> StepResult:
        """End the step and return its result. Requests that were aborted meanwhile get no token."""
        assert self._step is not None, "no step has begun"
        (plan, batch), self._step = self._step, None
        emitted: list[str] = []
        finished: list[str] = []
        prefilled: dict[str, int] = {}
        prompt_tokens = 0
        for sequence in batch.sequences:
            if not sequence.running:
                continue
            sequence.computed += sequence.scheduled
            sequence.scheduled = 0
            if sequence.computed < sequence.present:
                continue
            sequence.present += 1
            sequence.emitted += 1
            request = sequence.request
            emitted.append(request.id)
            if sequence.emitted == 1:
                prompt_tokens += request.prompt_tokens
                prefilled[request.id] = sequence.cached
            if sequence.emitted == request.output_tokens:
                finished.append(request.id)
                del self._sequences[request.id]
                self._slots.leave(sequence)
        self._steps_total += 1
        self._prompt_tokens_total += prompt_tokens
        self._emitted_tokens_total += len(emitted)
        assert len(self._slots.running) + len(self._slots.waiting) == len(self._sequences)
        return StepResult(plan, tuple(emitted), tuple(finished), prefilled, prompt_tokens)

    def prefill_budget(self, now: float, envelope: SloEnvelope) -> float:
        """Return FairBatching's prefill admission budget (PAB) in tokens, for an envelope with both targets."""
        return prefill_budget(self._sequences.values(), self.coefficients.step_time_model(), envelope, now)

    def snapshot(self) -> EngineSnapshot:
        slots = self._slots
        return EngineSnapshot(
            requests_running=len(slots.running),
            requests_waiting=len(slots.waiting),
            kv_used_ratio=slots.memory.used_ratio,
            preemptions_total=slots.preemptions_total,
            prefix_queries_total=slots.prefix_queries_total,
            prefix_hits_total=slots.prefix_hits_total,
            steps_total=self._steps_total,
            prompt_tokens_total=self._prompt_tokens_total,
            emitted_tokens_total=self._emitted_tokens_total,
        )

    def _duration_s(self, batch: Batch) -> float:
        if batch.prefill_alone:
            return self.coefficients.prefill_s(
                new_tokens=batch.new_tokens,
                cached_tokens=batch.context_tokens - batch.new_tokens,
                requests=len(batch.sequences),
            )
        return self.coefficients.mixed_s(
            new_tokens=batch.new_tokens, context_tokens=batch.context_tokens, requests=len(batch.sequences)
        )
