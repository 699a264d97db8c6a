"""Headroom: the part of a backend's KV pool that is left free, so that its engine need not preempt.

A preemption inside the engine shows that its KV pool was overbooked. If our requests are the cause, the usable part of
the pool shrinks at once and recovers slowly. They are the cause where there is no external load, or where they have
outgrown the room that was left at the last dispatch by more than external load has grown since: otherwise external
load used up the headroom, and more headroom would not have kept it out. All preemptions between two dispatches
count as one.
"""

from collections.abc import Callable

from policies.capacity.external_load import ExternalLoad
from policies.types import BackendLoad

KV_HEADROOM_RATIO = 0.95  # F = 0.95 M: beyond that, requests would queue in the engine
PREEMPTION_SHRINK_RATIO = 0.9
RATIO_MIN = 0.5
RECOVERY_RATIO = 0.005  # per measurement


class Headroom:
    """The part of one backend's KV pool that requests may use, learnt from the engine's preemptions. Mutable."""

    __slots__ = ("_ratio_max", "granted", "usable_ratio")

    def __init__(self, ratio_max: float) -> None:
        self.usable_ratio = self._ratio_max = ratio_max
        self.granted: tuple[float, float] | None = None
        """At the last dispatch: tokens that our requests may hold with it, and tokens of external load. None after a
        preemption that our requests caused.
        """

    def measured(
        self, load: BackendLoad, before: BackendLoad, external: ExternalLoad, tokens_held_max: Callable[[], float]
    ) -> None:
        """Apply a measurement and the one before it. `tokens_held_max` gives the most tokens that our requests will
        hold.
        """
        if load.preemptions_total is None or before.preemptions_total is None:
            return
        if load.preemptions_total > before.preemptions_total and self._is_overbooked(load, external, tokens_held_max):
            self.usable_ratio = max(self.usable_ratio * PREEMPTION_SHRINK_RATIO, RATIO_MIN)
            self.granted = None
        else:
            self.usable_ratio = min(self.usable_ratio + RECOVERY_RATIO, self._ratio_max)

    def _is_overbooked(self, load: BackendLoad, external: ExternalLoad, tokens_held_max: Callable[[], float]) -> bool:
        """Whether our requests caused this preemption, and it is the first since the last dispatch."""
        if self.granted is None:
            return False
        requests, tokens = external.most()
        if not requests:
            return True
        left, external_tokens = self.granted
        return tokens_held_max() - left > max(0.0, tokens - external_tokens)
