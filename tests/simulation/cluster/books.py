"""Judges over all leaderships and lone times: what each request is charged, and how far two tenants may be apart."""

from collections import defaultdict
from itertools import combinations
from math import inf

from gateway.cluster.follower.usage_telling import PROGRESS_S
from gateway.cluster.promise import SILENCE_S_MAX
from policies.facts import (
    Adopted,
    Cancelled,
    Finished,
    Interrupted,
    Progressed,
    Readmitted,
    Restored,
    Submitted,
    TakenOver,
)
from policies.fairness.bounds import BOUNDS
from policies.types import Dispatch, Reject
from tests.simulation.cluster import world as worlds
from tests.simulation.cluster.judge import Judge
from tests.simulation.recording import Polled
from tests.simulation.run_accounts import require


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
        self.prompts, self.tenants = {}, {}  # by wire id
        self.listeners = []

    def leads(self, leadership, scheduler):
        self.leadership[leadership.split("@")[0]] = leadership
        self.schedulers[leadership] = scheduler

    def kept(self, leadership):
        leader = self.world.nodes[leadership.split("@")[0]].member.lead.leader
        self.seen[leadership].update(dict.fromkeys(worlds.joined(leader), self.world.now))
        counters = self.schedulers[leadership].checkpoint()
        page = counters, dict(self.books[leadership]), dict(self.seen[leadership]), dict(self.missed[leadership])
        self.pages[leader._stream._mark[:2]].append(page)

    def _restored(self, leadership, counters):
        order = self.world.nodes[leadership.split("@")[0]].member.checkpoint.mark[:2]
        # A store that has forgotten all may give an epoch twice.
        page = next(page for page in reversed(self.pages[order]) if page[0] == counters)
        self.books[leadership] = defaultdict(float, page[1])
        self.seen[leadership], self.missed[leadership] = dict(page[2]), dict(page[3])
        now = self.schedulers[leadership].checkpoint()
        require(now == counters, "{} has {} and was to go on from {}", leadership, now, counters)

    def _begins(self, leadership):
        """What a member that is not there has a newer checkpoint of, no one tells again."""
        own = self.world.nodes[leadership.split("@")[0]].member
        for node in self.world.nodes.values():
            newest = node.member.checkpoint
            if newest.mark[:2] > own.checkpoint.mark[:2] and node.name not in worlds.joined(own.lead.leader):
                counters = newest.read().pools[worlds.POOL].service
                page = next(page for page in reversed(self.pages[newest.mark[:2]]) if page[0] == counters)
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
            case Progressed() | Interrupted():
                self._price(leadership, entry.request_id, worlds.PRICE.service(*entry.usage), entry.now)
                if isinstance(entry, Interrupted):
                    self.interrupted.add((leadership, entry.request_id))
            case Cancelled():
                self._left(leadership, entry.request_id, entry.now)
            case Finished():
                self.current.pop((leadership, entry.request_id), None)
            case Polled():
                for action in entry.actions:
                    key = leadership, action.request_id
                    if isinstance(action, Reject):
                        self._left(leadership, action.request_id, entry.now)
                    elif isinstance(action, Dispatch) and key not in self.interrupted:
                        prompt_tokens = self.prompts[action.request_id]
                        self._price(leadership, action.request_id, worlds.PRICE.service(prompt_tokens, 0, 0), entry.now)

    def _met(self, leadership, entry):
        request, key = entry.request, (leadership, entry.request.id)
        self.prompts[request.id], self.tenants[request.id] = request.prompt_tokens, request.tenant_id
        charged = getattr(entry, "prepaid", getattr(entry, "usage", None))
        if not isinstance(entry, Submitted) and charged is not None and key not in self.current:
            has = self.books[leadership][request.id]
            what = "{} is taken to be charged for {}, and is charged {}"
            require(abs(has - worlds.PRICE.service(*charged)) < 1e-6, what, request.id, charged, has)
        self.current.setdefault(key, self.books[leadership][request.id])
        if isinstance(entry, Readmitted) and entry.usage is not None:
            self.interrupted.add(key)
            self._price(leadership, request.id, worlds.PRICE.service(*entry.usage), entry.now)
        if request.produced_tokens:
            self.interrupted.add(key)

    def _left(self, leadership, request_id, now):
        """It was never begun, or its client keeps what it was delivered."""
        if (leadership, request_id) not in self.interrupted:
            self._price(leadership, request_id, 0.0, now)
        self.current.pop((leadership, request_id), None)

    def _price(self, leadership, request_id, service, now):
        before = self.current.get((leadership, request_id))
        if before is not None:
            self.books[leadership][request_id] += service - before
            self.current[leadership, request_id] = service
            for each in self.listeners:
                each.charged(leadership, request_id, service - before, now)

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
                require(known - 1e-6 <= charged <= used + prompt + 1e-6, "{}; {} must be known of it", what, known)
            elif self.world.has_told_all(node):
                require(used - missed - 1e-6 <= charged <= used + 1e-6, "{}; {} may lack", what, missed)


