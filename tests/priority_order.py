"""ByPriority: the waiting order of a vLLM with `--scheduling-policy priority`, in the simulated engine."""

from bisect import insort

from backends.engine.sequence import Sequence
from backends.engine.slots import SlotOrder


def rank(sequence: Sequence) -> tuple[int, int]:
    return sequence.request.priority, sequence.order


class ByPriority(SlotOrder):
    """By priority value, lowest first, then by arrival; the last one in this order is preempted first."""

    def append(self, sequence: Sequence) -> None:
        insort(self, sequence, key=rank)

    appendleft = append

    def victim(self, running: list[Sequence]) -> Sequence:
        return max(running, key=rank)


ORDERS = {"fcfs": SlotOrder, "priority": ByPriority}
"""Named as in vLLM."""
