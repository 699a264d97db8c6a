"""Promise and lease: until when a leader may decide, and its followers carry out its decisions (rules 2 to 4).

The store gives the leader's key LEASE_S to live. The leader counts from before it sent the renewal, less
LEASE_MARGIN_S: by its own clock the lease ends first. A follower's promise is the rest of the lease when the leader
answered its ping, counted from before the ping was sent, times PROMISE_RATIO. So it ends first even if one clock runs 1
% slow and the other 1 % fast. The next leader waits LEASE_S + LEASE_MARGIN_S for a member that is silent.

Without the store the members renew the lease (docs/decisions/0010-a-majority-renews-the-lease.md). A follower that
receives a Pong grants its leader LEASE_S from then: for so long it helps no other member. Its next ping reports this,
and the leader counts from before it sent that Pong, less the margin. The lease lasts while a majority grants it.
"""

from collections.abc import Collection, Iterable
from math import inf
from typing import Final

LEASE_S: Final = 2.0  # the key's time to live
LEASE_MARGIN_S: Final = 0.2  # 10 %: clocks that differ by 1 % and a store that is late
PROMISE_RATIO: Final = 0.98  # of what the lease has left
SILENT_S: Final = LEASE_S + LEASE_MARGIN_S
PING_S: Final = 0.25  # rule 26
SILENCE_S_MAX: Final = 1.0  # without a frame: then the connection is lost
WITHOUT_STORE_S: Final = 90.0  # a store that fails over, or is upgraded, is back by then; after it each is alone


class Promise:
    """A follower's promise to its leader: it carries out this leader's actions until the time `until`, not later."""

    def __init__(self) -> None:
        self.until = -inf

    def ponged(self, pinged_at: float, lease_s: float) -> None:
        """The leader answered the ping sent at `pinged_at`, by this process's clock: its lease had `lease_s` left."""
        self.until = max(self.until, pinged_at + lease_s * PROMISE_RATIO)

    def release(self) -> None:
        """End the promise: the connection is gone, or the leader stops."""
        self.until = -inf

    def holds(self, now: float) -> bool:
        return now < self.until


class Granting:
    """The consent of one member (process) to the lease of its leader, the time for which the leader may decide. The
    consent counts while the election store does not answer. Each Pong (the leader's answer to a ping) can renew it: it
    then lasts LEASE_S from the Pong's receipt, and for so long the member helps no other leader. Mutable.
    """

    def __init__(self) -> None:
        self.may_grant = False
        """Whether this member may help its leader to lead on without the store; the member says so."""
        self.granted: float | None = None
        """The newest Pong that it grants, by the leader's clock; None: it grants nothing."""
        self._leader: str | None = None
        self._until = -inf

    def heard(self, leader: str | None, sent_at: float | None, now: float) -> None:
        """A Pong came that this leader sent at `sent_at`, by the leader's clock; None: nothing of its lease is left."""
        self.granted = sent_at if self.may_grant else None
        if self.granted is not None:
            self._leader, self._until = leader, now + LEASE_S

    def release(self, leader: str | None) -> None:
        """Note that this leader acts no more, because it has resigned or ended: nothing is granted to it."""
        if self._leader == leader:
            self._leader, self._until = None, -inf

    def is_bound(self, now: float) -> bool:
        """Whether this member's grant to a leader still holds, so that it may not help another member to lead."""
        return now < self._until


class Grants:
    """A leader's record of when each member last granted it the lease (the time for which it may decide). The record
    has the leader itself and the members that are connected to it, or were a moment ago and may return. The leader
    names these to the election store as its witnesses (`witnesses`). If the store fails, the lease lasts as long as a
    majority of each such list of witnesses grants it (`lease_until`). Mutable.
    """

    def __init__(self, leader: str) -> None:
        self._sent_at: dict[str, float] = {leader: inf}

    def met(self, member: str) -> None:
        self._sent_at.setdefault(member, -inf)

    def granted(self, member: str, sent_at: float) -> None:
        """The member grants LEASE_S from its receipt of the Pong that was sent at `sent_at`, by the leader's clock."""
        self._sent_at[member] = max(self._sent_at.get(member, -inf), sent_at)

    def forget(self, member: str) -> None:
        """Drop the grant of a member that is given up: it has ended by now, or counts for nothing."""
        del self._sent_at[member]

    def witnesses(self) -> frozenset[str]:
        """The members of which a majority may renew the lease; empty if the leader has no other members."""
        return frozenset(self._sent_at) if len(self._sent_at) > 1 else frozenset()

    def lease_until(self, lists: Iterable[Collection[str]]) -> float:
        """The time until which a majority of each of these lists has granted the lease. A leader without other members,
        or without a list, has no such lease.
        """
        return min((self._majority(members) for members in lists), default=-inf)

    def _majority(self, members: Collection[str]) -> float:
        if len(members) < 2:
            return -inf
        times = sorted((self._sent_at.get(member, -inf) for member in members), reverse=True)
        return times[len(members) // 2] + LEASE_S - LEASE_MARGIN_S