class Fairness(Judge):
    """VTC's bound over all leaderships: two tenants that both wait, from one leadership into the next, differ in the
    books by no more than under one leader, plus what is taken in at once: what ended, or ran on, where the leader did
    not see it. So lone times are made good afterwards. What the books lack is judged by Books.
    """

    EVERY_S = 0.2

    def __init__(self, books, conservation):
        self.books, self.conservation = books, conservation
        books.listeners.append(self)
        self.spans = {}  # by pair: the lowest and highest lead, and what had been taken in at once when it began
        self.at_once = defaultdict(float)  # by tenant, over its weight
        self.met = {}  # by leadership and wire id: when it was told there
        self.judged_at = -inf
        self.is_judged = False
        self.used_ratio_max = 0.0

    def watch(self, world):
        super().watch(world)
        self.is_judged = (world.settings.fairness, world.settings.placement) == ("vtc", "least-reserved")

    def ended(self, node, client):
        self._moved(client)

    def sent(self, node, client, backend):
        self._moved(client)

    def _moved(self, client):
        """Where none of its requests waits, a tenant's spans end."""
        tenant_id = client.request.tenant_id
        if not any(
            each.request.tenant_id == tenant_id and each.run is None and not each.ended for each in self.world.clients
        ):
            self.spans = {pair: span for pair, span in self.spans.items() if tenant_id not in pair}

    def charged(self, leadership, request_id, service, now):
        """The books of this leadership have more of a request."""
        if self.met.get((leadership, request_id)) == now:
            tenant = self.world.tenants[self.books.tenants[request_id]]
            self.at_once[tenant.id] += abs(service) / tenant.weight

    def told(self, leadership, entry):
        if isinstance(entry, Adopted | Readmitted):
            self.met[leadership, entry.request.id] = entry.now
        if not isinstance(entry, Polled) or not self.is_judged or self.world.now - self.judged_at < self.EVERY_S:
            return
        member = self.world.nodes[leadership.split("@")[0]].member
        if member.lead.is_standalone or member.lead.leader is None or member.lead.leader.is_over:
            return
        self.judged_at = self.world.now
        accounts = self.conservation.accounts[leadership].tenants
        waiting = sorted(name for name, each in accounts.items() if each.queued)
        self.spans = {pair: span for pair, span in self.spans.items() if set(pair) <= set(waiting)}
        leads = self._leads(leadership)
        exposed = max(
            (
                each.open + each.held
                for bound in self.conservation.bounds.values()
                for each in bound.exposure.tenants.values()
            ),
            default=0.0,
        )
        for pair in combinations(waiting, 2):
            lead, at_once = leads[pair[0]] - leads[pair[1]], sum(self.at_once[name] for name in pair)
            low, high, before = self.spans.get(pair, (lead, lead, at_once))
            low, high = min(low, lead), max(high, lead)
            self.spans[pair] = low, high, before
            promised = BOUNDS["vtc"].both_wait * exposed + at_once - before
            self.used_ratio_max = max(self.used_ratio_max, (high - low) / promised if promised else 0.0)
            what = "{}, which both wait, differ by {:.1f}, promised is {:.1f}"
            require(high - low <= promised + 1e-6, what, pair, high - low, promised)

    def _leads(self, leadership):
        received = defaultdict(float)
        for request_id, service in self.books.books[leadership].items():
            tenant = self.world.tenants[self.books.tenants[request_id]]
            received[tenant.id] += service / tenant.weight
        return received
