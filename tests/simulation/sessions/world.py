"""Sessions in a simulation: agents in a closed loop, and what became of each of their turns.

What the engines cache of a session are the blocks of its prompts and of its answers.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from backends.engine.engine import Engine
from backends.simulation.requests import Arrival, SessionPrompt
from backends.simulation.world import SimulatedCall, World
from gateway.simulate.trace.agents import Agents, PlannedTurn, turns_of
from policies.scheduler_protocol import SchedulerProtocol
from policies.types import Reason


@dataclass(slots=True, eq=False)
class PlayedSession:
    """One session that is played, and what became of it."""

    agents: Agents
    number: int
    began_at: float
    done: int = 0
    ended_at: float | None = None


@dataclass(slots=True, eq=False)
class PlayedAgent:
    """An agent, the turns that it will send, and its present session."""

    agents: Agents
    turns: Iterator[PlannedTurn]
    session: PlayedSession | None = None


@dataclass(frozen=True, slots=True)
class AgentTurn(Arrival):
    """One turn to come."""

    agent: PlayedAgent | None = None
    is_last: bool = False


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
        players = [
            PlayedAgent(agents, turns_of(agents, Random(self._rng.getrandbits(64))))
            for agents in self._agents
            for _ in range(agents.sessions)
        ]
        return iter(sorted((self._next(each) for each in players), key=lambda arrival: arrival.at_s))

    def _next(self, agent: PlayedAgent) -> AgentTurn:
        agents, turn = agent.agents, next(agent.turns)
        at_s = self.now + turn.gap_s
        if turn.is_first or agent.session is None:
            agent.session = PlayedSession(agents, len(self.sessions), at_s)
            self.sessions.append(agent.session)
        number = agent.session.number
        return AgentTurn(
            agents.tenant_id,
            at_s,
            turn.prompt_tokens,
            turn.output_tokens,
            turn.output_tokens,
            program_id=f"s{number}",
            ends_session=self._tells_ends and turn.is_last,
            of_session=SessionPrompt(number, self._agents.index(agents), agents.shared_tokens),
            agent=agent,
            is_last=turn.is_last,
        )

    def _end(self, call: SimulatedCall, *, total_latency_s: float | None, rejected: Reason | None = None) -> None:
        super()._end(call, total_latency_s=total_latency_s, rejected=rejected)
        arrival, now = call.arrival, self.now
        if not isinstance(arrival, AgentTurn) or arrival.agent is None or arrival.agent.session is None:
            return
        session = arrival.agent.session
        arrived_at = call.request.arrived_at
        ttft_s = None if call.first_token_at is None else call.first_token_at - arrived_at
        self.turns.append(
            TurnRecord(
                session, session.done, arrived_at, arrival.prompt_tokens, call.cached_tokens, call.emitted, ttft_s,
                total_latency_s,
            )
        )  # fmt: skip
        session.done += 1
        if arrival.is_last:
            session.ended_at = now
        turn = self._next(arrival.agent)
        if turn.at_s < self.until_s:
            self._at(turn.at_s, partial(self._arrive_turn, turn))

    def _arrive_turn(self, turn: AgentTurn, now: float) -> None:
        self._submit(turn, now)

    def _measure(self, now: float) -> None:
        super()._measure(now)
        if not self._calls and self._upcoming is None and now < self.until_s:
            self._at(now + self._metrics_every_s, self._measure)
