"""ChargeLog: a log of the ended calls and the spending of a member's clients, until a checkpoint includes them.

A leader's counters are its checkpoint and all later reports of members. A checkpoint says up to which entry of each
member's log it includes the log; the member sends the later entries to every leader that it joins. So every end and
every spending of a living member is charged exactly once, however often leaders and connections change.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from gateway.cluster.wire import Ended, Spend
from policies.types import Usage

ENTRIES_MAX: Final = 20_000
"""More than a member ends until all have a checkpoint. One that is alone for long sums older ones up by tenant."""


class ChargeLog:
    """A numbered log of the usage of the ended calls of one member (a process of the cluster), oldest first. The member
    sends it to every new leader, so that each call is charged exactly once. An entry is dropped when a checkpoint
    includes it. Mutable.
    """

    def __init__(self) -> None:
        self.number = 0
        """Of the last entry."""
        self._entries: OrderedDict[int, tuple[str, Ended | Spend]] = OrderedDict()
        self._sums: dict[tuple[str, str, str], tuple[int, Usage]] = {}  # by pool, tenant and key: the last entry in it

    def __len__(self) -> int:
        return len(self._entries) + len(self._sums)

    def __iter__(self) -> Iterator[tuple[str, Ended | Spend]]:
        """All entries with their pools, by number."""
        for (pool, tenant_id, key_id), (entry, usage) in sorted(self._sums.items(), key=lambda each: each[1][0]):
            yield pool, Spend(tenant_id, usage, key_id, entry)
        yield from self._entries.values()

    def next_number(self) -> int:
        """The number of a new entry, to be sent with it."""
        self.number += 1
        return self.number

    def add(self, pool: str, entry: Ended | Spend) -> None:
        """Keep an entry, under the number that `next_number` gave last."""
        self._entries[entry.entry] = pool, entry
        if len(self._entries) > ENTRIES_MAX:
            self._sum_up(*self._entries.popitem(last=False)[1])

    def taken(self, number: int) -> None:
        """Drop the entries up to this number: a checkpoint includes them."""
        while self._entries and (oldest := next(iter(self._entries))) <= number:
            del self._entries[oldest]
        if self._sums:
            self._sums = {key: each for key, each in self._sums.items() if each[0] > number}

    def _sum_up(self, pool: str, entry: Ended | Spend) -> None:
        """Its request is long forgotten by all: what it used counts, and nothing else of it."""
        if entry.usage is None:
            return
        of = entry if isinstance(entry, Spend) else entry.request
        key = pool, of.tenant_id, of.key_id
        before = self._sums.get(key)
        usage = entry.usage if before is None else Usage(*map(sum, zip(before[1], entry.usage, strict=True)))
        self._sums[key] = entry.entry, usage
