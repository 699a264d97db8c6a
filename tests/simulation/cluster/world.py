"""ClusterWorld: members on nodes, joined by a network that delays, cuts and loses, served by backends, judged.

Everything random comes from one seed, so a seed is a run. A node drives its Member as a process would: it takes in what
has come, ticks, sends, carries out. A frozen node does nothing until it wakes, and then finds all that came meanwhile.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import inf
from random import Random

from gateway.cluster.election import Candidate
from gateway.cluster.election_store import StoreCall
from gateway.cluster.follower.remote_scheduler import RemoteScheduler
from gateway.cluster.leader.leader import Leader
from gateway.cluster.member import Member
from gateway.cluster.wire import Frame, decode, encode, wire_id
from gateway.cluster.wishes import AskBackends, CloseMember, StoreCheckpoint
from policies.accounts.checkpoint import ServiceCheckpoint
from policies.accounts.cost import LinearPrice
from policies.facts import Cancelled, Interrupted, Kept, LoadChanged, Returned
from policies.fairness import FAIRNESS
from policies.placement import PLACEMENT
from policies.pool.preemption import NO_INTERRUPTIONS, InterruptRules
from policies.scheduler import Scheduler
from policies.types import NO_USAGE, Cause, Dispatch, Outcome, Preempt, Reject, Request, Tenant, Usage
from tests.simulation.cluster.parts import Backend, Run, SkewedClock, Store
from tests.simulation.recording import Entry, Recorder

POOL = "pool"
WAIT_S_MAX = 5.0
MEASURE_S = 0.5
PRICE = LinearPrice(prompt=1.0, cached_prompt=1.0, output=2.0)


@dataclass(frozen=True)
class Settings:
    """One run. All times in seconds."""

    members: int = 3
    backends: int = 2
    slots: int = 4
    tenants: tuple[Tenant, ...] = (Tenant("a"), Tenant("b", weight=2.0), Tenant("c"))
    duration_s: float = 12.0
    rate_per_s: float = 12.0  # of arrivals, over all members
    prompt_tokens: tuple[int, int] = (10, 60)
    output_tokens: tuple[int, int] = (5, 60)
    delay_s: tuple[float, float] = (0.0002, 0.01)
    has_store: bool = True
    preempt_service: float | None = None
    spread: Callable[[Random, list[str], str], str] | None = None
    """The node that a tenant's request enters at; None: any."""
    patience_s: float | None = None
    clock_rates: tuple[float, ...] = ()
    """Of the first members' clocks; of all others up to 1 % fast or slow."""
    fairness: str = "vtc"
    placement: str = "least-reserved"
    resumable_ratio: float = 0.0  # of the requests
    interrupt_rules: InterruptRules = NO_INTERRUPTIONS
    demand: tuple[float, ...] | None = None
    """How often each tenant asks, relative to the others; None: equally."""


@dataclass(eq=False)
class Client:
    """A request from its arrival to its end."""

    node: str
    request: Request
    output_tokens: int
    arrived_at: float
    waits_since: float = 0.0  # its arrival, or when it was taken back
    run: Run | None = None
    backend_id: str | None = None
    produced: int = 0  # when it was interrupted last
    preemptions: int = 0
    ended: str = ""
    ended_at: float = inf
    wire_id: str = ""
    before: list[tuple[float, Usage]] = field(default_factory=list)
    """When its runs until now were over, and what it had used then."""

    def used_at(self, at: float) -> float:
        """The price of what it had used by then."""
        at = min(at, self.ended_at)
        usage = next((usage for since, usage in reversed(self.before) if since <= at), NO_USAGE)
        if self.run is not None and self.run.began_at <= at:
            usage = self.run.usage(at) or Usage(self.request.prompt_tokens, 0, self.run.produced)
        return PRICE.service(*usage)


@dataclass(eq=False)
class Link:
    """A connection from a follower to a leader; what is sent arrives in order."""

    follower: str
    leader: str
    is_open: bool = True
    arrives_at: dict[str, float] = field(default_factory=dict)  # by receiver
    stuck: list[tuple[str, bytes]] = field(default_factory=list)


