"""Longest cached prefix: the waiting request with the most cached prompt tokens, among a limited number of them.

Looking up the cache costs time, and so does finding the tenants whose requests may be compared. So a decision compares
at most LOOKUPS_MAX requests: equally many of each tenant, oldest first, of the tenants with the least ranks. (SGLang
compares all waiting requests if there are up to 128, and none if there are more.) Fair orders stay fair: the limit
excludes requests that the order would allow, and allows no others.

Little of that changes between two decisions: the tenant that was served moves, one request joins or leaves, and the
dispatched prompt is now cached for the few prompts that continue it. So the first tenants are kept in order, with the
requests that are compared and their cached tokens. Each change is reported, and only what it concerns is looked up
again.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from math import inf
from operator import itemgetter

from policies.fairness.base import Account, CachedBlocks, Changes, Eligible, Waiting, anything_changes
from policies.fairness.heap import TenantHeap
from policies.types import Request

LOOKUPS_MAX = 128  # per decision
SPARE_PROMPTS = 4 * LOOKUPS_MAX  # prompts that are not compared any more, tolerated before they are forgotten

Rank = tuple[float] | tuple[float, float, str]
"""The order of requests: minus the cached tokens, arrival, tenant id. The smallest is next."""

UNKNOWN: Rank = (-inf,)  # sorts before all known ranks


class _Window:
    """The oldest requests of a tenant, with their ranks."""

    __slots__ = ("ranks", "requests")

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.ranks: list[Rank] = []

    def take_out(self, request: Request) -> None:
        for place, each in enumerate(self.requests):
            if each is request:
                del self.requests[place], self.ranks[place]
                return


class LongestCached:
    """A heap of waiting tenants that also finds the waiting request with the longest cached prefix. One search covers
    the LOOKUPS_MAX tenants of the least rank and, over all of them, at most LOOKUPS_MAX requests. A policy that uses
    this heap calls `push` as in any heap. It also reports each rank that rises (`rose`), each tenant that stops waiting
    (`remove`), and each request that joins or leaves a tenant's queue (`queued`, `gone`). Mutable.
    """

    def __init__(self, key: Callable[[Account], float]) -> None:
        self._key = key
        self._others: TenantHeap[Account] = TenantHeap(key)
        self._first: list[tuple[float, str, Account]] = []  # by rank, then tenant; none of the others is before them
        self._bests: list[Rank] = []  # of each of them, over as many requests as were compared last
        self._compared = 0
        self._listed: dict[str, Account] = {}  # those in _first, by id
        self._rose: dict[str, Account] = {}  # those of them whose rank may have risen
        self._waiting = 0  # tenants, at most
        self._windows: dict[str, _Window] = {}  # of tenants that were compared
        self._askers: dict[int, set[str]] = {}  # tenants with such a prompt in their window, by its last block
        self.look_up_in(lambda _: 0, anything_changes)

    def look_up_in(self, cached_blocks: CachedBlocks, changes: Changes) -> None:
        """Set the functions that report cached blocks, and the prompts for which they have changed."""
        self._cached_blocks, self._changes = cached_blocks, changes
        self._number, _ = changes(0)
        self._forget_all()

    # -- waiting tenants, by rank ----------------------------------------------------------------------------

    def push(self, place: Account, waiting: int) -> None:
        """Add the tenant, or add it again because its key fell, as in every heap."""
        self._unlist(place)
        self._waiting, key = waiting, self._key(place)
        if not self._first or (key, place.tenant_id) > self._first[-1][:2]:
            self._others.push(place, waiting)
            return
        self._list(bisect_left(self._first, (key, place.tenant_id)), place, key)
        if len(self._first) > LOOKUPS_MAX:
            last = self._first[-1][2]
            self._unlist(last)
            self._others.push(last, waiting)

    def rose(self, place: Account) -> None:
        """The tenant's rank may have risen."""
        if place.tenant_id in self._listed:
            self._rose[place.tenant_id] = place

    def remove(self, place: Account) -> None:
        """The tenant has stopped waiting."""
        self._unlist(place)
        self._windows.pop(place.tenant_id, None)

    def first(self) -> Account | None:
        """The tenant with the least rank as of now."""
        self._settle()
        return self._first[0][2] if self._first else None

    def first_of(self, eligible: Callable[[Account], bool], besides: Collection[str] = ()) -> Account | None:
        """The eligible tenant with the least rank that is not in `besides`."""
        for account in self.in_order(besides):
            if eligible(account):
                return account
        return None

    def in_order(self, besides: Collection[str] = ()) -> Iterator[Account]:
        """The tenants that are not in `besides`, from the least rank up. The caller stops iterating when a rank or a
        waiting request changes.
        """
        self._settle()
        for _, tenant_id, account in self._first:
            if tenant_id not in besides:
                yield account
        yield from self._others.in_order(besides)

    # -- waiting requests ------------------------------------------------------------------------------------

    def queued(self, request: Request, waiting: Waiting) -> None:
        """The request has joined its tenant's queue."""
        if request.tenant_id in self._windows and waiting.last() is not request:
            del self._windows[request.tenant_id]
        self._changed(request.tenant_id)

    def gone(self, request: Request) -> None:
        """The request is about to leave its tenant's queue, or has just left it."""
        window = self._windows.get(request.tenant_id)
        if window is not None:
            window.take_out(request)
            self._changed(request.tenant_id)

    def best(self, rank_max: float, eligible: Eligible) -> Request | None:
        """The eligible request with the most cached tokens, ties by arrival, then by tenant id. At most LOOKUPS_MAX
        requests are compared, of the tenants with ranks up to `rank_max`. None where none of them is eligible.
        """
        self._settle()
        tenants = bisect_right(self._first, rank_max, key=itemgetter(0))
        if not tenants:
            return None
        self._take_in_changes()
        each = max(1, LOOKUPS_MAX // tenants)
        if each != self._compared:
            self._compared, self._bests = each, [UNKNOWN] * len(self._bests)
        bests = self._bests[:tenants]
        if (best := min(bests)) is UNKNOWN:
            for at, rank in enumerate(bests):
                if rank is UNKNOWN:
                    bests[at] = self._bests[at] = min(self._window(self._first[at][2], each).ranks[:each])
            best = min(bests)
        window = self._windows[self._first[bests.index(best)][1]]
        request = window.requests[window.ranks.index(best)]
        if eligible(request):
            return request
        windows = [self._windows[tenant_id] for _, tenant_id, _ in self._first[:tenants]]
        ranked = [
            (rank, at, place) for at, window in enumerate(windows) for place, rank in enumerate(window.ranks[:each])
        ]
        in_order = (windows[at].requests[place] for _, at, place in sorted(ranked))
        return next((request for request in in_order if eligible(request)), None)

    # -- in parts --------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Sort the first tenants after their ranks have risen."""
        for account in self._rose.values():
            if account.tenant_id in self._listed and account.entry_key < self._key(account):
                self.push(account, self._waiting)
        self._rose.clear()
        while len(self._first) < LOOKUPS_MAX and (following := self._others.pop()) is not None:
            self._list(len(self._first), following, following.entry_key)

    def _list(self, at: int, account: Account, key: float) -> None:
        account.entry_key, account.stamp = key, 0
        self._first.insert(at, (key, account.tenant_id, account))
        self._bests.insert(at, UNKNOWN)
        self._listed[account.tenant_id] = account

    def _unlist(self, account: Account) -> None:
        if account.tenant_id in self._listed:
            at = self._at(account)
            del self._first[at], self._bests[at]
            del self._listed[account.tenant_id]

    def _at(self, account: Account) -> int:
        return bisect_left(self._first, (account.entry_key, account.tenant_id))

    def _changed(self, tenant_id: str) -> None:
        """Note that the tenant's best request may have changed."""
        account = self._listed.get(tenant_id)
        if account is not None:
            self._bests[self._at(account)] = UNKNOWN

    def _window(self, account: Account, each: int) -> _Window:
        """The tenant's window, extended to `each` requests."""
        tenant_id, waiting = account.tenant_id, account.waiting
        window = self._windows.get(tenant_id)
        if window is None:
            if len(self._windows) > 2 * LOOKUPS_MAX:
                self._windows = {each: window for each, window in self._windows.items() if each in self._listed}
            window = self._windows[tenant_id] = _Window()
        seen = len(window.requests)
        for request in islice(waiting.values(), seen, each):
            window.requests.append(request)
            window.ranks.append(self._rank(request))
            self._ask(tenant_id, request)
        return window

    def _ask(self, tenant_id: str, request: Request) -> None:
        if request.prefix:
            self._askers.setdefault(request.prefix[-1], set()).add(tenant_id)

    def _rank(self, request: Request) -> Rank:
        return -self._cached_blocks(request) * request.prefix_block_tokens, request.arrived_at, request.tenant_id

    def _take_in_changes(self) -> None:
        """Look up again the prompts whose cached blocks have changed."""
        self._number, prompts = self._changes(self._number)
        if prompts is None:
            self._forget_all()
            return
        for prompt in prompts:
            for tenant_id in self._askers.get(prompt, ()):
                self._look_up_again(tenant_id, prompt)
        if len(self._askers) > SPARE_PROMPTS:
            self._askers = {}
            for tenant_id, window in self._windows.items():
                for request in window.requests:
                    self._ask(tenant_id, request)

    def _look_up_again(self, tenant_id: str, prompt: int) -> None:
        window = self._windows.get(tenant_id)
        if window is not None:
            for at, request in enumerate(window.requests):
                if request.prefix and request.prefix[-1] == prompt:
                    window.ranks[at] = self._rank(request)
            self._changed(tenant_id)

    def _forget_all(self) -> None:
        """Discard all lookups: any prompt may have changed."""
        self._windows.clear()
        self._askers.clear()
        self._bests = [UNKNOWN] * len(self._first)
