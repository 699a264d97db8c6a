"""How long a turn of a leader, and of its followers, takes while one takes over, and while a member comes back.

    python tests/benchmarks/takeover/bench.py [--queued 100000] [--members 16] [--tenants 50]

Members, leader and Scheduler are those of the product, without sockets: frames are encoded and decoded as on the wire.
Each process has its own clock, which moves by the CPU time that its work takes here, and a frame arrives WIRE_S after
it was sent; so the processes run side by side, as on machines of their own. The requests of a tenant arrive at all
members in turn. One backend runs 256 of them. A turn is what a process does at once: it reads a frame, or it decides
and sends. Collections of garbage, with the thresholds of the gateway, are told besides.
"""

import argparse
import gc
import time
from heapq import heappop, heappush
from itertools import count, pairwise
from math import inf

from gateway.cluster.checkpoints import Mark, NewestCheckpoint
from gateway.cluster.follower.follower import Follower
from gateway.cluster.leader.leader import Leader
from gateway.cluster.promise import SILENT_S
from gateway.cluster.records import Taken, member_record
from gateway.cluster.wire import decode, encode
from gateway.cluster.wishes import AskBackends
from gateway.serve import GC_THRESHOLDS
from policies.admission.bounded import BoundedQueues
from policies.facts import LoadChanged
from policies.scheduler import Scheduler
from policies.types import BackendLoad, Dispatch, Outcome, Request, Tenant, Usage

POOL = "p"
RUNNING = 256
SERVED_S = 0.2  # and up to as much again
MEASURED_S = 0.25
ASKED_S = 0.005  # of the answer of a backend
WIRE_S = 0.0002
LOOP_S = 0.0001  # between two turns of a process


class Collections:
    """How long collections of garbage have taken: all, and the longest. Mutable."""

    def __init__(self):
        self.began = self.all_s = self.longest_s = 0.0

    def __call__(self, phase, _info):
        if phase == "start":
            self.began = time.process_time()
        else:
            took_s = time.process_time() - self.began
            self.all_s, self.longest_s = self.all_s + took_s, max(self.longest_s, took_s)


COLLECTIONS = Collections()


class Process:
    """A process's clock, and its longest turn, with and without collections. Mutable."""

    def __init__(self):
        self.free_at = self.wakes_at = self.longest_s = self.without_s = 0.0

    def do(self, at, work):
        """Do this work as soon as the process is free: what it returns, and when it is done."""
        at, before, collected_s = max(at, self.free_at), time.process_time(), COLLECTIONS.all_s
        found = work(at)
        took_s = time.process_time() - before
        self.free_at = at + took_s
        self.longest_s = max(self.longest_s, took_s)
        self.without_s = max(self.without_s, took_s - (COLLECTIONS.all_s - collected_s))
        return found, self.free_at


