"""Agent tags: fair queueing of agents. The agent that would end first in an equally shared pool is next. Experimental.

An agent is an application of many calls: the requests with one `program_id`. A request without one is an agent of its
own. The cost of an agent is the KV memory that its calls hold over time: p q + q (q + 1) / 2 token-iterations for a
call of p prompt and q output tokens. Virtual time is what each agent would have received from an equally shared pool:
it grows by M / N token-iterations per iteration, M being the pool's KV tokens and N the number of agents present. An
arriving agent gets the tag virtual time + cost. The agent with the smallest tag is next, with all memory that it can
use. (Justitia, from a copy that cites its equations.) Time here is in seconds, so virtual time grows by M times the
iterations per second, over N.

The cost of an agent is predicted from the recent agents of its tenant. An agent that has reached its predicted cost and
continues gets a new tag as if it arrived now. Otherwise an agent that never ends would keep a tag that virtual time has
long passed, and be first for ever. An agent leaves when none of its calls has waited or run for `idle_s` seconds; an
agent without a `program_id` leaves at once.

Shares are those of agents, not of tenants: a tenant with many agents at a time gets many shares. It gains nothing by
naming programs, because a call that names none is an agent already.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple, Self

from policies.accounts.ledger import InFlight
from policies.fairness.base import Account, Eligible, Fairness, Waiting
from policies.fairness.heap import TenantHeap
from policies.fairness.ranked import Ranked
from policies.types import Request

KV_TOKENS = 100_000.0  # M
ITERATIONS_PER_S = 30.0
IDLE_S = 10.0
FIRST_OUTPUT_TOKENS = 256  # prediction for a tenant without an ended agent
MEMORY = 4.0  # (4 * average + newest) / 5


def call_cost(prompt_tokens: float, output_tokens: float) -> float:
    """The KV-token-iterations of one call."""
    return prompt_tokens * output_tokens + output_tokens * (output_tokens + 1) / 2


class _Name(NamedTuple):
    tenant_id: str
    program_id: str | None
    request_id: str = ""  # set if the request is an agent of its own


@dataclass(slots=True)
class _Agent:
    """A present agent: its tag, and the ids of its waiting and running requests."""

    name: _Name
    tag: float
    requests: set[str] = field(default_factory=set)
    cost: float = 0.0  # of the calls that have ended
    cost_max: float = 0.0  # at which it gets a new tag
    leaves_at: float | None = None  # unless it continues before


class AgentCosts:
    """A predictor of the total cost of an agent's calls, as the mean over recent agents of the same tenant. Costs are
    in token-iterations: KV tokens held, times engine steps. Mutable.
    """

    def __init__(self) -> None:
        self.means: dict[str, float] = {}
        """The mean of recent agents, by tenant."""

    def predicted(self, request: Request) -> float:
        """The total cost of the agent whose first request this is."""
        known = self.means.get(request.tenant_id)
        if known is not None:
            return known
        return call_cost(request.prompt_tokens, min(request.output_tokens_max, FIRST_OUTPUT_TOKENS * request.choices))

    def ended(self, tenant_id: str, cost: float) -> None:
        """Record the cost of an ended agent of the tenant; a cost of 0 is ignored."""
        before = self.means.get(tenant_id)
        if cost:
            self.means[tenant_id] = cost if before is None else (MEMORY * before + cost) / (MEMORY + 1)

    def forget(self, tenant_id: str) -> None:
        self.means.pop(tenant_id, None)


class AgentTags(Fairness):
    """The fairness policy Justitia. Each agent gets a tag when it arrives: the virtual time at which it would end if
    all agents shared the pool equally. The request of the agent with the smallest tag is next.
    """

    follows_requests = True
    is_fair = False  # an agent gets all that it can use

    def __init__(
        self,
        *,
        kv_tokens: float = KV_TOKENS,
        iterations_per_s: float = ITERATIONS_PER_S,
        idle_s: float = IDLE_S,
    ) -> None:
        super().__init__()
        self._token_iterations_per_s = kv_tokens * iterations_per_s
        self._idle_s = idle_s
        self._agents: dict[_Name, _Agent] = {}
        self.costs = AgentCosts()
        self._leaving: list[tuple[float, int, _Agent]] = []  # by when each leaves if it stays idle
        self._numbers = count()
        self._virtual = 0.0  # token-iterations that an agent present from the start would have received
        self._virtual_at = float("-inf")
        self._ranked = Ranked(lambda request: self._agents[_name(request)].tag)
        self._heap: TenantHeap[Account] = TenantHeap(lambda account: self._best(account)[0])

    def tag(self, request: Request) -> float:
        """The tag of the agent that the request belongs to, while it is present."""
        return self._agents[_name(request)].tag

    def queued(self, request: Request, waiting: Waiting, now: float) -> None:
        self._advance(now)
        name = _name(request)
        agent = self._agents.get(name)
        if agent is None:
            agent = self._agents[name] = _Agent(name, self._virtual)
        if agent.cost >= agent.cost_max:
            expected = self.costs.predicted(request)
            agent.tag, agent.cost_max = max(agent.tag, self._virtual) + expected, agent.cost + expected
        agent.requests.add(request.id)
        agent.leaves_at = None
        rank = self._ranked.queued(request, waiting)
        account = self._account(request.tenant_id)
        if account.is_waiting and rank < account.entry_key:
            self._heap.push(account, self._waiting)

    def joined(self, tenant_id: str, waiting: Waiting) -> None:
        self._heap.push(self._began(tenant_id, waiting), self._waiting)

    def dropped(self, request: Request, now: float) -> None:
        self._over(request, 0.0, now)

    def ended(self, entry: InFlight, now: float) -> None:
        served = entry.usage.output_tokens if entry.service else 0
        self._over(entry.request, call_cost(entry.usage.prompt_tokens, served), now)

    def pick(self, eligible: Eligible, besides: Collection[str] = ()) -> Request | None:
        account = self._heap.first_of(lambda account: eligible(self._best(account)[1]), besides)
        return self._best(account)[1] if account else None

    def hand_over(self, tenant_id: str, to: Self, now: float) -> None:
        self._advance(now)
        to._advance(now)
        agents = [agent for name, agent in self._agents.items() if name.tenant_id == tenant_id]
        mean = self.costs.means.get(tenant_id)
        super().hand_over(tenant_id, to, now)
        for agent in agents:
            agent.tag += to._virtual - self._virtual
            to._agents[agent.name] = agent
            if agent.leaves_at is not None:
                heappush(to._leaving, (agent.leaves_at, next(to._numbers), agent))
        if mean is not None:
            to.costs.means[tenant_id] = mean

    def forget(self, tenant_id: str) -> None:
        super().forget(tenant_id)
        self._ranked.forget(tenant_id)
        self.costs.forget(tenant_id)
        for name in [name for name in self._agents if name.tenant_id == tenant_id]:
            del self._agents[name]

    def _over(self, request: Request, cost: float, now: float) -> None:
        self._advance(now)
        agent = self._agents.get(_name(request))
        if agent is None:
            return
        agent.requests.discard(request.id)
        agent.cost += cost
        if not agent.requests:
            agent.leaves_at = now + (0.0 if request.program_id is None else self._idle_s)
            heappush(self._leaving, (agent.leaves_at, next(self._numbers), agent))

    def _advance(self, now: float) -> None:
        """Advance virtual time to now, and remove agents that leave on the way."""
        while self._leaving and self._leaving[0][0] <= now:
            leaves_at, _, agent = heappop(self._leaving)
            if agent.leaves_at == leaves_at and self._agents.get(agent.name) is agent:
                self._pass(leaves_at)
                self._leave(agent)
        self._pass(now)

    def _pass(self, until: float) -> None:
        if self._agents and until > self._virtual_at:
            self._virtual += self._token_iterations_per_s * (until - self._virtual_at) / len(self._agents)
        self._virtual_at = max(self._virtual_at, until)

    def _leave(self, agent: _Agent) -> None:
        del self._agents[agent.name]
        self.costs.ended(agent.name.tenant_id, agent.cost)

    def _best(self, account: Account) -> tuple[float, Request]:
        return self._ranked.best(account.tenant_id, account.waiting)


def _name(request: Request) -> _Name:
    if request.program_id is None:
        return _Name(request.tenant_id, None, request.id)
    return _Name(request.tenant_id, request.program_id)