@dataclass(eq=False)
class Node:
    """A process."""

    name: str
    clock: SkewedClock
    member: Member
    remote: RemoteScheduler
    is_alive: bool = True
    frozen_until: float = -inf
    link: Link | None = None
    accepted: dict[str, Link] = field(default_factory=dict)
    backlog: list[Callable[[], None]] = field(default_factory=list)
    wakes_at: float = inf
    measures_at: float = -inf
    unreachable: set[str] = field(default_factory=set)
    was_joined: bool = False
    lost_at: list[float] = field(default_factory=list)  # when its leader went
    clients: dict[str, Client] = field(default_factory=dict)


class _Recorder(Recorder):
    """Tells besides that a checkpoint is taken: its tenants were asked for before, and now none is."""

    def __init__(self, scheduler: Scheduler, listen: Callable[[Entry], None], kept: Callable[[], None]) -> None:
        super().__init__(scheduler, listen)
        self._kept = kept

    def checkpoint(self, tenant_ids: Collection[str] | None = None) -> ServiceCheckpoint:
        if tenant_ids == ():
            self._kept()
        return self._scheduler.checkpoint(tenant_ids)


def joined(leader: Leader) -> set[str]:
    """The members that share the order of this leader now."""
    return {name for name, there in leader.members if there.is_joined}


