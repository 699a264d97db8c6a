"""Promise and lease: until when a leader may decide, and until when its followers carry that out (rules 2 to 4).

The store gives the leader's key LEASE_S to live. The leader counts from before it sent the renewal, less
LEASE_MARGIN_S: by its own clock the lease ends first. A follower's promise is what the lease had left when the leader
answered its ping, counted from before the ping was sent, times PROMISE_RATIO. So it ends first even where one clock
runs 1 % slow and the other 1 % fast. The next leader waits LEASE_S + LEASE_MARGIN_S for a member that is silent.
"""

from math import inf
from typing import Final

LEASE_S: Final = 2.0  # the key's time to live
LEASE_MARGIN_S: Final = 0.2  # 10 %: clocks that differ by 1 % and a store that is late
PROMISE_RATIO: Final = 0.98  # of what the lease has left
SILENT_S: Final = LEASE_S + LEASE_MARGIN_S
PING_S: Final = 0.25  # rule 26
SILENCE_S_MAX: Final = 1.0  # without a frame: then the connection is lost


class Promise:
    """A follower's promise to the leader that it has joined: until when it carries out what that one decides."""

    def __init__(self, ratio: float = PROMISE_RATIO) -> None:
        self._ratio = ratio
        self.until = -inf

    def ponged(self, pinged_at: float, lease_s: float) -> None:
        """The leader answered the ping of `pinged_at`, by this process's clock: its lease had so much left."""
        self.until = max(self.until, pinged_at + lease_s * self._ratio)

    def release(self) -> None:
        """It is over: the connection is gone, or the leader stops."""
        self.until = -inf

    def holds(self, now: float) -> bool:
        return now < self.until
