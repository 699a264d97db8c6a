"""SharedLimits: the limits per minute of all pools that replicas share, for the peer exchange."""

import asyncio
from collections.abc import Mapping
from typing import Protocol

from gateway.scheduling.pools import Pools
from policies.types import RateWindowReport

Minutes = Mapping[str, Mapping[str, RateWindowReport]]
"""What one gateway says, by pool and tenant."""


class PoolSharing(Protocol):
    """The limits of one pool that replicas share (policies/admission/shared_limits.py)."""

    replicas: int
    is_cut_off: bool

    def propose(
        self, name: str, heard: Mapping[str, Mapping[str, RateWindowReport]], now: float
    ) -> Mapping[str, RateWindowReport]: ...
    def agreed(self) -> None: ...


class SharedLimits:
    """The shared limits of all pools of this replica. Mutable; used on one loop."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._sharing: dict[str, PoolSharing] = {}
        self._replicas, self._is_cut_off = 0, False

    def add(self, pool: str, sharing: PoolSharing) -> None:
        """Add a new pool."""
        self._sharing[pool] = sharing
        sharing.replicas, sharing.is_cut_off = self._replicas, self._is_cut_off

    def shared_by(self, replicas: int, *, is_cut_off: bool) -> None:
        """Set how many replicas share the limits. A replica that is cut off from the others keeps to its fair share."""
        self._replicas, self._is_cut_off = replicas, is_cut_off
        for sharing in self._sharing.values():
            sharing.replicas, sharing.is_cut_off = replicas, is_cut_off

    def propose(self, name: str, heard: Mapping[str, Minutes]) -> Minutes:
        """The reports that this replica, of this name, publishes. `heard`: the other replicas' reports, by replica."""
        now = asyncio.get_running_loop().time()
        return {
            pool: sharing.propose(name, {other: minutes.get(pool, {}) for other, minutes in heard.items()}, now)
            for pool, sharing in self._sharing.items()
        }

    def agreed(self) -> None:
        """The other replicas have received what was proposed."""
        for sharing in self._sharing.values():
            sharing.agreed()

    def at_backends(self) -> dict[str, tuple[int, int]]:
        """Requests of this replica at each backend, and the tokens reserved for them."""
        return {
            backend_id: (view.in_flight_requests, view.reserved_tokens)
            for snapshot in self._pools.overviews().values()
            for backend_id, view in snapshot.backends.items()
            if view.in_flight_requests
        }
