"""Single steps, put together with others of their kind until there are enough of them.

A step of a millisecond is as noisy as the machine is, for milliseconds on end; sixteen alike are hardly. Steps are
alike whose new tokens have the same octave, so that a chunk of a prompt is not lost among decodes.
"""

from policies.step_time.observation import Observation, Sum

GROUP_STEPS = 16


class StepGroups:
    """Gives an observation for every GROUP_STEPS steps of a kind."""

    def __init__(self) -> None:
        self._groups: dict[int, Sum] = {}

    def add(self, step: Observation) -> Observation | None:
        """Take in one step; return what is ready. What no engine can have done is returned as it is."""
        if not step.is_possible:
            return step
        octave = int(step.new_tokens).bit_length()
        group = self._groups.setdefault(octave, Sum())
        group.add(step)
        return self._groups.pop(octave).observation() if group.steps >= GROUP_STEPS else None
