"""Judges of a simulated cluster: each holds one rule, at every step. A broken one raises ViolationError."""

from collections import defaultdict
from itertools import pairwise
from math import inf

from policies.fairness.bounds import BOUNDS
from policies.types import Dispatch, Preempt, Reason
from tests.simulation.bound_checkers import ServiceBound
from tests.simulation.cluster import world as worlds
from tests.simulation.cluster.books import Books, Fairness
from tests.simulation.cluster.judge import Judge
from tests.simulation.recording import Polled
from tests.simulation.run_accounts import RunAccounts, require


class OneEnd(Judge):
    """A request is dispatched to at most one backend at a time, and ends exactly once."""

    def __init__(self):
        self.ends = defaultdict(int)

    def carried_out(self, node, client, action):
        require(not client.ended, "{} has ended, and {} comes", client.request.id, action)
        if isinstance(action, Dispatch):
            require(client.run is None, "{} runs, and is dispatched", client.request.id)

    def ended(self, node, client):
        self.ends[client.request.id] += 1
        require(self.ends[client.request.id] == 1, "{} ends once", client.request.id)

    def conclude(self):
        for client in self.world.clients:
            if self.world.nodes[client.node].is_alive:
                require(client.ended, "{} at {} ends", client.request.id, client.node)


class OneLeader(Judge):
    """No two leaders' actions take effect at one instant, and epochs only grow. A member that leads itself alone is
    excepted: it keeps within its part of every limit.
    """

    def __init__(self):
        self.epoch = 0

    def carried_out(self, node, client, action):
        follower = node.member.follower
        if isinstance(action, Dispatch) and not node.member.lead.is_standalone and follower.link.leader is not None:
            epoch = follower.link.epoch
            require(epoch >= self.epoch, "{} follows epoch {} after {}", node.name, epoch, self.epoch)
            self.epoch = epoch


class Deadlines(Judge):
    """A request leaves the queue by its deadline, or is rejected; while its process is frozen nothing can."""

    SLACK_S = 1.5  # a connection that is silent is noticed after 1 s

    def carried_out(self, node, client, action):
        if client.run is None and client.arrived_at >= node.frozen_until:
            due = max(client.arrived_at + worlds.WAIT_S_MAX * 1.01, client.waits_since)
            if client.produced:  # it waits anew, and once more with every leader
                since = max([client.waits_since, *[at for at in node.lost_at if at > client.waits_since]])
                due = since + 2 * worlds.WAIT_S_MAX
            late = self.world.now - due
            require(late <= self.SLACK_S, "{} has waited {:.2f} s beyond its deadline", client.request.id, late)


class Conservation(Judge):
    """Slots, reservations and charges of every leadership add up (RunAccounts), every so many polls; and VTC's bound
    holds over the clients of all members.
    """

    EVERY = 16

    def __init__(self):
        self.accounts = {}
        self.schedulers = {}
        self.bounds = {}
        self.polls = 0

    def leads(self, leadership, scheduler):
        self.accounts[leadership] = accounts = RunAccounts(tenants=(), price=worlds.PRICE)
        self.schedulers[leadership] = scheduler
        if (self.world.settings.fairness, self.world.settings.placement) != ("vtc", "least-reserved"):
            return  # other bounds have parameters; tests/properties holds them
        self.bounds[leadership] = ServiceBound(accounts, BOUNDS["vtc"], is_capped=False, every_s=0.2)

    def told(self, leadership, entry):
        accounts = self.accounts[leadership]
        accounts(entry)
        if leadership in self.bounds:
            self.bounds[leadership](entry)
        if isinstance(entry, Polled):
            self.polls += 1
            if not self.polls % self.EVERY:
                accounts.compare(self.schedulers[leadership].snapshot(entry.now))


