"""Follower: a member's side of the shared order. It keeps what its own clients wait for and run, tells the leader, and
carries out the leader's actions while its promise holds.

Every member has one, the leader's process too: it follows the leader next to it over a link without bytes. What is
known here is enough to tell everything again to another leader (rules 18 to 21), so a change of leaders costs no
request. Without any leader a request waits on here until its deadline, or LEADERLESS_S_MAX (rule 24).
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from gateway.cluster.checkpoints import NewestCheckpoint, parts_of
from gateway.cluster.promise import PING_S, SILENCE_S_MAX, Promise
from gateway.cluster.wire import (
    Answered,
    AnyMessage,
    CheckpointPart,
    Dispatched,
    Epoch,
    Failed,
    Finish,
    Frame,
    Gone,
    Has,
    HigherEpoch,
    Interrupt,
    Join,
    Keep,
    NotDelivered,
    Ping,
    Pong,
    Reach,
    Refused,
    Release,
    Return,
    Shared,
    Spend,
    Submit,
    ToldAll,
    Untold,
    Used,
    WantCheckpoint,
    Welcome,
    Withdraw,
    frames_of,
)
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

LEADERLESS_S_MAX: Final = 5.0  # rule 24
UNSENT_BYTES_MAX: Final = 4 << 20  # rule 26: beyond it new calls are refused
UNSENT_S_MAX: Final = 1.0
RETRY_AFTER_S: Final = 1.0  # of a request that is refused here: by then there is a leader again
UNTOLD_S: Final = 0.25  # rule 11
PROGRESS_S: Final = 1.0
STEP_S: Final = 0.02
ASK_AGAIN_S: Final = 1.0  # after a failed call, a backend counts as unreachable for so long


@dataclass(slots=True, eq=False)
class OwnRequest:
    """A request of this member's clients. Without a `dispatch` it waits."""

    number: int
    pool: str
    request: Request
    is_traced: bool = False
    dispatch: Dispatched | None = None
    dispatched_at: float = 0.0
    sent_by: str = ""  # the leadership that dispatched it
    usage: Usage | None = None  # the newest
    told: Usage | None = None  # as the leader was last told; until then, what the Dispatch assumed
    told_at: float = -inf
    is_begun: bool = False  # its first usage was told
    is_withdrawn: bool = False  # its preemption is to be answered
    is_submitted: bool = False  # a leader that decides was told of it: it was admitted there, or is rejected
    outcome: Outcome | None = None  # it ended while there was no leader to tell
    timing: Timing | None = None
    lift: float = 0.0

    def wait_again(self) -> None:
        """It has left its backend."""
        # What it was charged stays: it is prepaid (rule 21).
        if self.is_withdrawn:
            self.request = replace(self.request, preemptions=self.request.preemptions + 1)
        self.dispatch, self.is_begun, self.is_withdrawn = None, False, False
        if not self.request.produced_tokens:
            self.usage = None

    @property
    def untold_tokens(self) -> int:
        told = 0 if self.told is None else self.told.output_tokens
        return 0 if self.usage is None else max(0, self.usage.output_tokens - told)


@dataclass(slots=True)
class _Pool:
    """What is to be told to this member's driver of one pool."""

    actions: list[Action] = field(default_factory=list)
    limits: dict[str, RateLimits] = field(default_factory=dict)  # by tenant, as last told


