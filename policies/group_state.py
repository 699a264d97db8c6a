"""GroupState: the settings and the requests in flight of one group, shared by all parts of a pool."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from policies.types import Group


@dataclass(slots=True)
class GroupState:
    """A group of tenants in the pool, and the number of its requests in flight, over all queues. Mutable."""

    group: Group
    in_flight: int = 0
    tenants: int = 0  # that the pool knows
    spells: int = 0  # times that its in-flight limit began or ceased to hold it back

    @property
    def is_full(self) -> bool:
        """Whether the group is at its in-flight limit."""
        limit = self.group.in_flight_max
        return limit is not None and self.in_flight >= limit


NO_GROUPS: Final[Mapping[str, GroupState]] = {}
