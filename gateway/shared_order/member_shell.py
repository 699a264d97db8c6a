"""MemberShell: what the order of one process, and its backends, look up and have done in the gateway around them."""

import asyncio
from collections.abc import Collection

from backends.health import Evidence
from backends.spec import BackendSpec
from gateway.cluster.checkpoints import Mark
from gateway.cluster.leader.leader import Leader
from gateway.live.schema import MemberRole
from gateway.shared_order.backends import TOPIC, SharedPolls
from gateway.shared_order.order import SharedOrder
from gateway.shared_order.role_work import FOUND, RoleWork, pack
from gateway.shared_order.services import Peers
from gateway.tasks import Tasks
from policies.facts import Restored
from policies.scheduler_protocol import SharedSchedulerProtocol
from policies.types import Tenant


class MemberShell:
    """The connection of a process's SharedOrder and SharedPolls to the rest of its gateway: an implementation of
    OrderShell and BackendShell. `connect` it with both. Mutable.
    """

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self.order: SharedOrder
        self.polls: SharedPolls
        self._others: Peers
        self.work: RoleWork | None = None  # when all parts of the gateway are there
        self.told: dict[str, bytes] = {}
        """What the leader has told all, by topic."""
        self.leaderless_since: float | None = None
        """Since when no leader decides for this process; None: one does, or none ever did."""
        self._led: Leader | None = None  # the present leadership of this process
        self._facts = 0  # of leaderships that are over

    def connect(self, order: SharedOrder, polls: SharedPolls, others: Peers) -> None:
        self.order, self.polls, self._others = order, polls, others

    def begin(self, work: RoleWork) -> None:
        """All parts of the gateway are there: do what the present role asks for."""
        self.work = work
        if FOUND in self.told:
            work.hear_found(self.told[FOUND])
        if self.order.roles.role is not MemberRole.LEADERLESS:
            self.role_changed(self.order.roles.role)

    def facts(self) -> int:
        """The facts of members that this process has taken in, in all its leaderships."""
        leader = self.order.leader
        return self._facts + (0 if leader is None else leader.intake.facts)

    def make_scheduler(self, pool: str) -> SharedSchedulerProtocol:
        """A new leader's Scheduler of this pool, with what has changed since the start."""
        assert self.work is not None, "a pool has backends"
        parts, now = self.work.parts, asyncio.get_running_loop().time()
        scheduler = parts.make_scheduler(pool)
        scheduler.told(self.order.member.lead.share.of_fact(parts.pools.settings.changed(now)))
        if self.order.member.checkpoint.mark == Mark() and not self.order.place.others:
            kept = parts.pools.checkpoint_of(pool)
            if kept is not None:  # of the time before all processes of the cluster were started
                scheduler.told(Restored(now, kept))
        return scheduler

    def tenant(self, tenant_id: str) -> Tenant | None:
        return None if self.work is None else self.work.parts.handlers.tenants.find(tenant_id)

    def heard(self, topic: str, body: bytes) -> None:
        self.told[topic] = body
        if topic.startswith(TOPIC):
            self.polls.told(topic, body)
        elif topic == FOUND and self.work is not None:
            self.work.hear_found(body)

    def measure(self, backend_ids: Collection[str] | None) -> None:
        """Whether one fails for all, its health decides by all evidence."""
        if self.work is not None:
            self.work.parts.backends.measure_anew(backend_ids)

    def role_changed(self, role: MemberRole) -> None:
        self.leaderless_since = asyncio.get_running_loop().time() if role is MemberRole.LEADERLESS else None
        before, self._led = self._led, self.order.leader
        if before is not None and before is not self._led:
            self._facts += before.intake.facts
        if self.work is not None:
            self.work.take_up(role, is_other=before is not self._led)

    def report(self, backend_id: str, evidence: Evidence, ago_s: float) -> None:
        if evidence is Evidence.UNREACHABLE:
            self.order.member.follower.out_of_reach.failed(backend_id, asyncio.get_running_loop().time())
            self.order.turns.soon()
        self._others.tell("evidence", pack((backend_id, evidence, ago_s)))

    def moved(self, spec: BackendSpec) -> None:
        """The embedded engine is another one now: the leader's."""
        before = None if self.work is None else self.work.parts.clients.replace(spec)
        if before is not None:
            self._tasks.start(before.upstream.aclose())
