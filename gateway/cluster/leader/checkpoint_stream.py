"""CheckpointStream: the leader's side of checkpoints. It sends changes to members, and all records, in slices, to
members that lack the previous checkpoint.

A checkpoint is made when all changed records were written. Many changes take several turns, and a record that changes
meanwhile is written once more. A member that is getting all records gets the changes in between; after the last slice,
it has the next checkpoint.
"""

from collections.abc import Iterator, Sequence
from math import inf
from typing import Final

from gateway.cluster.checkpoints import CHECKPOINT_S, Mark, NewestCheckpoint
from gateway.cluster.leader.ordered_requests import Sender
from gateway.cluster.leader.pool_journal import PoolJournal
from gateway.cluster.records import GONE, Records, Taken, member_record, slices
from gateway.cluster.wire import CheckpointPart, Epoch

SENDERS_MAX: Final = 1_000  # members that a checkpoint knows beside those that are there: they may return

Parts = list[tuple[str, CheckpointPart]]


class CheckpointStream:
    """The maker of one leader's checkpoints. It sends the changes of each new checkpoint to the members (processes of
    the cluster), and a whole checkpoint to a member that lacks the previous one. Mutable.
    """

    def __init__(self, epoch: Epoch, leader: str, newest: NewestCheckpoint) -> None:
        """The leader continues from `newest`, which is replaced by each new checkpoint."""
        self.newest = newest
        self._mark = Mark(epoch, 0, leader)
        self._later_s = 0.0  # the clock of records is so much later than the leader's
        self._due_at = inf
        self._written: Records = {}
        self._encoding: Iterator[bytes] = iter(())  # of the checkpoint for the store
        self._is_encoding = False
        self._changed: set[Sender] = set()
        self._follow: set[str] = set()  # members that have the newest checkpoint
        self._lacks: dict[str, None] = {}  # members that have not
        self._wholes: dict[str, Iterator[Records]] = {}  # the rest of all records, of those that are being told them
        self._told_whole: set[str] = set()  # those that have been told the last slice since the newest checkpoint

    def begins(self, now: float) -> None:
        """The leader has read `newest`, and begins to decide."""
        self._later_s, self._due_at = self.newest.at - now, now

    def joined(self, member: str, mark: Mark) -> None:
        """A member has joined, and has the checkpoint with this mark."""
        self.lost(member)
        if member == self._mark.leader:
            return
        if mark == self.newest.mark:
            self._follow.add(member)
        else:
            self._lacks[member] = None

    def lost(self, member: str) -> None:
        """The connection of this member is gone."""
        self._follow.discard(member)
        self._told_whole.discard(member)
        self._lacks.pop(member, None)
        self._wholes.pop(member, None)

    def taken(self, sender: Sender) -> None:
        """The leader has processed facts of this member."""
        self._changed.add(sender)

    def wakeup(self, now: float) -> float:
        """When `turn` has something to do although nothing arrived."""
        is_busy = self._is_encoding or self._lacks or self._wholes or self._written
        return now if is_busy else self._due_at

    def turn(
        self, journals: Sequence[PoolJournal], senders: dict[str, Sender], now: float, *, is_last: bool = False
    ) -> tuple[Parts, bytes]:
        """The parts to send to members, and the bytes to write into the store; empty: none. With `is_last`, before the
        leader resigns, both include all changes.
        """
        is_kept, parts = is_last or now >= self._due_at, Parts()
        if is_kept or self._written or any(journal.is_full for journal in journals):
            for journal in journals:
                self._written |= journal.write(now, now + self._later_s, all_of_it=is_last)
            if all(journal.is_empty for journal in journals):
                parts = self._cut(journals, senders, now, is_kept=is_kept)
                if is_kept:
                    self._encoding = self.newest.encoding()
        body = next(self._encoding, None)
        if is_last and body is not None:
            *_, body = self._encoding
        self._is_encoding = body == b""
        return parts + self._next_slice(), body or b""

    def _cut(self, journals: Sequence[PoolJournal], senders: dict[str, Sender], now: float, *, is_kept: bool) -> Parts:
        base, self._mark = self.newest.mark, self._mark._replace(number=self._mark.number + 1)
        if base > self._mark:
            return []  # another leader's is newer: this one is about to hear of it
        if is_kept:
            self._due_at = now + CHECKPOINT_S
        written, self._written = self._written, {}
        for journal in journals:
            written |= journal.cut()
        written |= self._members(senders)
        changes = {key: body for key, body in written.items() if body != GONE or key in self.newest.records}
        self.newest.change(self._mark, now + self._later_s, changes, is_kept=is_kept)
        parts: Parts = []
        *firsts, last = slices(changes.items())
        for member in sorted({*self._follow, *self._wholes, *self._told_whole}):
            parts += [(member, CheckpointPart(each)) for each in firsts]
            mark = None if member in self._wholes else self._mark
            parts.append((member, CheckpointPart(last, mark, base, now + self._later_s, is_kept=is_kept)))
        self._follow |= self._told_whole
        self._told_whole.clear()
        return parts

    def _next_slice(self) -> Parts:
        """The next records of one member that lacks them."""
        if self._lacks:
            member = next(iter(self._lacks))
            del self._lacks[member]
            self._wholes[member] = rest = self.newest.whole()
            return [(member, CheckpointPart(next(rest), begins=True))]
        if not self._wholes:
            return []
        member = next(iter(self._wholes))
        rest = self._wholes.pop(member)
        records = next(rest, None)
        if records is None:
            self._told_whole.add(member)
            return []
        self._wholes[member] = rest  # after the others
        return [(member, CheckpointPart(records))]

    def _members(self, senders: dict[str, Sender]) -> Records:
        """What was taken in of members. The oldest of too many are forgotten, with their senders."""
        records: Records = {}
        for sender in self._changed:
            records |= member_record(sender.member, Taken(sender.request, sender.entry))
        self._changed.clear()
        for name in list(senders)[: max(0, len(senders) - SENDERS_MAX)]:
            if not senders[name].is_here:
                del senders[name]
                records |= member_record(name, None)
        return records
