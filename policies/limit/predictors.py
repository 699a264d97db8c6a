"""When will a prompt that is sent now have its first token, and who would be late for it?

One predictor per rule by which engines fill their steps (BackendLoad.batching). vLLM's own computes prompts in the
order in which they came and lets every decode run in every step, so a step with a full chunk in it is longer
for all of them: they pay with their slack. FairBatching lets decodes wait for prompts as long as their slack lasts, and
what is left of it is the prefill admission budget (policies/batching/pab.py).
"""

from typing import Protocol

from policies.batching.pab import tokens_per_s
from policies.limit.work import EngineWork

FAR_OFF_S = 60.0  # where decodes leave no time for prompts, in theory never


class PrefillPredictor(Protocol):
    """When will a prompt that is sent now have its first token, and who would be late for it?

    Asked only of work with a model.
    """

    def ttft_s(self, work: EngineWork, prefill_tokens: float, now: float) -> float:
        """Seconds from now until its first token."""
        ...

    def makes_late(self, work: EngineWork, prefill_tokens: float, now: float) -> bool:
        """Whether somebody who runs would miss a deadline that he would keep without it."""
        ...


class ChunkedPrefill:
    """vLLM: every decode in every step, and the chunk that is left for prompts, first come, first served."""

    def ttft_s(self, work: EngineWork, prefill_tokens: float, now: float) -> float:
        owed = work.owed_tokens(now)
        # It joins with the next step: half a step away in the mean, and where prompts are computed part of that.
        wait_s = work.decode_s / 2 if work.sequences and not owed else 0.0
        return wait_s + work.prefill_s(owed + prefill_tokens)

    def makes_late(self, work: EngineWork, prefill_tokens: float, now: float) -> bool:
        return work.makes_late(prefill_tokens, now)


class FairBatching:
    """FairBatching: prompts get the time that decodes can do without."""

    def ttft_s(self, work: EngineWork, prefill_tokens: float, now: float) -> float:
        owed = work.owed_tokens(now) + prefill_tokens
        least_s, speed = work.prefill_s(owed), prefill_tokens_per_s(work)
        return max(least_s, owed / speed if speed > 0.0 else FAR_OFF_S)

    def makes_late(self, work: EngineWork, prefill_tokens: float, now: float) -> bool:
        return False  # a decode that would be late goes first, and prompts by their slack


def prefill_tokens_per_s(work: EngineWork) -> float:
    """Prompt tokens per second while decodes are put off until they are due; zero or less: they leave no time."""
    assert work.model is not None
    speed = tokens_per_s(
        work.model,
        sequences=work.sequences / work.engines,
        context_tokens=work.context_tokens / work.engines,
        tpot_s=work.step_s_max,
    )
    return speed * work.engines


PREDICTORS: dict[str, PrefillPredictor] = {"vllm": ChunkedPrefill(), "fair": FairBatching()}
