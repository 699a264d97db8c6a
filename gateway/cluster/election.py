"""Election: which member may try to lead, by a store that all members can ask (rules 1, 2, 4).

The store (election_store.py) only says which member may try: the members that join it make it the leader. The store may
be slow, fail, or lose its data; the worst result is a time without a leader. `Candidate` decides which calls to make
and what an answer means; its shell makes the calls.

A process that ends closes its sockets, and its port refuses connections. Members that saw this at the leader's port
report it with each call. Once all listed members have, the store drops the key at once.

While the store is away, a majority of the leader's members renews its lease (promise.py). So the store keeps the list
of these members, the witnesses. It gives the key to another member only when enough witnesses report that they help
that leader no more: then that leader has no majority, and cannot get one again.
"""

from gateway.cluster.asking import ASK_S, STANDALONE_S, Asking
from gateway.cluster.election_store import Ask, StoreCall, StoreView
from gateway.cluster.leader_key import LeaderKey
from gateway.cluster.listed_members import ListedMembers
from gateway.cluster.promise import LEASE_MARGIN_S, LEASE_S, SILENT_S
from gateway.cluster.witness_lists import WitnessLists


class Candidate:
    """The rules by which one member (a process of the cluster) tries to become the leader: which call of the election
    store to make and when, and what the answer means for this member. It does no I/O: its caller makes the calls.
    Mutable.
    """

    def __init__(self, member: str, address: str = "", *, now: float) -> None:
        """`address` is where other members connect. The store was just connected."""
        self.member = member
        self.address = address
        self.epoch = 0
        """The highest epoch that is known."""
        self.stands = True
        """Whether this member tries; false while it drains, or reaches no backend."""
        self.is_bound = False
        """Whether this member helps a leader to lead; then it does not try. The member says so."""
        self.free_epoch = 0
        """The newest epoch whose leader this member knew and helps no more; 0: none. The member says so."""
        self.key = LeaderKey()
        self.listed = ListedMembers()
        self.witnesses = WitnessLists()
        self.asking = Asking(now)
        self._told_free = 0  # the newest free epoch that the store may have from this member
        self._stands_from = now + SILENT_S

    def reconnected(self, now: float) -> None:
        """The store was connected anew: it may be another store, which knows less (rule 2)."""
        self._stands_from = now + SILENT_S

    def resigned_by(self, leader: str, now: float, *, returns: bool) -> None:
        """The leader reported that it resigns: the key is free in a moment. If it `returns`, the next leader waits
        until it has reported the running requests of its clients, because these fill slots.
        """
        if not returns:
            self.listed.forget(leader)
        self.asking.hurry(now, ASK_S)

    def lost(self, leader: str, now: float) -> None:
        """The connection to this leader is gone. If its process has ended or hangs, its key is free within LEASE_S."""
        if leader == self.key.leader:
            self.asking.hurry(now, SILENT_S)

    def ended(self, member: str, now: float) -> None:
        """The process of this member has ended."""
        if self.listed.ended(member, now):
            self.asking.hurry(now, SILENT_S)

    def knows(self, epoch: int) -> None:
        """Note an epoch that was heard of, which may be higher than the known one (rule 1)."""
        self.epoch = max(self.epoch, epoch)

    def overslept(self, seconds: float, now: float) -> None:
        """Note that this process did not run for `seconds`."""
        self.asking.overslept(seconds, now)
        if seconds > STANDALONE_S:  # meanwhile a leader may have been elected, and the store have forgotten it
            self.reconnected(now)

    def may_grant(self, epoch: int) -> bool:
        """Whether this member may help the leader of this epoch: not after it has told the store that it does not, and
        not when a newer epoch is known.
        """
        return self._told_free < epoch and self.epoch <= epoch

    def has_been_seen(self, now: float) -> bool:
        """Whether this member was listed in the store for long enough that all others have seen it there."""
        return now >= self._stands_from

    def call(self, now: float) -> StoreCall | None:
        """The call to make now; None: no call is due."""
        if not self.asking.is_due(now):
            return None
        if self.key.led_epoch:
            return self._ask(Ask.RENEW, self.key.led_epoch, now)
        may_stand = self.stands and not self.is_bound and not self.listed.strangers
        acquires = may_stand and self.key.leader is None and self.has_been_seen(now)
        return self._ask(Ask.ACQUIRE if acquires else Ask.LOOK, self.epoch, now)

    def answered(self, call: StoreCall, view: StoreView, now: float) -> None:
        """The store answered this call; a late answer counts as a failure."""
        if not self.asking.answered(call, now):
            return
        self._told_free = call.free_epoch
        before = self.key.leader
        self.listed.listed(view, now, before=before)
        self.key.seen(call, view, now)
        self.witnesses.seen(view, self.epoch)
        self._answered_for_key(call, view)
        if self.key.leader not in (None, before):
            self.asking.calm(call)
        elif view.leader is None and before is not None and not self.key.led_epoch:
            self.asking.at_once(now)  # the key is free: try
        self.epoch = max(self.epoch, view.epoch, view.counter)

    def _answered_for_key(self, call: StoreCall, view: StoreView) -> None:
        """What the answer says of this member's own lead."""
        key = self.key
        if call.ask is Ask.ACQUIRE and view.leader == self.member:
            self.listed.has_forgotten = view.counter < self.epoch
            key.led_epoch = view.epoch
            self.witnesses.begin()
        elif call.ask is Ask.RENEW and (view.leader, view.epoch) != (self.member, key.led_epoch):
            key.give_up()
        elif call.ask is Ask.RENEW:
            self.witnesses.renewed(call.witnesses)
        if key.led_epoch:  # rule 4: from before it was sent, less a margin
            key.lease_until = call.sent_at + LEASE_S - LEASE_MARGIN_S

    def release(self, now: float) -> StoreCall | None:
        """The call by which a leader that stops gives its key back; None: this member does not lead."""
        epoch, self.stands = self.key.led_epoch, False
        self.key.give_up()
        self.asking.hurry(now, ASK_S)
        return self._ask(Ask.RELEASE, epoch, now) if epoch else None

    def leave(self, now: float) -> StoreCall:
        """The call by which a member that ends leaves the store's list of members."""
        return self._ask(Ask.RELEASE, 0, now)

    def _ask(self, ask: Ask, epoch: int, now: float) -> StoreCall:
        has_ended = self.listed.has_ended(self.key.leader) and not self.is_bound
        free_epoch = max(self.free_epoch, self.key.epoch) if has_ended else self.free_epoch
        self._told_free = max(self._told_free, free_epoch)
        witnesses = self.witnesses.propose(epoch) if ask is Ask.RENEW else self.witnesses.agreed
        number = self.asking.next_number()
        call = StoreCall(ask, self.member, self.address, epoch, number, now, free_epoch, has_ended, witnesses)
        return self.asking.begin(call)
