"""OrderedRequests: the requests of one pool's Scheduler at the leader, and the pending work on requests of a member
that went away, came back or changed.

A member may have thousands of requests, so this work is done in pieces, some in each turn of the leader. Decisions wait
for `urgent` work: nothing is dispatched to a member that is away, and slots of a member that is gone are not used again
before its requests count as external load.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Final

from policies.call_life import LIFE, Event, Life
from policies.types import NO_USAGE, Request, Usage, Wait

_NAMES: Final = tuple(each.name for each in fields(Request))
_values: Final = attrgetter(*_NAMES)
_ID, _ARRIVED_AT, _SENDER = map(_NAMES.index, ("id", "arrived_at", "sender"))


@dataclass(slots=True, eq=False)
class Sender:
    """A pool's record of one member (a process of the cluster), at the leader: the backends that the member cannot
    reach, and how much of its reports has been processed.
    """

    member: str
    unreachable: frozenset[str] = frozenset()
    is_away: bool = False
    """Its connection is lost: it is sent nothing, and its queued requests are parked (rule 17)."""
    is_here: bool = False
    """It has joined, and is there or may come back at any moment; else its requests are given up."""
    request: int = 0
    """The last of its requests that is known: numbers only grow (rule 6)."""
    joined_at: int = 0
    """The same when it joined: of later ones that it tells as waiting, no leader has heard."""
    ran: int = 0
    """The last of its requests that it told as running."""
    entry: int = 0
    """The last entry of its ChargeLog that was taken in."""
    told: set[str] | None = None
    """Wire ids that it has told since its Join (rule 18); None: it has told all."""

    def joins(self) -> None:
        """The member begins to report all its requests."""
        self.is_here, self.joined_at, self.told = True, self.request, set()

    def all_told(self) -> None:
        """The member has reported all its requests."""
        self.request, self.told = max(self.request, self.ran), None

    def takes(self, entry: int) -> bool:
        """Whether this entry of the member's ChargeLog is new; then it counts as processed."""
        is_new = entry > self.entry
        self.entry = max(self.entry, entry)
        return is_new


@dataclass(slots=True, eq=False)
class OrderedRequest:
    """The leader's record of a request that has not ended: the member (process of the cluster) that reported it
    (`sender`), its state (`life`), and its backend (None: it waits).
    """

    sender: Sender
    number: int
    asked: Request  # as it may go anywhere
    backend_id: str | None = None
    told: Usage = NO_USAGE  # charged so far, while in flight
    life: Life = Life.QUEUED
    lift: float = 0.0
    wait: Wait | None = None


def named(sender: Sender, id_: str, request: Request, arrived_at: float) -> Request:
    """A member's request with its wire id, by which the leader knows it."""
    values = list(_values(request))  # `replace` takes nine times as long, and every request pays for this
    values[_ID], values[_ARRIVED_AT], values[_SENDER] = id_, arrived_at, sender.member
    return Request(*values)


class OrderedRequests:
    """The leader's records of all requests of one pool, by wire id (`member.number`) and by member. Mutable."""

    def __init__(self) -> None:
        self._all: dict[str, OrderedRequest] = {}
        self._of: dict[Sender, dict[str, OrderedRequest]] = {}

    def get(self, id_: str) -> OrderedRequest | None:
        return self._all.get(id_)

    def add(self, id_: str, known: OrderedRequest) -> OrderedRequest:
        self._all[id_] = self._of.setdefault(known.sender, {})[id_] = known
        return known

    def pop(self, id_: str) -> OrderedRequest | None:
        """Remove a request that may be there."""
        known = self._all.pop(id_, None)
        if known is not None:
            known.life = LIFE[known.life, Event.ENDED]
            del self._of[known.sender][id_]
        return known

    def serves(self, tenant_id: str) -> bool:
        """Whether any member has a request of this tenant."""
        return any(known.asked.tenant_id == tenant_id for known in self._all.values())

    def of(self, sender: Sender) -> list[tuple[str, OrderedRequest]]:
        """A member's requests with their wire ids."""
        return list(self._of.get(sender, {}).items())


LOOKED_AT: Final = 64  # requests, in the time that one takes that is ended


Handler = Callable[[str, OrderedRequest, float], object]
"""Handles one of the requests of a chore, by its wire id, at the given time."""


class Chores:
    """A queue of work on all requests of a member (process of the cluster), for example after the member has left. The
    work is done in small pieces, so that no turn of the leader on its event loop takes long. Mutable.
    """

    def __init__(
        self, requests: OrderedRequests, *, park: Handler, place_again: Handler, end: Handler, give_up: Handler
    ) -> None:
        """Each argument handles one request. A request that is given up may come back; a request that ended may not."""
        self._requests = requests
        self._park, self._place_again, self._end, self._give_up = park, place_again, end, give_up
        self._now = 0.0  # of `work`
        self._urgent: deque[Iterator[None]] = deque()
        self._others: deque[Iterator[None]] = deque()

    def park(self, sender: Sender) -> None:
        """Park all waiting requests of this member outside of the order, until the member is back."""
        self._urgent.append(self._each(lambda: self._requests.of(sender), self._park, lambda: sender.is_away))

    def place_again(self, sender: Sender) -> None:
        """Place all waiting requests of this member again, because they may go to other backends than before."""
        self._others.append(self._each(lambda: self._requests.of(sender), self._place_again, lambda: True))

    def give_up(self, sender: Sender, then: Callable[[float], None]) -> bool:
        """End all requests of this member, unless it comes back; `then` is called once none of them runs. Returns
        whether any of them runs.
        """
        known = self._requests.of(sender)
        running = [each for each in known if each[1].backend_id is not None]
        waiting = [each for each in known if each[1].backend_id is None]

        def given_up() -> Iterator[None]:
            yield from self._each(lambda: running, self._give_up, lambda: not sender.is_here)
            then(self._now)

        if running:
            self._urgent.append(given_up())
        self._others.append(self._each(lambda: waiting, self._give_up, lambda: not sender.is_here))
        return bool(running)

    def end_untold(self, sender: Sender) -> None:
        """End the requests of this member that it has not reported."""
        self._others.append(self._end_others(self._requests.of(sender), sender.told or ()))

    def _end_others(self, before: Iterable[tuple[str, OrderedRequest]], told: Collection[str]) -> Iterator[None]:
        for number, (id_, _) in enumerate(before):
            if id_ not in told and (known := self._requests.get(id_)) is not None:
                self._end(id_, known, self._now)
                yield
            elif not number % LOOKED_AT:
                yield

    def work(self, most: int, now: float) -> int:
        """Do at most `most` pieces; return their number. Work that is not urgent leaves half of the time to others."""
        self._now, done = now, 0
        for chores, up_to in ((self._urgent, most), (self._others, most // 2)):
            while chores and done < up_to:
                done += 1
                if next(chores[0], self) is self:
                    chores.popleft()
        return done

    @property
    def is_busy(self) -> bool:
        """Whether `work` has something to do."""
        return bool(self._urgent or self._others)

    @property
    def is_urgent(self) -> bool:
        """Whether decisions wait for this work."""
        return bool(self._urgent)

    def _each(
        self,
        requests: Callable[[], Iterable[tuple[str, OrderedRequest]]],
        do: Handler,
        goes_on: Callable[[], bool],
    ) -> Iterator[None]:
        for id_, known in requests():
            if not goes_on():
                return
            if self._requests.get(id_) is known:
                do(id_, known, self._now)
                yield
