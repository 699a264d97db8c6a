"""LedMembers: the members of one leadership: which are connected, when each was heard, and the messages to each."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from gateway.cluster.checkpoints import Mark
from gateway.cluster.leader.ordered_requests import Sender
from gateway.cluster.promise import LEASE_S, SILENCE_S_MAX, Grants
from gateway.cluster.records import Taken
from gateway.cluster.wire import AnyMessage, Epoch, Frame, Join, Pong, Shared, Welcome, frames_of
from gateway.cluster.wishes import CloseMember, Wish

UNSENT_BYTES_MAX: Final = 8 << 20  # rule 26: beyond it a follower is dropped
UNSENT_S_MAX: Final = 2.0


@dataclass(slots=True, eq=False)
class LedMember:
    """The leader's record of one member (a process of the cluster) that is connected to it, or was connected a moment
    ago and may return.
    """

    sender: Sender
    heard_at: float
    checkpoint: Mark
    has_told_running: bool = False  # since its Join
    has_more: bool = False  # and it will tell more when a decision was made
    is_joined: bool = False  # all that it has was taken in
    lost_at: float | None = None
    pinged_at: float | None = None  # of its last ping, by its own clock
    is_asked: bool = False  # for its checkpoint
    named: frozenset[str] = frozenset()  # backends that it says it cannot reach
    failed: set[str] = field(default_factory=set)  # and those that failed it since
    outbox: list[tuple[str, AnyMessage]] = field(default_factory=list)

    def say(self, message: AnyMessage) -> None:
        """Send a message that belongs to no pool."""
        self.outbox.append(("", message))

    def pong(self, left_s: float, now: float) -> None:
        """Answer the member's last ping, with a promise for the rest of the lease, `left_s` (rule 3)."""
        if self.pinged_at is not None:
            self.say(Pong(self.pinged_at, left_s, now))

    def lost(self, now: float) -> None:
        """The member's connection is gone."""
        self.lost_at, self.is_joined, self.has_told_running, self.has_more = now, False, False, False
        self.outbox.clear()
        self.sender.is_away = True


class LedMembers:
    """The leader's records of its members: those that are connected, and those that may come back. Mutable."""

    def __init__(self, leader: str, wishes: list[Wish]) -> None:
        """`wishes` is the list that gets requests to close a connection."""
        self.grants = Grants(leader)
        self.senders: dict[str, Sender] = {}
        """Of all that ever joined: a name is never used again."""
        self._leader = leader
        self._wishes = wishes
        self._all: dict[str, LedMember] = {}
        self._shared: dict[str, bytes] = {}

    def __iter__(self) -> Iterator[tuple[str, LedMember]]:
        return iter(self._all.items())

    def here(self) -> list[tuple[str, LedMember]]:
        """The connected members, with their names."""
        return [(name, there) for name, there in self if there.lost_at is None]

    def find(self, name: str) -> LedMember | None:
        """The member of this name, connected or not; None: it never joined, or was forgotten."""
        return self._all.get(name)

    def connected(self, name: str) -> LedMember | None:
        """The member of this name, if it is connected; else None."""
        there = self._all.get(name)
        return there if there is not None and there.lost_at is None else None

    def connect(self, name: str, join: Join, now: float) -> LedMember:
        """A member joins, for the first time or again: its later messages belong to this connection."""
        sender = self.senders.setdefault(name, Sender(name))
        there = self._all[name] = LedMember(sender, now, Mark(*join.checkpoint))
        self.grants.met(name)
        there.say(Welcome(self._leader))
        for topic, body in self._shared.items():
            there.say(Shared(topic, body))
        return there

    def restored(self, taken: Mapping[str, Taken]) -> None:
        """Apply the checkpoint's numbers: how much of each member's log it includes."""
        for name, (request, entry) in taken.items():
            sender = self.senders.setdefault(name, Sender(name))
            sender.request, sender.entry = request, entry

    def share(self, topic: str, body: bytes) -> None:
        """Send this state to all followers, now and when one joins (wire.Shared)."""
        if self._shared.get(topic) != body:
            self._shared[topic] = body
            for _, there in self.here():
                there.say(Shared(topic, body))

    def say(self, name: str, pool: str, message: AnyMessage) -> None:
        """Send a message about a pool to this member."""
        self._all[name].outbox.append((pool, message))

    def unsent(self, name: str, size: int, oldest_s: float) -> None:
        """`size` bytes wait in the buffer of this member's connection, the oldest for `oldest_s` seconds (rule 26)."""
        if (size > UNSENT_BYTES_MAX or oldest_s > UNSENT_S_MAX) and self.connected(name) is not None:
            self._wishes.append(CloseMember(name, "it does not read"))

    def unheard(self, now: float, overslept_s: float) -> tuple[list[str], list[str]]:
        """The connected members that were silent for too long (rule 26), and the lost members whose promise has ended
        (rule 17). This process did not run for `overslept_s`, so no member counts as silent for that time.
        """
        silent, ended = [], []
        for name, there in self:
            there.heard_at = min(now, there.heard_at + overslept_s)
            if there.lost_at is None and now - there.heard_at > SILENCE_S_MAX:
                silent.append(name)
            elif there.lost_at is not None and now - there.heard_at >= LEASE_S:
                ended.append(name)
        return silent, ended

    def due(self) -> list[float]:
        """The times at which members count as silent, or their promises have ended."""
        return [each.heard_at + (SILENCE_S_MAX if each.lost_at is None else LEASE_S) for each in self._all.values()]

    def forget(self, name: str) -> Sender:
        """Give up this member."""
        self.grants.forget(name)
        return self._all.pop(name).sender

    def frames(self, epoch: Epoch) -> list[tuple[str, Frame]]:
        """The frames to send now, each with its member."""
        found = []
        for name, there in self.here():
            if there.outbox:
                said, there.outbox = there.outbox, []
                found += [(name, frame) for frame in frames_of(epoch, said)]
        return found