class ClusterWorld:
    """Runs one cluster. `judges` see what happens; the first broken rule raises."""

    def __init__(self, settings: Settings, seed: int, judges: list, member_of: type[Member] = Member) -> None:
        self.settings = settings
        self.rng = Random(seed)
        self.arrivals = Random(seed + 1)  # the same requests, whatever else happens
        self.judges = judges
        self.member_of = member_of
        self.now = 0.0
        self.store = Store()
        self.backends = {f"gpu{n}": Backend(f"gpu{n}", settings.slots) for n in range(settings.backends)}
        self.nodes: dict[str, Node] = {}
        self.clients: list[Client] = []
        self.cut: set[frozenset[str]] = set()
        self.without_store: set[str] = set()
        self.has_drained = False
        self.tenants = {tenant.id: tenant for tenant in settings.tenants}
        self._numbers = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        for judge in judges:
            judge.watch(self)
        for _ in range(settings.members):
            self.start_node()
        if not settings.has_store:
            leader = next(iter(self.nodes))
            for node in self.nodes.values():
                node.member.appoint(leader, 1, node.clock.of(0.0), expected=tuple(self.nodes))
        for node in self.nodes.values():
            self.at(0.0, partial(self.pump, node))
        self.at(self.arrivals.expovariate(settings.rate_per_s), self._arrive)

    # -- time --------------------------------------------------------------------------------------------------

    def at(self, at: float, do: Callable[[], None]) -> None:
        heappush(self._events, (max(at, self.now), next(self._numbers), do))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, do = heappop(self._events)
            do()
        self.now = until

    @property
    def is_done(self) -> bool:
        """Whether every request has ended, and that was told."""
        alive = [node for node in self.nodes.values() if node.is_alive]
        ended = all(client.ended or not self.nodes[client.node].is_alive for client in self.clients)
        has_ended = ended and not any(len(node.member.follower.requests) for node in alive)
        return has_ended and (self.leading is None or all(self.has_told_all(node) for node in alive))

    @property
    def leading(self) -> "Node | None":
        """The node that leads, the newest if one does not know yet that it leads no more."""
        nodes = [node for node in self.nodes.values() if node.is_alive and node.member.lead.is_for_all]
        return max(nodes, key=lambda node: node.member.lead.leader.epoch, default=None)

    def has_told_all(self, node: "Node") -> bool:
        """Whether the leader has taken in all that the node's clients have ended."""
        follower, leading = node.member.follower, self.leading
        if (
            leading is None
            or follower.link.leader != leading.name
            or node.name not in joined(leading.member.lead.leader)
        ):
            return False
        return leading.member.lead.leader.members.senders[node.name].entry >= follower.reports.log.number

    # -- nodes -------------------------------------------------------------------------------------------------

    def start_node(self) -> Node:
        name = f"m{len(self.nodes)}"
        rate = dict(enumerate(self.settings.clock_rates)).get(len(self.nodes), self.rng.uniform(0.99, 1.01))
        clock = SkewedClock(self.rng.uniform(0.0, 1000.0), rate)
        local = clock.of(self.now)
        member = self.member_of(
            name,
            make_scheduler=partial(self._make_scheduler, name),
            tenant_of=self.tenants.get,
            wait_s_max=WAIT_S_MAX,
            now=local,
        )
        if self.settings.has_store:
            member.stand(Candidate(name, name, now=local))
        node = self.nodes[name] = Node(name, clock, member, RemoteScheduler(POOL, member, lambda *_: None))
        return node

    def _make_scheduler(self, name: str, pool: str) -> Recorder:
        def listen(entry: Entry) -> None:
            for judge in self.judges:
                judge.told(leadership, entry)

        scheduler = Scheduler(
            price=PRICE,
            fairness=FAIRNESS[self.settings.fairness],
            placement=PLACEMENT[self.settings.placement](),
            wait_s_max=WAIT_S_MAX,
            preempt_service=self.settings.preempt_service,
            interrupt_rules=self.settings.interrupt_rules,
            share_ratio_max=1.0,
        )
        leadership = f"{name}@{next(self._numbers)}"
        for judge in self.judges:
            judge.leads(leadership, scheduler)

        def kept() -> None:
            for judge in self.judges:
                judge.kept(leadership)

        return _Recorder(scheduler, listen, kept)

    def kill(self, node: Node) -> None:
        node.is_alive = False
        for link in self._links(node):
            self._close(link, node.name)
        for client in list(node.clients.values()):
            self._end(node, client, "died")
        for backend in self.backends.values():
            for key in [key for key in backend.running if key[0] == node.name]:
                self.at(self.now + self.rng.uniform(0.0, 0.2), partial(self._abort, backend, key))

    def freeze(self, node: Node, seconds: float) -> None:
        node.frozen_until = max(node.frozen_until, self.now + seconds)
        self.at(node.frozen_until, partial(self._wake, node))

    def stop(self, node: Node) -> None:
        """SIGTERM: it leads no more; its clients are served on."""
        self._when_awake(node, lambda: node.member.resign(node.clock.of(self.now)))

    def _wake(self, node: Node) -> None:
        if node.is_alive and self.now >= node.frozen_until:
            backlog, node.backlog = node.backlog, []
            for do in backlog:
                do()
            self.pump(node)

    def _when_awake(self, node: Node, do: Callable[[], None]) -> None:
        if not node.is_alive:
            return
        if self.now < node.frozen_until:
            node.backlog.append(do)
            return
        do()
        self.pump(node)

    def is_awake(self, node: Node) -> bool:
        return node.is_alive and self.now >= node.frozen_until

    def pump(self, node: Node) -> None:
        """What a process does in one tick of its loop."""
        if not self.is_awake(node):
            return
        local, member = node.clock.of(self.now), node.member
        if member.lead.leader is not None and self.now >= node.measures_at:
            self._measure(node)
        for _ in range(8):
            if node.member.follower.usage.is_due(local):
                for client in node.clients.values():
                    if client.run is not None and (usage := client.run.usage(self.now)) is not None:
                        node.remote.tokens(client.request.id, usage, local)
            member.tick(local)
            actions = node.remote.poll(local)
            for action in actions:
                self._carry_out(node, action)
            for call in () if member.campaign is None else member.campaign.calls():
                self._call_store(node, call)
            for to, frame in member.frames(local):
                self._send(node, to, frame)
            self._grant(node)
            if node.was_joined and member.follower.link.leader is None:
                node.lost_at.append(self.now)
            node.was_joined = member.follower.link.leader is not None
            if not actions:
                break
        self._connect(node)
        self._sleep(node)

    def _sleep(self, node: Node) -> None:
        local = node.clock.of(self.now)
        at = min(node.clock.when(max(node.member.wakeup(local), local)), self.now + 1.0)
        if node.member.lead.leader is not None:
            at = min(at, node.measures_at)
        at = max(at, self.now + 0.001)
        if at < node.wakes_at - 1e-9 or node.wakes_at <= self.now:
            node.wakes_at = at
            self.at(at, partial(self._tick, node, at))

    def _tick(self, node: Node, at: float) -> None:
        if node.wakes_at == at:
            node.wakes_at = -inf
            self._when_awake(node, lambda: None)

    def _grant(self, node: Node) -> None:
        for wish in node.member.lead.wishes():
            match wish:
                case AskBackends():
                    self.at(
                        self.now + self.rng.uniform(0.001, 0.01),
                        partial(self._when_awake, node, partial(self._measure, node)),
                    )
                case CloseMember():
                    if (link := node.accepted.get(wish.member)) is not None:
                        self._close(link, node.name)
                case StoreCheckpoint():
                    if not self.store.is_away and node.name not in self.without_store:
                        self.store.checkpoint = wish.body

    def _measure(self, node: Node) -> None:
        node.measures_at = self.now + MEASURE_S
        local = node.clock.of(self.now)
        loads = tuple(each.load(self.now, local) for each in self.backends.values())
        node.member.lead.told(POOL, LoadChanged(local, loads))

    # -- the store ---------------------------------------------------------------------------------------------

    def _call_store(self, node: Node, call: StoreCall) -> None:
        self.at(self.now + self._delay(), partial(self._reach_store, node, call))

    def _reach_store(self, node: Node, call: StoreCall) -> None:
        if self.store.is_away or node.name in self.without_store:
            return  # no answer
        view, body = self.store.answer(call, self.now), self.store.checkpoint

        def answered() -> None:
            node.member.checkpoint.told(body)
            node.member.campaign.answered(call, view, node.clock.of(self.now))

        self.at(self.now + self._delay(), partial(self._when_awake, node, answered))

    # -- the network -------------------------------------------------------------------------------------------

    def _delay(self) -> float:
        return self.rng.uniform(*self.settings.delay_s)

    def _is_cut(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self.cut

    def heal(self, pair: frozenset[str]) -> None:
        self.cut.discard(pair)
        for node in self.nodes.values():
            link = node.link
            if link is not None and link.is_open and {link.follower, link.leader} == pair:
                stuck, link.stuck = link.stuck, []
                for to, body in stuck:
                    self._deliver(link, to, body)

    def break_link(self, node: Node) -> None:
        if node.link is not None:
            self._close(node.link, node.name)

    def _connect(self, node: Node) -> None:
        local = node.clock.of(self.now)
        reason = node.member.follower.link.closes(local)
        if node.link is not None and (reason or node.member.target() != node.link.leader):
            self._close(node.link, node.name)
        target = node.member.target()
        if target is None or node.link is not None or target not in self.nodes:
            return
        node.link = link = Link(node.name, target, is_open=False)
        self.at(self.now + 2 * self._delay(), partial(self._shake_hands, node, link))

    def _see_end(self, node: Node, name: str) -> None:
        if node.member.campaign is not None:
            node.member.campaign.ended(name, node.clock.of(self.now))

    def _shake_hands(self, node: Node, link: Link) -> None:
        other = self.nodes[link.leader]
        if node.link is not link:
            return
        is_cut = self._is_cut(node.name, other.name)
        if not other.is_alive and not is_cut:
            self._when_awake(node, lambda: self._see_end(node, other.name))
        if not self.is_awake(other) or not self.is_awake(node) or is_cut or not self._leads(other):
            again_s = 0.5 if node.member.lead.is_standalone else 0.1
            self.at(self.now + again_s, partial(self._no_link, node, link))
            return
        link.is_open = True
        other.accepted[node.name] = link
        node.member.connected(link.leader, node.clock.of(self.now))
        self.pump(node)

    def _leads(self, node: Node) -> bool:
        return not self.settings.has_store or node.member.lead.is_for_all

    def _no_link(self, node: Node, link: Link) -> None:
        if node.link is link:
            node.link = None
            self._when_awake(node, lambda: None)

    def _send(self, node: Node, to: str, frame: Frame) -> None:
        link = node.link if node.link is not None and node.link.leader == to else node.accepted.get(to)
        if link is None or not link.is_open:
            return
        for body in encode(frame):
            if self._is_cut(link.follower, link.leader):
                link.stuck.append((to, body))
            else:
                self._deliver(link, to, body)

    def _deliver(self, link: Link, to: str, body: bytes) -> None:
        at = max(link.arrives_at.get(to, 0.0), self.now + self._delay())
        link.arrives_at[to] = at
        self.at(at, partial(self._arrived, link, to, body))

    def _arrived(self, link: Link, to: str, body: bytes) -> None:
        node = self.nodes[to]

        def take() -> None:
            local, frame = node.clock.of(self.now), decode(body)
            if to == link.follower and node.link is link:
                node.member.received(link.leader, frame, local)
            elif to == link.leader and node.accepted.get(link.follower) is link:
                node.member.received_from(link.follower, frame, local)

        if link.is_open or self.now < node.frozen_until:  # what has come to a frozen process is in its buffers
            self._when_awake(node, take)

    def _close(self, link: Link, by: str) -> None:
        if link.is_open or by == link.follower:
            was_open, link.is_open = link.is_open, False
            if was_open:  # what is under way is lost now, however much later a frozen follower finds out
                self.nodes[link.follower].lost_at.append(self.now)
            other = link.leader if by == link.follower else link.follower
            self._closed(link, by)
            if was_open and not self._is_cut(by, other):
                self.at(
                    self.now + self._delay(),
                    partial(self._when_awake, self.nodes[other], partial(self._closed, link, other)),
                )

    def _closed(self, link: Link, at: str) -> None:
        node = self.nodes[at]
        local = node.clock.of(self.now)
        if at == link.follower and node.link is link:
            node.link = None
            node.member.lost(link.leader, local)
            node.lost_at.append(self.now)
            self.at(self.now + 0.05, partial(self._when_awake, node, lambda: None))
        elif at == link.leader and node.accepted.get(link.follower) is link:
            del node.accepted[link.follower]
            node.member.lost_from(link.follower, local)

    def _links(self, node: Node) -> list[Link]:
        return [*([node.link] if node.link else []), *node.accepted.values()]

    # -- clients -----------------------------------------------------------------------------------------------

    def _arrive(self) -> None:
        settings = self.settings
        if self.now < settings.duration_s:
            self.at(self.now + self.arrivals.expovariate(settings.rate_per_s), self._arrive)
            (tenant,) = self.arrivals.choices(settings.tenants, settings.demand)
            tenant_id = tenant.id
            there = [name for name, node in self.nodes.items() if node.is_alive]
            if there:
                name = settings.spread(self.rng, there, tenant_id) if settings.spread else self.rng.choice(there)
                self.submit(self.nodes[name], tenant_id)

    def submit(self, node: Node, tenant_id: str) -> Client:
        number = next(self._numbers)
        chance, settings = self.arrivals, self.settings
        prompt, output = chance.randint(*settings.prompt_tokens), chance.randint(*settings.output_tokens)
        request = Request(f"r{number}", tenant_id, "m", node.clock.of(self.now), prompt, self.settings.output_tokens[1])
        if settings.resumable_ratio:
            request.is_resumable = chance.random() < settings.resumable_ratio
        client = Client(node.name, request, output, self.now, self.now)
        self.clients.append(client)
        self._when_awake(node, partial(self._submit, node, client))
        if self.settings.patience_s is not None and self.rng.random() < 0.2:
            self.at(
                self.now + self.rng.uniform(0.0, self.settings.patience_s),
                partial(self._when_awake, node, partial(self._leave, node, client)),
            )
        return client

    def _submit(self, node: Node, client: Client) -> None:
        node.clients[client.request.id] = client
        node.remote.submit(client.request, node.clock.of(self.now))
        own = node.member.follower.requests.find(client.request.id)
        client.wire_id = wire_id(node.name, 0 if own is None else own.number)

    def _leave(self, node: Node, client: Client) -> None:
        if client.ended or client.request.id not in node.clients:
            return
        local = node.clock.of(self.now)
        if client.run is None:
            node.remote.told(Cancelled(local, client.request.id))
        else:
            self._abort(self.backends[client.backend_id], (node.name, client.request.id))
            node.remote.finished(
                client.request.id, Outcome.CLIENT_DISCONNECTED, local, None, client.run.usage(self.now)
            )
        self._end(node, client, "left")

    def _carry_out(self, node: Node, action: Dispatch | Reject | Preempt) -> None:
        client = node.clients[action.request_id]
        for judge in self.judges:
            judge.carried_out(node, client, action)
        if isinstance(action, Reject):
            self._end(node, client, action.reason)
        elif isinstance(action, Preempt):
            self._preempt(node, client, action.cause)
        elif action.backend_id in node.unreachable:
            node.member.follower.out_of_reach.failed(action.backend_id, node.clock.of(self.now))
            client.waits_since = self.now
            node.remote.told(Returned(node.clock.of(self.now), action.request_id))
        else:
            backend = self.backends[action.backend_id]
            prompt, produced = client.request.prompt_tokens, client.produced
            run = Run(node.name, action.request_id, prompt, client.output_tokens, self.now, produced)
            client.run, client.backend_id = run, action.backend_id
            backend.running[node.name, action.request_id] = run
            for judge in self.judges:
                judge.sent(node, client, backend)
            self.at(run.first_at, partial(self._when_awake, node, partial(self._began, node, client, run)))
            self.at(run.ends_at, partial(self._served, node, client, backend, run))

    def _preempt(self, node: Node, client: Client, cause: Cause) -> None:
        local = node.clock.of(self.now)
        usage = None if client.run is None else client.run.usage(self.now)
        if client.run is None or (usage is not None and not self._may_go_on(client, usage)):
            node.remote.told(Kept(local, client.request.id))
            return
        self._abort(self.backends[client.backend_id], (node.name, client.request.id))
        client.preemptions += 1
        self._wait_again(node, client, usage, 0.0, cause)

    def _wait_again(self, node: Node, client: Client, usage: Usage | None, hold_s: float, cause: Cause) -> None:
        """Its run is over, after `usage`; None: without a token."""
        local = node.clock.of(self.now)
        client.run, client.backend_id, client.waits_since = None, None, self.now
        if usage is not None:
            client.before.append((self.now, usage))
        if usage is None:
            node.remote.told(Returned(local, client.request.id, hold_s, cause=cause))
        else:
            client.produced = usage.output_tokens
            node.remote.told(Interrupted(local, client.request.id, usage, hold_s, cause))

    @staticmethod
    def _may_go_on(client: Client, usage: Usage) -> bool:
        return client.request.is_resumable and usage.output_tokens < client.output_tokens

    def crash(self, backend: Backend) -> None:
        """What it runs breaks off now; it takes new requests at once."""
        broken = list(backend.running.items())
        for key, run in broken:  # all at once: the first to hear of it may be sent the next request
            run.breaks_at = self.now
            self._abort(backend, key)
        for (name, request_id), run in broken:
            node = self.nodes[name]
            if (client := node.clients.get(request_id)) is not None:
                self._when_awake(node, partial(self._broke_off, node, client, run))

    def _broke_off(self, node: Node, client: Client, run: Run) -> None:
        if client.run is not run or client.ended:
            return
        usage = run.usage(self.now)
        if usage is None or self._may_go_on(client, usage):
            self._wait_again(node, client, usage, 0.1, Cause.FAILED)
        else:
            node.remote.finished(client.request.id, Outcome.BACKEND_FAILED, node.clock.of(self.now), None, usage)
            self._end(node, client, "failed")

    def _began(self, node: Node, client: Client, run: Run) -> None:
        if client.run is run and not client.ended and (usage := run.usage(self.now)) is not None:
            node.remote.tokens(client.request.id, usage, node.clock.of(self.now))

    def _served(self, node: Node, client: Client, backend: Backend, run: Run) -> None:
        if run.is_aborted:
            return
        del backend.running[node.name, client.request.id]

        def finish() -> None:
            if not client.ended:
                node.remote.finished(
                    client.request.id, Outcome.COMPLETED, node.clock.of(self.now), None, run.usage(self.now)
                )
                self._end(node, client, "completed")

        self._when_awake(node, finish)

    def _abort(self, backend: Backend, key: tuple[str, str]) -> None:
        run = backend.running.pop(key, None)
        if run is not None:
            run.is_aborted = True

    def _end(self, node: Node, client: Client, how: str) -> None:
        node.clients.pop(client.request.id, None)
        client.ended, client.ended_at = how, self.now
        for judge in self.judges:
            judge.ended(node, client)
