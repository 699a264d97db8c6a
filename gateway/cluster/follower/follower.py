"""Follower: a member's side of the shared order. It keeps what its own clients wait for and run, tells the leader over
its link, and carries out the leader's actions while the promise holds.

Every member has one, the leader's process too: it follows the leader next to it over a link without bytes. What is
known here is enough to tell everything again to another leader (rules 18 to 21), so a change of leaders costs no
request. Without any leader a request waits on here until its deadline, or LEADERLESS_S_MAX (rule 24).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final

from gateway.cluster.checkpoints import NewestCheckpoint
from gateway.cluster.follower.charge_log import ChargeLog
from gateway.cluster.follower.leader_link import LeaderLink
from gateway.cluster.follower.leaderless import Leaderless
from gateway.cluster.follower.own_request import OwnRequest
from gateway.cluster.follower.telling import Telling
from gateway.cluster.wire import (
    AnyMessage,
    CheckpointPart,
    Dispatched,
    Ended,
    Failed,
    Finish,
    Frame,
    Gone,
    LimitsOf,
    Pong,
    Reach,
    Refused,
    Release,
    Shared,
    Spend,
    Submit,
    TellMore,
    Told,
    ToldAll,
    ToldPart,
    Untold,
    Used,
    WantCheckpoint,
    Welcome,
    Withdraw,
)
from policies.facts import RunFact, Spent, Undelivered
from policies.types import (
    KV_BLOCK_TOKENS,
    Action,
    Dispatch,
    Outcome,
    Preempt,
    RateLimits,
    Reason,
    Reject,
    Request,
    Timing,
    Usage,
)

RETRY_AFTER_S: Final = 1.0  # of a request that is refused here: by then there is a leader again
UNTOLD_S: Final = 0.25  # rule 11
PROGRESS_S: Final = 1.0
STEP_S: Final = 0.02
ASK_AGAIN_S: Final = 1.0  # after a failed call, a backend counts as unreachable for so long


@dataclass(slots=True)
class _Pool:
    """What is to be told to this member's driver of one pool."""

    actions: list[Action] = field(default_factory=list)
    limits: dict[LimitsOf, RateLimits] = field(default_factory=dict)  # as last told


