"""AgentSession: one agent's turns, each of which sends the history of all earlier turns."""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from policies.sessions.gaps import Gaps
from policies.types import Request, SessionState, Usage

SIDES_MAX: Final = 3
"""Calls in a row that do not go on from a context: then it was dropped, or made shorter."""
GROWTH_TURNS: Final = 20.0  # that the mean growth of a context is over


@dataclass(slots=True, eq=False)
class Turn:
    """One turn of an agent's session, which is one call. It is held, waits in the queues' order, or runs. It has room,
    or runs, at the backend `backend_id`; empty: the placement chooses.

    While it runs, it adds `tokens` to the working set of its backend, beyond the context of its session. At most
    `known` tokens of its prompt were computed at this backend before. `continues`: its prompt begins with the session's
    context. `resumes`: its session was paused since the last turn.
    """

    request: Request
    session: "AgentSession"
    arrived_at: float
    continues: bool
    resumes: bool
    tokens: int
    backend_id: str = ""
    known: int = 0
    is_sent: bool = False
    sent_at: float = 0.0
    sent_engine_s: float = 0.0
    prefill_s: float | None = None
    """From when it was sent until its first token; None: not seen."""

    def first_token(self, now: float) -> None:
        """It got its first token."""
        if self.is_sent:
            self.prefill_s = now - self.sent_at

    def charged(self, usage: Usage) -> Usage:
        """The usage that it is charged for: what a pause made its backend compute again counts as cached."""
        if not self.resumes or not self.session.context:
            return usage
        known = min(self.session.context, usage.prompt_tokens) if self.continues else 0
        return usage._replace(cached_tokens=max(usage.cached_tokens, known))


@dataclass(slots=True, eq=False)
class AgentSession:
    """The session of one agent of one tenant. Each of its turns (calls) sends the history of all earlier turns;
    `context` is the size of this history in tokens. Mutable.
    """

    tenant_id: str
    id: str
    parent_id: str | None = None
    context: int = 0
    """Prompt and output of its last turn, in tokens."""
    tail: tuple[int, int] = (0, 0)
    """How many blocks the prompt of its last turn that was answered has (at first: of its first one), and the hash of
    the last of them.
    """
    shared: tuple[tuple[int, int], ...] = ()
    """Hashes of beginnings of its first prompt, each with the tokens since the one before (working_set.py)."""
    shared_tokens: int = 0
    """Their sum, while it is admitted."""
    turns: int = 0
    sides: int = 0
    """Turns since the last one that went on from its context."""
    backend_id: str = ""
    """Where its context was computed, or is going to be."""
    is_admitted: bool = False
    is_settled: bool = False
    """Whether its last turn ended while all that is admitted at its backend fitted."""
    is_paused: bool = False
    """Whether it was paused, and no turn of it was let in since."""
    goes_first: bool = False
    """Whether it was paused before it had its quantum, and so precedes other sessions of its tenant."""
    counted: int = 0
    """Its own part of the working set: its context less what it may share, and what its turns add."""
    running: dict[str, Turn] = field(default_factory=dict)
    held: dict[str, Turn] = field(default_factory=dict)
    idle_since: float = 0.0
    gap_bucket: int = 0
    """How far its present gap was counted among the gaps of its tenant."""
    used_s: float = 0.0
    """Engine time that it has had since it was admitted."""
    left_at: float = 0.0
    """Tokens that its backend had computed when its last turn ended."""
    pauses: int = 0

    @property
    def state(self) -> SessionState:
        if self.running:
            return SessionState.RUNNING
        if self.held:
            return SessionState.HELD
        return SessionState.IDLE if self.is_admitted else SessionState.PAUSED

    def goes_on(self, request: Request) -> bool:
        """Whether the request's prompt continues the context, and is no side call (a title, a sub-agent with the same
        id). Where prompts are not known by blocks, the length of the prompt decides.
        """
        blocks, tail_hash = self.tail
        if not self.context:
            return True
        if blocks and request.prefix:
            return len(request.prefix) >= blocks and request.prefix[blocks - 1] == tail_hash
        return 2 * request.prompt_tokens >= self.context

    def answered(self, turn: Turn, usage: Usage) -> int:
        """A turn ended with this usage. Returns the number of tokens by which it has lengthened the context."""
        # The client goes on from one of the choices.
        total, before = usage.prompt_tokens + usage.output_tokens // turn.request.choices, self.context
        self.turns += 1
        if not turn.continues and total < before and self.sides + 1 < SIDES_MAX:
            self.sides += 1
            return 0
        self.context, self.sides = total, 0
        self.tail = tail_of(turn.request)
        return total - before if turn.continues and 0 < before < total else 0


def tail_of(request: Request) -> tuple[int, int]:
    """The number of blocks of the request's prompt, and the hash of the last block."""
    return (len(request.prefix), request.prefix[-1]) if request.prefix else (0, 0)


class TenantSessions:
    """The sessions of one tenant, least recently used first, and statistics of their turns. It keeps at most
    `sessions_max` sessions, plus those with a turn that runs or waits. Mutable.
    """

    __slots__ = ("_sessions_max", "gaps", "growth", "sessions")

    def __init__(self, sessions_max: int) -> None:
        self._sessions_max = sessions_max
        self.sessions: OrderedDict[str, AgentSession] = OrderedDict()
        self.gaps = Gaps()
        self.growth = 0.0
        """Tokens by which a turn lengthens a context."""

    def surplus(self) -> AgentSession | None:
        """The session to forget before another is added; None: there is room, or all sessions run or wait."""
        if len(self.sessions) < self._sessions_max:
            return None
        return next((each for each in self.sessions.values() if not each.running and not each.held), None)
