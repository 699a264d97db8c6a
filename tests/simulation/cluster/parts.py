"""What a simulated cluster stands on: clocks that run apart, an election store, backends that serve."""

from dataclasses import dataclass, field
from math import inf

from gateway.cluster.election_store import ABANDONED_S, MEMBER_S, NO_WITNESSES, Ask, StoreCall, StoreView, Witnesses
from gateway.cluster.promise import LEASE_S
from policies.types import BackendLoad, Usage

TOKEN_S = 0.02  # one output token
PROMPT_TOKEN_S = 0.0005
KV_TOKENS = 4_000


@dataclass(frozen=True)
class SkewedClock:
    """A process's own clock: it began at another time, and runs up to 1 % fast or slow."""

    offset: float
    rate: float

    def of(self, at: float) -> float:
        return self.offset + at * self.rate

    def when(self, local: float) -> float:
        return (local - self.offset) / self.rate


@dataclass
class Store:
    """The election store: one key, a counter, the members, a checkpoint. It may be away, and it may forget. It answers
    as gateway/store/data/elect.lua does.
    """

    leader: str | None = None
    epoch: int = 0
    expires_at: float = 0.0
    counter: int = 0
    members: dict[str, tuple[float, str]] = field(default_factory=dict)
    reports: dict[str, StoreCall] = field(default_factory=dict)  # the last call of each
    left: dict[str, tuple[float, int]] = field(default_factory=dict)  # when each has, and the last epoch by then
    witnesses: Witnesses = NO_WITNESSES
    renewed_at: float = 0.0
    checkpoint: bytes = b""
    is_away: bool = False

    def forget(self, *, all_of_it: bool) -> None:
        self.leader = None
        if all_of_it:
            self.epoch, self.counter, self.members, self.checkpoint = 0, 0, {}, b""
            self.reports, self.left, self.witnesses = {}, {}, NO_WITNESSES

    def answer(self, call: StoreCall, now: float) -> StoreView:
        ask, before, ended = call.ask, self.counter, None
        if self.leader is not None and now >= self.expires_at:
            self.leader = None
        if call.member in self.reports and call.number <= self.reports[call.member].number:
            ask = Ask.LOOK
        elif ask is Ask.RELEASE:
            self.members.pop(call.member, None)
            self.reports.pop(call.member, None)
            if call.epoch == 0:
                self.left[call.member] = now, before
        else:
            self.members[call.member] = now + MEMBER_S, call.address
            self.reports[call.member] = call
        self.members = {name: each for name, each in self.members.items() if each[0] > now}
        if call.has_ended and self.leader is not None and all(map(self._saw_the_end, self.members.keys())):
            ended, self.leader = self.leader, None
        is_own = (self.leader, self.epoch) == (call.member, call.epoch)
        has_left = self.leader == call.member and self.epoch <= call.epoch
        if ask is Ask.ACQUIRE and (has_left or (self.leader is None and self._may_acquire(call, ended, now))):
            self.epoch = self.counter = max(self.counter, call.epoch) + 1
            self.leader, self.expires_at = call.member, now + LEASE_S
            self.reports, self.left, self.witnesses = {}, {}, NO_WITNESSES
        elif ask is Ask.RENEW and (is_own or (self.leader is None and self.counter <= call.epoch)):
            self.leader, self.epoch, self.counter = call.member, call.epoch, call.epoch
            self.expires_at, self.renewed_at = now + LEASE_S, now
            self.witnesses = call.witnesses if call.witnesses.names else NO_WITNESSES
        elif ask is Ask.RELEASE and is_own:
            self.leader, self.witnesses = None, NO_WITNESSES
        listed = {name: address for name, (_, address) in self.members.items()}
        silent_s = {name: now + MEMBER_S - until for name, (until, _) in self.members.items()}
        epoch = self.epoch if self.leader else 0
        return StoreView(self.leader, epoch, listed, before, silent_s=silent_s, witnesses=self.witnesses)

    def _saw_the_end(self, member: str) -> bool:
        report = self.reports.get(member)
        saw = report is not None and report.has_ended and report.free_epoch >= self.epoch
        return member == self.leader or saw

    def _may_acquire(self, call: StoreCall, ended: str | None, now: float) -> bool:
        if self.counter < call.epoch and not self.witnesses.names:
            self.witnesses, self.renewed_at = call.witnesses, now
        epoch, names = self.witnesses

        def is_free(name: str) -> bool:
            left_at, last = self.left.get(name, (now, 0))
            has_left = last >= epoch and now - left_at >= LEASE_S
            return name == ended or has_left or (name in self.reports and self.reports[name].free_epoch >= epoch)

        free = [name for name in names if is_free(name)]
        return 2 * len(free) >= len(names) or now - self.renewed_at >= ABANDONED_S


@dataclass
class Run:
    """A request that a backend serves."""

    node: str
    request_id: str
    prompt_tokens: int
    output_tokens: int
    began_at: float
    produced: int = 0  # by backends before
    is_aborted: bool = False
    breaks_at: float = inf

    @property
    def first_at(self) -> float:
        return self.began_at + (self.prompt_tokens + self.produced) * PROMPT_TOKEN_S + TOKEN_S

    @property
    def ends_at(self) -> float:
        return self.first_at + (self.output_tokens - self.produced - 1) * TOKEN_S

    def usage(self, now: float) -> Usage | None:
        """What its request has used by now; None before this run's first token."""
        now = min(now, self.breaks_at)
        if now < self.first_at - 1e-9:
            return None
        done = self.produced + 1 + int((now - self.first_at) / TOKEN_S + 1e-6)
        return Usage(self.prompt_tokens, 0, min(done, self.output_tokens))


@dataclass
class Backend:
    """An engine with so many slots; what it is sent beyond them is a violation, which a judge notices."""

    backend_id: str
    slots: int
    running: dict[tuple[str, str], Run] = field(default_factory=dict)
    drains: bool = False

    def load(self, now: float, measured_at: float) -> BackendLoad:
        used = sum(
            run.prompt_tokens + (usage.output_tokens if (usage := run.usage(now)) else 0)
            for run in self.running.values()
        )
        return BackendLoad(
            self.backend_id,
            kv_tokens_max=KV_TOKENS,
            requests_running_max=self.slots,
            requests_running=len(self.running),
            requests_waiting=0,
            kv_used_ratio=used / KV_TOKENS,
            measured_at=measured_at,
            available=not self.drains,
            drains=self.drains,
        )
