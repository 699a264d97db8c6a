"""LedPools: all pools of one leadership, and when they decide (rule 10)."""

from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Final

from gateway.cluster.leader.ordered_requests import Sender
from gateway.cluster.leader.pool_order import PoolOrder
from gateway.cluster.records import PoolCheckpoint
from gateway.cluster.wire import AnyMessage
from policies.facts import TakenOver
from policies.scheduler_protocol import SharedSchedulerProtocol
from policies.types import ReplicaShare, Tenant

POLL_S: Final = 0.001  # rule 10


class LedPools(Mapping[str, PoolOrder]):
    """The pools whose requests one leader decides on, by name. Mutable."""

    def __init__(
        self,
        make_scheduler: Callable[[str], SharedSchedulerProtocol],
        tenant_of: Callable[[str], Tenant | None],
        share: ReplicaShare,
    ) -> None:
        """`share` is the part of every limit that belongs to this leadership."""
        self.has_news = False
        """Whether something was told since the last decision."""
        self._make_scheduler = make_scheduler
        self._tenant_of = tenant_of
        self._share = share
        self._all: dict[str, PoolOrder] = {}
        self._kept: Mapping[str, PoolCheckpoint] | None = None  # None: it is not known yet what they go on from
        self._kept_at = 0.0
        self._polled_at = -inf

    def __getitem__(self, name: str) -> PoolOrder:
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def made(self, name: str, now: float) -> PoolOrder:
        """The pool of this name, which is made at its first load or request."""
        order = self._all.get(name)
        if order is None:
            order = self._all[name] = PoolOrder(name, self._make_scheduler(name), self._tenant_of)
            if self._kept is not None:
                order.restored(self._kept.get(name), self._kept_at, self._share, now)
                order.scheduler.told(TakenOver(now))
        return order

    def go_on(self, kept: Mapping[str, PoolCheckpoint], now: float) -> None:
        """Continue from the state `kept`, which another leader has maintained until now."""
        self._kept, self._kept_at = kept, now
        for name, order in self._all.items():
            order.restored(kept.get(name), now, self._share, now)

    def taken_over(self, now: float) -> None:
        """All reports of running and waiting requests were processed."""
        for order in self._all.values():
            order.scheduler.told(TakenOver(now))

    def tenant_changed(self, tenant_id: str, now: float) -> None:
        """The registry has changed this tenant; look it up again wherever it is known."""
        for order in self._all.values():
            order.tenants.changed(tenant_id, now)
            order.journal.tenant(tenant_id)
        self.has_news = True

    def tenant_forgotten(self, tenant_id: str, now: float) -> None:
        """Forget this tenant; its queued requests are rejected."""
        for order in self._all.values():
            order.tenants.forget(tenant_id, now)
            order.journal.tenant(tenant_id)
        self.has_news = True

    def gone(self, sender: Sender) -> bool:
        """The member does not return; returns whether any of its requests ran."""
        ran = [order.gone(sender) for order in self._all.values()]
        self.has_news = True
        return any(ran)

    @property
    def are_busy(self) -> bool:
        """Whether `work` has something to do."""
        return any(order.chores.is_busy for order in self._all.values())

    def work(self, most: int, now: float) -> int:
        """Do at most `most` pieces of the pending work on many requests; return the rest of `most`, for other work."""
        for order in self._all.values():
            if most and order.chores.is_busy:
                most -= order.chores.work(most, now)
                self.has_news = True
        return most

    def decide(self, now: float, *, has_more: bool) -> Iterator[tuple[str, Sender, AnyMessage]]:
        """Yield the present decisions, each with its pool and its member. `has_more`: unprocessed facts remain."""
        if any(order.chores.is_urgent for order in self._all.values()):
            return
        is_due = self.has_news or any(order.wakeup() <= now for order in self._all.values())
        if not is_due or (has_more and now - self._polled_at < POLL_S):
            return
        self._polled_at, self.has_news = now, False
        for name, order in self._all.items():
            for sender, message in order.decide(now):
                yield name, sender, message

    def wakeup(self) -> float:
        """When to decide although no fact arrived."""
        return min((order.wakeup() for order in self._all.values()), default=inf)
