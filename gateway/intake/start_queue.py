"""Whose call is begun next, when the gateway itself is short of time?

All else that is fair here is fair about the backends' time, and comes after a call was read. Where the event loop has
more to do than it can, reading is what calls wait for. So no more are begun in one turn of the loop than make it last
`TURN_S_MAX`; the others wait, by tenant, and go by start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996), which
needs not know how much can be served. A tenant that asks for less than its share is begun in one of the next turns,
whatever the others ask for. One whose oldest call has waited longer than `WAIT_S_MAX` asks for more than its share, and
is refused more: a burst waits, a queue that stands does not grow (as in CoDel, Nichols and Jacobson, 2012).

While turns are short, and few calls come in one, nothing waits and a tenant is not even looked at.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

Call = TypeVar("Call")

# Of a turn, however short: as many as one poll of a scheduler decides (policies/scheduler.py). More would only wait
# there.
STARTS_MAX: Final = 32
# A call meets about eight turns until it is answered, and a turn of this length leaves all of them late.
TURN_S_MAX: Final = 0.01
# What a call that is begun comes to is spread over those turns, so it is learnt from more than these.
TURNS_REMEMBERED: Final = 20
# Refusing takes a quarter of the CPU that serving takes (docs/results/faults.md). Where so many come that refusing them
# would take all of it, at least a third is left for those that are begun.
STARTED_RATIO_MIN: Final = 1 / 8
MOMENT_S: Final = 1e-6
WAIT_S_MAX: Final = 1.0  # the shortest Retry-After there is: who would wait longer is told to come again
FINISHES_KEPT: Final = 1024


@dataclass(slots=True)
class _Waiting(Generic[Call]):
    """A tenant that has calls waiting: when they came, the oldest first."""

    weight: float
    calls: deque[tuple[float, Call]] = field(default_factory=deque)


class StartQueue(Generic[Call]):
    """Calls that wait to be begun. Mutable. Times are in seconds on one monotonic clock."""

    def __init__(self, *, is_gone: Callable[[Call], bool]) -> None:
        """`is_gone` says of a call that waits whether it need not be begun any more."""
        self._is_gone = is_gone
        self._starts_max = float(STARTS_MAX)  # in a turn
        self._started = 0  # in this turn
        self._came = 0  # in this turn, and did not begin at once
        self._starts, self._spent_s = 0.0, 0.0  # lately, while the loop was short of time
        self._waiting: dict[str, _Waiting[Call]] = {}
        self._order: list[tuple[float, int, str]] = []  # a heap: virtual start, number, tenant
        self._pushed = 0
        self._virtual = 0.0  # calls begun over weight, of a tenant that always waits
        self._finishes: dict[str, float] = {}  # virtual time up to which a tenant had its share already
        self.calls = 0  # that wait, those that are gone included
        self.is_idle = True  # nothing was begun in the last turn, and nothing waits

    def may_start(self) -> bool:
        """Whether a call that is here may be begun at once; it then counts as begun."""
        if self._order or self._started >= self._starts_max:
            return False
        self._started += 1
        return True

    def put(self, tenant_id: str, weight: float, call: Call, now: float) -> float | None:
        """Let a call wait. Returns how long its tenant's oldest has waited where that is too long: it does not wait."""
        self._came += 1
        mine = self._waiting.get(tenant_id)
        if mine is None:
            mine = self._waiting[tenant_id] = _Waiting(weight)
            self._push(tenant_id, max(self._virtual, self._finishes.get(tenant_id, 0.0)))
        elif (waited_s := now - self._oldest(mine, now)) > WAIT_S_MAX:
            return waited_s
        mine.calls.append((now, call))
        self.calls += 1
        return None

    def turn(self, spent_s: float) -> list[Call]:
        """A turn of the loop took so much CPU. Returns what is begun in the next, in order."""
        started, self._started = self._started, 0
        came, self._came = self._came, 0
        self.is_idle = not started and not self._order
        if not self._order and spent_s <= TURN_S_MAX:
            self._starts_max = STARTS_MAX
            if self._spent_s:  # what was learnt while it was short of time; nobody owes anything any more
                self._starts = self._spent_s = 0.0
                self._finishes.clear()
            return []
        self._starts += started - self._starts / TURNS_REMEMBERED
        self._spent_s += spent_s - self._spent_s / TURNS_REMEMBERED
        fit = TURN_S_MAX * self._starts / max(self._spent_s, MOMENT_S)
        self._starts_max = min(max(fit, STARTED_RATIO_MIN * came, 1.0), STARTS_MAX)
        begun = []
        while self._order and self._started < self._starts_max:
            call = self._next()
            if not self._is_gone(call):
                begun.append(call)
                self._started += 1
        if len(self._finishes) > FINISHES_KEPT + 2 * len(self._waiting):
            self._finishes = {each: at for each, at in self._finishes.items() if at > self._virtual}
        return begun

    def _next(self) -> Call:
        start, _, tenant_id = heappop(self._order)
        mine = self._waiting[tenant_id]
        self._virtual = start
        _, call = mine.calls.popleft()
        self.calls -= 1
        finish = self._finishes[tenant_id] = start + (0.0 if self._is_gone(call) else 1.0 / mine.weight)
        if mine.calls:
            self._push(tenant_id, finish)
        else:
            del self._waiting[tenant_id]
        return call

    def _oldest(self, mine: _Waiting[Call], now: float) -> float:
        """When its oldest call came that is still wanted; the last one is kept, for its place in the order."""
        while self._is_gone(mine.calls[0][1]):
            if len(mine.calls) == 1:
                return now
            mine.calls.popleft()
            self.calls -= 1
        return mine.calls[0][0]

    def _push(self, tenant_id: str, start: float) -> None:
        self._pushed += 1
        heappush(self._order, (start, self._pushed, tenant_id))