class Follower:
    """One member's requests and its link to the leader. Mutable; it lives as long as the process."""

    def __init__(
        self,
        member: str,
        *,
        wait_s_max: float,
        checkpoint: NewestCheckpoint | None = None,
        promise: Promise | None = None,
        now: float = 0.0,
    ) -> None:
        """`member` is a name that no other process has or had: wire ids begin with it. `wait_s_max` is the queue
        timeout of the configuration.
        """
        self.member = member
        self.epoch: Epoch = 0
        """The one that is joined, or the highest that is known."""
        self.leader: str | None = None
        """The leader that has welcomed this member; None: there is none."""
        self.checkpoint = checkpoint or NewestCheckpoint()
        self.shared: dict[str, bytes] = {}
        """What the leader's shell has told all (wire.Shared), by topic."""
        self.answers: list[Answered] = []
        """Answers to Questions; the shell takes them."""
        self.round_trip_s: float | None = None
        """Of the last ping that the leader answered."""
        self.dropped: Counter[str] = Counter()
        """Frames and actions that came too late, by reason; for metrics."""
        self._wait_s_max = wait_s_max
        self._promise = promise or Promise()
        self._own: dict[int, OwnRequest] = {}
        self._numbers: dict[str, int] = {}  # by request id
        self._last_number = 0
        self._pools: dict[str, _Pool] = {}
        self._outbox: list[tuple[str, AnyMessage]] = []
        self._spends: list[tuple[str, Spend]] = []  # while there was no leader to tell
        self._progress: dict[int, int] = {}  # where in the outbox a request's usage stands (rule 9)
        self._is_connected = False
        self._must_close = ""
        self.heard_at = now
        """When the leader was last heard; the member that did not run for a while moves it."""
        self._pinged_at = -inf
        self._leaderless_since: float | None = now
        self._untold_at = self._told_all_at = -inf
        self._unreachable: dict[str, float] = {}  # until when
        self._unsent = (0, 0.0)

    # -- connection ------------------------------------------------------------------------------------------

    def connected(self, now: float) -> None:
        """There is a new connection to a leader; the one before is closed, and its promise over."""
        if self._is_connected:
            self.lost(now)
        self._is_connected, self.heard_at, self._must_close = True, now, ""
        self._outbox = [("", Join(self.member, self.checkpoint.order))]
        self._progress.clear()

    def lost(self, now: float) -> None:
        """The connection is gone. What it had not sent yet is told on joining."""
        self._is_connected, self._must_close, self.leader = False, "", None
        self._promise.release()
        if self._leaderless_since is None:
            self._spends = [(pool, message) for pool, message in self._outbox if isinstance(message, Spend)]
        self._outbox.clear()
        self._progress.clear()
        if self._leaderless_since is None:
            self._leaderless_since = now

    def received(self, frame: Frame, now: float) -> None:
        """A frame came from the leader."""
        self.heard_at = now
        if frame.messages and isinstance(frame.messages[0], Welcome):
            self._welcomed(frame, now)
            return
        for message in frame.messages:
            if isinstance(message, HigherEpoch):
                self.epoch = max(self.epoch, message.epoch)
                self._must_close = "it leads no more"
        if self.leader is None or frame.epoch != self.epoch:  # rule 5
            self.dropped["epoch"] += 1
            return
        for message in frame.messages:
            self._hear(frame.pool, message, now)

    def frames(self, now: float) -> list[Frame]:
        """What is to be sent to the leader now."""
        if not self._is_connected or self._must_close:
            return []
        if now - self._pinged_at >= PING_S and self.leader is not None:
            self._pinged_at = now
            self._outbox.append(("", Ping(now)))
        said, self._outbox = self._outbox, []
        self._progress.clear()
        return list(frames_of(self.epoch, said))

    def closes(self, now: float) -> str:
        """Why the connection is to be closed now; empty: it is not."""
        if self._is_connected and now - self.heard_at > SILENCE_S_MAX:  # rule 26
            self._must_close = self._must_close or "the leader is silent"
        return self._must_close if self._is_connected else ""

    @property
    def is_joined(self) -> bool:
        """Whether a leader decides for this member's requests."""
        return self.leader is not None

    def may_decide(self, now: float) -> bool:
        """Whether the leader's actions may be carried out now (rule 3)."""
        return self.leader is not None and self._promise.holds(now)

    def unsent(self, size: int, oldest_s: float) -> None:
        """So many bytes wait in the connection's buffer, the oldest for so long (rule 26)."""
        self._unsent = size, oldest_s

    @property
    def accepts(self) -> bool:
        """Whether new requests are taken: not while the leader does not read."""
        return self._unsent[0] <= UNSENT_BYTES_MAX and self._unsent[1] <= UNSENT_S_MAX

    # -- facts of this member's clients ----------------------------------------------------------------------

    def submit(self, pool: str, request: Request, now: float, *, is_traced: bool = False) -> None:
        """A request arrived."""
        assert request.id not in self._numbers, "an id is in use once"
        if not self.accepts:
            self._pool(pool).actions.append(Reject(request.id, Reason.QUEUE_FULL, RETRY_AFTER_S))
            return
        self._last_number += 1
        own = OwnRequest(self._last_number, pool, request, is_traced)
        self._own[own.number] = own
        self._numbers[request.id] = own.number
        own.is_submitted = self._leaderless_since is None
        self._say(pool, Submit(own.number, request, now - request.arrived_at, is_traced))

    def tokens(self, request_id: str, usage: Usage, now: float) -> None:
        """A dispatched request has used this much; the leader is told when rule 11 says so."""
        own = self._of(request_id)
        if own is None or own.dispatch is None:
            return
        before, own.usage = own.told, usage
        if self.leader is None:
            return
        if not own.is_begun or before is None or usage[:2] != before[:2]:
            self._tell(own, now)
        elif usage.output_tokens > own.dispatch.quiet_tokens and now - own.told_at >= STEP_S:
            is_larger = usage.output_tokens // KV_BLOCK_TOKENS > before.output_tokens // KV_BLOCK_TOKENS
            if is_larger:  # its reservation may grow by a block
                self._tell(own, now)

    def finished(
        self, request_id: str, outcome: Outcome, now: float, timing: Timing | None = None, usage: Usage | None = None
    ) -> None:
        """A dispatched request ended."""
        own = self._of(request_id)
        if own is None or own.dispatch is None:
            return
        usage = usage or own.usage
        self._say(own.pool, Finish(own.number, outcome, usage, timing))
        if self._leaderless_since is None:
            self._forget(own)
        else:  # rules 18, 20: the next leader charges what was not told
            del self._numbers[request_id]
            own.outcome, own.timing, own.usage = outcome, timing, usage
            if self.leader is not None:  # one that gathers may have charged it when it goes: nothing is charged twice
                own.told = usage or own.told

    def returned(self, request_id: str, now: float, hold_s: float = 0.0) -> None:
        """A dispatched request waits again: its backend did not take it, or it was withdrawn in time."""
        own = self._of(request_id)
        if own is not None and own.dispatch is not None:
            own.wait_again()
            self._say(own.pool, Return(own.number, hold_s))

    def interrupted(self, request_id: str, usage: Usage, now: float, hold_s: float = 0.0) -> None:
        """A dispatched request stopped after `usage`, and waits again to be continued."""
        own = self._of(request_id)
        if own is not None and own.dispatch is not None:
            own.request = replace(own.request, produced_tokens=usage.output_tokens, ran_at=own.dispatch.backend_id)
            own.usage = usage
            own.wait_again()
            self._say(own.pool, Interrupt(own.number, usage, hold_s))
            if self.leader is not None:
                own.told = usage

    def kept(self, request_id: str, now: float) -> None:
        """A withdrawal came too late (rule 15)."""
        own = self._of(request_id)
        if own is not None:
            own.is_withdrawn = False
            self._say(own.pool, Keep(own.number))

    def cancel(self, request_id: str, now: float) -> None:
        """The client of a request that waits, as far as is known here, left (rule 14)."""
        own = self._of(request_id)
        if own is not None:
            self._forget(own)
            self._say(own.pool, Gone(own.number))
            self._pool(own.pool).actions[:] = [
                action for action in self._pool(own.pool).actions if action.request_id != request_id
            ]

    def spent(self, pool: str, tenant_id: str, usage: Usage, now: float) -> None:
        """A call that was never queued used this much."""
        message = Spend(tenant_id, usage)
        self._say(pool, message)
        if self._leaderless_since is not None:
            self._spends.append((pool, message))

    def failed(self, backend_id: str, now: float) -> None:
        """A call to this backend failed before an answer (rule 27): for a while it counts as unreachable here."""
        self._unreachable[backend_id] = now + ASK_AGAIN_S
        self._say("", Failed(backend_id))

    def unreachable(self, backend_ids: Iterable[str], now: float) -> None:
        """The backends that this process cannot reach, as its shell knows (rule 8)."""
        self._unreachable = dict.fromkeys(backend_ids, inf)
        self._say("", Reach(tuple(self._unreachable)))

    # -- what the driver of a pool reads ---------------------------------------------------------------------

    def poll(self, pool: str, now: float) -> list[Action]:
        """The actions of this pool to carry out now; each once."""
        self.tick(now)
        of = self._pool(pool)
        actions, of.actions = of.actions, []
        return actions

    def due(self) -> float | None:
        """When `tick` is due although nothing came; -inf: there are actions to carry out; None: no time is known."""
        if any(pool.actions for pool in self._pools.values()):
            return -inf
        times = list(self._unreachable.values())
        if self._leaderless_since is not None:
            times += [self._refused_at(own) for own in self._own.values() if own.dispatch is None]
        if self._is_connected:
            times.append(self.heard_at + SILENCE_S_MAX)
            if self.leader is not None:
                times += [self._pinged_at + PING_S, self._untold_at + UNTOLD_S]
        return min(times, default=None)

    def is_usage_due(self, now: float) -> bool:
        """Whether all usages are to be brought up to date now, with `tokens`, before the next `tick` (rule 11)."""
        return self.leader is not None and bool(self._own) and now - self._untold_at >= UNTOLD_S

    def tick(self, now: float) -> None:
        """Tell what is due by the clock, and refuse what has waited too long without a leader."""
        for backend_id in [each for each, until in self._unreachable.items() if until <= now]:
            del self._unreachable[backend_id]
            self._say("", Reach(tuple(self._unreachable)))
        if self._leaderless_since is not None:
            for own in [each for each in self._own.values() if each.dispatch is None]:
                if self._refused_at(own) <= now:
                    self._refuse(own, now)
        if self.leader is not None and now - self._untold_at >= UNTOLD_S:
            self._tell_held(now)

    def limits(self, pool: str, tenant_id: str) -> RateLimits:
        """The tenant's limits per minute, as last told."""
        return self._pool(pool).limits.get(tenant_id) or RateLimits()

    def own(self, request_id: str) -> OwnRequest | None:
        """The request of this id; None: it has ended."""
        return self._of(request_id)

    def requests(self) -> Mapping[int, OwnRequest]:
        """All requests of this member by number, to read; with those that ended and could not be told."""
        return self._own

    # -- the leader's messages -------------------------------------------------------------------------------

    def _welcomed(self, frame: Frame, now: float) -> None:
        if not self._is_connected:
            return
        if frame.epoch < self.epoch:  # rule 1
            self._outbox.append(("", HigherEpoch(self.epoch)))
            self._must_close = ""
            return
        self.epoch, self.leader = frame.epoch, frame.messages[0].leader  # type: ignore[union-attr]
        self._outbox.append(("", Ping(now)))  # first: its Pong comes before any action
        self._outbox += [(own.pool, self._has(own, now)) for own in self._own.values()]
        self._outbox += [("", ToldAll()), ("", Reach(tuple(self._unreachable)))]
        self._outbox += self._spends
        self._untold_at = self._told_all_at = self._pinged_at = now
        for message in frame.messages[1:]:
            self._hear(frame.pool, message, now)

    def _hear(self, pool: str, message: AnyMessage, now: float) -> None:
        match message:
            case Dispatched() | Refused() | Withdraw():
                if not self.may_decide(now):  # rule 3
                    self.dropped["promise"] += 1
                    self._must_close = "its promise has lapsed"
                elif not self._must_close:  # nothing after what was dropped, or it would be out of order
                    self._act(pool, message, now)
            case Pong():
                self.round_trip_s = now - message.at
                self._promise.ponged(message.at, message.lease_s)
                if self._leaderless_since is not None and self._promise.holds(now):
                    self._led()
            case Release():
                self._must_close = "the leader resigns"
                self._promise.release()
            case CheckpointPart() | WantCheckpoint():
                self._hear_of_checkpoint(message)
            case Shared():
                self.shared[message.topic] = message.body
            case Answered():
                self.answers.append(message)

    def _led(self) -> None:
        """The leader decides. Until now it gathered, and all would have been told anew to another one."""
        self._leaderless_since = None
        self._spends.clear()
        self._own = {number: own for number, own in self._own.items() if own.outcome is None}
        for own in self._own.values():
            own.is_submitted = True

    def _hear_of_checkpoint(self, message: CheckpointPart | WantCheckpoint) -> None:
        if isinstance(message, CheckpointPart):
            self.checkpoint.part(self.leader, message)
        else:
            self._outbox += [("", part) for part in parts_of(*self.checkpoint.order, self.checkpoint.body)]

    def _act(self, pool: str, message: Dispatched | Refused | Withdraw, now: float) -> None:
        own = self._own.get(message.number)
        if own is None or own.outcome is not None:
            return  # it has ended here: what says so is on its way (rules 14, 15)
        of = self._pool(pool)
        if isinstance(message, Withdraw):
            if own.dispatch is not None:
                own.is_withdrawn = True
                of.actions.append(Preempt(own.request.id))
            return
        if own.dispatch is not None:
            return
        if message.limits is not None:
            of.limits[own.request.tenant_id] = message.limits
        if isinstance(message, Refused):
            self._forget(own)
            of.actions.append(Reject(own.request.id, message.reason, message.retry_after_s, message.limit))
        elif message.backend_id in self._unreachable:  # rule 8
            self._say(pool, NotDelivered(own.number))
        else:
            self._dispatch(of, own, message, now)

    def _dispatch(self, of: _Pool, own: OwnRequest, message: Dispatched, now: float) -> None:
        own.dispatch, own.dispatched_at, own.lift = message, now, message.lift
        own.sent_by = _leadership(self)
        if not own.request.produced_tokens:  # else it is continued, and was charged for that
            own.told = Usage(own.request.prompt_tokens, message.cached_tokens, 0)
            own.usage = None
        own.is_begun = False
        of.actions.append(
            Dispatch(
                own.request.id,
                message.backend_id,
                message.quiet_tokens,
                message.cached_tokens,
                message.may_be_preempted,
                message.backend_number,
                message.output_tokens,
            )
        )

    # -- helpers ---------------------------------------------------------------------------------------------

    def _has(self, own: OwnRequest, now: float) -> Has:
        """What a new leader is told of a request (rules 18, 20, 21). It is new if none that decided was told of it: one
        that still gathered may have gone without admitting it.
        """
        age_s, dispatch = now - own.request.arrived_at, own.dispatch
        if not own.is_submitted:
            return Has(own.number, own.request, age_s, is_new=True, is_traced=own.is_traced)
        if dispatch is None:
            has = Has(own.number, own.request, age_s, told=own.told, usage=own.usage)
            own.told = own.usage or own.told
            return has
        has = Has(
            own.number,
            own.request,
            age_s,
            dispatch.backend_id,
            now - own.dispatched_at,
            dispatch.output_tokens,
            own.told,
            own.usage,
            own.outcome,
            own.timing,
            sent_by="" if own.sent_by == _leadership(self) else own.sent_by,
        )
        own.told, own.told_at = own.usage or own.told, now
        own.is_begun = own.usage is not None
        return has

    def _tell(self, own: OwnRequest, now: float) -> None:
        """Tell the newest usage; of one that was not sent yet, only the newest travels (rule 9)."""
        if own.usage is None:
            return
        own.told, own.told_at, own.is_begun = own.usage, now, True
        message = Used(own.number, own.usage)
        at = self._progress.get(own.number)
        if at is None:
            self._progress[own.number] = len(self._outbox)
            self._outbox.append((own.pool, message))
        else:
            self._outbox[at] = own.pool, message

    def _tell_held(self, now: float) -> None:
        """Rule 11: all usages every PROGRESS_S, and what is held untold at each backend every UNTOLD_S."""
        self._untold_at = now
        if now - self._told_all_at >= PROGRESS_S:
            self._told_all_at = now
            for own in self._own.values():
                if own.dispatch is not None and own.usage is not None and own.usage != own.told:
                    self._tell(own, now)
        held: Counter[str] = Counter()
        for own in self._own.values():
            if own.dispatch is not None:
                held[own.dispatch.backend_id] += own.untold_tokens
        self._outbox.append(("", Untold({each: tokens for each, tokens in held.items() if tokens})))

    def _refused_at(self, own: OwnRequest) -> float:
        """Until when a request waits without a leader (rule 24)."""
        assert self._leaderless_since is not None, "there is no leader"
        since = max(self._leaderless_since, own.request.arrived_at)
        if own.request.produced_tokens:  # it waits anew, and its answer is worth waiting for
            return since + LEADERLESS_S_MAX
        return min(own.request.arrived_at + self._wait_s_max, since + LEADERLESS_S_MAX)

    def _refuse(self, own: OwnRequest, now: float) -> None:
        is_over = now >= own.request.arrived_at + self._wait_s_max and not own.request.produced_tokens
        reason = Reason.QUEUE_TIMEOUT if is_over else Reason.NO_BACKEND
        self._forget(own)
        self._say(own.pool, Gone(own.number))
        self._pool(own.pool).actions.append(Reject(own.request.id, reason, RETRY_AFTER_S))

    def _say(self, pool: str, message: AnyMessage) -> None:
        """Tell the leader; without one nothing is kept, because all is told on joining."""
        if self.leader is not None:
            self._outbox.append((pool, message))

    def _of(self, request_id: str) -> OwnRequest | None:
        number = self._numbers.get(request_id)
        return None if number is None else self._own[number]

    def _forget(self, own: OwnRequest) -> None:
        del self._own[own.number]
        self._numbers.pop(own.request.id, None)
        self._progress.pop(own.number, None)

    def _pool(self, name: str) -> _Pool:
        pool = self._pools.get(name)
        if pool is None:
            pool = self._pools[name] = _Pool()
        return pool


def _leadership(of: Follower) -> str:
    """The one that the follower has joined, by a name that no other has while it is remembered."""
    return f"{of.leader}@{of.epoch}"
