"""SharedOrder: drives this process's Member on the event loop: sockets, timers, and the Dispatchers of its pools.

Everything that comes (frames, facts of requests, measurements) is taken in during one turn of the loop, in `_turn`:
usage is brought up to date, the Member ticks, its frames are sent, and its actions are carried out.

A parent process names the leader, or a store does (`ElectionStore`), which is asked beside the turns: no decision
waits for it.
"""

import asyncio
import errno
import logging
from collections.abc import Coroutine
from contextlib import suppress
from math import inf
from typing import Any, Final, NamedTuple, Protocol

import aiohttp
from aiohttp import web

from gateway.cluster.election import Candidate, ElectionStore, StoreCall
from gateway.cluster.hello import HelloError, OtherMemberError
from gateway.cluster.leader.leader import Leader
from gateway.cluster.member import Member
from gateway.cluster.wire import FRAME_BYTES_MAX, Frame, FrameError, Shared, decode, encode
from gateway.cluster.wishes import AskBackends, BackendFailed, CloseMember, StepDown, StoreCheckpoint, Wish
from gateway.live.schema import ClusterView, MemberRole
from gateway.scheduling.deciding import Decides
from gateway.shared_order.place import MemberPlace, open_session
from gateway.shared_order.roles import Roles
from gateway.shared_order.transport import OrderConnection, connected
from gateway.store.base import StoreUnavailable
from policies.scheduler_protocol import SharedSchedulerProtocol
from policies.types import Tenant

RETRY_S: Final = 0.05  # between tries to reach a leader, which may be starting
ALONE_RETRY_S: Final = 0.5  # and while this process is alone: the leader of before may still have a majority
LAST_S_MAX: Final = 0.5  # for the last calls and frames when this process stops
FLUSH_S: Final = 0.005  # between looks whether they were sent

log = logging.getLogger(__name__)


class OrderShell(Protocol):
    """The process around an order: what it looks up for it, and what it does on its behalf."""

    def make_scheduler(self, pool: str) -> SharedSchedulerProtocol:
        """A new leader's Scheduler of this pool."""
        ...

    def tenant(self, tenant_id: str) -> Tenant | None:
        """None: the registry does not know it."""
        ...

    def heard(self, topic: str, body: bytes) -> None:
        """The leader has told this to all."""
        ...

    def asks_for(self, wish: Wish) -> None:
        """The leader, which is in this process, asks this of the backends."""
        ...

    def role_changed(self, role: MemberRole) -> None:
        """The role of this process, or its leader, is another one now."""
        ...


class _LeaderAddress(NamedTuple):
    """A leader to follow. Workers know where theirs listens, and learn its name when they meet."""

    name: str | None
    address: str


