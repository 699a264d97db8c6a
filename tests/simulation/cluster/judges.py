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
    Submitted,
)
from backends.simulation.run_accounts import RunAccounts, require
from policies.fairness.bounds import BOUNDS
from policies.types import Dispatch, Preempt, Reason
from tests.simulation.cluster import world as worlds


class Judge:
    """What a judge may be told; the defaults ignore it."""

    def watch(self, world):
        self.world = world

    def leads(self, leadership, scheduler):
        """A Scheduler was made, of this leadership."""

    def told(self, leadership, entry: Entry):
        """That Scheduler was told this, or decided it."""

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


class Charges(Judge):
    """Over all leaderships, no request is charged for more than it used, and one that never left its leader is charged
    for all of it. What a leader charged for a Dispatch that its death lost, at most a prompt each time, may be charged
    again by the next one.
    """

    FORGOTTEN_S = 1.5  # silence of 1 s is noticed within the next ping

    def __init__(self):
        self.charged = defaultdict(float)  # by wire id
        self.current = {}  # by leadership and wire id: the price so far, as that Scheduler has it
        self.interrupted = set()  # likewise
        self.prompts = {}
        self.leaderships = defaultdict(set)

    def told(self, leadership, entry):
        match entry:
            case Submitted() | Readmitted() | Adopted():
                self._met(leadership, entry)
            case Progressed():
                self._price(leadership, entry.request_id, worlds.PRICE.service(*entry.usage))
            case Interrupted():
                self._price(leadership, entry.request_id, worlds.PRICE.service(*entry.usage))
                self.interrupted.add((leadership, entry.request_id))
            case Cancelled():
                if (leadership, entry.request_id) not in self.interrupted:
                    self._price(leadership, entry.request_id, 0.0)
                self.current.pop((leadership, entry.request_id), None)
            case Finished():
                self.current.pop((leadership, entry.request_id), None)
            case Polled():
                for action in entry.actions:
                    key = leadership, action.request_id
                    if isinstance(action, Dispatch) and key not in self.interrupted:
                        service = worlds.PRICE.service(self.prompts[action.request_id], 0, 0)
                        self._price(leadership, action.request_id, service)

    def _met(self, leadership, entry):
        request, key = entry.request, (leadership, entry.request.id)
        self.prompts[request.id] = request.prompt_tokens
        self.leaderships[request.id].add(leadership)
        if isinstance(entry, Adopted):
            self.current[key] = worlds.PRICE.service(*entry.usage)
        elif isinstance(entry, Readmitted) and entry.prepaid is not None:
            self.current.setdefault(key, worlds.PRICE.service(*entry.prepaid))
        else:
            self.current.setdefault(key, 0.0)
        if isinstance(entry, Readmitted) and entry.usage is not None:
            self.interrupted.add(key)
            self._price(leadership, request.id, worlds.PRICE.service(*entry.usage))
        if request.produced_tokens:
            self.interrupted.add(key)

    def _price(self, leadership, request_id, service):
        before = self.current.get((leadership, request_id))
        if before is not None:
            self.charged[request_id] += service - before
            self.current[leadership, request_id] = service

    def conclude(self):
        for client in self.world.clients:
            own = self.world.nodes[client.node].member.follower.requests()
            if client.ended != "completed" or int(client.wire_id.split(".")[1]) in own:
                continue  # in the end there may be no leader to tell: all were stopped
            charged, moves = self.charged[client.wire_id], len(self.leaderships[client.wire_id]) - 1
            prompt = client.request.prompt_tokens
            used = worlds.PRICE.service(prompt, 0, client.output_tokens)
            what = f"{client.wire_id} used {used} and is charged {charged}, by {moves + 1} leaders"
            require(charged <= used + moves * prompt + 1e-6, what)
            # What was told in the last second before the leader went may have reached no member.
            lost_at = self.world.nodes[client.node].lost_at
            is_forgotten = any(-0.2 <= at - client.ended_at <= self.FORGOTTEN_S for at in lost_at)
            require(moves or charged >= used - 1e-6 or is_forgotten, what)


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
        OneEnd(), OneLeader(), Deadlines(), Conservation(), BackendLimits(), RateWindow(), Charges(), Interruptions()
    ]  # fmt: skip
