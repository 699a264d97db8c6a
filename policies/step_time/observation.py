"""Observations of an engine's steps: one step, or a stretch of time and all steps in it, as sums.

The model is linear, so a sum of steps is as good an equation as a single one. Impossible observations (a
negative count, a step of no time or of more than STEP_S_MAX) are recognised here, so that wrong reports teach nothing.
"""

from dataclasses import astuple, dataclass

from policies.step_time.model import StepTimeModel

STEP_S_MIN, STEP_S_MAX = 1e-6, 600.0
AMOUNT_MAX = 1e15  # of any field: above it, sums of squares lose their last digits
GROUP_STEPS = 16


@dataclass(frozen=True, slots=True)
class Observation:
    """An observation of some engine steps, as sums. `steps` steps took `seconds` in all and computed `new_tokens`
    tokens. `context_token_steps` is the sum of the KV tokens that each step read, `request_steps` the sum of the
    requests in each.
    """

    seconds: float
    steps: float
    new_tokens: float
    context_token_steps: float
    request_steps: float

    @property
    def is_possible(self) -> bool:
        """Whether an engine can have computed these steps; False for NaN, infinite or negative fields, absurd times."""
        return (
            all(0.0 <= each <= AMOUNT_MAX for each in astuple(self))  # which NaN is not
            and self.steps > 0.0
            and STEP_S_MIN * self.steps <= self.seconds <= STEP_S_MAX * self.steps
            and self.new_tokens > 0.0
        )

    def predicted_s(self, model: StepTimeModel) -> float:
        """The seconds that the model predicts for these steps."""
        return (
            model.base_s * self.steps
            + model.token_s * self.new_tokens
            + model.context_token_s * self.context_token_steps
            + model.request_s * self.request_steps
        )


class Sum:
    """A running sum of observations of steps, field by field (seconds, steps, tokens and the others of Observation).
    The step time model learns from such sums, because the noise of a single step is large. Mutable.
    """

    def __init__(self) -> None:
        self.seconds = self.steps = self.new_tokens = self.context_token_steps = self.request_steps = 0.0

    def add(self, seen: Observation) -> None:
        self.seconds += seen.seconds
        self.steps += seen.steps
        self.new_tokens += seen.new_tokens
        self.context_token_steps += seen.context_token_steps
        self.request_steps += seen.request_steps

    def observation(self) -> Observation:
        return Observation(self.seconds, self.steps, self.new_tokens, self.context_token_steps, self.request_steps)


class StepGroups:
    """A collector that sums every GROUP_STEPS (16) steps of similar size into one observation. Mutable.

    The time of a single short step has noise of about 1 ms, which may be most of it; in a sum, noise matters little.
    Steps are similar if their numbers of new tokens are within the same power of two, so that chunks of prompts and
    decodes stay apart.
    """

    def __init__(self) -> None:
        self._groups: dict[int, Sum] = {}

    def add(self, step: Observation) -> Observation | None:
        """Add one step; return the observation of its group when the group is complete. An impossible step is returned
        as it is.
        """
        if not step.is_possible:
            return step
        octave = int(step.new_tokens).bit_length()
        group = self._groups.setdefault(octave, Sum())
        group.add(step)
        return self._groups.pop(octave).observation() if group.steps >= GROUP_STEPS else None
