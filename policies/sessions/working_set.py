"""Working set of one backend: the contexts of the sessions that it keeps, beside its KV pool.

The engine evicts the least recently used blocks, and counts the blocks of an idle session as free. So the contexts of
all admitted sessions, running or idle, have to fit into a part `eta` of the pool, or each turn computes its whole
prompt again. A beginning that several sessions share (system prompt, tools) is counted once. Only beginnings of certain
lengths are compared, two for each doubling, so a session costs some twenty hashes however long it is.

`eta` is learnt from the cached tokens that the engine reports. It falls with each turn that finds the context of its
session evicted, and with each session that has to be paused because others have grown; it rises with each turn that
finds its context. The steps balance where one turn in MISSES_ONE_IN misses.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from math import inf
from typing import Final

from policies.sessions.engine_use import EngineUse
from policies.sessions.session import AgentSession, Turn

ETA_FIRST: Final = 0.7  # measured: at 0.92 of the pool, sessions that grow evict each other
ETA_MIN: Final = 0.3
ETA_MAX: Final = 0.85  # simulated: beyond, sessions that leave and enter evict those that are idle
MISS_STEP: Final = 0.02
MISSES_ONE_IN: Final = 25
MISSED_RATIO_MIN: Final = 0.1  # less is the end of a prompt that fills no block
FREED_FADE: Final = 0.8


class WorkingSet:
    """The sessions whose contexts (histories) one backend keeps in its KV pool, the tokens of these contexts, and the
    part `eta` of the pool that they may fill. Mutable.
    """

    def __init__(self, backend_id: str, eta: float | None) -> None:
        """`eta` is the part of the KV pool that contexts of sessions may fill; None: it is learnt."""
        self.id = backend_id
        self.use = EngineUse()
        self.pool_tokens: float = inf
        """Its KV pool; infinite: not known."""
        self.eta = ETA_FIRST if eta is None else eta
        self._is_eta_learnt = eta is None
        self.tokens = 0.0
        """The working set."""
        self.idle: OrderedDict[AgentSession, None] = OrderedDict()
        """Admitted sessions that do not run, the longest idle first."""
        self.is_settled = False
        """Whether what is admitted has fitted since sessions are held. What is missed before says nothing of `eta`."""
        self.freed_every_s: float | None = None
        """Mean seconds between two times that room grew by itself."""
        self._freed_at = -inf
        self._holders: dict[int, int] = {}  # hash of a beginning -> admitted sessions that have it

    # -- room ------------------------------------------------------------------------------------------------

    @property
    def room(self) -> float:
        """The number of tokens that are free for another session."""
        return self.eta * self.pool_tokens - self.tokens

    @property
    def excess(self) -> float:
        """Tokens beyond the most that the working set may grow to: the middle between the part `eta` and the pool."""
        return self.tokens - (1.0 + self.eta) / 2.0 * self.pool_tokens

    def fits(self, turn: Turn) -> bool:
        """Whether a turn of an admitted session runs within what that has: alone, or with room beside others of it."""
        return not turn.session.running or turn.tokens <= self.room

    def needed(self, session: AgentSession, tokens: float) -> float:
        """The tokens that have to fit for a context of `tokens` of this session: those that it shares with no admitted
        session, and at most the part `eta` of the pool.
        """
        shared = sum(part for block, part in session.shared if block in self._holders)
        return min(max(0.0, tokens - shared), self.eta * self.pool_tokens)

    def frees(self, sessions: Iterable[AgentSession]) -> Iterator[float]:
        """For each of these admitted sessions, the tokens that its release frees after that of the sessions before."""
        gone = Counter[int]()
        for session in sessions:
            gone.update(block for block, _ in session.shared)
            alone = (part for block, part in session.shared if self._holders[block] == gone[block])
            yield session.counted + sum(alone)

    def admit(self, session: AgentSession) -> None:
        """Count the session's context from now on."""
        assert not session.is_admitted, "admitted once"
        if session.backend_id != self.id:
            session.left_at = self.use.computed
        session.is_admitted, session.backend_id, session.used_s = True, self.id, 0.0
        session.shared_tokens = 0
        for block, part in session.shared:
            session.shared_tokens += part
            holders = self._holders.get(block, 0)
            self._holders[block] = holders + 1
            if not holders:
                self.tokens += part
        self.resize(session)

    def release(self, session: AgentSession) -> None:
        """Stop counting the session's context."""
        assert session.is_admitted, "released once"
        session.is_admitted = session.is_settled = False
        self.idle.pop(session, None)
        for block, part in session.shared:
            holders = self._holders[block] - 1
            if holders:
                self._holders[block] = holders
            else:
                del self._holders[block]
                self.tokens -= part
        self.tokens -= session.counted
        session.counted = 0
        if not self._holders and not self.idle:
            self.tokens = float(round(self.tokens))  # without the error of rounding

    def resize(self, session: AgentSession) -> None:
        """Count the present tokens of an admitted session, after a turn of it has ended or was not sent."""
        # The beginning of a first turn counts twice until that turn ends. So sessions enter one after another, and
        # evict less: 424 tokens/s instead of 353 in the scene "cpu" of tests.simulation.sessions.
        counted = session.context - session.shared_tokens if session.context > session.shared_tokens else 0
        for turn in session.running.values():
            counted += turn.tokens
        self.tokens += counted - session.counted
        session.counted = counted
        if not session.running:
            self.idle[session] = None

    def began(self, session: AgentSession, turn: Turn) -> None:
        """A turn of an admitted session may enter the order: count its tokens."""
        self.tokens += turn.tokens
        session.counted += turn.tokens
        if session in self.idle:
            del self.idle[session]

    def lost(self, now: float, horizon_s: float) -> AgentSession | None:
        """An idle session whose context is surely evicted, because a whole pool was computed since, or that has been
        idle for longer than `horizon_s` seconds; None if there is none.
        """
        session = next(iter(self.idle), None)
        if session is None:
            return None
        is_gone = self.use.computed - session.left_at > self.pool_tokens or now - session.idle_since > horizon_s
        return session if is_gone else None

    def likely_holds(self, session: AgentSession) -> bool:
        """Whether the context of a released session is probably still cached: fewer tokens were computed since than
        admitted sessions leave free.
        """
        return self.use.computed - session.left_at < (1.0 - self.eta) * self.pool_tokens

    # -- what is learnt ----------------------------------------------------------------------------------------

    def found(self, expected: int, cached: int, *, is_full: bool) -> None:
        """A turn of a session that fitted found `cached` of `expected` tokens. `is_full`: others wait for room."""
        missed = max(0.0, 1.0 - cached / expected)
        if missed > MISSED_RATIO_MIN:
            self.overfull(missed)
        elif is_full and self.is_settled and self._is_eta_learnt:
            self.eta = min(ETA_MAX, self.eta + MISS_STEP / MISSES_ONE_IN)

    def overfull(self, missed: float = 1.0) -> None:
        """The part `missed` of the context of a session that fitted was evicted, or the session had to be paused."""
        if self.is_settled and self._is_eta_learnt:
            self.eta = max(ETA_MIN, self.eta - MISS_STEP * missed)

    def freed(self, now: float) -> None:
        """Record that room has grown by itself: a session ended, or yields."""
        if self._freed_at > -inf:
            every_s, before = now - self._freed_at, self.freed_every_s
            self.freed_every_s = every_s if before is None else FREED_FADE * before + (1.0 - FREED_FADE) * every_s
        self._freed_at = now

    def grows_in_s(self, now: float, since: float) -> float:
        """Expected seconds until room grows by itself, for a turn that waits since `since`: the mean interval, but at
        least the time for which room has not grown.
        """
        return max(now - max(self._freed_at, since), self.freed_every_s or 0.0)


def beginnings(prefix: tuple[int, ...], block_tokens: float) -> tuple[tuple[int, int], ...]:
    """Hashes of a prompt's beginnings of 1, 2, 3, 4, 6, 8, 12 ... blocks, each with the tokens since the last one."""
    found, before, blocks = [], 0, 1
    while blocks <= len(prefix):
        found.append((prefix[blocks - 1], int((blocks - before) * block_tokens)))
        is_power = blocks & (blocks - 1) == 0
        before, blocks = blocks, blocks + max(1, blocks // 2) if is_power else blocks // 3 * 4
    return tuple(found)
