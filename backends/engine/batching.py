"""Batching policies: the choice of the tokens that one step computes.

`SeparatePrefill` is the engine of the VTC paper: prompts are prefilled alone, and running requests pause meanwhile.
`ChunkedPrefill` is vLLM: every step takes the running requests in order of admission and fills the rest of its token
budget with prompts, cut where the budget ends. `Sarathi` always decodes first. `fair_batching.py` divides a step by
deadlines. Every policy stops at the first waiting request that does not fit.
"""

from collections.abc import Callable, Iterable
from math import inf
from typing import Self

from backends.engine.batch import Batch, Batching, take
from backends.engine.coefficients import StepCoefficients
from backends.engine.fair_batching import FairBatching
from backends.engine.sequence import Sequence
from backends.engine.slots import Slots

CHUNK_TOKENS_MAX = 2048
"""vLLM's max_num_batched_tokens: tokens of one step."""
DECODE_STEPS_MIN = 10
"""Decode steps the S-LoRA engine runs between two admissions."""


class SeparatePrefill:
    """The batching policy of the VTC paper's engine: prompts are computed in steps of their own, apart from decodes.
    Waiting requests are admitted if no request runs, or after `decode_steps_min` decode steps. If none fits then, the
    policy tries again before every further step until one fits. A prefill step takes at most `prefill_tokens_max`
    prompt tokens, or one longer prompt. In the published engine this limit is max(M // 6, 3072) for a KV pool of M
    tokens.
    """

    def __init__(self, *, prefill_tokens_max: int, decode_steps_min: int = DECODE_STEPS_MIN) -> None:
        self.prefill_tokens_max = prefill_tokens_max
        self.decode_steps_min = decode_steps_min
        self._decode_steps = 0

    @classmethod
    def for_pool(cls, kv_tokens_max: int) -> Self:
        return cls(prefill_tokens_max=max(kv_tokens_max // 6, 3072))

    def form(self, slots: Slots, now: float) -> Batch:
        if not slots.running or self._decode_steps >= self.decode_steps_min:
            batch = self._prefill(slots)
            if batch.sequences:
                self._decode_steps = 0
                return batch
        self._decode_steps += 1
        return _decode_all(slots)

    def decodes_ahead(self, slots: Slots) -> float:
        return max(0, self.decode_steps_min - self._decode_steps) if slots.has_candidate else inf

    def decoded(self, steps: int) -> None:
        self._decode_steps += steps

    def _prefill(self, slots: Slots) -> Batch:
        batch = Batch(prefill_alone=True)
        prompt_tokens = 0
        while slots.waiting:
            head = slots.waiting[0]
            prompt_tokens += head.present
            if batch.sequences and prompt_tokens > self.prefill_tokens_max:
                break
            if slots.admit() is None:
                break
            grown = slots.memory.grow(head, head.missing)
            assert grown, "what was admitted can be prefilled"
            batch.add(head, head.missing)
        return batch


class ChunkedPrefill:
    """The batching policy of vLLM. A step takes the running requests first, in the order of admission. If none of them
    was preempted, it then admits waiting requests.
    """

    def __init__(self, *, tokens_max: int = CHUNK_TOKENS_MAX, prompt_tokens_max: int | None = None) -> None:
        """A step computes at most `prompt_tokens_max` tokens of one prompt (--long-prefill-token-threshold)."""
        self.tokens_max = tokens_max
        self.prompt_tokens_max = prompt_tokens_max or tokens_max

    def form(self, slots: Slots, now: float) -> Batch:
        batch = Batch()
        _schedule(slots, batch, tuple(slots.running), self.tokens_max, self.prompt_tokens_max)
        _admit(slots, batch, self.tokens_max, self.prompt_tokens_max)
        return batch

    def decodes_ahead(self, slots: Slots) -> float:
        return _decodes_ahead(slots, self.tokens_max)

    def decoded(self, steps: int) -> None: ...


class Sarathi:
    """A batching policy that schedules decodes first, so that no prompt delays an answer. Prompts that have begun come
    next, then waiting prompts.

    When a prompt is admitted, memory for all of it is reserved, so that it never waits for memory in the middle
    (Sarathi-Serve, OSDI 2024, as its published scheduler). vLLM's order derives from this one, but vLLM takes memory
    for a prompt chunk by chunk.
    """

    def __init__(self, *, tokens_max: int = CHUNK_TOKENS_MAX) -> None:
        self.tokens_max = tokens_max

    def form(self, slots: Slots, now: float) -> Batch:
        batch = Batch()
        decodes = [sequence for sequence in slots.running if sequence.missing == 1]
        prefills = [sequence for sequence in slots.running if sequence.missing > 1]
        _schedule(slots, batch, decodes, self.tokens_max, self.tokens_max)
        _schedule(slots, batch, prefills, self.tokens_max, self.tokens_max)
        _admit(slots, batch, self.tokens_max, self.tokens_max, whole=True)
        return batch

    def decodes_ahead(self, slots: Slots) -> float:
        return _decodes_ahead(slots, self.tokens_max)

    def decoded(self, steps: int) -> None: ...


# Name -> factory; its arguments: the engine's step times, and the tokens of its KV pool and of a step.
BATCHING: dict[str, Callable[[StepCoefficients, int, int], Batching]] = {
    "chunked-prefill": lambda _, _kv_tokens_max, step_tokens_max: ChunkedPrefill(tokens_max=step_tokens_max),
    "sarathi": lambda _, _kv_tokens_max, step_tokens_max: Sarathi(tokens_max=step_tokens_max),
    "separate-prefill": lambda _, kv_tokens_max, _step_tokens_max: SeparatePrefill.for_pool(kv_tokens_max),
    "fair": lambda coefficients, _kv_tokens_max, step_tokens_max: FairBatching(
        coefficients.step_time_model(), tokens_max=step_tokens_max
    ),
}


def _decodes_ahead(slots: Slots, tokens_max: int) -> float:
    return 0 if slots.has_candidate or len(slots.running) > tokens_max else inf


def _decode_all(slots: Slots) -> Batch:
    batch, tokens_max = Batch(), len(slots.running)
    _schedule(slots, batch, tuple(slots.running), tokens_max, tokens_max)
    return batch


def _schedule(
    slots: Slots, batch: Batch, sequences: Iterable[Sequence], tokens_max: int, prompt_tokens_max: int
) -> None:
    """Schedule these running sequences in order, up to `tokens_max` in all and `prompt_tokens_max` for each."""
    for sequence in sequences:
        if batch.new_tokens >= tokens_max:
            break
        take(slots, batch, sequence, min(sequence.present - sequence.computed, prompt_tokens_max), tokens_max)


def _admit(slots: Slots, batch: Batch, tokens_max: int, prompt_tokens_max: int, *, whole: bool = False) -> None:
    """Admit and schedule waiting sequences in order while they fit the batch and the pool; none if the step preempted.
    With `whole`, a prompt that is cut reserves room for all of itself.
    """
    while not batch.preempted and batch.new_tokens < tokens_max:
        sequence = slots.admit()
        if sequence is None:
            break
        tokens = min(sequence.missing, tokens_max - batch.new_tokens, prompt_tokens_max)
        reserved = not whole or slots.memory.reserve(sequence, sequence.missing)
        grown = reserved and slots.memory.grow(sequence, tokens)
        assert grown, "what was admitted can be prefilled"
        batch.add(sequence, tokens)