class BackendLimits(Judge):
    """Under any leader a backend runs no more than its limit. A member that leads itself alone sends no more than its
    part (rule 25), and what it sent is unknown to a leader of others until that one has measured it as external load.
    """

    UNSEEN_S = 4 * worlds.MEASURE_S + 0.5
    """External load is believed after a few measurements."""

    def __init__(self):
        self.alone = {}  # by node and request: when a member that is alone sent it

    def sent(self, node, client, backend):
        running, member = len(backend.running), node.member
        what = f"{backend.backend_id} runs {running} of {backend.slots}, at {self.world.now:.3f}"
        if member.lead.is_standalone:
            own = sum(name == node.name for name, _ in backend.running)
            self.alone[node.name, client.request.id] = self.world.now
            part = max(1, member.lead.share.part.of(backend.slots))
            require(own <= part, "{}; of {}, which is alone, {} of {}", what, node.name, own, part)
            return
        unseen = sum(self.world.now - self.alone.get(key, -inf) < self.UNSEEN_S for key in backend.running)
        # A backend that runs nothing of a Scheduler's takes one request, whatever the external load.
        require(running - unseen <= backend.slots or self._known(member, backend) <= 1, what)

    def _known(self, member, backend):
        """How many of those that run there its leader knows of: a member that joins has not told what it runs yet."""
        leader = self.world.nodes[member.follower.link.leader]
        if leader.member.lead.leader is None:  # it leads no more, and its decision was under way
            return sum(self.world.nodes[name].member.follower.link.leader == leader.name for name, _ in backend.running)
        (pool,) = leader.member.lead.leader.pools.values()
        view = pool.scheduler.snapshot(leader.clock.of(self.world.now)).backends[backend.backend_id]
        return view.in_flight_requests


class RateWindow(Judge):
    """A tenant's limit of requests per minute holds over all members, and over changes of leaders but for the second
    that a checkpoint may miss. Each member that leads itself alone may admit its part besides (rule 25).
    """

    def __init__(self):
        self.admitted = defaultdict(list)
        self.shares = []

    def leads(self, leadership, scheduler):
        member = self.world.nodes[leadership.split("@")[0]].member
        if member.lead.is_standalone:
            self.shares.append(member.lead.share.part)

    def ended(self, node, client):
        tenant = self.world.tenants[client.request.tenant_id]
        limit = tenant.requests_per_minute_max
        if limit is None or client.ended in (
            Reason.RATE_LIMITED,
            "died",
            "left",
            Reason.NO_BACKEND,
            Reason.QUEUE_TIMEOUT,
        ):
            return
        self.admitted[tenant.id].append(client.arrived_at)

    def conclude(self):
        for tenant_id, times in self.admitted.items():
            limit = self.world.tenants[tenant_id].requests_per_minute_max
            leaders = sum(node.member.lead.elections for node in self.world.nodes.values())
            missed = max(0, leaders - 1) * self.world.settings.rate_per_s
            alone = sum(share.of(limit) for share in self.shares)
            what = f"{tenant_id}: {len(times)} admitted, {limit} may be, and {alone} by members alone"
            require(len(times) <= limit + missed + alone, what)


class Interruptions(Judge):
    """A request is preempted a few times at most by all leaders, and sent to no backend that is known to drain. What
    can be continued fails only where it may not wait any longer.
    """

    def __init__(self):
        self.preemptions = self.continued = 0

    def carried_out(self, node, client, action):
        self.continued += isinstance(action, Dispatch) and client.produced > 0
        if isinstance(action, Preempt):
            self.preemptions += 1
            times_max = max(1, self.world.settings.interrupt_rules.times_max)
            is_one_more = client.preemptions < times_max or self.world.has_drained
            require(is_one_more, "{} is preempted more than {} times", client.request.id, times_max)

    def ended(self, node, client):
        require(client.ended != "failed" or not client.request.is_resumable, "{} fails", client.request.id)


class Pauses(Judge):
    """Dispatch goes on within `pause_s` of what happens at `since`, while requests wait all the time and all others
    are well.
    """

    def __init__(self, since, pause_s):
        self.since, self.pause_s = since, pause_s
        self.dispatched_at = []

    def carried_out(self, node, client, action):
        if isinstance(action, Dispatch):
            self.dispatched_at.append(self.world.now)

    @property
    def longest_s(self):
        times = [self.since, *(at for at in self.dispatched_at if self.since < at < self.world.settings.duration_s)]
        return max(after - before for before, after in pairwise(times))

    def conclude(self):
        require(self.longest_s <= self.pause_s, "no dispatch for {:.2f} s, {} s may be", self.longest_s, self.pause_s)


class Together(Judge):
    """From `since` on there is one order: no member is alone, and no other one leads."""

    def __init__(self, since):
        self.since, self.leaders = since, set()

    def carried_out(self, node, client, action):
        if self.world.now >= self.since:
            require(not node.member.lead.is_standalone, "{} is alone at {:.2f}", node.name, self.world.now)
            self.leaders.add(node.member.follower.link.epoch)

    def conclude(self):
        require(len(self.leaders) == 1, "epochs {} led", self.leaders)


def all_judges():
    conservation, books = Conservation(), Books()
    fairness = Fairness(books, conservation)
    kept = OneEnd(), OneLeader(), Deadlines(), BackendLimits(), RateWindow(), Interruptions()
    return [*kept, conservation, books, fairness]
