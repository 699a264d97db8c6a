"""LeaderLink: a member's connection to its leader. It decides which messages to send, which received messages count,
and when to close the connection.

Nothing is sent again on the next connection: the member reports everything anew when it joins. The link itself carries
no bytes; the shell carries them, or the member, if the leader is in its own process.
"""

from collections.abc import Sequence
from math import inf
from typing import Final

from gateway.cluster.promise import PING_S, SILENCE_S_MAX, Granting, Promise
from gateway.cluster.wire import AnyMessage, Epoch, Frame, HigherEpoch, Join, Ping, Pong, Welcome, frames_of

UNSENT_BYTES_MAX: Final = 4 << 20  # rule 26: beyond it new calls are refused
UNSENT_S_MAX: Final = 1.0


class LeaderLink:
    """The state of the connection of one member (a process of the cluster) to its present leader: what to send, which
    received messages count, and when to close it. It has no socket: its caller carries the bytes. Mutable; it lives as
    long as the process.
    """

    def __init__(self, member: str, now: float) -> None:
        self.member = member
        self.epoch: Epoch = 0
        """The one that is joined, or the highest that is known."""
        self.leader: str | None = None
        """The leader that has welcomed this member; None: there is none."""
        self.is_connected = False
        self.peer: str | None = None
        """The member that it is connected to, in another process; None: none, or the leader in its own."""
        self.round_trip_s: float | None = None
        """Of the last ping that the leader answered."""
        self.heard_at = now
        """When the leader was last heard; the member that did not run for a while moves it."""
        self.granting = Granting()
        self.outbox = Outbox()
        self.unsent = (0, 0.0)
        """How many bytes wait in the connection's buffer, and for how many seconds the oldest (rule 26)."""
        self._promise = Promise()
        self._must_close = ""
        self._pinged_at = -inf

    # -- connection ------------------------------------------------------------------------------------------

    def connected(self, peer: str | None, checkpoint: tuple[Epoch, int, str], now: float) -> None:
        """There is a new connection to a leader, which gets the mark of the member's newest `checkpoint`."""
        self.is_connected, self.heard_at, self._must_close, self.granting.granted = True, now, "", None
        self.peer = peer
        self.outbox.clear()
        self.outbox.say("", Join(self.member, checkpoint))

    def lost(self) -> None:
        """The connection is gone, and its promise is over."""
        self.is_connected, self.peer, self._must_close, self.leader = False, None, "", None
        self._promise.release()
        self.outbox.clear()

    def received(self, frame: Frame, now: float) -> Sequence[AnyMessage]:
        """A frame came from the leader. Returns its messages if they count; a Welcome is the first of them."""
        self.heard_at = now
        if frame.messages and isinstance(frame.messages[0], Welcome):
            return frame.messages if self._is_welcome(frame, frame.messages[0], now) else ()
        for message in frame.messages:
            if isinstance(message, HigherEpoch):
                self.epoch = max(self.epoch, message.epoch)
                self._must_close = "it leads no more"
        if self.leader is None or frame.epoch != self.epoch:  # rule 5
            return ()
        return frame.messages

    def _is_welcome(self, frame: Frame, welcome: Welcome, now: float) -> bool:
        if not self.is_connected:
            return False
        if frame.epoch < self.epoch:  # rule 1
            self.outbox.say("", HigherEpoch(self.epoch))
            self._must_close = ""
            return False
        self.epoch, self.leader = frame.epoch, welcome.leader
        self._ping(now)  # first: its Pong comes before any action
        return True

    def ponged(self, pong: Pong, now: float) -> None:
        """The leader answered a ping: its promise is renewed."""
        self.round_trip_s = now - pong.at
        self._promise.ponged(pong.at, pong.lease_s)
        self.granting.heard(self.leader, pong.sent_at if pong.lease_s else None, now)

    def released(self) -> None:
        """The leader resigns: its promise is over."""
        self._must_close = "the leader resigns"
        self._promise.release()
        self.granting.release(self.leader)

    def closes(self, now: float) -> str:
        """The reason why the connection has to be closed now; empty: it stays open."""
        if self.is_connected and now - self.heard_at > SILENCE_S_MAX:  # rule 26
            self._must_close = self._must_close or "the leader is silent"
        return self._must_close if self.is_connected else ""

    def due(self) -> float:
        """When a ping is due, or the leader counts as silent; inf: there is no connection."""
        if not self.is_connected:
            return inf
        silent_at = self.heard_at + SILENCE_S_MAX
        return silent_at if self.leader is None else min(silent_at, self._pinged_at + PING_S)

    # -- what the leader decides -----------------------------------------------------------------------------

    def may_decide(self, now: float) -> bool:
        """Whether the leader's actions may be carried out now (rule 3)."""
        return self.leader is not None and self._promise.holds(now)

    def takes_action(self, now: float) -> bool:
        """Whether an action that came now is carried out. After a dropped action all later ones are dropped, too: they
        would be out of order.
        """
        if not self.may_decide(now):  # rule 3
            self._must_close = "its promise has lapsed"
        return not self._must_close

    # -- what is sent ----------------------------------------------------------------------------------------

    def say(self, pool: str, message: AnyMessage) -> None:
        """Send a message to the leader; without a leader it is dropped, because everything is reported on joining."""
        if self.leader is not None:
            self.outbox.say(pool, message)

    def frames(self, now: float) -> list[Frame]:
        """The frames to send to the leader now."""
        if not self.is_connected or self._must_close:
            return []
        if now - self._pinged_at >= PING_S and self.leader is not None:
            self._ping(now)
        return list(frames_of(self.epoch, self.outbox.take()))

    def _ping(self, now: float) -> None:
        self._pinged_at = now
        self.outbox.say("", Ping(now, self.granting.granted if self.granting.may_grant else None))

    @property
    def is_read(self) -> bool:
        """Whether the leader reads its messages; while it does not, new requests are refused."""
        return self.unsent[0] <= UNSENT_BYTES_MAX and self.unsent[1] <= UNSENT_S_MAX


class Outbox:
    """The messages that wait to be sent on one connection to the leader, in order. Mutable."""

    def __init__(self) -> None:
        self._said: list[tuple[str, AnyMessage]] = []
        self._replaceable: dict[int, int] = {}  # where a request's usage stands

    def say(self, pool: str, message: AnyMessage) -> None:
        self._said.append((pool, message))

    def say_newest(self, number: int, pool: str, message: AnyMessage) -> None:
        """Send the usage of this request. It replaces an unsent usage of the same request (rule 9)."""
        at = self._replaceable.get(number)
        if at is None:
            self._replaceable[number] = len(self._said)
            self._said.append((pool, message))
        else:
            self._said[at] = pool, message

    def ended(self, number: int) -> None:
        """The request has ended: its usage is not replaced any more."""
        self._replaceable.pop(number, None)

    def take(self) -> list[tuple[str, AnyMessage]]:
        """All messages to send now; the outbox is empty afterwards."""
        said = self._said
        self.clear()
        return said

    def clear(self) -> None:
        self._said = []
        self._replaceable.clear()
