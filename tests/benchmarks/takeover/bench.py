"""How long a turn of a leader takes while it takes over, and while a member comes back, with many queued requests.

    python tests/benchmarks/takeover/bench.py [--queued 100000] [--members 16] [--tenants 50]

Members, leader and Scheduler are those of the product, without sockets: frames are handed over as objects, encoded and
decoded as on the wire. The requests of a tenant arrive at all members in turn. One backend runs 256 of them. Times are
of one process (perf_counter); a turn is one call of `Leader.turn`.
"""

import argparse
import gc
import time
from collections.abc import Callable

from gateway.cluster.checkpoints import ClusterCheckpoint, NewestCheckpoint, Taken, encode_checkpoint
from gateway.cluster.follower import Follower
from gateway.cluster.leader import Leader
from gateway.cluster.wire import decode, encode
from policies.admission.bounded import BoundedQueues
from policies.scheduler import Scheduler
from policies.types import BackendLoad, Dispatch, Request, Tenant

POOL = "p"
RUNNING = 256
MEASURED_S = 0.1


class Cluster:
    """Members that hold requests, and a leader that takes over. Mutable; `now` moves with real time."""

    def __init__(self, queued: int, members: int, tenants: int) -> None:
        self.began = time.perf_counter()
        self.followers = {f"m{number}": Follower(f"m{number}", wait_s_max=1e6) for number in range(members)}
        self.tenants = {f"t{number}": Tenant(f"t{number}") for number in range(tenants)}
        self.longest_s, self.turns, self.dispatched = 0.0, 0, 0
        self.measured_at = 0.0
        for number in range(queued):
            name = f"m{number % members}"
            request = Request(f"r{number}", f"t{number // members % tenants}", "m", -1.0 + number * 1e-6, 10, 20)
            self.followers[name].submit(POOL, request, 0.0)
        self.checkpoint = NewestCheckpoint()  # by it, the leader before has admitted all
        taken = {name: Taken(queued) for name in self.followers}
        self.checkpoint.told(encode_checkpoint(ClusterCheckpoint(1, 1, {}, taken=taken)))
        self.leader = self.make(2)

    @property
    def now(self) -> float:
        return time.perf_counter() - self.began

    def make(self, epoch: int) -> Leader:
        return Leader(
            epoch,
            "m0",
            make_scheduler=lambda _: Scheduler(admission=[BoundedQueues(10**9, 1 << 60, 10**9, 1 << 60)]),
            tenant_of=self.tenants.get,
            expected=tuple(self.followers),
            checkpoint=self.checkpoint,
            now=self.now,
        )

    def turn(self) -> None:
        before = time.perf_counter()
        self.leader.turn(self.now)
        self.longest_s = max(self.longest_s, time.perf_counter() - before)
        self.turns += 1
        for name, frame in self.leader.frames(self.now):
            for body in encode(frame):
                self.followers[name].received(decode(body), self.now)

    def tell(self, name: str) -> None:
        for frame in self.followers[name].link.frames(self.now):
            for body in encode(frame):
                self.leader.received(name, decode(body), self.now)
                if self.leader.wakeup(self.now) <= self.now:
                    self.turn()

    def until(self, is_over: Callable[[], bool], timeout_s: float = 120.0) -> None:
        give_up_at = self.now + timeout_s
        while not is_over() and self.now < give_up_at:
            if self.now >= self.measured_at + MEASURED_S:
                self.measured()
            for name, follower in self.followers.items():
                if follower.link.is_connected:
                    self.tell(name)
                self.dispatched += sum(isinstance(action, Dispatch) for action in follower.poll(POOL, self.now))
            self.turn()

    def measured(self) -> None:
        self.measured_at = self.now
        load = BackendLoad("gpu", requests_running_max=RUNNING, requests_running=0, measured_at=self.now)
        self.leader.load_changed(POOL, [load], self.now)

    def is_taken_in(self) -> bool:
        return self.leader.is_deciding and not self.leader._inbox


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--queued", type=int, default=100_000)
    parser.add_argument("--members", type=int, default=16)
    parser.add_argument("--tenants", type=int, default=50)
    options = parser.parse_args()
    cluster = Cluster(options.queued, options.members, options.tenants)
    gc.collect()
    gc.freeze()

    def show(name: str, began: float, first: float | None) -> None:
        dispatch = "" if first is None else f", first dispatch after {first:.2f} s"
        print(
            f"{name}: {time.perf_counter() - began:.2f} s, {cluster.turns} turns, "
            f"the longest {1e3 * cluster.longest_s:.1f} ms{dispatch}",
            flush=True,
        )
        cluster.longest_s, cluster.turns = 0.0, 0

    began = time.perf_counter()
    for follower in cluster.followers.values():
        follower.connected(cluster.now)
    for name in cluster.followers:
        cluster.tell(name)
    cluster.until(lambda: cluster.dispatched > 0)
    first = time.perf_counter() - began
    cluster.until(cluster.is_taken_in)
    show(f"takeover, {options.queued} queued at {options.members} members", began, first)
    began = time.perf_counter()
    back = cluster.followers[f"m{options.members - 1}"]
    cluster.leader.lost(back.link.member, cluster.now)
    back.lost(cluster.now)
    cluster.turn()
    back.connected(cluster.now)
    cluster.until(lambda: back.link.is_joined and cluster.is_taken_in())
    show("one of them lost, and back", began, None)


if __name__ == "__main__":
    main()
