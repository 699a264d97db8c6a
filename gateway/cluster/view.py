"""ClusterView: the cluster as one of its members sees it, for the admin API and metrics."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class MemberRole(StrEnum):
    """`leaderless`: it follows no leader yet, or no longer, and its requests wait."""

    LEADER = "leader"
    FOLLOWER = "follower"
    STANDALONE = "standalone"
    LEADERLESS = "leaderless"


@dataclass(frozen=True, slots=True)
class ClusterMember:
    """One member, as this process knows it. `since_s`: since when it is seen in this role, in seconds since 1970."""

    name: str
    address: str
    role: MemberRole
    since_s: float


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster as one of its members sees it. `leader` None: there is none that it knows of. `round_trip_s`: of the
    last ping to the leader; None for the leader itself. `elections`: how often this member began to lead.
    """

    name: str
    role: MemberRole
    leader: str | None
    epoch: int
    is_standalone: bool
    elections: int
    round_trip_s: float | None
    members: tuple[ClusterMember, ...]

    def document(self) -> dict[str, Any]:
        """As GET /cluster answers (gateway/admin/models/live.py)."""
        return {
            "name": self.name,
            "role": str(self.role),
            "leader": self.leader,
            "epoch": self.epoch,
            "standalone": self.is_standalone,
            "elections": self.elections,
            "round_trip_s": self.round_trip_s,
            "members": [
                {"name": each.name, "role": str(each.role), "address": each.address or None, "since": each.since_s}
                for each in self.members
            ],
        }


def lone_view(name: str, since_s: float) -> ClusterView:
    """Of a gateway that shares its order with no other: it leads itself since its start."""
    member = ClusterMember(name, "", MemberRole.LEADER, since_s)
    return ClusterView(name, MemberRole.LEADER, name, 0, False, 0, None, (member,))
