"""Checkpoints: what the tenants of all pools have received, as the leader last said, so that the next leader goes on.

The leader takes one every CHECKPOINT_S and tells all members, which keep the newest by (epoch, number) (rule 19); its
shell also puts it into the store. What was charged after the last one is forgotten when the leader dies: at most
CHECKPOINT_S. A checkpoint may be larger than a frame, so it travels in parts.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from gateway.cluster.wire import PART_BYTES, CheckpointPart, Epoch
from policies.accounts.checkpoint import ServiceCheckpoint
from policies.admission.rate_window import WindowCheckpoint

CHECKPOINT_S: Final = 1.0


class PoolCheckpoint(msgspec.Struct, frozen=True, array_like=True):
    """Of one pool: counters, and what counts against limits per minute."""

    service: ServiceCheckpoint
    windows: WindowCheckpoint


class ClusterCheckpoint(msgspec.Struct, frozen=True, array_like=True):
    """Of all pools. `besides` is the shell's: what else it has learnt (step-time models, tokens per byte)."""

    epoch: Epoch
    number: int
    pools: Mapping[str, PoolCheckpoint]
    besides: bytes = b""

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
        self._parts: dict[tuple[Any, Epoch, int], dict[int, bytes]] = {}  # by source

    def told(self, body: bytes) -> None:
        """An encoded checkpoint from the store; a damaged one is left out."""
        try:
            order = decode_checkpoint(body).order
        except msgspec.DecodeError:
            return
        if order > self.order:
            self.order, self.body = order, body

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
