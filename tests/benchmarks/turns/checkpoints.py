"""How long does a checkpoint of all tenants keep the event loop of a leader, and of its followers?

    python tests/benchmarks/turns/checkpoints.py [--tenants 10000] [--rate 2000]

Each tenant has a limit of requests and of tokens per minute, and has sent requests for a minute. --rate requests a
second arrive at a follower and end at once. Leader, followers and Scheduler are those of the product, on a clock that
the benchmark moves; frames are encoded and decoded as on the wire. A turn is what one process does at once. The figures
are the longest turns, in CPU time without collections of garbage. The goal is TURN_MS_MAX.
"""

import argparse
import gc
import time
from collections import defaultdict
from itertools import count

from gateway.cluster.follower.follower import Follower
from gateway.cluster.leader.leader import Leader
from gateway.cluster.promise import SILENT_S
from gateway.cluster.wire import decode, encode
from gateway.cluster.wishes import StoreCheckpoint
from policies.admission.rate_limit import RateLimiter
from policies.facts import LoadChanged
from policies.scheduler import Scheduler
from policies.types import BackendLoad, Dispatch, Outcome, Request, Tenant, Usage

POOL = "p"
TURN_MS_MAX = 5.0
STEP_S = 0.001


class Cluster:
    """A leader and two followers. Mutable."""

    def __init__(self, tenants):
        self.now = 1000.0
        self.numbers = count()
        self.tenants = {
            f"team-{number:05}": Tenant(f"team-{number:05}", requests_per_minute_max=10**6, tokens_per_minute_max=10**9)
            for number in range(tenants)
        }
        self.longest_s, self.collected_s, self.began = defaultdict(float), 0.0, 0.0
        gc.callbacks.append(self.note)
        self.leader = self.lead(1)
        self.followers = {name: Follower(name, wait_s_max=60.0) for name in ("m0", "m1", "m2")}
        self.stored = b""

    def lead(self, epoch, checkpoint=None):
        return Leader(
            epoch,
            "m0",
            make_scheduler=lambda _: Scheduler(admission=[RateLimiter(lambda _: 10.0)]),
            tenant_of=self.tenants.get,
            waits={"m0": self.now + SILENT_S, "m1": self.now + SILENT_S},
            checkpoint=checkpoint,
        )

    def note(self, phase, _info):
        if phase == "start":
            self.began = time.process_time()
        else:
            self.collected_s += time.process_time() - self.began

    def timed(self, who, work):
        before, collected_s = time.process_time(), self.collected_s
        found = work()
        took_s = time.process_time() - before - (self.collected_s - collected_s)
        self.longest_s[who] = max(self.longest_s[who], took_s)
        return found

    def step(self):
        """A millisecond: every process takes a turn."""
        self.now += STEP_S
        for name, follower in self.followers.items():

            def told(each=follower):
                return [body for frame in each.link.frames(self.now) for body in encode(frame)]

            for body in self.timed(name, told):
                self.timed("leader", lambda body=body, name=name: self.leader.received(name, decode(body), self.now))
        for name, body in self.timed("leader", self.lead_on):
            self.timed(name, lambda body=body, name=name: self.followers[name].received(decode(body), self.now))
        for name, follower in self.followers.items():
            for action in self.timed(name, lambda each=follower: each.poll(POOL, self.now)):
                if isinstance(action, Dispatch):
                    follower.finished(action.request_id, Outcome.COMPLETED, self.now, None, Usage(10, 0, 10))

    def lead_on(self):
        self.leader.turn(self.now)
        sent = [(name, body) for name, frame in self.leader.frames(self.now) for body in encode(frame)]
        for wish in self.leader.wishes():
            if isinstance(wish, StoreCheckpoint):
                self.stored = wish.body
        return sent

    def serve(self, seconds, rate, *, quietly=False):
        ids, due = list(self.tenants), 0.0
        for _ in range(round(seconds / STEP_S)):
            due += rate * STEP_S
            while due >= 1:
                due -= 1
                number = next(self.numbers)
                request = Request(f"r{number}", ids[number * 7919 % len(ids)], "m", self.now, 10, 20)
                self.followers["m1"].submit(POOL, request, self.now)
            self.step()
        if quietly:
            self.longest_s.clear()

    def measure(self):
        load = BackendLoad("gpu", requests_running_max=10**6, requests_running=0, measured_at=self.now)
        self.leader.intake.told(POOL, LoadChanged(self.now, (load,)))

    def show(self, what):
        print(f"{what}:")
        for who, longest_s in sorted(self.longest_s.items()):
            print(f"  {who:8}{1e3 * longest_s:7.1f} ms{'  over' * (1e3 * longest_s > TURN_MS_MAX)}", flush=True)
        self.longest_s.clear()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tenants", type=int, default=10_000)
    parser.add_argument("--rate", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    cluster = Cluster(options.tenants)
    for name in ("m0", "m1"):
        cluster.followers[name].connected(cluster.now)
    cluster.serve(0.05, 0)
    cluster.measure()
    cluster.serve(0.05, 0)
    scheduler = cluster.leader.pools[POOL].scheduler if cluster.leader.pools else None
    assert scheduler is not None, "it has taken the measurement in"
    fill(cluster, max(1, round(options.rate * 60 / options.tenants)))
    gc.collect()
    gc.freeze()
    cluster.serve(1.0, options.rate, quietly=True)
    cluster.serve(options.seconds, options.rate)
    size = f"a whole checkpoint has {len(cluster.stored) / 1e6:.1f} MB"
    cluster.show(f"{options.tenants} tenants, {options.rate} requests/s; {size}")
    cluster.followers["m2"].connected(cluster.now)
    cluster.serve(3.0, options.rate)
    cluster.show("a member joins that has no checkpoint")
    same = cluster.followers["m2"].checkpoint
    assert same.mark == cluster.leader._checkpoint.mark, "it has the newest"
    assert same.records == cluster.leader._checkpoint.records
    took_s = time.process_time()
    same.read()
    print(f"reading it, at a takeover: {1e3 * (time.process_time() - took_s):.1f} ms")


def fill(cluster, requests):
    """Let each tenant have sent so many requests in the last minute, as it will."""
    order = cluster.leader.pools[POOL]
    for tenant in cluster.tenants.values():
        order.tenants.learn(tenant.id, cluster.now)
    rules = order.scheduler._admission_rules._rules
    for rule in rules:
        for number in range(requests, 0, -1):
            for tenant in cluster.tenants.values():
                rule.spent(tenant, "", 20, cluster.now - 60 * number / (requests + 1))
    for tenant in cluster.tenants:
        order.journal.tenant(tenant)


if __name__ == "__main__":
    main()
