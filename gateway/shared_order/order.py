"""SharedOrder: drives this process's Member on the event loop: sockets, timers, and the Dispatchers of its pools.

Everything that arrives (frames, facts of requests, measurements) is processed in one turn of the loop, in `_turn`:
usage is brought up to date, the Member ticks, its frames are sent, and its actions are carried out.

A parent process appoints the leader, or a store elects it (store_election.py). The store is called outside of the
turns, so no decision waits for it. following.py has the connection to the leader, accepted.py the connections of
followers; turns.py says when the next turn is due.
"""

import asyncio
import logging
from collections.abc import Collection
from contextlib import suppress
from typing import Final, Protocol

from gateway.cluster.election_store import ElectionStore
from gateway.cluster.leader.leader import Leader
from gateway.cluster.member import Member
from gateway.cluster.wire import Shared, decode, encode
from gateway.cluster.wishes import AskBackends, CloseMember, StepDown, StoreCheckpoint, Wish
from gateway.live.schema import ClusterView, MemberRole
from gateway.scheduling.deciding import Decides
from gateway.shared_order.accepted import Accepted
from gateway.shared_order.following import Following
from gateway.shared_order.place import MemberPlace
from gateway.shared_order.roles import Roles
from gateway.shared_order.store_election import StoreElection
from gateway.shared_order.transport import OrderConnection
from gateway.shared_order.turns import Turns
from gateway.store.base import StoreUnavailable
from policies.scheduler_protocol import SharedSchedulerProtocol
from policies.types import Tenant

LAST_S_MAX: Final = 0.5  # for the last calls and frames when this process stops
FLUSH_S: Final = 0.005  # between looks whether they were sent

log = logging.getLogger(__name__)


class OrderShell(Protocol):
    """The functions that a SharedOrder needs of its process, such as to make a Scheduler or to measure a backend."""

    def make_scheduler(self, pool: str) -> SharedSchedulerProtocol:
        """Make a new leader's Scheduler of this pool."""
        ...

    def tenant(self, tenant_id: str) -> Tenant | None:
        """The tenant in the registry; None: the registry does not know it."""
        ...

    def heard(self, topic: str, body: bytes) -> None:
        """The leader has sent this state to all followers."""
        ...

    def measure(self, backend_ids: Collection[str] | None) -> None:
        """Measure these backends now; None: all (rules 22, 27). Called by the leader, which is in this process."""
        ...

    def role_changed(self, role: MemberRole) -> None:
        """The role of this process, or its leader, has changed."""
        ...


