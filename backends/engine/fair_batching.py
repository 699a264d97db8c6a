"""FairBatching in the simulated engine: policies/batching/fair.py chooses, this file provides memory and slots.

Memory comes first. Every decoding sequence gets room for its next token, by preemption from the end of the waiting
order if there is none. Then the rule chooses, by due time, among all running sequences and, unless the step preempted,
the first OFFERED_MAX waiting ones. A chosen waiting sequence gets a slot and room for its whole prompt, while a slot
and room are left.

A token is due at arrival + TTFT + j * TPOT. Without a TTFT target a prompt has no due time, and output tokens are due
from its arrival on: they are always late, so the sequence decodes in every step, and steps keep to its TPOT.
"""

from collections.abc import Iterable
from itertools import islice
from math import floor, inf

from backends.engine.batch import Batch, preempt_last, take
from backends.engine.sequence import Sequence
from backends.engine.slots import Slots
from policies.batching.fair import Decode, Prefill, form_batch
from policies.batching.pab import DueDecode, prefill_admission_budget
from policies.step_time.model import StepTimeModel
from policies.types import SloEnvelope

OFFERED_MAX = 64  # waiting sequences; more than this never get slots in one step


class FairBatching:
    """The batching policy FairBatching, which divides each step between decodes and prompts so that TTFT and TPOT
    targets are kept. `model` is the step-time model that it plans with.
    """

    def __init__(self, model: StepTimeModel, *, tokens_max: int) -> None:
        self.model = model
        self.tokens_max = tokens_max

    def form(self, slots: Slots, now: float) -> Batch:
        batch = Batch()
        self._make_room(slots, batch)
        self._fill(slots, batch, now, () if batch.preempted else tuple(islice(slots.waiting, OFFERED_MAX)))
        while not batch.sequences and slots.running:  # none of the chosen ones had room
            self._fill(slots, batch, now, ())
        return batch

    def decodes_ahead(self, slots: Slots) -> float:
        """The number of steps in which all running sequences decode: as long as all fit a step of the least TPOT
        target.
        """
        running = slots.running
        if slots.has_candidate or len(running) > self.tokens_max:
            return 0
        tpot_s = min(_tpot_s(sequence) for sequence in running)
        if tpot_s == inf:
            return inf
        context_tokens = sum(sequence.present for sequence in running)
        step_s = self.model.step_s(new_tokens=len(running), context_tokens=context_tokens, requests=len(running))
        growth_s = self.model.context_token_s * len(running)
        if step_s >= tpot_s or not growth_s:
            return inf if step_s < tpot_s else 0
        return floor((tpot_s - step_s) / growth_s)

    def decoded(self, steps: int) -> None: ...

    def _fill(self, slots: Slots, batch: Batch, now: float, waiting: Iterable[Sequence]) -> None:
        decodes = [_decode(each, now) for each in slots.running if _is_decode(each)]
        prefills = [_prefill(each, now) for each in slots.running if not _is_decode(each)]
        prefills += [_prefill(each, now) for each in waiting]
        offered, is_full = frozenset(waiting), False
        for sequence, tokens in form_batch(decodes, prefills, model=self.model, tokens_max=self.tokens_max).items():
            if sequence in offered:
                is_full = is_full or not _try_admit(slots, sequence)
            take(slots, batch, sequence, min(tokens, sequence.missing), self.tokens_max)

    def _make_room(self, slots: Slots, batch: Batch) -> None:
        """Make room for the next token of every running sequence."""
        for sequence in tuple(slots.running):
            while sequence.running and not slots.memory.reserve(sequence, sequence.missing):
                preempt_last(slots, batch)


def _try_admit(slots: Slots, sequence: Sequence) -> bool:
    """Try to give a waiting sequence a slot and room for its prompt; return whether that succeeded."""
    if not slots.admit_this(sequence):
        return False
    reserved = slots.memory.reserve(sequence, sequence.missing)
    assert reserved, "what was admitted can be prefilled"
    return True


def prefill_budget(sequences: Iterable[Sequence], model: StepTimeModel, envelope: SloEnvelope, now: float) -> float:
    """Return how many more prompt tokens an engine with these running and waiting sequences can take for this envelope.
    FairBatching's engine reports this budget after every step. The envelope has both targets.
    """
    assert envelope.ttft_s is not None, "no budget without targets"
    assert envelope.tpot_s is not None, "no budget without targets"
    decodes: list[DueDecode] = []
    owed_tokens = 0
    for sequence in sequences:
        if _is_decode(sequence):
            decodes.append(DueDecode(due_at(sequence) - now, sequence.present))
        elif due_at(sequence) < inf:  # without a due time it yields to all that have one
            owed_tokens += sequence.missing
    return prefill_admission_budget(
        model, decodes, owed_tokens=owed_tokens, ttft_s=envelope.ttft_s, tpot_s=envelope.tpot_s
    )


def _is_decode(sequence: Sequence) -> bool:
    """Whether the sequence's next token takes one step. A preempted sequence is prefilled again."""
    return sequence.missing == 1 and sequence.emitted > 0


def _decode(sequence: Sequence, now: float) -> Decode[Sequence]:
    return Decode(sequence, due_at(sequence) - now, _tpot_s(sequence), sequence.present)


def _prefill(sequence: Sequence, now: float) -> Prefill[Sequence]:
    return Prefill(sequence, due_at(sequence) - now, sequence.computed, sequence.missing)


def due_at(sequence: Sequence) -> float:
    """Return the time at which the sequence's next token is late; infinite without a target."""
    request = sequence.request
    envelope = request.envelope
    if envelope is None or (envelope.tpot_s is None if sequence.emitted else envelope.ttft_s is None):
        return inf
    arrived_at = sequence.submitted_at if request.arrived_at is None else request.arrived_at
    return arrived_at + (envelope.ttft_s or 0.0) + sequence.emitted * (envelope.tpot_s or 0.0)


def _tpot_s(sequence: Sequence) -> float:
    envelope = sequence.request.envelope
    return inf if envelope is None or envelope.tpot_s is None else envelope.tpot_s
