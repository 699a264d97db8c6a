"""Election: which member may try to lead, by a store that all members can ask (rules 1, 2, 4).

The store holds one key, which lives LEASE_S, a counter of epochs, and one entry per member, which lives MEMBER_S. It
only says which may try: joining makes a leader. It may be slow, fail, or forget everything, and nothing worse comes of
it than a time without a leader. `Candidate` decides what to ask and what an answer means; its shell asks.

A process that ends closes its sockets, and its port refuses connections. Members that saw this of the leader say so
with each call. Once all that are listed have, the store drops the key at once, without waiting for its end.

While the store is away, a majority of the leader's members renews its lease (promise.py). So the store keeps the list
of these, the witnesses, and gives the key to another one only when enough of them say that they help that leader no
more: then it has no majority, and cannot have one again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Final, NamedTuple, Protocol

from gateway.cluster.promise import LEASE_MARGIN_S, LEASE_S, SILENT_S, WITHOUT_STORE_S

ASK_S: Final = 0.5  # between two calls of the store
HURRY_S: Final = 0.05  # and while the key of a leader that has resigned, ended or fallen silent is about to be free
JOIN_S: Final = 0.5  # from an election: all that are there have asked by then, HURRY_S apart, and connected by TLS
MEMBER_S: Final = 3.0  # a member that has not asked for so long is not listed
ANSWER_S_MAX: Final = 1.0  # a call without an answer has failed
ABANDONED_S: Final = WITHOUT_STORE_S * 1.05  # since its last renewal: then members alone renew no lease any more
ABORT_S: Final = 0.25  # from a process's end until engines have dropped its requests, with their next steps
STANDALONE_S: Final = 1.0  # without the store and without a leader: then a member leads itself


class Witnesses(NamedTuple):
    """The members a majority of which may renew the lease of this epoch's leader without the store; none: it has none
    but the store's.
    """

    epoch: int = 0
    names: frozenset[str] = frozenset()


NO_WITNESSES: Final = Witnesses()


class Ask(StrEnum):
    """What a store is asked. Each call also lists the asking member for MEMBER_S."""

    LOOK = "look"
    ACQUIRE = "acquire"  # take the key, if no member has it: epoch = max(counter, known) + 1
    RENEW = "renew"  # the key lives LEASE_S from now, if it is of this member and epoch, or was and is free
    RELEASE = "release"  # drop the key, if it is of this member and epoch, and list the member no more


@dataclass(frozen=True, slots=True)
class StoreCall:
    """One call; give the answer and this call to `Candidate.answered`. `epoch` is the highest that is known, or for
    RENEW and RELEASE the led one. `number` tells calls apart, and grows. The caller helps no leader of `free_epoch` or
    before; `has_ended`: because the process that leads in it has ended. `witnesses`: those to agree on with RENEW, and
    the last known ones, for a store that has forgotten, with ACQUIRE.
    """

    ask: Ask
    member: str
    address: str
    epoch: int
    number: int
    sent_at: float
    free_epoch: int = 0
    has_ended: bool = False
    witnesses: Witnesses = NO_WITNESSES


@dataclass(frozen=True, slots=True)
class StoreView:
    """What the store says after a call. `counter` is as it was before the call."""

    leader: str | None
    epoch: int
    members: dict[str, str]  # name to address
    counter: int = 0
    strangers: frozenset[str] = frozenset()  # members of another version of the protocol
    silent_s: Mapping[str, float] = field(default_factory=dict)  # since each member's last call; not told: 0
    witnesses: Witnesses = NO_WITNESSES


class ElectionStore(Protocol):
    """What a shell implements: Redis now, a Kubernetes Lease later. Any error counts as no answer."""

    async def call(self, call: StoreCall) -> StoreView: ...
    async def put_checkpoint(self, body: bytes) -> None: ...
    async def checkpoint(self) -> bytes | None: ...


class Candidate:
    """One member's side of the election. Mutable."""

    def __init__(self, member: str, address: str = "", *, now: float) -> None:
        """`address` is where other members connect. The store was just connected to."""
        self.member = member
        self.address = address
        self.epoch = 0
        """The highest epoch that is known."""
        self.led_epoch = 0
        """The epoch that this member may lead; 0: none."""
        self.lease_until = -inf
        """Until when, by this member's clock."""
        self.has_forgotten = False
        """The store had forgotten epochs when it gave the present one (rule 2)."""
        self.leader: str | None = None
        """The member that has the key, as last heard."""
        self.members: dict[str, str] = {}
        """Of the last list, and those listed within the last SILENT_S, with their addresses."""
        self.stands = True
        """Whether this member tries; false while it drains, or reaches no backend."""
        self.is_bound = False
        """Whether this member helps a leader to lead; then it does not try. The member says so."""
        self.free_epoch = 0
        """The newest epoch whose leader this member knew and helps no more; 0: none. The member says so."""
        self.witnesses: frozenset[str] = frozenset()
        """Those to agree on for the order that this one leads. The member says so."""
        self.strangers: frozenset[str] = frozenset()
        """Those of `members` that speak another version of the protocol."""
        self._listed_at: dict[str, float] = {}
        self._heard_from: dict[str, float] = {}  # when the store did, at the latest; those of its last list alone
        self._ended: dict[str, float] = {}  # members of the list whose processes have ended, and when that was seen
        self._leader_epoch = 0
        self._former: str | None = None  # the leader before
        self._witnesses = NO_WITNESSES  # that the store has, as last seen
        self._proposed: frozenset[str] | None = None  # to the store, which has not answered
        self._told_free = 0  # the newest free epoch that the store may have from this member
        self._refused_since: float | None = None
        self._number = 0
        self._pending: StoreCall | None = None
        self._next_at = now
        self._hurries_until = -inf
        self._stands_from = now + SILENT_S
        self._heard_at = now

    def reconnected(self, now: float) -> None:
        """The store was connected to anew: it may be another one, which knows less (rule 2)."""
        self._stands_from = now + SILENT_S

    def resigned_by(self, leader: str, now: float, *, returns: bool) -> None:
        """The leader said that it resigns: the key is free in a moment. The next leader waits until it has told what
        its clients run, for that fills slots; if it has none, the next one begins without it.
        """
        if not returns:
            self._forget(leader)
        self._hurry(now, ASK_S)

    def lost(self, leader: str, now: float) -> None:
        """The connection to this leader is gone. If it has ended or does not run, its key is free within LEASE_S."""
        if leader == self.leader:
            self._hurry(now, SILENT_S)

    def ended(self, member: str, now: float) -> None:
        """The process of this member has ended: it answers no one, and is waited for no more."""
        if member in self.members and member not in self._ended:
            self._ended[member] = now
            self._hurry(now, SILENT_S)

    def waits(self, now: float) -> dict[str, float]:
        """Until when a leader elected now waits for each member, by this clock: for SILENT_S after the store heard from
        it, because by then every promise and lease has ended. One that is there gets JOIN_S to tell what it has. What
        the clients of one that has ended had is no one's; backends get ABORT_S to be rid of it before they are
        measured. A store that has forgotten may not list all that still carry out an old leader's actions: "" stands
        for them.
        """
        ended = {name: at + ABORT_S for name, at in self._ended.items()}
        unknown = {"": now + SILENT_S} if self.has_forgotten else {}
        heard = {name: self._heard_from.get(name, at) + SILENT_S for name, at in self._listed_at.items()}
        known = {name: at if name == self._former else max(at, now + JOIN_S) for name, at in heard.items()}
        return known | ended | unknown

    def knows(self, epoch: int) -> None:
        """A higher epoch was heard of (rule 1)."""
        self.epoch = max(self.epoch, epoch)

    def overslept(self, seconds: float, now: float) -> None:
        """Note that this process did not run for so long: the store's answers may be there, unread."""
        self._heard_at = min(now, self._heard_at + seconds)
        if seconds > STANDALONE_S:  # meanwhile a leader may have been elected, and the store have forgotten it
            self.reconnected(now)

    def is_reached(self, now: float) -> bool:
        """Whether the store answers. Where it does not, and no leader does, a member leads itself (rule 25)."""
        return now - self._heard_at < STANDALONE_S + ASK_S

    def is_refused(self, now: float) -> bool:
        """Whether the store gives the key to no one, because the leader that had it may still have a majority."""
        return self._refused_since is not None and now - self._refused_since >= STANDALONE_S

    def may_grant(self, epoch: int) -> bool:
        """Whether this member may help the leader of this epoch: not where the store may have its word that it does
        not, or when a newer one is known.
        """
        return self._told_free < epoch and self.epoch <= epoch

    def lists(self) -> list[frozenset[str]]:
        """The lists of which this leader needs a majority without the store: the one that the store has agreed on, and
        the one that it may have.
        """
        if self._witnesses.epoch != self.led_epoch:
            return []
        return [self._witnesses.names, *([] if self._proposed is None else [self._proposed])]

    def has_been_seen(self, now: float) -> bool:
        """Whether the store was there for so long that all others have seen this member in its list."""
        return now >= self._stands_from

    def call(self, now: float) -> StoreCall | None:
        """The call to make now; None: not yet."""
        if self._pending is not None:
            if now - self._pending.sent_at < ANSWER_S_MAX:
                return None
            self.failed(self._pending, now)
        if now < self._next_at:
            return None
        if self.led_epoch:
            return self._ask(Ask.RENEW, self.led_epoch, now)
        may_stand = self.stands and not self.is_bound and not self.strangers
        acquires = may_stand and self.leader is None and self.has_been_seen(now)
        return self._ask(Ask.ACQUIRE if acquires else Ask.LOOK, self.epoch, now)

    def answered(self, call: StoreCall, view: StoreView, now: float) -> None:
        """The store answered this call."""
        if call is not self._pending:
            return  # too late: it counts as failed
        self._pending, self._heard_at, self._told_free = None, now, call.free_epoch
        self._next_at = call.sent_at + (ASK_S if now >= self._hurries_until else HURRY_S)
        self._list(view, now)
        before, self.leader = self.leader, view.leader
        self._leader_epoch = view.epoch
        self._former = self._former if before in (None, self.leader) else before
        if view.leader is not None:
            self._refused_since = None
        elif call.ask is Ask.ACQUIRE and self._refused_since is None:
            self._refused_since = now
        if view.counter >= self.epoch:  # it has not forgotten
            self._witnesses = view.witnesses
        self._answered_for_key(call, view)
        if self.leader not in (None, before):
            self._hurries_until, self._next_at = -inf, call.sent_at + ASK_S
        elif view.leader is None and before is not None and not self.led_epoch:
            self._next_at = now  # the key is free: try at once
        self.epoch = max(self.epoch, view.epoch, view.counter)

    def _answered_for_key(self, call: StoreCall, view: StoreView) -> None:
        """What the answer says of this member's own lead."""
        if call.ask is Ask.ACQUIRE and view.leader == self.member:
            self.has_forgotten = view.counter < self.epoch
            self.led_epoch, self._proposed = view.epoch, None
        elif call.ask is Ask.RENEW and (view.leader, view.epoch) != (self.member, self.led_epoch):
            self.resigned()
        elif call.ask is Ask.RENEW:
            self._witnesses, self._proposed = call.witnesses, None
        if self.led_epoch:  # rule 4: from before it was sent, less a margin
            self.lease_until = call.sent_at + LEASE_S - LEASE_MARGIN_S

    def failed(self, call: StoreCall, now: float) -> None:
        """The store did not answer this call, or with an error."""
        if call is self._pending:
            self._pending, self._next_at = None, now + ASK_S

    def resigned(self) -> None:
        """The member leads no more, whatever the store has."""
        self.led_epoch, self.lease_until, self._proposed = 0, -inf, None

    def release(self, now: float) -> StoreCall | None:
        """The call that gives the key back, for a leader that stops; None: it does not lead."""
        epoch, self.stands = self.led_epoch, False
        self.resigned()
        self._hurry(now, ASK_S)
        return self._ask(Ask.RELEASE, epoch, now) if epoch else None

    def leave(self, now: float) -> StoreCall:
        """The last call of a member that ends: it is listed no more."""
        return self._ask(Ask.RELEASE, 0, now)

    def wakeup(self) -> float:
        """When `call` has something to ask."""
        return self._next_at if self._pending is None else self._pending.sent_at + ANSWER_S_MAX

    def _hurry(self, now: float, seconds: float) -> None:
        """Ask at once, and often, until there is another leader, for so long at most."""
        self._hurries_until = max(self._hurries_until, now + seconds)
        if self._pending is None:
            self._next_at = now

    def _ask(self, ask: Ask, epoch: int, now: float) -> StoreCall:
        self._number += 1
        has_ended = self.leader in self._ended and not self.is_bound
        free_epoch = max(self.free_epoch, self._leader_epoch) if has_ended else self.free_epoch
        self._told_free = max(self._told_free, free_epoch)
        witnesses = self._witnesses
        if ask is Ask.RENEW:  # until the store answers, the same: it may have the list already
            self._proposed = self.witnesses if self._proposed is None else self._proposed
            witnesses = Witnesses(epoch, self._proposed)
        self._pending = StoreCall(
            ask, self.member, self.address, epoch, self._number, now, free_epoch, has_ended, witnesses
        )
        return self._pending

    def _forget(self, member: str) -> None:
        self.members.pop(member, None)
        self._listed_at.pop(member, None)

    def _list(self, view: StoreView, now: float) -> None:
        """Keep members listed a moment ago: a store that forgets must not make the last list shorter (rule 2)."""
        self._ended = {member: at for member, at in self._ended.items() if member in view.members}
        self._heard_from = {member: now - view.silent_s.get(member, 0.0) for member in view.members}
        for member, address in view.members.items():
            self.members[member] = address
            self._listed_at[member] = now
        for member in [each for each, at in self._listed_at.items() if now - at > SILENT_S]:
            self._forget(member)
        self.strangers = (self.strangers | view.strangers) & self.members.keys()
