"""Sessions in a simulation: agents in a closed loop, each of whose turns sends all before it.

The next turn of a session arrives a gap after the last one was answered, so a slow pool is asked less. What the engines
cache of a session are the blocks of its prompts and of its answers.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import exp, log
from random import Random
from typing import Any, Final

from backends.engine.engine import Engine
from backends.simulation.requests import Arrival
from backends.simulation.world import SimulatedCall, World
from policies.scheduler_protocol import SchedulerProtocol
from policies.types import Reason

BLOCK_BITS: Final = 24  # of a block's number in a session
Quantiles = tuple[tuple[float, float], ...]
"""Points (part, value) of a distribution, between which the logarithm of the value is linear."""

# vllm-project/router #285: 86.46 % of the next turns within 1 s, 95.12 % within 10 s.
GAPS_S: Final[Quantiles] = ((0.0, 0.02), (0.8646, 1.0), (0.9512, 10.0), (1.0, 10.0))
# vLLM AgentX: a median of 43 turns.
TURNS: Final[Quantiles] = ((0.0, 10.0), (0.25, 28.0), (0.5, 43.0), (0.75, 66.0), (1.0, 120.0))


def drawn(quantiles: Quantiles, rng: Random) -> float:
    """A random value of this distribution."""
    part = rng.random()
    for (before, low), (after, high) in pairwise(quantiles):
        if part <= after:
            return low if low == high else exp(log(low) + (log(high) - log(low)) * (part - before) / (after - before))
    return quantiles[-1][1]


def always(value: float) -> Quantiles:
    return ((0.0, value), (1.0, value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Agents:
    """A tenant's agents: so many sessions at once, each followed by another when it ends. The tokens that a turn adds
    to a prompt are `added`, besides the answer before it.
    """

    tenant_id: str
    sessions: int
    first_prompt: Quantiles
    added: Quantiles
    output: Quantiles
    turns: Quantiles = TURNS
    gap_s: Quantiles = GAPS_S
    shared_tokens: int = 0
    """The beginning of each prompt that all of the tenant's sessions share."""
    starts_within_s: float = 1.0
    context_max: int = 1 << 30


@dataclass(slots=True, eq=False)
class PlayedSession:
    """One session that is played, and what became of it."""

    agents: Agents
    number: int
    turns: int
    prompt: int
    began_at: float = 0.0
    done: int = 0
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class AgentTurn(Arrival):
    """One turn to come."""

    session: PlayedSession | None = None


@dataclass(slots=True)
class TurnRecord:
    """What became of one turn."""

    session: PlayedSession
    number: int
    arrived_at: float
    prompt: int
    cached: int
    output: int
    ttft_s: float | None
    latency_s: float | None


class SessionWorld(World):
    """Plays agents until `until_s`; the turns that are under way then are left undone."""

    def __init__(
        self, scheduler: SchedulerProtocol, engines: Mapping[str, Engine], agents: Iterable[Agents], *, rng: Random,
        until_s: float, tells_ends: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        """`tells_ends`: the last turn of a session says that it is."""
        super().__init__(scheduler, engines, **options)
        self._agents = list(agents)
        self._rng = rng
        self.until_s = until_s
        self._tells_ends = tells_ends
        self.sessions: list[PlayedSession] = []
        self.turns: list[TurnRecord] = []

    def play(self) -> "SessionWorld":
        for _ in self.run(self._first()):
            if self.now >= self.until_s:
                break
        return self

    def _first(self) -> Iterator[Arrival]:
        first = [
            self._next(self._begin(agents), self._rng.uniform(0.0, agents.starts_within_s))
            for agents in self._agents
            for _ in range(agents.sessions)
        ]
        return iter(sorted(first, key=lambda arrival: arrival.at_s))

    def _begin(self, agents: Agents) -> PlayedSession:
        rng = self._rng
        session = PlayedSession(
            agents,
            len(self.sessions),
            max(1, round(drawn(agents.turns, rng))),
            agents.shared_tokens + round(drawn(agents.first_prompt, rng)),
        )
        self.sessions.append(session)
        return session

    def _next(self, session: PlayedSession, at_s: float) -> AgentTurn:
        agents = session.agents
        if not session.done:
            session.began_at = at_s
        output = max(1, round(drawn(agents.output, self._rng)))
        return AgentTurn(
            agents.tenant_id,
            at_s,
            session.prompt,
            output,
            output,
            prefix=self._hashes(session, session.prompt),
            program_id=f"s{session.number}",
            ends_session=self._tells_ends and session.done + 1 >= session.turns,
            session=session,
        )

    def _hashes(self, session: PlayedSession, tokens: int) -> tuple[int, ...]:
        block = int(self._block_tokens())
        shared = session.agents.shared_tokens // block
        of_tenant = -1 - self._agents.index(session.agents)
        return tuple(
            (of_tenant << BLOCK_BITS) - number if number < shared else (session.number << BLOCK_BITS) + number
            for number in range(tokens // block)
        )

    def _blocks(self, call: SimulatedCall) -> tuple[int, ...]:
        arrival = call.arrival
        if not isinstance(arrival, AgentTurn) or arrival.session is None:
            return super()._blocks(call)
        return self._hashes(arrival.session, arrival.prompt_tokens + arrival.output_tokens)

    def _end(self, call: SimulatedCall, *, total_latency_s: float | None, rejected: Reason | None = None) -> None:
        super()._end(call, total_latency_s=total_latency_s, rejected=rejected)
        arrival, now = call.arrival, self.now
        if not isinstance(arrival, AgentTurn) or arrival.session is None:
            return
        session, agents = arrival.session, arrival.session.agents
        arrived_at = call.request.arrived_at
        ttft_s = None if call.first_token_at is None else call.first_token_at - arrived_at
        self.turns.append(
            TurnRecord(
                session, session.done, arrived_at, arrival.prompt_tokens, call.cached_tokens, call.emitted, ttft_s,
                total_latency_s,
            )
        )  # fmt: skip
        session.done += 1
        grown = session.prompt + arrival.output_tokens + round(drawn(agents.added, self._rng))
        gap_s = drawn(agents.gap_s, self._rng)
        if session.done >= session.turns or grown > agents.context_max:
            session.ended_at = now
            session = self._begin(agents)
        else:
            session.prompt = grown
        if now + gap_s < self.until_s:
            self._at(now + gap_s, partial(self._arrive_turn, self._next(session, now + gap_s)))

    def _arrive_turn(self, turn: AgentTurn, now: float) -> None:
        self._submit(turn, now)

    def _measure(self, now: float) -> None:
        super()._measure(now)
        if not self._calls and self._upcoming is None and now < self.until_s:
            self._at(now + self._metrics_every_s, self._measure)
