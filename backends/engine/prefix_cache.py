"""Prefix cache: blocks of prompt KV by hash, their users, and the order of eviction.

Blocks in use have a count of users; unused blocks stay, in the order in which they were released, until their room is
needed. A sequence releases its last block first, so that a shared beginning outlives its many ends.
"""

from collections import OrderedDict
from collections.abc import Sequence


class PrefixCache:
    """The prefix cache of an engine: the blocks of its KV pool that hold prompts, for reuse. `len()` is their number.
    Mutable.
    """

    def __init__(self) -> None:
        self._users: dict[int, int] = {}
        self._unused: OrderedDict[int, None] = OrderedDict()  # least recently released first

    def __len__(self) -> int:
        return len(self._users) + len(self._unused)

    @property
    def unused(self) -> int:
        """The number of blocks that can be evicted."""
        return len(self._unused)

    def match(self, prefix: Sequence[int]) -> int:
        """Return the number of leading blocks that are cached."""
        for position, block in enumerate(prefix):
            if block not in self._users and block not in self._unused:
                return position
        return len(prefix)

    def unused_among(self, blocks: Sequence[int]) -> int:
        """Return how many of these blocks can be evicted now. Once they are acquired, they cannot be evicted."""
        return sum(block in self._unused for block in blocks)

    def acquire(self, blocks: Sequence[int]) -> None:
        """Count one more user of these blocks, all of which are cached."""
        for block in blocks:
            if block in self._users:
                self._users[block] += 1
            else:
                del self._unused[block]
                self._users[block] = 1

    def insert(self, block: int) -> bool:
        """Share a block that was just computed, with one user. Returns False if an equal block is cached already."""
        if block in self._users or block in self._unused:
            return False
        self._users[block] = 1
        return True

    def release(self, blocks: Sequence[int]) -> None:
        """Count one user less of these blocks of a prompt, given in the order of the prompt."""
        for block in reversed(blocks):
            users = self._users[block] - 1
            if users:
                self._users[block] = users
            else:
                del self._users[block]
                self._unused[block] = None

    def evict(self) -> None:
        """Evict the block that has been unused longest."""
        self._unused.popitem(last=False)
