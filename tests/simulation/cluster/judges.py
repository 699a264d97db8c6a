"""Judges of a simulated cluster: each holds one rule, at every step. A broken one raises ViolationError."""

from collections import defaultdict
from math import inf

from backends.simulation.bound_checkers import ServiceBound
from backends.simulation.recording import (
    Adopted,
    Cancelled,
    Entry,
    Finished,
    Interrupted,
    Polled,
    Progressed,
    Readmitted,
    Restored,
    Submitted,
    TakenOver,
)
from backends.simulation.run_accounts import RunAccounts, require
from gateway.cluster.follower import PROGRESS_S
from gateway.cluster.promise import SILENCE_S_MAX
from policies.fairness.bounds import BOUNDS
from policies.types import Dispatch, Preempt, Reason, Reject
from tests.simulation.cluster import world as worlds


class Judge:
    """What a judge may be told; the defaults ignore it."""

    def watch(self, world):
        self.world = world

    def leads(self, leadership, scheduler):
        """A Scheduler was made, of this leadership."""

    def told(self, leadership, entry: Entry):
        """That Scheduler was told this, or decided it."""

    def kept(self, leadership):
        """A leader takes a checkpoint of this Scheduler."""

    def carried_out(self, node, client, action):
        """A node carries out an action."""

    def sent(self, node, client, backend):
        """A request has reached a backend."""

    def ended(self, node, client):
        """A request has ended."""

    def conclude(self):
        """All faults are over, and everything has had time to end."""


class OneEnd(Judge):
    """A request is dispatched to at most one backend at a time, and ends exactly once."""

    def __init__(self):
        self.ends = defaultdict(int)

    def carried_out(self, node, client, action):
        require(not client.ended, f"{client.request.id} has ended, and {action} comes")
        if isinstance(action, Dispatch):
            require(client.run is None, f"{client.request.id} runs, and is dispatched")

    def ended(self, node, client):
        self.ends[client.request.id] += 1
        require(self.ends[client.request.id] == 1, f"{client.request.id} ends once")

    def conclude(self):
        for client in self.world.clients:
            if self.world.nodes[client.node].is_alive:
                require(client.ended, f"{client.request.id} at {client.node} ends")


class OneLeader(Judge):
    """No two leaders' actions take effect at one instant, and epochs only grow. A member that leads itself alone is
    excepted: it keeps within its part of every limit.
    """

    def __init__(self):
        self.epoch = 0

    def carried_out(self, node, client, action):
        follower = node.member.follower
        if isinstance(action, Dispatch) and not node.member.is_standalone and follower.link.leader is not None:
            epoch = follower.link.epoch
            require(epoch >= self.epoch, f"{node.name} follows epoch {epoch} after {self.epoch}")
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
            require(late <= self.SLACK_S, f"{client.request.id} has waited {late:.2f} s beyond its deadline")


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
    """Under any leader a backend runs no more than its limit. A member that leads itself alone may add what it had
    before to its part (rule 25): runs with one are judged from ALONE_S after it.
    """

    ALONE_S = 10.0

    def __init__(self):
        self.alone_at = -inf

    def sent(self, node, client, backend):
        if any(each.is_alive and each.member.is_standalone for each in self.world.nodes.values()):
            self.alone_at = self.world.now
        if self.world.now - self.alone_at > self.ALONE_S:
            running, leader = len(backend.running), node.member.follower.link.leader
            ours = sum(self.world.nodes[name].member.follower.link.leader == leader for name, _ in backend.running)
            # A backend that runs nothing of a Scheduler's takes one request, whatever the external load.
            what = f"{backend.backend_id} runs {running} of {backend.slots}, at {self.world.now:.3f}"
            require(running <= backend.slots or ours <= 1, what)


