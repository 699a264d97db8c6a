"""Checkpoints: the last reported service of the tenants of all pools, from which the next leader continues.

The leader reports changes to all members every CHECKPOINT_S, and as soon as CHANGES_MAX tenants or requests have
changed. Each report makes a checkpoint, and a member's newest one by (epoch, number) counts (rule 19). A member that
lacks the previous checkpoint gets all records, in slices, and the changes in the meantime. Every CHECKPOINT_S the
leader's shell also writes the whole checkpoint into the store. A checkpoint says which facts of each member it
includes, and the charges of requests that had not ended: so the next leader charges the reports of living members once,
and completely. Usage of a dead member after the last checkpoint is lost: at most that of CHECKPOINT_S.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from gateway.cluster.records import (
    GONE,
    MEMBER,
    ClusterCheckpoint,
    Records,
    Whole,
    compose,
    decode_taken,
    decode_whole,
    encode,
    key_of,
    slices,
)
from gateway.cluster.wire import CheckpointPart, Epoch

CHECKPOINT_S: Final = 1.0
SURE_AFTER: Final = 4
"""So many seconds later all members have a checkpoint, or a later one: a leader that is cut off keeps two until its
lease of 2 s has ended, and one when it resigns. So the next leader may begin without this member, and with an older
checkpoint.
"""


class Mark(NamedTuple):
    """The version of a checkpoint: of two checkpoints, the newer one has the higher mark. `epoch` is the number of the
    leadership that made it, and `number` counts the checkpoints of this leadership. `leader` tells two leaders of one
    epoch apart: a store that has lost its data may give an epoch twice, but to different members.
    """

    epoch: Epoch = 0
    number: int = 0
    leader: str = ""


class NewestCheckpoint:
    """The newest checkpoint that one member (a process of the cluster) has: the state from which a new leader
    continues, such as counters and charges. It comes from the leader, in parts, or from the store. Mutable.
    """

    def __init__(self) -> None:
        self.mark = Mark()
        """Of the newest; Mark(): there is none."""
        self.at = 0.0
        """When it was taken, by the clock of its records."""
        self.records: Records = {}
        self._second: deque[Mapping[str, bytes]] = deque(maxlen=SURE_AFTER)  # records of members
        self._members: Records = {}  # those of now
        self._begun: dict[object, Records] = {}  # by source: a whole of which a part was told
        self._changes: dict[object, Records] = {}  # by source: changes of which a part was told

    def told(self, body: bytes) -> None:
        """Take a whole checkpoint from the store; a damaged one is ignored."""
        try:
            whole = decode_whole(body)
            if Mark(*whole.mark) > self.mark:
                self._replace(Mark(*whole.mark), whole.at, whole.records(), is_kept=True)
        except msgspec.DecodeError:
            return

    def part(self, source: object, part: CheckpointPart) -> None:
        """A part came from `source`, which sends its parts in order."""
        if part.begins:
            self._begun[source] = {}
        mark, whole = None if part.mark is None else Mark(*part.mark), self._begun.get(source)
        if whole is not None:
            _change(whole, part.records)
            if mark is not None:
                del self._begun[source]
                if mark > self.mark:
                    self._replace(mark, part.at, whole, is_kept=part.is_kept)
            return
        changes = self._changes.setdefault(source, {})
        changes.update(part.records)
        if mark is not None:
            del self._changes[source]
            if Mark(*part.base) == self.mark:
                self.change(mark, part.at, changes, is_kept=part.is_kept)

    def forget(self, source: object) -> None:
        """The connection to `source` is gone: drop its incomplete checkpoint."""
        self._begun.pop(source, None)
        self._changes.pop(source, None)

    def change(self, mark: Mark, at: float, records: Records, *, is_kept: bool) -> None:
        """Make the next checkpoint by these changed records. `is_kept`: it is a regular one, each CHECKPOINT_S."""
        _change(self.records, records)
        _change(self._members, {key: body for key, body in records.items() if key[0] == MEMBER})
        self._became(mark, at, is_kept=is_kept)

    def _became(self, mark: Mark, at: float, *, is_kept: bool) -> None:
        self.mark, self.at = mark, at
        if is_kept:
            self._second.append(dict(self._members))

    def taken_of(self, member: str) -> int:
        """The number of the last entry of this member's ChargeLog that every later leader certainly has."""
        record = self._second[0].get(key_of(MEMBER, "", member)) if len(self._second) == SURE_AFTER else None
        return 0 if record is None else decode_taken(record).entry

    def whole(self) -> Iterator[Records]:
        """Yield all records in slices, each record as it is at that time, without records that are added meanwhile."""
        keys = list(self.records)
        return slices((key, body) for key in keys if (body := self.records.get(key)) is not None)

    def parts(self) -> Iterator[CheckpointPart]:
        """Yield the parts by which the whole checkpoint is sent, in order."""
        begins = True
        for records in self.whole():
            yield CheckpointPart(records, begins=begins)
            begins = False
        yield CheckpointPart({}, self.mark, at=self.at)

    def encoding(self) -> Iterator[bytes]:
        """Encode the checkpoint of the first step, piece by piece; the last one is the whole, as `told` takes it."""
        whole = Whole(self.mark, self.at, [])
        for part in slices(list(self.records.items())):
            whole.parts.append(encode(part))
            yield b""
        yield encode(whole)

    def read(self) -> ClusterCheckpoint | None:
        return compose(self.records, self.at) if self.mark > Mark() else None

    def _replace(self, mark: Mark, at: float, records: Records, *, is_kept: bool) -> None:
        self.records = records
        self._members = {key: body for key, body in records.items() if key[0] == MEMBER}
        self._became(mark, at, is_kept=is_kept)


def _change(records: Records, changes: Records) -> None:
    for key, body in changes.items():
        if body == GONE:
            records.pop(key, None)
        else:
            records[key] = body
