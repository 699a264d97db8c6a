"""Step groups: single steps of one kind, summed up into observations that are long enough to learn from.

A single step of a millisecond is as long as the noise of the machine; a sum of sixteen is hardly noisy. Steps are of
one kind if their new tokens have the same octave, so that a chunk of a prompt does not disappear among decodes.
"""

from policies.step_time.observation import Observation, Sum

GROUP_STEPS = 16


class StepGroups:
    """A collector that makes one observation of every GROUP_STEPS steps of a kind. Mutable."""

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
