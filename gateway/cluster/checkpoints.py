"""Checkpoints: what the tenants of all pools have received, as the leader last said, so that the next leader goes on.

The leader takes one every CHECKPOINT_S and tells all members, which keep the newest by (epoch, number) (rule 19); its
shell also puts it into the store. It says which facts of each member it has, and what it charged for requests that had
not ended: so the next leader charges what living members tell it, neither less nor twice. What a dead member used after
the last checkpoint is forgotten: at most CHECKPOINT_S. A checkpoint may be larger than a frame, so it travels in parts.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from gateway.cluster.wire import PART_BYTES, CheckpointPart, Epoch
from policies.accounts.checkpoint import ServiceCheckpoint
from policies.admission.rate_window import Booked, MinuteCheckpoint, WindowCheckpoint
from policies.types import ReplicaShare, Usage

CHECKPOINT_S: Final = 1.0
SURE_AFTER: Final = 4
"""So many checkpoints later all members have one, or a later one: a leader that is cut off takes two until its lease of
2 s has ended, and one when it resigns. So the next leader may begin without this member, and with an older checkpoint.
"""


class Taken(NamedTuple):
    """What a leader has taken in of one member: its last request, and its last entry of the ChargeLog."""

    request: int = 0
    entry: int = 0


class PoolCheckpoint(msgspec.Struct, frozen=True, array_like=True):
    """Of one pool: counters, and what counts against limits per minute. `charged` is what the counters have of requests
    that had not ended, by wire id.
    """

    service: ServiceCheckpoint
    windows: WindowCheckpoint
    charged: Mapping[str, Usage] = {}

    def part(self, share: ReplicaShare) -> "PoolCheckpoint":
        """For a member with this part of every limit: of what was used within the minute it has the same part, so the
        parts of what is left make the whole.
        """
        windows = {
            scope: MinuteCheckpoint(_part(minute.requests, share), _part(minute.tokens, share))
            for scope, minute in self.windows.items()
        }
        return PoolCheckpoint(self.service, windows, self.charged)


def _part(booked: Iterable[Booked], share: ReplicaShare) -> tuple[Booked, ...]:
    """The member's part of these bookings, oldest first: of all up to each one, so that it is rounded once."""
    parts, until_now, taken = [], 0, 0
    for age_s, amount in booked:
        until_now += amount
        parts.append(Booked(age_s, share.of(until_now) - taken))
        taken = share.of(until_now)
    return tuple(parts)


class ClusterCheckpoint(msgspec.Struct, frozen=True, array_like=True):
    """Of all pools. `besides` is the shell's: what else it has learnt (step-time models, tokens per byte)."""

    epoch: Epoch
    number: int
    pools: Mapping[str, PoolCheckpoint]
    besides: bytes = b""
    taken: Mapping[str, Taken] = {}  # by member

    @property
    def order(self) -> tuple[Epoch, int]:
        """The newest checkpoint has the highest."""
        return self.epoch, self.number


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(ClusterCheckpoint)


def encode_checkpoint(checkpoint: ClusterCheckpoint) -> bytes:
    return _ENCODER.encode(checkpoint)


def decode_checkpoint(body: bytes) -> ClusterCheckpoint:
    """Raises msgspec.DecodeError."""
    return _DECODER.decode(body)


def parts_of(epoch: Epoch, number: int, body: bytes) -> list[CheckpointPart]:
    """The messages that carry an encoded checkpoint."""
    starts = range(0, max(1, len(body)), PART_BYTES)
    return [
        CheckpointPart(epoch, number, part, len(starts), body[start : start + PART_BYTES])
        for part, start in enumerate(starts)
    ]


class NewestCheckpoint:
    """The newest checkpoint that this member was told, from any source. Mutable."""

    def __init__(self) -> None:
        self.order: tuple[Epoch, int] = (0, 0)
        """Of the newest; (0, 0): there is none."""
        self.body = b""
        self._taken: deque[Mapping[str, Taken]] = deque(maxlen=SURE_AFTER)
        self._parts: dict[tuple[Any, Epoch, int], dict[int, bytes]] = {}  # by source

    def told(self, body: bytes) -> None:
        """An encoded checkpoint from the store; a damaged one is left out."""
        try:
            checkpoint = decode_checkpoint(body)
        except msgspec.DecodeError:
            return
        if checkpoint.order > self.order:
            self.order, self.body = checkpoint.order, body
            self._taken.append(checkpoint.taken)

    def taken_of(self, member: str) -> int:
        """The last entry of this member's ChargeLog that every later leader surely has."""
        return self._taken[0].get(member, Taken()).entry if len(self._taken) == SURE_AFTER else 0

    def part(self, source: object, part: CheckpointPart) -> None:
        """A part came from `source`; a source tells the parts of one checkpoint in order."""
        key = source, part.epoch, part.number
        if (part.epoch, part.number) <= self.order:
            return
        if not part.part:  # what the source began before stays unfinished
            self._parts = {each: parts for each, parts in self._parts.items() if each[0] != source}
        parts = self._parts.setdefault(key, {})
        parts[part.part] = part.body
        if len(parts) == part.parts:
            del self._parts[key]
            self.told(b"".join(parts[number] for number in range(part.parts)))

    def read(self) -> ClusterCheckpoint | None:
        return decode_checkpoint(self.body) if self.body else None