class SharedOrder:
    """The driver of one process's part in a shared order (a leader decides for several processes). On the event loop,
    it runs the process's Member, which has the rules of leader and follower, but does no I/O. It connects the Member
    with sockets, timers and Dispatchers. Made and used on its loop; call `start`, and `stop` at the end.
    """

    def __init__(
        self, place: MemberPlace, shell: OrderShell, *, wait_s_max: float, elections: ElectionStore | None = None
    ) -> None:
        """Without `elections`, `place` names the leader."""
        self.place = place
        self._loop = asyncio.get_running_loop()
        self._shell = shell
        self.member = Member(
            place.name,
            make_scheduler=shell.make_scheduler,
            tenant_of=shell.tenant,
            wait_s_max=wait_s_max,
            now=self._loop.time(),
        )
        self.roles = Roles(place.name)
        self.turns = Turns(self._turn)
        self.accepted = Accepted(self.member, place, self.turns.soon)
        self._following = Following(self.member, place, self.roles, soon=self.turns.soon, received=self._received)
        self.joined = self._following.joined
        self._election: StoreElection | None = None
        if elections is not None:
            self._election = StoreElection(elections, self.member, place, self.roles, self.turns.soon)
        self.dispatchers: dict[str, Decides] = {}
        """What carries out the actions of each pool."""
        self._is_started = self._is_stopping = False

    # -- start and stop --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Take part from now on: lead, follow, or stand for election. The port must listen already."""
        place = self.place
        self._is_started = True
        if self._election is not None:
            self._election.stand()
        elif place.is_appointed:
            self.member.appoint(place.name, place.epoch, self._loop.time(), expected=place.others)
        self.turns.soon()

    def reconnected(self) -> None:
        """The election store was connected anew: it may know less than before."""
        if self.member.campaign is not None:
            self.member.campaign.candidate.reconnected(self._loop.time())
            if self._is_started and self._election is not None:
                self._election.read_checkpoint()

    def resign(self) -> None:
        """Lead no more, and do not stand again; follow the next leader."""
        if self.member.campaign is not None:
            self.roles.stops()
            self.member.resign(self._loop.time())
            self._turn()

    async def stop(self) -> None:
        """Leave the order: requests in flight here count as left by their clients."""
        self._is_stopping = True
        self.roles.stops()
        await self._following.stop()
        now = self._loop.time()
        self.member.resign(now)
        self._turn()
        if self._election is not None:
            with suppress(TimeoutError, StoreUnavailable):
                async with asyncio.timeout(LAST_S_MAX):
                    await self._election.leave(now)
        give_up_at = now + LAST_S_MAX  # what is said last, such as that it resigns, is still sent
        while any(each.unsent(now)[0] for each in self._connections()) and self._loop.time() < give_up_at:  # noqa: ASYNC110
            await asyncio.sleep(FLUSH_S)
        for connection in self._connections():
            connection.close()
        self._is_started = False  # no turn any more: it would ask a store that is closed next
        self.turns.stop()
        if self._election is not None:
            await self._election.stop()

    # -- what others ask -------------------------------------------------------------------------------------

    @property
    def leader(self) -> Leader | None:
        """The leader, if it runs in this process; else None."""
        return self.member.lead.leader

    def view(self) -> ClusterView:
        """The members, the leader among them, and since when it leads, as far as this process knows."""
        place, addresses = self.place, dict(self.place.addresses)
        if place.leader_address is not None:
            addresses = {name: place.addresses[name] for name in self.accepted.names()}
        addresses[place.name] = place.address
        return self.roles.view(self.member, addresses)

    def lacks(self, backend_ids: frozenset[str]) -> None:
        """Report to the leader that this process cannot reach these backends (rule 8)."""
        self.member.follower.out_of_reach.are(backend_ids)
        self.turns.soon()

    # -- connections -----------------------------------------------------------------------------------------

    def _received(self, leader: str, body: bytes) -> None:
        frame = decode(body)
        self.member.received(leader, frame, self._loop.time())
        for message in () if frame.pool else frame.messages:
            if isinstance(message, Shared) and self.member.follower.shared.get(message.topic) == message.body:
                self._shell.heard(message.topic, message.body)
        self._following.look()
        try:
            self._turn()  # at once: what was decided waits no turn more of a busy loop
        except Exception as error:  # noqa: BLE001 - as the loop does: the connection is not to blame
            self._loop.call_exception_handler({"message": "a turn of the order failed", "exception": error})

    def _connections(self) -> list[OrderConnection]:
        up = self._following.connection
        return [*self.accepted.connections.values(), *([] if up is None else [up])]

    # -- turns -----------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        self.turns.begun()
        if not self._is_started:
            return
        now, member, follower = self._loop.time(), self.member, self.member.follower
        brings_all = follower.usage.is_due(now)
        for dispatcher in self.dispatchers.values():
            dispatcher.report(now, brings_all=brings_all)
        self._look_at_buffers(now)
        member.tick(now)
        self.place.leads = member.lead.is_for_all or self._election is None
        if self._election is not None and not self._is_stopping:
            self._election.ask()
        self._send(now)
        for wish in member.lead.wishes():
            self._fulfil(wish)
        if self.roles.look(member):
            self._role_changed()
        for dispatcher in self.dispatchers.values():
            dispatcher.decide(now)
        reason = "" if member.lead.leader is not None else follower.link.closes(now)
        if reason:
            self._following.leave(reason)
        if not self._is_stopping:
            self._following.aim(now)
        wakeup_at = member.wakeup(now)
        if wakeup_at <= now:
            self.turns.soon()
        else:
            self.turns.by(wakeup_at)

    def _role_changed(self) -> None:
        if self.member.lead.leader is not None:
            self.joined.set()
            if self.member.lead.is_for_all and self._election is not None:
                self._election.read_checkpoint()
        elif self.member.follower.link.leader is None:
            self.joined.clear()
        self._shell.role_changed(self.roles.role)

    def _send(self, now: float) -> None:
        up = self._following.connection if self.member.lead.leader is None else None
        for name, frame in self.member.frames(now):
            connection = up if up is not None and up.peer == name else self.accepted.connections.get(name)
            if connection is not None:
                for body in encode(frame):
                    connection.send(body)

    def _look_at_buffers(self, now: float) -> None:
        """Rule 26: a side that does not read is noticed on either side."""
        leader = self.member.lead.leader
        if leader is None:
            up = self._following.connection
            self.member.follower.link.unsent = (0, 0.0) if up is None else up.unsent(now)
            return
        self.accepted.look_at_buffers(leader.members, now)

    def _fulfil(self, wish: Wish) -> None:
        match wish:
            case CloseMember():
                self.accepted.drop(wish.member, wish.reason)
            case AskBackends():
                self._shell.measure(wish.backend_ids)
            case StoreCheckpoint():
                if self._election is not None and not self.member.lead.is_standalone:
                    self._election.put_checkpoint(wish.body)
            case StepDown():
                self.roles.because(wish.reason)
                if self.member.campaign is None and not self._is_stopping:  # no other may lead: gather anew
                    log.warning("the order begins anew: %s", wish.reason)
                    for each in self.accepted.connections.values():
                        each.close()
                    self.start()
