"""Candidates: the backends that a request may be sent to, ordered from the least full for their speed.

A poll sends many requests, and each asks for the least full backend that has room for it. So the list is sorted once,
at first use; after that, only the backend that received a request moves in it.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from typing import Self

from policies.capacity.backend import BackendCapacity


class Candidates(list[BackendCapacity]):
    """The backends to which one poll (a call of Scheduler.poll) may still dispatch requests. The caller reports with
    `filled` a backend that got a request, and with `gone` one that may get no more. The list is unsorted until
    `least_full_first` is called.
    """

    __slots__ = ("_fills",)

    def __init__(self, backends: Iterable[BackendCapacity] = ()) -> None:
        super().__init__(backends)
        self._fills: list[tuple[float, float, str]] | None = None  # sort keys in the same order, once sorted

    def least_full_first(self) -> Self:
        """Sort the backends by the reserved part of the capacity over the speed, ties by id, and return this list. A
        list of one backend, the usual case while requests wait, needs no sort.
        """
        if self._fills is None and len(self) > 1:
            by_id = {each.id: each for each in self}
            self._fills = sorted([(each.reserved_ratio / each.speed, -each.speed, each.id) for each in self])  # `fill`
            self[:] = [by_id[key[2]] for key in self._fills]
        return self

    def filled(self, backend: BackendCapacity) -> None:
        """Move a backend to its new place after a request was sent to it."""
        if self._fills is not None:
            self.gone(backend)
            now = fill(backend)
            place = bisect_left(self._fills, now)
            self.insert(place, backend)
            self._fills.insert(place, now)

    def gone(self, backend: BackendCapacity) -> None:
        """Remove a backend that has no slot left."""
        place = self.index(backend)
        del self[place]
        if self._fills is not None:
            del self._fills[place]

    def among(self, backend_ids: Collection[str]) -> "Candidates":
        """The candidates with one of these ids, in the same order."""
        some = Candidates([each for each in self if each.id in backend_ids])
        if self._fills is not None:
            some._fills = [each for each in self._fills if each[2] in backend_ids]
        return some


def least_full_first(backends: Sequence[BackendCapacity]) -> Sequence[BackendCapacity]:
    """The backends from the least full, for their speed, to the fullest. `Candidates` keep this order at almost no
    cost.
    """
    return backends.least_full_first() if isinstance(backends, Candidates) else sorted(backends, key=fill)


def fill(backend: BackendCapacity) -> tuple[float, float, str]:
    """The sort key of a backend: the reserved part over the speed, which is the time that its present load needs. An
    idle pool sends to its fastest backend.
    """
    return backend.reserved_ratio / backend.speed, -backend.speed, backend.id
