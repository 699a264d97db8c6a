"""A heap of waiting tenants whose keys change while they wait, O(log n) a change.

Lazy deletion: an entry carries a stamp that no other entry of the heap has, and is void when its account has
another one by now. A key that fell gets a new entry at once; a key that rose is found too small when it surfaces
and sinks to its place then. Rising is what happens per token, so the token path never touches the heap.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace

from policies.fairness.base import Account

Entry = tuple[float, str, int, Account]
SPARE_ENTRIES = 64  # void entries tolerated before the heap is rebuilt


class TenantHeap:
    """Waiting accounts, smallest key first, equal keys by tenant id."""

    def __init__(self, key: Callable[[Account], float]) -> None:
        self._key = key
        self._entries: list[Entry] = []
        self._stamps = 0  # given out; never twice, also not to an account that was forgotten and came back

    def push(self, account: Account, waiting: int) -> None:
        """Enter the account, or enter it again because its key fell; `waiting` accounts are waiting in all."""
        self._stamps += 1
        account.stamp, account.entry_key = self._stamps, self._key(account)
        heappush(self._entries, (account.entry_key, account.tenant_id, account.stamp, account))
        if len(self._entries) > 2 * waiting + SPARE_ENTRIES:
            self._entries = [entry for entry in self._entries if entry[2] == entry[3].stamp]
            heapify(self._entries)

    def first(self) -> Account | None:
        """The account with the smallest key as of now."""
        entries = self._entries
        while entries:
            key, tenant_id, stamp, account = entries[0]
            if stamp != account.stamp:
                heappop(entries)
            elif key < (key_now := self._key(account)):
                account.entry_key = key_now
                heapreplace(entries, (key_now, tenant_id, stamp, account))
            else:
                return account
        return None

    def first_of(self, eligible: Callable[[str], bool]) -> Account | None:
        """The eligible account with the smallest key; costs O(log n) for every ineligible one before it."""
        account = self.first()
        if account is None or eligible(account.tenant_id):
            return account
        passed_over: list[Entry] = []
        while account is not None and not eligible(account.tenant_id):
            passed_over.append(heappop(self._entries))
            account = self.first()
        for entry in passed_over:
            heappush(self._entries, entry)
        return account
