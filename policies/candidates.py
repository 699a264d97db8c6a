"""Backends that a request may be sent to, and which of them is the least full.

A poll sends many requests, and each asks for the least full backend that has room for it. So the order is made once,
when it is first asked for, and only the backend that was sent something moves in it.
"""

from bisect import insort
from collections.abc import Collection, Iterable, Sequence
from typing import Self

from policies.capacity import BackendCapacity


class Candidates(list[BackendCapacity]):
    """The backends that one poll may still send to. In any order until `least_full_first` is asked for; what fills up
    afterwards is told.
    """

    __slots__ = ("_is_ordered",)

    def __init__(self, backends: Iterable[BackendCapacity] = ()) -> None:
        super().__init__(backends)
        self._is_ordered = False

    def least_full_first(self) -> Self:
        """Themselves, by the reserved part of the capacity, equals by id."""
        if not self._is_ordered:
            self.sort(key=fill)
            self._is_ordered = True
        return self

    def filled(self, backend: BackendCapacity) -> None:
        """One of them was sent something."""
        if self._is_ordered:
            self.remove(backend)
            insort(self, backend, key=fill)

    def among(self, backend_ids: Collection[str]) -> "Candidates":
        """Those of them that have one of these ids."""
        some = Candidates([each for each in self if each.id in backend_ids])
        some._is_ordered = self._is_ordered
        return some


def least_full_first(backends: Sequence[BackendCapacity]) -> Sequence[BackendCapacity]:
    """By the reserved part of the capacity, equals by id; at next to no cost where that is known."""
    return backends.least_full_first() if isinstance(backends, Candidates) else sorted(backends, key=fill)


def fill(backend: BackendCapacity) -> tuple[float, str]:
    return backend.reserved_ratio, backend.id