class Cluster:
    """Members that hold requests, and a leader that takes over. Mutable."""

    def __init__(self, queued, members, tenants):
        self.now = 0.0
        self.followers = {f"m{number}": Follower(f"m{number}", wait_s_max=1e6) for number in range(members)}
        self.processes = {name: Process() for name in self.followers}
        self.leading = Process()
        self.tenants = {f"t{number}": Tenant(f"t{number}") for number in range(tenants)}
        self.dispatched_at = []
        self._numbers, self._events = count(), []
        for number in range(queued):
            name = f"m{number % members}"
            request = Request(f"r{number}", f"t{number // members % tenants}", "m", -1.0 + number * 1e-6, 10, 20)
            self.followers[name].submit(POOL, request, 0.0)
        self.checkpoint = NewestCheckpoint()  # by it, the leader before has admitted all
        records = {key: body for name in self.followers for key, body in member_record(name, Taken(queued)).items()}
        self.checkpoint.change(Mark(1, 1), 0.0, records, is_kept=True)
        self.leader = Leader(
            2,
            "m0",
            make_scheduler=lambda _: Scheduler(admission=[BoundedQueues(10**9, 1 << 60, 10**9, 1 << 60)]),
            tenant_of=self.tenants.get,
            waits=dict.fromkeys(self.followers, SILENT_S),
            checkpoint=self.checkpoint,
        )
        self.at(0.0, self.poll_backends)

    def at(self, at, do, *arguments):
        heappush(self._events, (at, next(self._numbers), do, arguments))

    def run(self, is_over, timeout_s=60.0):
        until = self.now + timeout_s
        while self._events and not is_over() and self.now < until:
            self.now, _, do, arguments = heappop(self._events)
            do(*arguments)

    # -- the leader ------------------------------------------------------------------------------------------

    def measure(self):
        load = BackendLoad(
            "gpu", requests_running_max=RUNNING, requests_running=len(self.running), measured_at=self.now
        )
        self.leader.intake.told(POOL, LoadChanged(self.now, (load,)))
        self.lead_soon(self.now)

    def poll_backends(self):
        self.measure()
        self.at(self.now + MEASURED_S, self.poll_backends)

    @property
    def running(self):
        return [own for each in self.followers.values() for own in each.requests().values() if own.dispatch is not None]

    def lead_soon(self, at):
        if self.leading.wakes_at <= self.now or at < self.leading.wakes_at:
            self.leading.wakes_at = at
            self.at(at, self.lead, at)

    def lead(self, at):
        if self.leading.wakes_at != at:
            return

        def turn(now):
            self.leader.turn(now)
            return [(name, body) for name, frame in self.leader.frames(now) for body in encode(frame)]

        sent, done_at = self.leading.do(at, turn)
        for name, body in sent:
            self.at(done_at + WIRE_S, self.follow, name, body)
        if any(isinstance(wish, AskBackends) for wish in self.leader.wishes()):
            self.at(done_at + ASKED_S, self.measure)
        self.leading.wakes_at = 0.0
        self.lead_soon(max(done_at + LOOP_S, self.leader.wakeup(done_at)))

    def arrived(self, name, body):
        _, done_at = self.leading.do(self.now, lambda now: self.leader.received(name, decode(body), now))
        self.lead_soon(done_at)

    # -- its followers -----------------------------------------------------------------------------------------

    def follow(self, name, body=None):
        follower, process = self.followers.get(name), self.processes[name]
        if follower is None:
            return

        def turn(now):
            if body is not None:
                follower.received(decode(body), now)
            actions = follower.poll(POOL, now)
            return actions, [each for frame in follower.link.frames(now) for each in encode(frame)]

        (actions, sent), done_at = process.do(self.now, turn)
        for action in actions:
            if isinstance(action, Dispatch):
                self.dispatched_at.append(done_at)
                served_s = SERVED_S * (1 + len(self.dispatched_at) % 97 / 97)
                self.at(done_at + served_s, self.served, name, action.request_id)
        for each in sent:
            self.at(done_at + WIRE_S, self.arrived, name, each)
        due = follower.due()
        if due < inf and (process.wakes_at <= self.now or due < process.wakes_at):
            process.wakes_at = max(due, done_at + LOOP_S)
            self.at(process.wakes_at, self.follow, name)

    def served(self, name, request_id):
        if name in self.followers:
            self.followers[name].finished(request_id, Outcome.COMPLETED, self.now, None, Usage(10, 0, 20))
            self.follow(name)

    def connect(self, name):
        self.followers[name].connected(self.now)
        self.follow(name)

    def lose(self, name):
        self.leader.lost(name, self.now)
        self.followers[name].lost(self.now)
        self.lead_soon(self.now)

    def is_taken_in(self):
        joined = sum(there.is_joined for _, there in self.leader.members) == len(self.followers)
        return joined and self.leader.is_deciding and not self.leader.intake.inbox


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--queued", type=int, default=100_000)
    parser.add_argument("--members", type=int, default=16)
    parser.add_argument("--tenants", type=int, default=50)
    options = parser.parse_args()
    gc.set_threshold(*GC_THRESHOLDS)
    cluster = Cluster(options.queued, options.members, options.tenants)
    gc.collect()
    gc.freeze()
    gc.callbacks.append(COLLECTIONS)

    def show(name, began):
        processes = cluster.processes.values()
        times = [began, *(at for at in cluster.dispatched_at if at > began), cluster.now]
        gap_s = max(after - before for before, after in pairwise(times))
        print(f"{name}: {cluster.now - began:.2f} s")
        for who, each in (
            ("the leader", cluster.leading),
            ("a follower", max(processes, key=lambda each: each.longest_s)),
        ):
            longest = f"{1e3 * each.longest_s:.1f} ms, {1e3 * each.without_s:.1f} without collections"
            print(f"  longest turn of {who}: {longest}")
        first_s = times[1] - began
        print(f"  {len(times) - 2} dispatched, the first after {first_s:.2f} s, a pause of {gap_s:.2f} s at most")
        print(f"  longest collection: {1e3 * COLLECTIONS.longest_s:.1f} ms", flush=True)
        COLLECTIONS.longest_s = 0.0
        for each in (cluster.leading, *processes):
            each.longest_s = each.without_s = 0.0

    for name in cluster.followers:
        cluster.at(0.0, cluster.connect, name)
    cluster.run(cluster.is_taken_in)
    show(f"takeover, {options.queued} queued at {options.members} members", 0.0)
    began, back = cluster.now, f"m{options.members - 1}"
    cluster.lose(back)
    cluster.at(cluster.now + 0.2, cluster.connect, back)
    cluster.run(lambda: cluster.now > began + 0.2 and cluster.is_taken_in())
    show("one of them lost, and back after 0.2 s", began)
    began = cluster.now
    cluster.leader.lost(back, cluster.now, is_dead=True)
    cluster.followers.pop(back)
    cluster.lead_soon(cluster.now)
    cluster.run(lambda: not any(pool.chores.is_busy for pool in cluster.leader.pools.values()))
    show("one of them dead", began)


if __name__ == "__main__":
    main()
