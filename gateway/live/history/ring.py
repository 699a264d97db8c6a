"""Ring: rows of one-byte values by name and by slot of time; the oldest slots are dropped.

Slots are numbered by the clock, so that rings of several processes use the same number for the same time. Rows of the
present block of 60 slots stand side by side, one bytearray a slot. A block that is over is compressed, column by
column, in chunks of names: `compress` does one chunk, which takes about a millisecond, so that the event loop is never
kept for a whole block. A name without rows in a block takes no room there.
"""

import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

BLOCK_SLOTS: Final = 60
CHUNK_NAMES: Final = 64
LEVEL: Final = 6


class _NamesChunk(NamedTuple):
    """Rows of some names. Each column is compressed by itself, as differences from each name's median: what all have in
    common are the small ones.
    """

    names: tuple[str, ...]
    medians: bytes  # by column, by name
    columns: tuple[bytes, ...]  # empty: no name differs from its median

    @classmethod
    def of(cls, names: tuple[str, ...], columns: Sequence[Sequence[bytes]]) -> "_NamesChunk":
        medians = bytes(sorted(row)[BLOCK_SLOTS // 2] for column in columns for row in column)
        median = iter(medians)
        packed = (b"".join(row.translate(_LESS[next(median)]) for row in column) for column in columns)
        return cls(names, medians, tuple(_compressed(column) if any(column) else b"" for column in packed))

    def rows(self, places: Iterable[int]) -> Iterator[list[bytes]]:
        """The columns of the names at these places."""
        count = len(self.names)
        data = [zlib.decompress(each) if each else bytes(count * BLOCK_SLOTS) for each in self.columns]
        for place in places:
            begin = place * BLOCK_SLOTS
            yield [
                column[begin : begin + BLOCK_SLOTS].translate(_MORE[self.medians[number * count + place]])
                for number, column in enumerate(data)
            ]


def _compressed(codes: bytes) -> bytes:
    """By Huffman's code alone: noise has no repetitions, and the search for them costs more than it gains."""
    packing = zlib.compressobj(LEVEL, zlib.DEFLATED, zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, zlib.Z_HUFFMAN_ONLY)
    return packing.compress(codes) + packing.flush()


_LESS: Final = [bytes((code - median) & 255 for code in range(256)) for median in range(256)]
_MORE: Final = [bytes((code + median) & 255 for code in range(256)) for median in range(256)]


class _RingBlock:
    """One block of slots. Mutable."""

    __slots__ = ("chunks", "number", "recorded", "rows", "slots")

    def __init__(self, number: int) -> None:
        self.number = number
        self.recorded = bytearray(BLOCK_SLOTS)
        self.rows: dict[str, int] = {}  # of names that are not compressed yet
        self.slots: list[bytearray] = [bytearray() for _ in range(BLOCK_SLOTS)]
        self.chunks: list[_NamesChunk] = []

    def put(self, slot: int, name: str, row: bytes) -> None:
        place, width, data = self.rows.setdefault(name, len(self.rows)), len(row), self.slots[slot]
        if (place + 1) * width > len(data):
            data.extend(bytes(len(self.rows) * width - len(data)))
        data[place * width : (place + 1) * width] = row

    def columns(self, place: int, count: int, width: int) -> list[list[bytes]]:
        """Of so many uncompressed rows from this place on: by column, by name, a code a slot."""
        begin, whole = place * width, count * width
        data = b"".join(bytes(slot[begin : begin + whole]).ljust(whole, b"\0") for slot in self.slots)
        return [[data[at * width + column :: whole] for at in range(count)] for column in range(width)]

    def of(self, name: str, width: int) -> list[bytes] | None:
        place = self.rows.get(name)
        if place is not None:
            return [column[0] for column in self.columns(place, 1, width)]
        chunk = next((each for each in self.chunks if name in each.names), None)
        return None if chunk is None else next(chunk.rows([chunk.names.index(name)]))

    def compress(self, width: int, known: Iterable[_NamesChunk]) -> None:
        """Compress one chunk more. It shares its tuple of names with a `known` one, where it is the same."""
        names = tuple(islice(self.rows, CHUNK_NAMES))
        names = next((each.names for each in known if each.names == names), names)
        self.chunks.append(_NamesChunk.of(names, self.columns(self.rows[names[0]], len(names), width)))  # side by side
        for name in names:
            del self.rows[name]
        if not self.rows:
            self.rows, self.slots = {}, []


class Ring:
    """A bounded table of past values of named things, such as tenants and backends. A row has the values of one name in
    one slot of time. Slots have equal lengths and are numbered by the clock; BLOCK_SLOTS successive slots are a block,
    and the oldest blocks are dropped. Mutable: the number of the newest block only grows, unless the clock is set back.
    """

    def __init__(self, blocks: int, width: int, names_max: int) -> None:
        """The present block and `blocks` before it are kept; a row has `width` values, and a block up to `names_max`
        names.
        """
        self._width = width
        self._names_max = names_max
        self._blocks: deque[_RingBlock] = deque(maxlen=blocks + 1)

    def put(self, slot: int, rows: Iterable[tuple[str, bytes]]) -> None:
        """Add rows of some names to this slot. Rows of a slot whose block is over are ignored."""
        block = self._block(slot)
        if block is not None:
            for name, row in rows:
                if name in block.rows or len(block.rows) < self._names_max:
                    block.put(slot % BLOCK_SLOTS, name, row)

    def recorded(self, slot: int) -> None:
        """Mark this slot as complete: names without a row had no values."""
        block = self._block(slot)
        if block is not None:
            block.recorded[slot % BLOCK_SLOTS] = 1

    def set_back(self, slot: int) -> None:
        """Drop the blocks after this slot, and its own where it is compressed already, so that it can be put again."""
        number = slot // BLOCK_SLOTS
        while self._blocks and self._blocks[-1].number + bool(self._blocks[-1].chunks) > number:
            self._blocks.pop()

    def compress(self) -> bool:
        """Compress one chunk of a block that is over; returns whether there was one."""
        before: Sequence[_NamesChunk] = ()
        for block in list(self._blocks)[:-1]:
            if block.rows:
                block.compress(self._width, before)
                return True
            before = block.chunks
        return False

    def is_recorded(self, first: int, last: int) -> bytes:
        """For each slot from `first` to `last`, the byte 1 if it was recorded, else 0."""
        known = {block.number: block for block in self._blocks}
        return bytes(
            known[slot // BLOCK_SLOTS].recorded[slot % BLOCK_SLOTS] if slot // BLOCK_SLOTS in known else 0
            for slot in range(first, last + 1)
        )

    def read(self, name: str, first: int, last: int) -> list[bytes] | None:
        """Each column's codes, one per slot from `first` to `last`; None: the name has no row in these blocks."""
        is_known = False
        found = [bytearray(last - first + 1) for _ in range(self._width)]
        for block in self._blocks:
            begin = block.number * BLOCK_SLOTS
            low, high = max(first, begin), min(last, begin + BLOCK_SLOTS - 1)
            if low > high or (columns := block.of(name, self._width)) is None:
                continue
            is_known = True
            for into, column in zip(found, columns, strict=True):
                into[low - first : high - first + 1] = column[low - begin : high - begin + 1]
        return [bytes(each) for each in found] if is_known else None

    def rows(self, first: int, last: int) -> Iterator[tuple[str, list[bytes]]]:
        """Each name with a row in these slots, which are in one block, and each column's codes in these slots."""
        low, high, width = first % BLOCK_SLOTS, last % BLOCK_SLOTS + 1, self._width
        for block in [each for each in self._blocks if each.number == first // BLOCK_SLOTS]:
            slots = block.slots[low:high]
            for name, place in list(block.rows.items()):
                begin, end = place * width, place * width + width
                data = b"".join(bytes(slot[begin:end]).ljust(width, b"\0") for slot in slots)
                if any(data):
                    yield name, [data[column::width] for column in range(width)]
            for chunk in block.chunks:
                for name, columns in zip(chunk.names, chunk.rows(range(len(chunk.names))), strict=True):
                    part = [column[low:high] for column in columns]
                    if any(map(any, part)):
                        yield name, part

    def _block(self, slot: int) -> _RingBlock | None:
        """The block of a slot, which is made where it is newer than all; None: it is over."""
        number = slot // BLOCK_SLOTS
        if not self._blocks or self._blocks[-1].number < number:
            self._blocks.append(_RingBlock(number))
        return self._blocks[-1] if self._blocks[-1].number == number else None
