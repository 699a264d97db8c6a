"""The composition root of a gateway that is one of several processes with one order: a replica, or a worker.

client -> any of them: RequestHandlers -> SharedDispatcher -> SharedOrder -> the leader's Schedulers, and back as a
Dispatch -> backend -> relay -> client.

Every process has the same parts; which of them work follows its role, which may change while it runs. The leader asks
the backends and writes what is learnt; a follower is told.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from backends.health import Evidence
from backends.pool import BackendPool
from backends.spec import BackendSpec
from gateway.app import Gateway
from gateway.budgets.budgets import Budgets
from gateway.cluster.checkpoints import Mark
from gateway.cluster.election import ElectionStore
from gateway.cluster.leader.leader import Leader
from gateway.cluster.view import ClusterView, MemberRole
from gateway.cluster.wire import LimitsOf
from gateway.cluster.wishes import AskBackends, Wish
from gateway.config import Config
from gateway.handlers.handlers import RequestHandlers
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
from gateway.observability.telemetry import Telemetry
from gateway.scheduling.dispatcher import Dispatcher
from gateway.shared_order.backends import TOPIC, Announcer, SharedBackends
from gateway.shared_order.budgets import BudgetShares, FollowerBudgets
from gateway.shared_order.dispatching import SharedDispatcher
from gateway.shared_order.leader_store import LeaderStore
from gateway.shared_order.live import share_live
from gateway.shared_order.order import SharedOrder
from gateway.shared_order.place import MemberPlace
from gateway.shared_order.responses import SharedResponses
from gateway.shared_order.services import MemberPort, Peers
from gateway.shared_order.steering import share_steering
from gateway.store.base import Store, StoreFull, StoreUnavailable
from policies.scheduler_protocol import SharedSchedulerProtocol
from policies.types import RateLimits, Tenant

LEADERLESS_S_MAX: Final = 5.0  # after so long without a leader it is not ready: it refuses what it is sent (rule 24)

pack: Final = msgspec.msgpack.Encoder().encode
_EVIDENCE: Final = msgspec.msgpack.Decoder(tuple[str, Evidence, float])
_LIMITS_OF: Final = msgspec.msgpack.Decoder(tuple[str, LimitsOf])
_LIMITS: Final = msgspec.msgpack.Decoder(RateLimits)


class MemberGateway(Gateway):
    """One process of a gateway of several. Make it on the loop that runs it, `start` it, `stop` it."""

    def __init__(
        self, place: MemberPlace, config: Config, store: Store | None, *, elections: ElectionStore | None = None
    ) -> None:
        """Without a `store` the leader's is used. `elections` says which process leads; without it the place does."""
        self._place = place
        self.peers = Peers(place, lambda: self.order.leader_name)
        super().__init__(config, store=LeaderStore(self.peers) if store is None else store)
        self.order = SharedOrder(
            place,
            make_scheduler=self._make_shared_scheduler,
            tenant_of=self._tenant_of,
            wait_s_max=config.queue.wait_s_max,
            elections=elections,
        )
        self._port = MemberPort(place, order=self.order.accept)
        self._port.services |= {
            "budgets": self._hear_budgets,
            "evidence": self._hear_evidence,
            "limits": self._limits,
            "view": self._view_for_peer,
        }
        self._responses = SharedResponses(self.order, self.peers, self._in_background)
        self._port.services |= self._responses.services
        self._tasks: set[asyncio.Task[Any]] = set()
        self._news: dict[str, bytes] = {}  # of backends, before they are made
        self._budget_shares: BudgetShares | None = None  # while it leads
        self._announcer: Announcer | None = None
        self._leaderless_since: float | None = None
        self._led: Leader | None = None  # the present leadership of this process
        self._facts = 0  # of leaderships that are over
        self.order.on_role = self._role_changed
        self.order.on_shared = self._hear_shared
        self.order.on_wish = self._fulfil
        self.order.ask_limits = self._ask_limits

    async def stop(self) -> None:
        if self._announcer is not None:
            self._announcer.stop()
            self._announcer = None  # no role is taken up any more: it would ask a store that is closed next
        await _cancel(self._tasks)
        await super().stop()
        await _cancel(self._tasks)
        await self.order.stop()
        await self._port.stop()
        await self.peers.close()

    async def drain(self) -> None:
        """As any gateway. A leader first hands the lead over, and follows the next one while it drains."""
        if self._management is not None:
            await self._management.write_learnt()
        self.order.resign()
        await super().drain()

    def cluster_view(self) -> ClusterView:
        """The members, which of them leads, and since when, as this process knows."""
        addresses = dict(self._place.addresses)
        if self._place.leader_address is not None:
            addresses = {name: self._place.addresses[name] for name in self.order.followers()}
        addresses[self._place.name] = self._place.address
        return self.order.roles.view(self.order.member, addresses)

    # -- parts -----------------------------------------------------------------------------------------------

    async def _assembled(self) -> None:
        """All parts are there, and nothing serves yet."""
        if self._management is not None:
            self._management.cluster_view = self.cluster_view
            self._management.ask_leader = self._ask_leader_for_view
        if self.live is not None:
            self._port.services |= share_live(self.live, self.order, self.peers)
        if self.steering is not None:
            self._port.services |= share_steering(self.steering, self.cluster_view, self.order, self.peers)
        self._announcer = Announcer(self.order, self.backends)
        self._announcer.start()
        if self._config.keeps_state:
            assert self._management is not None, "with a store"
            budgets = FollowerBudgets(
                self._place.name,
                self._management.budgets,
                self._management.usage.writer,
                is_leading=lambda: self.order.leader is not None,
                ask=self.peers.ask_leader,
            )
            self._in_background(budgets.run())
        if self.order.roles.role is not MemberRole.LEADERLESS:
            self._role_changed(self.order.roles.role)

    def _process_name(self) -> str:
        return self._place.name

    def _make_dispatcher(self, pool: str) -> Dispatcher:
        return SharedDispatcher(self.order, pool)

    def _make_shared_scheduler(self, pool: str) -> SharedSchedulerProtocol:
        """A new leader's Scheduler of this pool, with what has changed since the start."""
        scheduler, now = self._make_scheduler(pool), asyncio.get_running_loop().time()
        scheduler.tenants_changed(now=now, **self.order.member.own_part(self.pools.changed_settings()))
        if self.order.member.checkpoint.mark == Mark() and not self._place.others:
            kept = self.pools.checkpoint_of(pool)
            if kept is not None:  # of the time before all processes of the cluster were started
                scheduler.restored(kept, now)
        return scheduler

    def _make_backends(self, specs: list[BackendSpec]) -> BackendPool:
        return SharedBackends(
            specs,
            member=self._place.name,
            is_leading=self.order.leader is not None,
            report=self._report,
            moved=self._moved,
            lacks=self._lacks,
            news=self._news,
            on_change=self._backends_changed,
            on_load=self._load_changed,
            **self._backend_options(),
        )

    def _led_dispatchers(self) -> Mapping[str, Dispatcher]:
        """None at a follower: what the Schedulers know the leader alone tells."""
        return {} if self.order.leader is None else super()._led_dispatchers()

    def _make_handlers(self, telemetry: Telemetry, budgets: Budgets | None, **shared: Any) -> RequestHandlers:
        shared |= {"responses": self._responses, "secret": self._place.secret, "is_ready": self._is_ready}
        return super()._make_handlers(telemetry, budgets, **shared)

    def _replicas(self) -> dict[Family, Values]:
        view, leader = self.cluster_view(), self.order.leader
        facts = self._facts + (0 if leader is None else leader.facts)
        found: dict[Family, Values] = {
            REPLICAS: {(): len(view.members)},
            CUT_OFF: {(): view.is_standalone},
            CLUSTER_LEADS: {(): view.role is MemberRole.LEADER},
            CLUSTER_EPOCH: {(): view.epoch},
            CLUSTER_ELECTIONS: {(): view.elections},
            CLUSTER_FACTS: {(): facts},
        }
        if view.round_trip_s is not None:
            found[CLUSTER_ROUND_TRIP] = {(): view.round_trip_s}
        return found

    def _is_ready(self) -> bool:
        """Whether a leader decides for this process, or did a moment ago: between two leaders requests wait."""
        if self.order.roles.role is not MemberRole.LEADERLESS:
            return True
        since = self._leaderless_since
        return since is not None and asyncio.get_running_loop().time() - since < LEADERLESS_S_MAX

    def _tenant_of(self, tenant_id: str) -> Tenant | None:
        return self._handlers.tenants.find(tenant_id)

    def _in_background(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- the role of this process ----------------------------------------------------------------------------

    def _role_changed(self, role: MemberRole) -> None:
        self._leaderless_since = asyncio.get_running_loop().time() if role is MemberRole.LEADERLESS else None
        before, self._led = self._led, self.order.leader
        if before is not None and before is not self._led:
            self._facts += before.facts
        backends = self._shared_backends()
        if backends is None or self._announcer is None or self._management is None:
            return  # it is being put together
        if before is not self._led:
            self.metrics.schedulers_replaced()
        budgets, is_leading = self._management.budgets, self.order.leader is not None
        budgets.cut_off(self.order.member.share.replicas if role is MemberRole.STANDALONE else 1)
        if is_leading:
            self._budget_shares = BudgetShares(budgets, self._management.usage.writer)
            backends.lead()
            self._announcer.begin()
        else:
            self._budget_shares = None
            backends.follow()
            self._lacks(backends.lacked)
        self._in_background(self._management.lead(is_leading=is_leading))

    def _shared_backends(self) -> SharedBackends | None:
        backends = getattr(self, "backends", None)
        return backends if isinstance(backends, SharedBackends) else None

    def _fulfil(self, wish: Wish) -> None:
        """Rules 22 and 27: measure backends now. Whether one fails for all, its health decides by all evidence."""
        backends = self._shared_backends()
        if isinstance(wish, AskBackends) and backends is not None:
            backends.measure_anew(wish.backend_ids)

    # -- what the leader tells -------------------------------------------------------------------------------

    def _backends_changed(self) -> None:
        if self._announcer is not None:
            self._announcer.announce()
        self.pools.changed()

    def _load_changed(self, backend_id: str) -> None:
        if self._announcer is not None:
            self._announcer.announce([backend_id])
        self.pools.load_changed(backend_id)

    def _hear_shared(self, topic: str, body: bytes) -> None:
        if topic.startswith(TOPIC):
            backend_id = topic.removeprefix(TOPIC)
            self._news[backend_id] = body
            backends = self._shared_backends()
            if backends is not None:
                backends.told(backend_id, body)

    def _moved(self, spec: BackendSpec) -> None:
        """The embedded engine is another one now: the leader's."""
        before = self._backend_clients.get(spec.id)
        self._backend_clients[spec.id] = self._make_backend_client(spec)
        if before is not None:
            self._in_background(before.upstream.aclose())

    def _lacks(self, backend_ids: frozenset[str]) -> None:
        self.order.member.follower.unreachable(backend_ids, asyncio.get_running_loop().time())
        self.order.soon()

    # -- live views of the admin API -------------------------------------------------------------------------

    async def _ask_leader_for_view(self, target: str) -> bytes | None:
        """The leader's answer to this path and query; None where this process leads. Raises StoreUnavailable."""
        if self.order.leader is not None:
            return None
        return await self.peers.ask_leader("view", target.encode())

    async def _view_for_peer(self, body: bytes) -> bytes:
        if self.order.leader is None or self._management is None:
            raise StoreUnavailable("this process does not lead")
        return await self._management.answer_peer(body.decode())

    # -- what followers tell and ask -------------------------------------------------------------------------

    async def _hear_budgets(self, body: bytes) -> bytes:
        if self._budget_shares is None:
            raise StoreUnavailable("this process does not lead")
        return self._budget_shares.told(body, asyncio.get_running_loop().time())

    async def _hear_evidence(self, body: bytes) -> bytes:
        backend_id, evidence, ago_s = _EVIDENCE.decode(body)
        now = asyncio.get_running_loop().time()
        is_known = backend_id in {*self.backends.backend_ids(), *self.backends.leaving_ids()}
        if is_known and self.order.leader is not None:
            self.backends.report(backend_id, evidence, sent_at=now - ago_s, now=now)
        return b""

    async def _limits(self, body: bytes) -> bytes:
        pool, of = _LIMITS_OF.decode(body)
        leader = self.order.leader
        order = None if leader is None else leader.pools.get(pool)
        limits = RateLimits() if order is None else order.tenants.rate_limits(of, asyncio.get_running_loop().time())
        return pack(limits)

    def _report(self, backend_id: str, evidence: Evidence, ago_s: float) -> None:
        if evidence is Evidence.UNREACHABLE:
            self.order.member.follower.failed(backend_id, asyncio.get_running_loop().time())
            self.order.soon()
        if evidence is not Evidence.SERVED or self.backends[backend_id].health.state == "trial":
            self._in_background(self._tell_leader("evidence", pack((backend_id, evidence, ago_s))))

    async def _tell_leader(self, service: str, body: bytes) -> None:
        with suppress(StoreUnavailable, StoreFull):
            await self.peers.ask_leader(service, body)

    def _ask_limits(self, pool: str, of: LimitsOf, then: Any) -> None:
        async def ask() -> None:
            with suppress(StoreUnavailable, StoreFull):
                then(_LIMITS.decode(await self.peers.ask_leader("limits", pack((pool, of)))))

        self._in_background(ask())


async def _cancel(tasks: set[asyncio.Task[Any]]) -> None:
    for task in list(tasks):
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