class SharedOrder:
    """One process's part in the order of all. Made and used on its loop; `start` it, `stop` it."""

    def __init__(
        self, place: MemberPlace, shell: OrderShell, *, wait_s_max: float, elections: ElectionStore | None = None
    ) -> None:
        """Without `elections` the place names the leader."""
        self.place = place
        self._loop = asyncio.get_running_loop()
        self._shell = shell
        self._elections = elections
        self.member = Member(
            place.name,
            make_scheduler=shell.make_scheduler,
            tenant_of=shell.tenant,
            wait_s_max=wait_s_max,
            candidate=None,  # until it starts
            now=self._loop.time(),
        )
        self.joined = asyncio.Event()
        """Set while a leader decides for this process."""
        self.roles = Roles(place.name)
        self._dispatchers: dict[str, Decides] = {}
        self._followers: dict[str, OrderConnection] = {}
        self._upstream: OrderConnection | None = None  # to the leader
        self._target: _LeaderAddress | None = None  # that is followed, or tried
        self._following: asyncio.Task[None] | None = None
        self._asking: set[asyncio.Task[None]] = set()
        self._is_soon = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self._complained = self._store_error = ""
        self._is_started = self._is_stopping = False

    # -- start and stop --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Take part from now on: lead, follow, or stand for election. The port listens already."""
        now, place = self._loop.time(), self.place
        self._is_started = True
        if self._elections is not None:
            self.member.candidate = Candidate(place.name, place.address, now=now)
            place.leads = self.member.is_leading
            self._read_checkpoint()
        elif place.is_appointed:
            self.member.appoint(place.name, place.epoch, now, expected=place.others)
        self.soon()

    def reconnected(self) -> None:
        """The store was connected to anew: it may know less than it did."""
        if self.member.candidate is not None:
            self.member.candidate.reconnected(self._loop.time())
            if self._is_started:
                self._read_checkpoint()

    def resign(self) -> None:
        """Lead no more, and do not stand again; follow the next leader."""
        if self.member.candidate is not None:
            self.roles.because("this process stops")
            self.member.resign(self._loop.time())
            self._turn()

    async def stop(self) -> None:
        """Leave the order: what is in flight here counts as left by its clients."""
        self._is_stopping = True
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        now = self._loop.time()
        self.member.resign(now)
        self._turn()
        if self._elections is not None and self.member.candidate is not None:
            with suppress(TimeoutError, StoreUnavailable):
                async with asyncio.timeout(LAST_S_MAX):
                    for call in [*self.member.calls(), self.member.candidate.leave(now)]:
                        await self._elections.call(call)
        give_up_at = now + LAST_S_MAX  # what is said last, such as that it resigns, is still sent
        while any(each.unsent(now)[0] for each in self._connections()) and self._loop.time() < give_up_at:  # noqa: ASYNC110
            await asyncio.sleep(FLUSH_S)
        for connection in self._connections():
            connection.close()
        self._is_started = False  # no turn any more: it would ask a store that is closed next
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._asking):
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)

    # -- what others ask -------------------------------------------------------------------------------------

    @property
    def leader(self) -> Leader | None:
        """The leader, where it is in this process."""
        return self.member.leader

    @property
    def leader_name(self) -> str | None:
        """The member that this process follows; None: there is none, or it leads itself."""
        return None if self.member.leader is not None else self.member.follower.link.leader

    def add(self, pool: str, dispatcher: Decides) -> None:
        """Carry out the actions of this pool with this dispatcher."""
        self._dispatchers[pool] = dispatcher

    def followers(self) -> list[str]:
        """The names of the processes that are connected to this one, while it leads."""
        return list(self._followers) if self.member.is_leading else []

    def view(self) -> ClusterView:
        """The members, which of them leads, and since when, as this process knows."""
        place, addresses = self.place, dict(self.place.addresses)
        if place.leader_address is not None:
            addresses = {name: place.addresses[name] for name in self.followers()}
        addresses[place.name] = place.address
        return self.roles.view(self.member, addresses)

    def died(self, name: str) -> None:
        """The parent saw this process end (rule 17)."""
        self.member.lost_from(name, self._loop.time(), is_dead=True)
        self.soon()

    def lacks(self, backend_ids: frozenset[str]) -> None:
        """Tell the leader that this process cannot reach these backends, which it may name (rule 8)."""
        self.member.follower.unreachable(backend_ids, self._loop.time())
        self.soon()

    def soon(self) -> None:
        """Take a turn in the next turn of the loop."""
        if not self._is_soon:
            self._is_soon = True
            self._loop.call_soon(self._turn_if_due)

    def within(self, seconds: float) -> None:
        """Take a turn within this time."""
        self._arm(self._loop.time() + seconds)

    # -- connections -----------------------------------------------------------------------------------------

    async def accept(self, websocket: web.WebSocketResponse, name: str) -> None:
        """The process of this name is connected, and takes this one for the leader."""
        if not self.place.leads:  # it was told so, and asks again
            await websocket.close()
            return
        before = self._followers.get(name)
        if before is not None:
            before.close()
        connection = self._followers[name] = OrderConnection(websocket, name, self._loop.time)
        log.info("%s follows this process", name)
        try:
            await connection.run(lambda body: self._received_from(name, body))
        except FrameError as error:
            log.warning("%s is dropped: %s", name, error)
            connection.close()
        finally:
            if self._followers.get(name) is connection:
                del self._followers[name]
                self.member.lost_from(name, self._loop.time())
                self.soon()

    def _aim(self, now: float) -> None:
        """Follow the member that is to be followed now, and no other."""
        target = self._aimed_at(now)
        if target == self._target or self._is_stopping:
            return
        if target is None and self.member.leader is None:
            return  # the followed member may still be there
        self._target = target
        if self._following is not None:
            self._following.cancel()
            self._following = None
        if target is not None:
            self._following = asyncio.create_task(self._follow(target), name=f"follow {target.name or 'the leader'}")

    def _aimed_at(self, now: float) -> _LeaderAddress | None:
        place, candidate = self.place, self.member.candidate
        if place.leader_address is not None:
            return None if place.is_appointed else _LeaderAddress(None, place.leader_address)
        name = None if candidate is None else self.member.target(now)
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
                    if target.name is not None and (isinstance(error, OtherMemberError) or _is_refused(error)):
                        self.member.refused(target.name, self._loop.time())
                        self.soon()
                    self._complain(f"{leader} cannot be followed: {error}")
                await asyncio.sleep(ALONE_RETRY_S if self.member.is_standalone else RETRY_S)

    async def _follow_once(self, session: aiohttp.ClientSession, root: str, target: _LeaderAddress) -> None:
        connecting = connected(session, f"{root}/order", self.place, FRAME_BYTES_MAX, target.name)
        async with connecting as (websocket, peer):
            if not peer.leads:
                raise HelloError("it leads no others")
            leader = peer.member
            now = self._loop.time()
            if self.member.candidate is None:
                self.member.appoint(leader, 0, now)
            connection = self._upstream = OrderConnection(websocket, leader, self._loop.time)
            self.member.connected(leader, now)
            self.soon()
            try:
                await connection.run(lambda body: self._received(leader, body))
            finally:
                connection.close()
                if self._upstream is connection:
                    self._upstream = None
                self.member.lost(leader, self._loop.time())
                if self.member.leader is None:
                    self.joined.clear()
                self.soon()

    def _complain(self, text: str) -> None:
        if text != self._complained:  # tried again and again, logged once
            log.warning("%s; requests wait until there is a leader again", text)
        self._complained = text
        self.roles.because(text)

    def _received_from(self, name: str, body: bytes) -> None:
        self.member.received_from(name, decode(body), self._loop.time())
        self.soon()

    def _received(self, leader: str, body: bytes) -> None:
        frame = decode(body)
        self.member.received(leader, frame, self._loop.time())
        if not frame.pool:
            self._hear_shared(frame)
        if not self.joined.is_set() and self.member.follower.link.is_joined:
            self._complained = ""
            self.joined.set()
        try:
            self._turn()  # at once: what was decided waits no turn more of a busy loop
        except Exception as error:  # noqa: BLE001 - as the loop does: the connection is not to blame
            self._loop.call_exception_handler({"message": "a turn of the order failed", "exception": error})

    def _hear_shared(self, frame: Frame) -> None:
        for message in frame.messages:
            if isinstance(message, Shared) and self.member.follower.shared.get(message.topic) == message.body:
                self._shell.heard(message.topic, message.body)

    def _connections(self) -> list[OrderConnection]:
        return [*self._followers.values(), *([] if self._upstream is None else [self._upstream])]

    # -- the store -------------------------------------------------------------------------------------------

    async def _call(self, elections: ElectionStore, candidate: Candidate, call: StoreCall) -> None:
        try:
            view = await elections.call(call)
        except StoreUnavailable as error:
            candidate.failed(call, self._loop.time())
            self._store_error = str(error)
            self.roles.because(f"the store that elects does not answer ({error})")
        else:
            if self._store_error:
                self.roles.because(f"the store that elects answers again ({self._store_error})")
                self._store_error = ""
            self.member.answered(call, view, self._loop.time())
            self.place.addresses = candidate.members
            if candidate.is_refused(self._loop.time()):
                self.roles.because("a majority may still follow the leader of before, which is not reached")
            if candidate.strangers:
                names = ", ".join(sorted(candidate.strangers))
                self.roles.because(f"another version of the cluster protocol is spoken by {names}: they share no order")
        self.soon()

    def _read_checkpoint(self) -> None:
        async def read(elections: ElectionStore) -> None:
            body = await elections.checkpoint()
            if body is not None:
                self.member.stored(body)

        if self._elections is not None:
            self._in_background(read(self._elections))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        async def run() -> None:
            with suppress(StoreUnavailable):
                await work

        task = asyncio.create_task(run())
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    # -- turns -----------------------------------------------------------------------------------------------

    def _turn_if_due(self) -> None:
        if self._is_soon:
            self._turn()

    def _turn(self) -> None:
        self._is_soon = False
        if not self._is_started:
            return
        now, member, follower = self._loop.time(), self.member, self.member.follower
        brings_all = follower.is_usage_due(now)
        for dispatcher in self._dispatchers.values():
            dispatcher.report(now, brings_all=brings_all)
        self._look_at_buffers(now)
        member.tick(now)
        self.place.leads = member.is_leading or self._elections is None
        if self._elections is not None and member.candidate is not None and not self._is_stopping:
            for call in member.calls():
                self._in_background(self._call(self._elections, member.candidate, call))
        self._send(now)
        for wish in member.wishes():
            self._fulfil(wish)
        if self.roles.look(member):
            self._role_changed()
        for dispatcher in self._dispatchers.values():
            dispatcher.decide(now)
        reason = "" if member.leader is not None else follower.link.closes(now)
        if reason and self._upstream is not None:
            self._complain(f"{self._upstream.peer} is left: {reason}")
            self._upstream.close()
        self._aim(now)
        wakeup_at = member.wakeup(now)
        if wakeup_at <= now:
            self.soon()
        else:
            self._arm(wakeup_at)

    def _role_changed(self) -> None:
        if self.member.leader is not None:
            self.joined.set()
            if self.member.is_leading:
                self._read_checkpoint()
        elif not self.member.follower.link.is_joined:
            self.joined.clear()
        self._shell.role_changed(self.roles.role)

    def _send(self, now: float) -> None:
        up = self._upstream if self.member.leader is None else None
        for name, frame in self.member.frames(now):
            connection = up if up is not None and up.peer == name else self._followers.get(name)
            if connection is not None:
                for body in encode(frame):
                    connection.send(body)

    def _look_at_buffers(self, now: float) -> None:
        """Rule 26: a side that does not read is noticed on either side."""
        leader = self.member.leader
        if leader is None:
            self.member.follower.link.unsent(*(0, 0.0) if self._upstream is None else self._upstream.unsent(now))
            return
        for name, connection in self._followers.items():
            size, oldest_s = connection.unsent(now)
            if size:
                leader.unsent(name, size, oldest_s)

    def _fulfil(self, wish: Wish) -> None:
        match wish:
            case CloseMember():
                connection = self._followers.get(wish.member)
                if connection is not None:
                    log.warning("%s is dropped: %s", wish.member, wish.reason)
                    connection.close()
            case AskBackends() | BackendFailed():
                self._shell.asks_for(wish)
            case StoreCheckpoint():
                if self._elections is not None and not self.member.is_standalone:
                    self._in_background(self._elections.put_checkpoint(wish.body))
            case StepDown():
                self.roles.because(wish.reason)
                if self.member.candidate is None and not self._is_stopping:  # no other may lead: gather anew
                    log.warning("the order begins anew: %s", wish.reason)
                    for each in self._followers.values():
                        each.close()
                    self.start()

    def _arm(self, at: float) -> None:
        """Take a turn at this time, if none is due earlier."""
        if self._timer is not None and self._timer_at <= at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_at = None, inf
        self.soon()


def _is_refused(error: Exception) -> bool:
    """Whether no process listens at the port; one that is frozen, or cut off, does not refuse."""
    return isinstance(error, OSError) and error.errno == errno.ECONNREFUSED
