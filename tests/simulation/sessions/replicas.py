"""Replicas in a simulation of sessions: one order over several processes, whose frames take a while to arrive.

Calls come to the replicas in turn, whatever their session. The leader and the followers are the production ones; what
elects is left out: a leader dies when the simulation says so, and another follower leads from then on.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count, cycle
from math import inf
from typing import Final

from gateway.cluster.follower.follower import Follower
from gateway.cluster.leader.leader import Leader
from gateway.cluster.promise import SILENT_S
from gateway.cluster.wire import Frame, decode, encode
from policies.facts import Fact, LoadChanged, RunFact
from policies.scheduler import Scheduler
from policies.types import Action, Outcome, Request, Tenant, Timing, Usage

POOL: Final = "pool"
DELAY_S: Final = 0.001  # of a frame between two machines of one network
TICK_S: Final = 0.0001  # the least time between two turns of a process


class Replicas:
    """The order of all replicas, as one Scheduler: what a client of any of them says goes by way of that one."""

    def __init__(self, make: Callable[[], Scheduler], tenants: Iterable[Tenant], *, replicas: int) -> None:
        self._make = make
        self._tenants = {each.id: each for each in tenants}
        self.followers = {f"m{number}": Follower(f"m{number}", wait_s_max=1e9) for number in range(replicas)}
        self._turns = cycle(self.followers)
        self._at: dict[str, Follower] = {}  # by request
        self._numbers = count()
        self._under_way: list[tuple[float, int, Callable[[float], None]]] = []
        self._now = 0.0
        self.schedulers: list[Scheduler] = []
        """One for each leadership."""
        self._lead("m0", 1, self._now)

    @property
    def scheduler(self) -> Scheduler:
        return self.schedulers[-1]

    def leader_dies(self, now: float, *, next_leader: str) -> None:
        """The process that leads is gone, and a follower leads from now on. What was under way is lost, and so are the
        calls of the leader's own clients, of which there must be none.
        """
        gone = self.followers.pop(self.leader.member)
        assert gone not in self._at.values(), "its clients' calls would break"
        self._under_way.clear()
        for follower in self.followers.values():
            follower.lost(now)
        self._lead(next_leader, self.leader.epoch + 1, now)

    def calls_at(self, names: Iterable[str]) -> None:
        """From now on calls come to these replicas."""
        self._turns = cycle(names)

    def _lead(self, name: str, epoch: int, now: float) -> None:
        def make(_pool: str) -> Scheduler:
            self.schedulers.append(self._make())
            return self.schedulers[-1]

        self.leader = Leader(
            epoch, name, make_scheduler=make, tenant_of=self._tenants.get, checkpoint=self.followers[name].checkpoint,
            waits=dict.fromkeys(self.followers, now + SILENT_S),
        )  # fmt: skip
        for follower in self.followers.values():
            follower.connected(now)

    # -- as a Scheduler ------------------------------------------------------------------------------------------

    def submit(self, request: Request, now: float) -> None:
        follower = self._at[request.id] = self.followers[next(self._turns)]
        follower.submit(POOL, request, now)

    def arrived(self, request: Request, now: float) -> list[Action]:
        self.submit(request, now)
        return self.poll(now)

    def tokens(self, request_id: str, usage: Usage, now: float) -> None:
        follower = self._at[request_id]
        own = follower.requests.find(request_id)
        if own is not None:
            follower.usage.used(own, usage, now)

    def finished(
        self, request_id: str, outcome: Outcome, now: float, timing: Timing | None = None, usage: Usage | None = None
    ) -> None:
        self._at.pop(request_id).finished(request_id, outcome, now, timing, usage)

    def told(self, fact: Fact) -> None:
        if isinstance(fact, RunFact):
            self._at[fact.request_id].told(fact)
        elif isinstance(fact, LoadChanged):
            loads = tuple(replace(each, measured_at=fact.now) for each in fact.loads)
            self.leader.intake.told(POOL, LoadChanged(fact.now, loads))
        else:
            self.leader.intake.told(POOL, fact)

    def poll(self, now: float) -> list[Action]:
        self._now = now
        while self._under_way and self._under_way[0][0] <= now:
            heappop(self._under_way)[2](now)
        actions: list[Action] = []
        for _ in range(2):  # what the leader's own client says is heard at once
            for name, follower in self.followers.items():
                actions += follower.poll(POOL, now)
                for frame in follower.link.frames(now):
                    self._send(self.leader.received, name, frame, now)
            self.leader.turn(now)
            for name, frame in self.leader.frames(now):
                self._send(self._receive, name, frame, now)
        return actions

    def next_wakeup(self) -> float:
        due = [each.due() for each in self.followers.values()]
        at = min([*due, self.leader.wakeup(self._now), self._under_way[0][0] if self._under_way else inf])
        return max(at, self._now + TICK_S)

    def _receive(self, name: str, frame: Frame, now: float) -> None:
        self.followers[name].received(frame, now)

    def _send(self, receive: Callable[[str, Frame, float], None], name: str, frame: Frame, now: float) -> None:
        for body in encode(frame):
            if name == self.leader.member:
                receive(name, decode(body), now)
            else:
                at = now + DELAY_S, next(self._numbers)
                heappush(self._under_way, (*at, lambda now, body=body: receive(name, decode(body), now)))  # type: ignore[misc]