class Books(Judge):
    """What each request is charged, over all leaderships and lone times: exactly what it used.

    A leadership goes on from the books of the checkpoint that it restores, and takes in what its members tell. In the
    end the books of the last one have all requests of living members, neither less nor more. Of a dead member they have
    at least what it had used FORGOTTEN_S before the last checkpoint that it had a part in.
    """

    FORGOTTEN_S = SILENCE_S_MAX + PROGRESS_S + 0.5
    """It may have been silent, usages are told each second, and messages are under way."""

    def __init__(self):
        self.books = defaultdict(lambda: defaultdict(float))  # by leadership and wire id
        self.current = {}  # by leadership and wire id: the price so far of a request that lives there
        self.interrupted = set()  # likewise
        self.pages = defaultdict(
            list
        )  # by the order of a checkpoint: its counters and these books, `seen` and `missed`
        self.seen = defaultdict(dict)  # by leadership and member: when a checkpoint had it last
        self.missed = defaultdict(dict)  # by leadership and wire id: what it may lack
        self.leadership = {}  # by node, the newest
        self.schedulers = {}
        self.prompts = {}

    def leads(self, leadership, scheduler):
        self.leadership[leadership.split("@")[0]] = leadership
        self.schedulers[leadership] = scheduler

    def kept(self, leadership):
        leader = self.world.nodes[leadership.split("@")[0]].member.leader
        self.seen[leadership].update(dict.fromkeys(leader.joined(), self.world.now))
        counters = self.schedulers[leadership].checkpoint()
        page = counters, dict(self.books[leadership]), dict(self.seen[leadership]), dict(self.missed[leadership])
        self.pages[leader.epoch, leader._checkpoints].append(page)

    def _restored(self, leadership, counters):
        order = self.world.nodes[leadership.split("@")[0]].member.checkpoint.order
        # A store that has forgotten all may give an epoch twice.
        page = next(page for page in reversed(self.pages[order]) if page[0] == counters)
        self.books[leadership] = defaultdict(float, page[1])
        self.seen[leadership], self.missed[leadership] = dict(page[2]), dict(page[3])
        now = self.schedulers[leadership].checkpoint()
        require(now == counters, f"{leadership} has {now} and was to go on from {counters}")

    def _begins(self, leadership):
        """What a member that is not there has a newer checkpoint of, no one tells again."""
        own = self.world.nodes[leadership.split("@")[0]].member
        for node in self.world.nodes.values():
            newest = node.member.checkpoint
            if newest.order > own.checkpoint.order and node.name not in own.leader.joined():
                counters = newest.read().pools[worlds.POOL].service
                page = next(page for page in reversed(self.pages[newest.order]) if page[0] == counters)
                for wire_id, service in page[1].items():
                    missed = max(service, self.missed[leadership].get(wire_id, 0.0))
                    self.missed[leadership][wire_id] = missed

    def told(self, leadership, entry):
        match entry:
            case Restored():
                self._restored(leadership, entry.checkpoint)
            case TakenOver():
                self._begins(leadership)
            case Submitted() | Readmitted() | Adopted():
                self._met(leadership, entry)
            case Progressed():
                self._price(leadership, entry.request_id, worlds.PRICE.service(*entry.usage))
            case Interrupted():
                self._price(leadership, entry.request_id, worlds.PRICE.service(*entry.usage))
                self.interrupted.add((leadership, entry.request_id))
            case Cancelled():
                self._left(leadership, entry.request_id)
            case Finished():
                self.current.pop((leadership, entry.request_id), None)
            case Polled():
                for action in entry.actions:
                    key = leadership, action.request_id
                    if isinstance(action, Reject):
                        self._left(leadership, action.request_id)
                    elif isinstance(action, Dispatch) and key not in self.interrupted:
                        prompt_tokens = self.prompts[action.request_id]
                        self._price(leadership, action.request_id, worlds.PRICE.service(prompt_tokens, 0, 0))

    def _met(self, leadership, entry):
        request, key = entry.request, (leadership, entry.request.id)
        self.prompts[request.id] = request.prompt_tokens
        charged = getattr(entry, "prepaid", getattr(entry, "usage", None))
        if not isinstance(entry, Submitted) and charged is not None and key not in self.current:
            has = self.books[leadership][request.id]
            what = f"{request.id} is taken to be charged for {charged}, and is charged {has}"
            require(abs(has - worlds.PRICE.service(*charged)) < 1e-6, what)
        self.current.setdefault(key, self.books[leadership][request.id])
        if isinstance(entry, Readmitted) and entry.usage is not None:
            self.interrupted.add(key)
            self._price(leadership, request.id, worlds.PRICE.service(*entry.usage))
        if request.produced_tokens:
            self.interrupted.add(key)

    def _left(self, leadership, request_id):
        """It was never begun, or its client keeps what it was delivered."""
        if (leadership, request_id) not in self.interrupted:
            self._price(leadership, request_id, 0.0)
        self.current.pop((leadership, request_id), None)

    def _price(self, leadership, request_id, service):
        before = self.current.get((leadership, request_id))
        if before is not None:
            self.books[leadership][request_id] += service - before
            self.current[leadership, request_id] = service

    def conclude(self):
        last = self.world.leading
        if last is None:
            return  # all were told to stop: no books are kept, and each has its ends for a next leader
        leadership = self.leadership[last.name]
        for client in self.world.clients:
            node = self.world.nodes[client.node]
            charged, used = self.books[leadership][client.wire_id], client.used_at(inf)
            missed = self.missed[leadership].get(client.wire_id, 0.0)
            what = f"{client.wire_id} ({client.ended}) used {used} and is charged {charged}"
            if not node.is_alive:
                known = client.used_at(self.seen[leadership].get(node.name, -inf) - self.FORGOTTEN_S) - missed
                prompt = 0.0 if used else client.request.prompt_tokens  # its Dispatch may have been under way
                require(known - 1e-6 <= charged <= used + prompt + 1e-6, f"{what}; {known} must be known of it")
            elif self.world.has_told_all(node):
                require(used - missed - 1e-6 <= charged <= used + 1e-6, f"{what}; {missed} may lack")


class RateWindow(Judge):
    """A tenant's limit of requests per minute holds over all members, and over changes of leaders but for the second
    that a checkpoint may miss.
    """

    def __init__(self):
        self.admitted = defaultdict(list)
        self.elections = 0

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
            leaders = sum(node.member.elections for node in self.world.nodes.values())
            missed = max(0, leaders - 1) * self.world.settings.rate_per_s
            require(
                len(times) <= limit + missed or self.was_alone(), f"{tenant_id}: {len(times)} admitted, {limit} may be"
            )

    def was_alone(self):
        limits = next(judge for judge in self.world.judges if isinstance(judge, BackendLimits))
        return limits.alone_at > -inf


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
            require(is_one_more, f"{client.request.id} is preempted more than {times_max} times")

    def ended(self, node, client):
        require(client.ended != "failed" or not client.request.is_resumable, f"{client.request.id} fails")


def all_judges():
    return [
        OneEnd(), OneLeader(), Deadlines(), Conservation(), BackendLimits(), RateWindow(), Books(), Interruptions()
    ]  # fmt: skip
