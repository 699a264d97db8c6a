"""WitnessLists: the lists of members of which a leader needs a majority to lead on without the store (promise.py)."""

from gateway.cluster.election_store import NO_WITNESSES, StoreView, Witnesses


class WitnessLists:
    """The lists of members (processes of the cluster) of which a majority can renew the leader's lease without the
    election store. One list is confirmed by the store; the other was sent to the store, whose answer is missing.
    Mutable.
    """

    def __init__(self) -> None:
        self.members: frozenset[str] = frozenset()
        """Those to agree on for the order that this member leads. The member says so."""
        self.agreed = NO_WITNESSES
        """What the store has, as last seen."""
        self._proposed: frozenset[str] | None = None  # to the store, which has not answered

    def of(self, epoch: int) -> list[frozenset[str]]:
        """The lists for the leader of this epoch; empty if the store has agreed on none."""
        if self.agreed.epoch != epoch:
            return []
        return [self.agreed.names, *([] if self._proposed is None else [self._proposed])]

    def propose(self, epoch: int) -> Witnesses:
        """The witnesses that a renewal proposes. Until the store answers, each renewal proposes the same."""
        self._proposed = self.members if self._proposed is None else self._proposed
        return Witnesses(epoch, self._proposed)

    def seen(self, view: StoreView, epoch: int) -> None:
        """Record the list in the store's answer, unless the store has lost the highest known epoch."""
        if view.counter >= epoch:
            self.agreed = view.witnesses

    def renewed(self, witnesses: Witnesses) -> None:
        """The store has agreed on this list."""
        self.agreed, self._proposed = witnesses, None

    def begin(self) -> None:
        """The member leads from now on: no list is proposed yet."""
        self._proposed = None
