"""LoopbackScheduler: a Scheduler that another process leads, without a network.

Requests enter at a follower; what it says reaches the leader with the next question, through the same bytes as between
processes. So a suite that drives a Scheduler can drive a shared one (tests/unit/policies/pools.py).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from gateway.cluster.follower.follower import Follower
from gateway.cluster.leader.leader import Leader
from gateway.cluster.promise import SILENT_S
from gateway.cluster.wire import Frame, decode, encode, wire_id
from policies.facts import FACTS, Cancelled, Fact, RunFact, Spent, TenantsChanged
from policies.scheduler import Scheduler
from policies.types import (
    DEFAULT_TIER,
    Action,
    Outcome,
    RateLimits,
    Request,
    Snapshot,
    Tenant,
    Tier,
    Timing,
    Usage,
    Wait,
    WaitView,
)
from tests.simulation.recording import fact_of

POOL = "pool"
LEADER, FOLLOWER = "m1", "m2"


class LoopbackScheduler:
    """Has the interface of a Scheduler for the clients of a follower. What it is told of usage the leader hears at
    once, so that charges are exact at every question.
    """

    def __init__(
        self, *, tenants: Iterable[Tenant] = (), tiers: Iterable[Tier] = (DEFAULT_TIER,), **options: Any
    ) -> None:
        self._registry = {tenant.id: tenant for tenant in tenants}
        self.led = Scheduler(tenants=self._registry.values(), tiers=tiers, **options)
        self._leader = Leader(
            1,
            LEADER,
            make_scheduler=lambda _: self.led,
            tenant_of=self._registry.get,
            waits=dict.fromkeys((LEADER, FOLLOWER), SILENT_S),
        )
        wait_s_max = options.get("wait_s_max", 300.0)
        self._followers = {name: Follower(name, wait_s_max=wait_s_max) for name in (LEADER, FOLLOWER)}
        self._follower = self._followers[FOLLOWER]
        self._now = 0.0
        for follower in self._followers.values():
            follower.connected(0.0)
        self._exchange(0.0)

    # -- facts of requests ---------------------------------------------------------------------------------------

    def submit(self, request: Request, now: float) -> None:
        self._pass_to(now)
        self._follower.submit(POOL, request, now)
        self._take_in(now)

    def tokens(self, request_id: str, usage: Usage, now: float) -> None:
        self._pass_to(now)
        own = self._follower.requests.find(request_id)
        if own is not None and own.dispatch is not None:
            self._follower.usage.used(own, usage, now)
            self._follower.usage.tell(own, now)  # instead of when rule 11 says so
        self._take_in(now)

    def finished(
        self, request_id: str, outcome: Outcome, now: float, timing: Timing | None = None, usage: Usage | None = None
    ) -> None:
        self._pass_to(now)
        self._follower.finished(request_id, outcome, now, timing, usage)
        self._take_in(now)

    # -- all other facts -----------------------------------------------------------------------------------------

    def told(self, fact: Fact) -> None:
        self._pass_to(fact.now)
        match fact:
            case RunFact():
                self._follower.told(fact)
            case Cancelled():
                self._follower.cancel(fact.request_id)
            case Spent():
                self._follower.reports.spent(POOL, fact)
            case _:
                if isinstance(fact, TenantsChanged):
                    self._registry.update((tenant.id, tenant) for tenant in fact.changed)
                    for tenant_id in fact.removed:
                        self._registry.pop(tenant_id, None)
                self._leader.intake.told(POOL, fact)
        self._take_in(fact.now)

    def __getattr__(self, name: str) -> Any:
        """A fact, told by the call of a Scheduler's method."""
        if name not in FACTS:
            raise AttributeError(name)
        return lambda *args, **kwargs: self.told(fact_of(name, *args, **kwargs))

    # -- decisions -----------------------------------------------------------------------------------------------

    def poll(self, now: float) -> list[Action]:
        self._pass_to(now)
        self._exchange(now)
        return self._follower.poll(POOL, now)

    def next_wakeup(self) -> float | None:
        """The Scheduler's own; a member's is earlier, to keep its connection."""
        return self.led.next_wakeup()

    # -- views ---------------------------------------------------------------------------------------------------

    def snapshot(self, now: float, tenant_ids: Iterable[str] | None = None) -> Snapshot:
        return self.led.snapshot(now, tenant_ids)

    def rate_limits(self, tenant_id: str, now: float, key_id: str = "") -> RateLimits:
        return self.led.rate_limits(tenant_id, now, key_id)

    def counter(self, tenant_id: str) -> float:
        return self.led.counter(tenant_id)

    def waits_for(self, request_id: str, now: float) -> Wait | None:
        own = self._follower.requests.find(request_id)
        return None if own is None else self.led.waits_for(wire_id(FOLLOWER, own.number), now)

    def wait_views(self, request_ids: Iterable[str], now: float) -> Mapping[str, WaitView]:
        owns = {each: own for each in request_ids if (own := self._follower.requests.find(each)) is not None}
        found = self.led.wait_views([wire_id(FOLLOWER, own.number) for own in owns.values()], now)
        wire_ids = {each: wire_id(FOLLOWER, own.number) for each, own in owns.items()}
        return {each: found[id_] for each, id_ in wire_ids.items() if id_ in found}

    def prefilled(self, request_id: str, now: float) -> Usage | None:
        own = self._follower.requests.find(request_id)
        return None if own is None else self.led.prefilled(wire_id(FOLLOWER, own.number), now)

    # -- helpers -------------------------------------------------------------------------------------------------

    def _pass_to(self, now: float) -> None:
        """Time passes. All of it slept, so that no process takes another for silent, and promises are renewed."""
        if now > self._now:
            slept_s, self._now = now - self._now, now
            for name, follower in self._followers.items():
                for frame in follower.link.frames(now):
                    self._carry(name, frame, now)
            self._leader.members.unheard(now, slept_s)
            self._answer(now)

    def _say(self, now: float) -> None:
        """What the follower was told reaches the leader's inbox."""
        for name, follower in self._followers.items():
            for frame in follower.link.frames(now):
                self._carry(name, frame, now)

    def _take_in(self, now: float) -> None:
        """The leader takes in what it is told, and decides nothing before the next poll."""
        self._say(now)
        leader = self._leader
        if leader.is_deciding:
            while leader.intake.inbox:
                leader.intake.take(now)

    def _exchange(self, now: float) -> None:
        """All say what they have to say, until all is said and decided."""
        while True:
            self._say(now)
            self._leader.pools.has_news = True
            self._leader.turn(now)
            if not self._answer(now):
                break

    def _answer(self, now: float) -> bool:
        frames = self._leader.frames(now)
        for name, frame in frames:
            for body in encode(frame):
                self._followers[name].received(decode(body), now)
        return bool(frames)

    def _carry(self, name: str, frame: Frame, now: float) -> None:
        for body in encode(frame):
            self._leader.received(name, decode(body), now)
