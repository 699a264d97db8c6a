"""Blocks of prompt KV by hash: who uses them, and which may go first.

A block in use is counted; a block that nobody uses stays, in the order it was left, until its room
is needed. A sequence leaves its blocks last first, so that a shared beginning outlives its many ends.
"""

from collections import OrderedDict
from collections.abc import Sequence


class PrefixCache:
    """A part of the KV pool, not a pool of its own: `len()` blocks of it are held here."""

    def __init__(self) -> None:
        self._users: dict[int, int] = {}
        self._unused: OrderedDict[int, None] = OrderedDict()  # least recently left first

    def __len__(self) -> int:
        return len(self._users) + len(self._unused)

    @property
    def unused(self) -> int:
        """Blocks that may be evicted."""
        return len(self._unused)

    def match(self, prefix: Sequence[int]) -> int:
        """How many leading blocks are here."""
        for position, block in enumerate(prefix):
            if block not in self._users and block not in self._unused:
                return position
        return len(prefix)

    def unused_among(self, blocks: Sequence[int]) -> int:
        """How many of these could be evicted now, and could not once they are acquired."""
        return sum(block in self._unused for block in blocks)

    def acquire(self, blocks: Sequence[int]) -> None:
        """One more sequence uses these blocks; all of them are here."""
        for block in blocks:
            if block in self._users:
                self._users[block] += 1
            else:
                del self._unused[block]
                self._users[block] = 1

    def insert(self, block: int) -> bool:
        """Share a block that was just computed, used by one. False if its twin is here already."""
        if block in self._users or block in self._unused:
            return False
        self._users[block] = 1
        return True

    def release(self, blocks: Sequence[int]) -> None:
        """One sequence stops using these blocks, given in the order of its prompt."""
        for block in reversed(blocks):
            users = self._users[block] - 1
            if users:
                self._users[block] = users
            else:
                del self._users[block]
                self._unused[block] = None

    def evict(self) -> None:
        """Give up the block that has been unused longest."""
        self._unused.popitem(last=False)
