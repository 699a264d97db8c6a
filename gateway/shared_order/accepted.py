"""Accepted: the connections of the processes that follow this one."""

import asyncio
import logging
from collections.abc import Callable

from aiohttp import web

from gateway.cluster.leader.led_members import LedMembers
from gateway.cluster.member import Member
from gateway.cluster.wire import FrameError, decode
from gateway.shared_order.place import MemberPlace
from gateway.shared_order.transport import OrderConnection

log = logging.getLogger(__name__)


class Accepted:
    """The leader's connections to its followers (the processes for which it decides), by name. Mutable; used on one
    loop.
    """

    def __init__(self, member: Member, place: MemberPlace, soon: Callable[[], None]) -> None:
        """`soon` is called when a message has arrived."""
        self._member = member
        self._place = place
        self._soon = soon
        self._clock = asyncio.get_running_loop().time
        self.connections: dict[str, OrderConnection] = {}
        """By the name of the process."""

    async def accept(self, websocket: web.WebSocketResponse, name: str) -> None:
        """Use the connection of the process with this name, which takes this process for the leader, until it ends."""
        if not self._place.leads:  # it was told so, and asks again
            await websocket.close()
            return
        before = self.connections.get(name)
        if before is not None:
            before.close()
        connection = self.connections[name] = OrderConnection(websocket, name, self._clock)
        log.info("%s follows this process", name)
        try:
            await connection.run(lambda body: self._received(name, body))
            if self.connections.get(name) is connection:
                log.info("%s follows this process no more: its connection has ended", name)
        except FrameError as error:
            log.warning("%s is dropped: %s", name, error)
            connection.close()
        finally:
            if self.connections.get(name) is connection:
                del self.connections[name]
                self._member.lost_from(name, self._clock())
                self._soon()

    def names(self) -> list[str]:
        """The names of the processes that are connected to this one, while it leads."""
        return list(self.connections) if self._member.lead.is_for_all else []

    def drop(self, name: str, reason: str) -> None:
        """Close the connection of this process, if it is still open."""
        connection = self.connections.get(name)
        if connection is not None:
            log.warning("%s is dropped: %s", name, reason)
            connection.close()

    def look_at_buffers(self, members: LedMembers, now: float) -> None:
        """Report each connection's unsent bytes to the leader, to notice a follower that does not read (rule 26)."""
        for name, connection in self.connections.items():
            size, oldest_s = connection.unsent(now)
            if size:
                members.unsent(name, size, oldest_s)

    def _received(self, name: str, body: bytes) -> None:
        self._member.received_from(name, decode(body), self._clock())
        self._soon()
