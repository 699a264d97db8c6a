"""MemberOrder: one process's part in an order that several processes share.

client -> any of them: RequestHandlers -> Dispatcher -> SharedOrder -> the leader's Schedulers, and back as a
Dispatch -> backend -> relay -> client.

Every process has the same parts; its role decides which of them work (role_work.py). A process joins the order by its
Entrance: a store elects the leader of replicas (gateway/replicas.py), a parent process appoints the leader of workers
(gateway/workers/appointed.py).
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from backends.pool import BackendPool
from backends.spec import BackendSpec
from gateway.admin.management import Management
from gateway.cluster.checkpoints import Mark
from gateway.cluster.election_store import ElectionStore
from gateway.cluster.follower.remote_scheduler import RemoteScheduler
from gateway.cluster.leader.leader import Leader
from gateway.cluster.wire import LimitsOf
from gateway.config import Config
from gateway.live.schema import MemberRole
from gateway.observability.metrics.instruments import (
    CLUSTER_ELECTIONS,
    CLUSTER_EPOCH,
    CLUSTER_FACTS,
    CLUSTER_LEADS,
    CLUSTER_ROUND_TRIP,
    CUT_OFF,
    REPLICAS,
    Family,
    Values,
)
from gateway.order import MakeScheduler, Process, poll_options
from gateway.parts import GatewayParts
from gateway.scheduling.dispatcher import Dispatcher
from gateway.scheduling.pools import Pools
from gateway.shared_order.backends import TOPIC, SharedPolls
from gateway.shared_order.deciding import SharedDeciding
from gateway.shared_order.order import SharedOrder
from gateway.shared_order.place import MemberPlace
from gateway.shared_order.role_work import FOUND, RoleWork, pack
from gateway.shared_order.services import MemberPort, Peers
from gateway.store.base import StoreFull, StoreUnavailable
from gateway.tasks import Tasks
from policies.facts import Restored
from policies.scheduler_protocol import SharedSchedulerProtocol
from policies.types import RateLimits, Tenant

LEADERLESS_S_MAX: Final = 5.0  # after so long without a leader it is not ready: it refuses what it is sent (rule 24)

_LIMITS: Final = msgspec.msgpack.Decoder(RateLimits)


class Entrance(Process):
    """The base of the roles of one process in a shared order (a leader decides for several processes): how the process
    joins the order, and leaves it.
    """

    async def begin(self, parts: GatewayParts) -> None:
        """Take part in the order; all parts exist. Raises OSError."""

    async def close(self) -> None:
        """Leave the order."""


class MemberOrder:
    """The Order (gateway/order.py) of a process that shares one order of requests with other processes: their leader
    decides for all. It is also the OrderShell of its SharedOrder, which calls it to make Schedulers, to find tenants
    and to measure backends. Made on the loop that runs it.
    """

    def __init__(
        self,
        config: Config,
        place: MemberPlace,
        enter: "Callable[[MemberOrder], Entrance]",
        *,
        elections: ElectionStore | None = None,
    ) -> None:
        """`elections` elects the leader; without it, `place` names the leader."""
        self.place = place
        self.has_state, self.processes = place.has_state, place.processes
        self.tasks = Tasks()
        self.told: dict[str, bytes] = {}
        """What the leader has told all, by topic."""
        self._work: RoleWork | None = None  # when all parts of the gateway are there
        self._leaderless_since: float | None = None  # None: a leader decides for this process, or none ever did
        self._led: Leader | None = None  # the present leadership of this process
        self._facts = 0  # of leaderships that are over
        self.shared = SharedOrder(place, self, wait_s_max=config.queue.wait_s_max, elections=elections)
        self.cluster_view = self.shared.view
        self.others = Peers(self.shared, self.tasks)
        self.port = MemberPort(place, self.others.services, order=self.shared.accepted.accept)
        self._polls = SharedPolls(self.shared, self.others, self._moved, **poll_options(config))
        self.process = enter(self)

    # -- Order -----------------------------------------------------------------------------------------------

    @property
    def secret(self) -> bytes:
        return self.place.secret

    def make_dispatcher(self, pool: str, _make_scheduler: MakeScheduler) -> Dispatcher:
        scheduler = RemoteScheduler(pool, self.shared.member, self._ask_limits)
        return Dispatcher(scheduler, SharedDeciding(scheduler, self.shared, pool))

    def make_backends(self, specs: Sequence[BackendSpec], pools: Pools) -> BackendPool:
        def changed() -> None:
            self._polls.announcements.announce()
            pools.changed()

        def load_changed(backend_id: str) -> None:
            self._polls.announcements.announce([backend_id])
            pools.load_changed(backend_id)

        return BackendPool(specs, polls=self._polls, on_change=changed, on_load=load_changed, member=self.others.name)

    async def begin(self, parts: GatewayParts, management: Management) -> None:
        self._work = RoleWork(
            self.shared,
            peers=self.others,
            tasks=self.tasks,
            polls=self._polls,
            parts=parts,
            management=management,
        )
        if FOUND in self.told:
            self._work.hear_found(self.told[FOUND])
        if self.shared.roles.role is not MemberRole.LEADERLESS:
            self.role_changed(self.shared.roles.role)
        await self.process.begin(parts)

    def is_ready(self) -> bool:
        """Whether a leader decides for this process, or did so a moment ago: between two leaders requests wait."""
        if self.shared.roles.role is not MemberRole.LEADERLESS:
            return True
        since = self._leaderless_since
        return since is not None and asyncio.get_running_loop().time() - since < LEADERLESS_S_MAX

    def found(self, number: int, urls: frozenset[str]) -> None:
        if self._work is not None:
            self._work.found(number, urls)

    def values(self) -> dict[Family, Values]:
        view, leader = self.cluster_view(), self.shared.leader
        found: dict[Family, Values] = {
            REPLICAS: {(): len(view.members)},
            CUT_OFF: {(): view.standalone},
            CLUSTER_LEADS: {(): view.role is MemberRole.LEADER},
            CLUSTER_EPOCH: {(): view.epoch},
            CLUSTER_ELECTIONS: {(): view.elections},
            CLUSTER_FACTS: {(): self._facts + (0 if leader is None else leader.intake.facts)},
        }
        if view.round_trip_s is not None:
            found[CLUSTER_ROUND_TRIP] = {(): view.round_trip_s}
        return found

    async def resign(self) -> None:
        """A leader hands the lead over, and follows the next one while it drains. What is learnt is written before."""
        if self._work is not None:
            await self._work.management.write_learnt()
        self.shared.resign()

    async def end(self) -> None:
        if self._work is not None:
            self._work.stop()
        await self.tasks.cancel()

    async def close(self) -> None:
        await self.tasks.cancel()
        await self.shared.stop()
        await self.port.stop()
        await self.others.close()
        await self.process.close()

    def died(self, name: str) -> None:
        """The parent process saw the process of this name end."""
        self.shared.member.lost_from(name, asyncio.get_running_loop().time(), is_dead=True)  # rule 17
        self.shared.turns.soon()
        if self._work is not None:
            self._work.management.claims.gone(name)
        self.others.forget(name)

    def _ask_limits(self, pool: str, of: LimitsOf, then: Callable[[RateLimits], None]) -> None:
        async def ask() -> None:
            with suppress(StoreUnavailable, StoreFull):
                then(_LIMITS.decode(await self.others.ask_leader("limits", pack((pool, of)))))

        self.tasks.start(ask())

    def _moved(self, spec: BackendSpec) -> None:
        """The embedded engine is another one now: the leader's."""
        before = None if self._work is None else self._work.parts.clients.replace(spec)
        if before is not None:
            self.tasks.start(before.upstream.aclose())

    # -- OrderShell ------------------------------------------------------------------------------------------

    def make_scheduler(self, pool: str) -> SharedSchedulerProtocol:
        """A new leader's Scheduler of this pool, with what has changed since the start."""
        assert self._work is not None, "a pool has backends"
        parts, member, now = self._work.parts, self.shared.member, asyncio.get_running_loop().time()
        scheduler = parts.make_scheduler(pool)
        scheduler.told(member.lead.share.of_fact(parts.pools.settings.changed(now)))
        if member.checkpoint.mark == Mark() and not self.place.others:
            kept = parts.pools.checkpoint_of(pool)
            if kept is not None:  # of the time before all processes of the cluster were started
                scheduler.told(Restored(now, kept))
        return scheduler

    def tenant(self, tenant_id: str) -> Tenant | None:
        return None if self._work is None else self._work.parts.handlers.tenants.find(tenant_id)

    def heard(self, topic: str, body: bytes) -> None:
        self.told[topic] = body
        if topic.startswith(TOPIC):
            self._polls.told(topic, body)
        elif topic == FOUND and self._work is not None:
            self._work.hear_found(body)

    def measure(self, backend_ids: Collection[str] | None) -> None:
        """Whether one fails for all, its health decides by all evidence."""
        if self._work is not None:
            self._work.parts.backends.measure_anew(backend_ids)

    def role_changed(self, role: MemberRole) -> None:
        self._leaderless_since = asyncio.get_running_loop().time() if role is MemberRole.LEADERLESS else None
        before, self._led = self._led, self.shared.leader
        if before is not None and before is not self._led:
            self._facts += before.intake.facts
        if self._work is not None:
            self._work.take_up(role, is_other=before is not self._led)
