"""LeaderKey: which member has the store's key, as last heard, and the lease of this member, if it is the leader."""

from math import inf

from gateway.cluster.asking import STANDALONE_S
from gateway.cluster.election_store import Ask, StoreCall, StoreView


class LeaderKey:
    """The leader's key in the election store, which gives the right to lead, as one member (process) knows it. The
    object knows which member holds the key, and until when this member may lead if it holds the key itself. Mutable.
    """

    def __init__(self) -> None:
        self.leader: str | None = None
        """The member that has it, as last heard."""
        self.epoch = 0
        """That member's; 0: no member has it."""
        self.led_epoch = 0
        """The epoch that this member may lead; 0: none."""
        self.lease_until = -inf
        """Until when, by this member's clock."""
        self._refused_since: float | None = None

    def seen(self, call: StoreCall, view: StoreView, now: float) -> None:
        """The store has answered which member has the key."""
        self.leader, self.epoch = view.leader, view.epoch
        if view.leader is not None:
            self._refused_since = None
        elif call.ask is Ask.ACQUIRE and self._refused_since is None:
            self._refused_since = now

    def is_refused(self, now: float) -> bool:
        """Whether the store gives the key to no member, because the last leader may still have a majority."""
        return self._refused_since is not None and now - self._refused_since >= STANDALONE_S

    def give_up(self) -> None:
        """The member leads no more, even if the store still has its key."""
        self.led_epoch, self.lease_until = 0, -inf
