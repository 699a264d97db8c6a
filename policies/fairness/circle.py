"""Who comes after whom in a circle, while some join it and others leave?

Every place has a mark, and marks grow along the circle from its first place to its last; so who comes first is one
comparison. A place that is put between two others takes a mark from the room between theirs, more to the left, for the
next mostly comes between it and its right neighbour. Where there is no room left the next few are spaced out again
(list labelling: Dietz and Sleator, "Two algorithms for maintaining order in a list", STOC '87); to the right of
the last there is always some.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from policies.fairness.heap import Place

# Measured with 4,000 places in one gap: put before one place, one of 250 moves another; each before the last, one moves
# 50.
ROOM = 1 << 96  # behind the last place
ROOM_MIN = 1 << 64  # between places that are spaced out again, at least
LEFT_BITS = 2  # a newcomer leaves a quarter of the room to its left


class Spot(Place):
    """A place in the circle."""

    __slots__ = ("following", "mark", "previous")

    def __init__(self, tenant_id: str) -> None:
        super().__init__(tenant_id)
        self.mark = 0
        self.previous: Any = self
        self.following: Any = self


S = TypeVar("S", bound=Spot)


class Circle(Generic[S]):
    """Places in a circle. Nothing here takes time in proportion to how many there are, but now and then."""

    def __init__(self, moved: Callable[[S], None]) -> None:
        """`moved` is told of places that have another mark, when all have theirs."""
        self.first: S | None = None
        self._moved = moved

    def enter(self, spot: S, before: S | None) -> None:
        """Put it right before another; before the first it is the last. None: into an empty circle."""
        if before is None:
            assert self.first is None, "there is somebody"
            self.first = spot
            return
        previous: S = before.previous
        if before is self.first:
            spot.mark = previous.mark + ROOM
        else:
            if before.mark - previous.mark < 2:
                self._space_out(previous)
            spot.mark = previous.mark + max(1, (before.mark - previous.mark) >> LEFT_BITS)
        spot.previous, spot.following = previous, before
        previous.following = before.previous = spot

    def leave(self, spot: S) -> None:
        """Take it out."""
        following: S = spot.following
        if spot is self.first:
            self.first = None if following is spot else following
        spot.previous.following, following.previous = following, spot.previous

    def _space_out(self, spot: S) -> None:
        """Make room behind it, by moving as few of those that follow as it takes."""
        crowd: list[S] = []
        following: S = spot.following
        while following is not self.first and following.mark - spot.mark < (len(crowd) + 1) * ROOM_MIN:
            crowd.append(following)
            following = following.following
        is_end = following is self.first
        room = ROOM if is_end else (following.mark - spot.mark) // (len(crowd) + 1)
        for number, each in enumerate(crowd, 1):
            each.mark = spot.mark + number * room
        for each in crowd:
            self._moved(each)
