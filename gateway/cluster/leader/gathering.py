"""Gathering: the wait of a new leader before it decides (rules 2, 19): every member of the last list has reported its
running requests, or was silent until its old promise surely ended, and the leader has the newest checkpoint of all.
"""

from collections.abc import Mapping

from gateway.cluster.checkpoints import NewestCheckpoint
from gateway.cluster.leader.led_members import LedMembers
from gateway.cluster.wire import WantCheckpoint


class Gathering:
    """The wait of a new leader before its first decision. It ends when every member (process of the cluster) has
    reported its running requests, or has been silent for too long, and the leader has the newest checkpoint. Mutable.
    """

    def __init__(
        self, leader: str, members: LedMembers, waits: Mapping[str, float], checkpoint: NewestCheckpoint
    ) -> None:
        """`waits` has the members of the last list, each with the time until which the leader waits for it."""
        self.is_over = False
        """What a decision needs was told, and is being taken in."""
        self._leader = leader
        self._members = members
        self._waits = dict(waits)
        self._checkpoint = checkpoint

    def look(self, now: float) -> bool:
        """Whether the wait is over now."""
        own = self._members.find(self._leader)
        # Its own process is never silent: what that runs is there before the first Pong tells it of a decision.
        if own is None or not own.has_told_running or self.awaits(now):
            return False
        self.is_over = self._has_newest()
        return self.is_over

    def awaits(self, now: float) -> list[float]:
        """The times until which the leader waits for members that have not reported their running requests (rule 2)."""
        told = {name for name, there in self._members if there.has_told_running}
        return [until for name, until in self._waits.items() if name not in told and now < until]

    def died(self, member: str) -> None:
        """The process of this member has ended."""
        self._waits.pop(member, None)

    def _has_newest(self) -> bool:
        """Whether no member that is there has a newer checkpoint; else ask it (rule 19)."""
        newest = max((there for _, there in self._members.here()), key=lambda each: each.checkpoint)
        if newest.checkpoint <= self._checkpoint.mark:
            return True
        if not newest.is_asked:
            newest.is_asked = True
            newest.say(WantCheckpoint())
        return False
