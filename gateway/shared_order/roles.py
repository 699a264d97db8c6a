"""Roles: the role of this process in its order, since when and why it has it, and the known roles of the others."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from gateway.cluster.member import Member
from gateway.live.schema import ClusterMember, ClusterView, MemberRole

_STOPS: Final = "it stops"
SEEN_MAX: Final = 1_000  # members that are remembered with their times

log = logging.getLogger(__name__)


class Roles:
    """The record of which role this process has among the processes that schedule requests together, for the log and
    the cluster's view. One of them, the leader, decides for all; the others follow it (MemberRole). It also has the
    role of each known process, and since when. Mutable.
    """

    def __init__(self, name: str, *, clock: Callable[[], float] = time.time) -> None:
        """`clock`: seconds since 1970."""
        self.role = MemberRole.LEADERLESS
        self.leader: str | None = None
        self.epoch = 0
        self._name = name
        self._clock = clock
        self._reason = "it has started"
        self._seen: dict[str, tuple[MemberRole, float]] = {name: (self.role, clock())}

    def because(self, reason: str) -> None:
        """Record an event as the reason for the next change of the role."""
        self._reason = reason

    def stops(self) -> None:
        """The process leaves the order, which does not show whether another process leads."""
        self._reason = _STOPS

    def look(self, member: Member) -> bool:
        """Note the present role, and log a new leadership. Returns whether this process's role or leader changed."""
        role, leader, epoch = _role_of(member), _leader_of(member), member.follower.link.epoch
        if member.lead.leader is not None:
            epoch = member.lead.leader.epoch
        if (role, leader) == (self.role, self.leader) and (epoch == self.epoch or role is MemberRole.LEADERLESS):
            return False
        self.role, self.leader, self.epoch = role, leader, epoch
        match role:
            case MemberRole.LEADER:
                log.info("this process leads, epoch %d: %s", epoch, self._reason)
            case MemberRole.FOLLOWER:
                log.info("%s leads, epoch %d: %s", leader, epoch, self._reason)
            case MemberRole.STANDALONE:
                log.warning(
                    "this process is alone, with 1/%d of every limit: %s", member.lead.share.part.replicas, self._reason
                )
            case MemberRole.LEADERLESS if self._reason == _STOPS:
                log.info("this process leaves the order: %s", _STOPS)
            case MemberRole.LEADERLESS:
                log.warning("no process leads: %s", self._reason)
        return True

    def view(self, member: Member, addresses: Mapping[str, str]) -> ClusterView:
        """The cluster, as far as this process knows it."""
        now, found = self._clock(), {**addresses, self._name: addresses.get(self._name, "")}
        members = []
        for name, address in sorted(found.items()):
            role = MemberRole.LEADER if name == self.leader else MemberRole.FOLLOWER
            role = self.role if name == self._name else role
            if self._seen.get(name, (None,))[0] is not role:
                self._seen[name] = role, now
            members.append(ClusterMember(name, address or None, role, self._seen[name][1]))
        if len(self._seen) > SEEN_MAX:
            self._seen = {name: seen for name, seen in self._seen.items() if name in found}
        is_following = self.role is MemberRole.FOLLOWER
        return ClusterView(
            self._name,
            self.role,
            self.leader,
            self.epoch,
            member.lead.is_standalone,
            member.lead.elections,
            member.follower.link.round_trip_s if is_following else None,
            tuple(members),
        )


def _role_of(member: Member) -> MemberRole:
    if member.lead.leader is not None:
        return MemberRole.STANDALONE if member.lead.is_standalone else MemberRole.LEADER
    return MemberRole.FOLLOWER if member.follower.link.leader is not None else MemberRole.LEADERLESS


def _leader_of(member: Member) -> str | None:
    if member.lead.leader is not None:
        return None if member.lead.is_standalone else member.name
    return member.follower.link.leader
