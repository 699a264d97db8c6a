"""Following: the connection of one process to the leader that it follows, which is made again whenever it is lost."""

import asyncio
import errno
import logging
from collections.abc import Callable
from math import inf
from typing import Final, NamedTuple

import aiohttp

from gateway.cluster.hello import HelloError, OtherMemberError
from gateway.cluster.member import Member
from gateway.cluster.wire import FRAME_BYTES_MAX, FrameError
from gateway.shared_order.place import MemberPlace, open_session
from gateway.shared_order.roles import Roles
from gateway.shared_order.transport import OrderConnection, connected
from gateway.tasks import cancel

RETRY_S: Final = 0.05  # between tries to reach a leader, which may be starting
ALONE_RETRY_S: Final = 0.5  # and while this process is alone: the leader of before may still have a majority
QUIET_S: Final = 3.0  # after the start: processes that start together are not ready at one time

log = logging.getLogger(__name__)


class _LeaderAddress(NamedTuple):
    """A leader to follow. Workers know where theirs listens, and learn its name when they meet."""

    name: str | None
    address: str


class Following:
    """The connection of this process to its leader, the process that decides on its requests. It is made again whenever
    it is lost, also to a new leader. Mutable; used on one loop.
    """

    def __init__(
        self,
        member: Member,
        place: MemberPlace,
        roles: Roles,
        *,
        soon: Callable[[], None],
        received: Callable[[str, bytes], None],
    ) -> None:
        """`received` gets the leader's name and each message. `soon` is called when the connection has changed."""
        self.joined = asyncio.Event()
        """Set while a leader decides for this process."""
        self.connection: OrderConnection | None = None
        self._member = member
        self._place = place
        self._roles = roles
        self._soon = soon
        self._received = received
        self._loop = asyncio.get_running_loop()
        self._target: _LeaderAddress | None = None  # that is followed, or tried
        self._task: asyncio.Task[None] | None = None
        self._complained = ""
        self._quiet_until = self._loop.time() + QUIET_S

    def aim(self, now: float) -> None:
        """Connect to the member that is to be followed now, and to no other."""
        target = self._aimed_at(now)
        if target == self._target:
            return
        if target is None and self._member.lead.leader is None:
            return  # the followed member may still be there
        self._target = target
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if target is not None:
            self._task = asyncio.create_task(self._follow(target), name=f"follow {target.name or 'the leader'}")

    def look(self) -> None:
        """Note whether the leader decides for this process by now."""
        if not self.joined.is_set() and self._member.follower.link.leader is not None:
            self._complained, self._quiet_until = "", -inf
            self.joined.set()

    def leave(self, reason: str) -> None:
        """Close the connection, if there is one, for this reason."""
        if self.connection is not None:
            self._complain(f"{self.connection.peer} is left: {reason}")
            self.connection.close()

    async def stop(self) -> None:
        """Close the connection, and make no new one."""
        await cancel(self._task)

    def _aimed_at(self, now: float) -> _LeaderAddress | None:
        place, campaign = self._place, self._member.campaign
        if place.leader_address is not None:
            return None if place.is_appointed else _LeaderAddress(None, place.leader_address)
        name = None if campaign is None else self._member.target()
        address = None if name is None else place.addresses.get(name)
        return None if name is None or address is None else _LeaderAddress(name, address)

    async def _follow(self, target: _LeaderAddress) -> None:
        """Connect to this leader, again and again."""
        session, root = open_session(target.address)
        leader = target.name or "worker 0"
        async with session:
            while True:
                try:
                    await self._follow_once(session, root, target)
                    if not self._complained:
                        self._complain(f"the connection to {leader} has ended")
                except (aiohttp.ClientError, OSError, HelloError, FrameError, TimeoutError) as error:
                    self._look_ended(target, error)
                    self._complain(f"{leader} cannot be followed: {_said(error)}")
                await asyncio.sleep(ALONE_RETRY_S if self._member.lead.is_standalone else RETRY_S)

    def _look_ended(self, target: _LeaderAddress, error: Exception) -> None:
        """Where the port of this member refuses connections, or another process has it, that member has ended."""
        has_ended = isinstance(error, OtherMemberError) or _is_refused(error)
        if target.name is not None and self._member.campaign is not None and has_ended:
            self._member.campaign.ended(target.name, self._loop.time())
            self._soon()

    async def _follow_once(self, session: aiohttp.ClientSession, root: str, target: _LeaderAddress) -> None:
        connecting = connected(session, f"{root}/order", self._place, FRAME_BYTES_MAX, target.name)
        async with connecting as (websocket, peer):
            if not peer.leads:
                raise HelloError("it leads no others")
            leader = peer.member
            now = self._loop.time()
            if self._member.campaign is None:
                self._member.appoint(leader, 0, now)
            connection = self.connection = OrderConnection(websocket, leader, self._loop.time)
            self._member.connected(leader, now)
            self._soon()
            try:
                await connection.run(lambda body: self._received(leader, body))
            finally:
                connection.close()
                if self.connection is connection:
                    self.connection = None
                self._member.lost(leader, self._loop.time())
                if self._member.lead.leader is None:
                    self.joined.clear()
                self._soon()

    def _complain(self, text: str) -> None:
        if self._loop.time() < self._quiet_until:
            return
        if text != self._complained:  # tried again and again, logged once
            log.warning("%s; requests wait until there is a leader again", text)
        self._complained = text
        self._roles.because(text)


def _said(error: Exception) -> str:
    """The error in words; aiohttp's own have the address of an object in them."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot connect: {error.os_error}"
    return str(error) or type(error).__name__


def _is_refused(error: Exception) -> bool:
    """Whether no process listens at the port; one that is frozen, or cut off, does not refuse."""
    return isinstance(error, OSError) and error.errno == errno.ECONNREFUSED