class Follower:
    """One member's requests and its link to the leader. Mutable; it lives as long as the process."""

    def __init__(
        self, member: str, *, wait_s_max: float, checkpoint: NewestCheckpoint | None = None, now: float = 0.0
    ) -> None:
        """`member` is a name that no other process has or had: wire ids begin with it. `wait_s_max` is the queue
        timeout of the configuration.
        """
        self.link = LeaderLink(member, now)
        self.checkpoint = checkpoint or NewestCheckpoint()
        self.log = ChargeLog()
        """What has ended and was spent here, and no checkpoint is known to have."""
        self.shared: dict[str, bytes] = {}
        """What the leader's shell has told all (wire.Shared), by topic."""
        self._own: dict[int, OwnRequest] = {}
        self._numbers: dict[str, int] = {}  # by request id
        self._last_number = 0
        self._pools: defaultdict[str, _Pool] = defaultdict(_Pool)
        self._leaderless = Leaderless(wait_s_max, now)
        self._telling: Telling | None = None
        self._joins = 0  # connections on which all was told, or is
        self._untold_at = self._told_all_at = -inf
        self._unreachable: dict[str, float] = {}  # until when

    # -- connection ------------------------------------------------------------------------------------------

    def connected(self, now: float) -> None:
        """There is a new connection to a leader; the one before is closed, and its promise over."""
        if self.link.is_connected:
            self.lost(now)
        self.link.connected(self.checkpoint.mark, now)

    def lost(self, now: float) -> None:
        """The connection is gone. All is told again on joining."""
        self.checkpoint.forget(self.link.leader)
        self.link.lost()
        if self._telling is not None:
            self._telling = None
            self._leaderless.ends()  # it kept the deadlines of what was not told alone
        self._leaderless.begins(self._own.values(), now)

    def received(self, frame: Frame, now: float) -> None:
        """A frame came from the leader."""
        for message in self.link.received(frame, now):
            self._hear(frame.pool, message, now)

    # -- facts of this member's clients ----------------------------------------------------------------------

    def submit(self, pool: str, request: Request, now: float, *, is_traced: bool = False) -> None:
        """A request arrived."""
        assert request.id not in self._numbers, "an id is in use once"
        if not self.link.is_read:
            self._pools[pool].actions.append(Reject(request.id, Reason.QUEUE_FULL, RETRY_AFTER_S))
            return
        self._last_number += 1
        own = OwnRequest(self._last_number, pool, request, is_traced)
        self._own[own.number] = own
        self._numbers[request.id] = own.number
        self._leaderless.waits(own)
        if self._telling is not None:
            self._telling.arrived(own)
            return
        own.known_on = self._joins
        self.link.say(pool, Submit(own.number, request, now - request.arrived_at, is_traced))

    def tokens(self, request_id: str, usage: Usage, now: float) -> None:
        """A dispatched request has used this much; the leader is told when rule 11 says so."""
        own = self.own(request_id)
        if own is None or own.dispatch is None:
            return
        before, own.usage = own.told, usage
        if self.link.leader is None or not self._is_known(own):
            return
        if own.told_at == -inf or before is None or usage[:2] != before[:2]:
            self._tell(own, now)
        elif usage.output_tokens > own.dispatch.quiet_tokens and now - own.told_at >= STEP_S:
            is_larger = usage.output_tokens // KV_BLOCK_TOKENS > before.output_tokens // KV_BLOCK_TOKENS
            if is_larger:  # its reservation may grow by a block
                self._tell(own, now)

    def finished(
        self, request_id: str, outcome: Outcome, now: float, timing: Timing | None = None, usage: Usage | None = None
    ) -> None:
        """A dispatched request ended."""
        own = self.own(request_id)
        if own is None or own.dispatch is None:
            return
        own.usage = usage or own.usage
        self._end(own, outcome, timing, has_run=True)

    def told(self, fact: RunFact) -> None:
        """A dispatched request waits again, or a withdrawal came too late (rule 15)."""
        own = self.own(fact.request_id)
        if own is None or own.dispatch is None:
            return
        if fact.waits_again:
            own.wait_again(fact, own.dispatch.backend_id)
            self._leaderless.waits(own)
        self._say_of(own, Told(own.number, fact))

    def cancel(self, request_id: str) -> None:
        """The client of a request that waits, as far as is known here, left (rule 14)."""
        own = self.own(request_id)
        if own is not None:
            self._end(own)

    def spent(self, pool: str, fact: Spent) -> None:
        """A call that was never queued used this much."""
        message = Spend(fact.tenant_id, fact.usage, fact.key_id, self.log.next_number())
        self._log(pool, message, message)

    def failed(self, backend_id: str, now: float) -> None:
        """A call to this backend failed before an answer (rule 27): for a while it counts as unreachable here."""
        self._unreachable[backend_id] = now + ASK_AGAIN_S
        self.link.say("", Failed(backend_id))

    def unreachable(self, backend_ids: Iterable[str], now: float) -> None:
        """The backends that this process cannot reach, as its shell knows (rule 8)."""
        self._unreachable = dict.fromkeys(backend_ids, inf)
        self.link.say("", Reach(tuple(self._unreachable)))

    # -- what the driver of a pool reads ---------------------------------------------------------------------

    def poll(self, pool: str, now: float) -> list[Action]:
        """The actions of this pool to carry out now; each once."""
        self.tick(now)
        of = self._pools[pool]
        actions, of.actions = of.actions, []
        return actions

    def due(self) -> float | None:
        """When `tick` is due although nothing came; -inf: there are actions to carry out; None: no time is known."""
        if any(pool.actions for pool in self._pools.values()):
            return -inf
        times = list(self._unreachable.values())
        if (at := self._leaderless.due()) is not None:
            times.append(at)
        if self.link.is_connected:
            times.append(self.link.due())
            if self.link.leader is not None:
                times.append(self._untold_at + UNTOLD_S)
        return min(times, default=None)

    def is_usage_due(self, now: float) -> bool:
        """Whether all usages are to be brought up to date now, with `tokens`, before the next `tick` (rule 11)."""
        return self.link.leader is not None and bool(self._own) and now - self._untold_at >= UNTOLD_S

    def tick(self, now: float) -> None:
        """Tell what is due by the clock, and refuse what has waited too long without a leader."""
        for backend_id in [each for each, until in self._unreachable.items() if until <= now]:
            del self._unreachable[backend_id]
            self.link.say("", Reach(tuple(self._unreachable)))
        for own in self._leaderless.overdue(now):
            has_leader = self._is_known(own) and self.link.may_decide(now)
            if own.number in self._own and own.dispatch is None and not has_leader:
                self._refuse(own, now)
        if self.link.leader is not None and now - self._untold_at >= UNTOLD_S:
            self._tell_held(now)

    def limits(self, pool: str, of: LimitsOf) -> RateLimits:
        """The limits per minute of a tenant and key, as last told."""
        return self._pools[pool].limits.get(of) or RateLimits()

    def requests(self) -> Mapping[int, OwnRequest]:
        """All requests of this member by number, to read."""
        return self._own

    # -- the leader's messages -------------------------------------------------------------------------------

    def _tell_all(self, now: float) -> None:
        """The member has joined: tell the leader all that is known here."""
        self._joins += 1
        self._telling = Telling(self.log, self._own.values())
        self._untold_at = self._told_all_at = now
        self._tell_slice(now)

    def _tell_slice(self, now: float) -> None:
        """Tell the next slice of all that is known here."""
        telling = self._telling
        if telling is None:
            return
        for each in telling.slice():
            if not isinstance(each, OwnRequest):
                self.link.say(*each)
            elif each.number in self._own:
                each.known_on = self._joins
                self.link.say(each.pool, each.has(now))
        if not telling.is_over:
            self.link.say("", ToldPart(telling.has_told_running))
            return
        self._telling = None
        if self.link.may_decide(now):
            self._leaderless.ends()
        self.link.say("", ToldAll())
        self.link.say("", Reach(tuple(self._unreachable)))

    def _hear(self, pool: str, message: AnyMessage, now: float) -> None:
        match message:
            case Dispatched() | Refused() | Withdraw():
                if self.link.takes_action(now):
                    self._act(pool, message, now)
            case Welcome():
                self._tell_all(now)
            case TellMore():
                self._tell_slice(now)
            case Pong():
                self.link.ponged(message, now)
                if self.link.may_decide(now) and self._telling is None:  # what was not told yet has no leader
                    self._leaderless.ends()
            case Release():
                self.link.released()
            case CheckpointPart() | WantCheckpoint():
                self._hear_of_checkpoint(message)
            case Shared():
                self.shared[message.topic] = message.body

    def _hear_of_checkpoint(self, message: CheckpointPart | WantCheckpoint) -> None:
        if isinstance(message, CheckpointPart):
            self.checkpoint.part(self.link.leader, message)
            return
        checkpoint = self.checkpoint
        begins = True
        for records in checkpoint.whole():
            self.link.say("", CheckpointPart(records, begins=begins))
            begins = False
        self.link.say("", CheckpointPart({}, checkpoint.mark, at=checkpoint.at))

    def _act(self, pool: str, message: Dispatched | Refused | Withdraw, now: float) -> None:
        own = self._own.get(message.number)
        if own is None:
            return  # it has ended here: what says so is on its way (rules 14, 15)
        of = self._pools[pool]
        if isinstance(message, Withdraw):
            if own.dispatch is not None:
                of.actions.append(Preempt(own.request.id, message.cause))
            return
        if own.dispatch is not None:
            return
        if message.limits is not None:
            of.limits[LimitsOf(own.request.tenant_id, own.request.key_id)] = message.limits
        if isinstance(message, Refused):
            if own.told is not None or own.is_retold:  # what it was charged for a dispatch is refunded, or stays
                self._end(own)
            else:
                self._forget(own)
            of.actions.append(Reject(own.request.id, message.reason, message.retry_after_s, message.limit))
        elif message.backend_id in self._unreachable:  # rule 8
            self._say_of(own, Told(own.number, Undelivered(now, own.request.id)))
        else:
            self._dispatch(of, own, message, now)

    def _dispatch(self, of: _Pool, own: OwnRequest, message: Dispatched, now: float) -> None:
        own.dispatched(message, now)
        of.actions.append(
            Dispatch(
                own.request.id,
                message.backend_id,
                message.quiet_tokens,
                message.cached_tokens,
                message.may_be_preempted,
                message.backend_number,
                message.output_tokens,
                message.expected_tokens,
            )
        )

    # -- helpers ---------------------------------------------------------------------------------------------

    def _is_known(self, own: OwnRequest) -> bool:
        """Whether the leader was told of this request on this connection; else it is told how it stands then."""
        return own.known_on == self._joins

    def _say_of(self, own: OwnRequest, message: AnyMessage) -> None:
        if self._is_known(own):
            self.link.say(own.pool, message)

    def _log(self, pool: str, entry: Ended | Spend, message: AnyMessage) -> None:
        """Tell every leader of this, until a checkpoint has it; the present one by this message."""
        self.log.add(pool, entry)
        if self._telling is not None and not self._telling.has_told_log:
            self._telling.logged(pool, entry)
        else:
            self.link.say(pool, message)

    def _tell(self, own: OwnRequest, now: float) -> None:
        """Tell the newest usage."""
        if own.usage is not None:
            own.told, own.told_at = own.usage, now
            self.link.outbox.say_newest(own.number, own.pool, Used(own.number, own.usage))

    def _tell_held(self, now: float) -> None:
        """Rule 11: all usages every PROGRESS_S, and what is held untold at each backend every UNTOLD_S."""
        self._untold_at = now
        self.log.taken(self.checkpoint.taken_of(self.link.member))
        if now - self._told_all_at >= PROGRESS_S:
            self._told_all_at = now
            for own in self._own.values():
                if own.dispatch is not None and own.usage not in (None, own.told) and self._is_known(own):
                    self._tell(own, now)
        held: Counter[str] = Counter()
        for own in self._own.values():
            if own.dispatch is not None:
                held[own.dispatch.backend_id] += own.untold_tokens
        self.link.say("", Untold({each: tokens for each, tokens in held.items() if tokens}))

    def _refuse(self, own: OwnRequest, now: float) -> None:
        reason = Reason.QUEUE_TIMEOUT if self._leaderless.is_over(own, now) else Reason.NO_BACKEND
        self._end(own)
        self._pools[own.pool].actions.append(Reject(own.request.id, reason, RETRY_AFTER_S))

    def own(self, request_id: str) -> OwnRequest | None:
        """The request of this id; None: it has ended."""
        number = self._numbers.get(request_id)
        return None if number is None else self._own[number]

    def _end(
        self,
        own: OwnRequest,
        outcome: Outcome = Outcome.CLIENT_DISCONNECTED,
        timing: Timing | None = None,
        *,
        has_run: bool = False,
    ) -> None:
        """It has ended: every leader is told, until a checkpoint has it."""
        message: AnyMessage
        message = entry = own.ended(self.log.next_number(), outcome, timing, has_run=has_run)
        if self._is_known(own):
            finish = Finish(own.number, outcome, own.usage, timing, entry.entry)
            message = finish if has_run else Gone(own.number, entry.entry)
        self._forget(own)
        self._log(own.pool, entry, message)

    def _forget(self, own: OwnRequest) -> None:
        del self._own[own.number]
        self._numbers.pop(own.request.id, None)
        self.link.outbox.ended(own.number)
        actions = self._pools[own.pool].actions
        actions[:] = [action for action in actions if action.request_id != own.request.id]  # a Withdraw, most likely
