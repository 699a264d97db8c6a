"""Deadlines: when the wait of each waiting request ends, and which one ends next."""

from heapq import heapify, heappop, heappush

SPARE_DEADLINES = 1024  # void heap entries tolerated before the heap is rebuilt


class Deadlines(dict[str, tuple[str, float]]):
    """By waiting request: its tenant's id, and when its wait ends. `put` a request; remove it as from a dictionary: the
    heap then holds a void entry until it surfaces or the heap is rebuilt. Mutable.
    """

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[tuple[float, str]] = []  # with void entries

    def put(self, request_id: str, tenant_id: str, deadline_at: float) -> None:
        """The request waits until then, or longer than before."""
        if not self:
            self._heap.clear()
        self[request_id] = tenant_id, deadline_at
        heappush(self._heap, (deadline_at, request_id))
        if len(self._heap) > 2 * len(self) + SPARE_DEADLINES:
            self._heap = [entry for entry in self._heap if self._is_current(entry)]
            heapify(self._heap)

    def next(self) -> float | None:
        """The earliest; None: nothing waits."""
        self._drop_void()
        return self._heap[0][0] if self._heap else None

    def passed(self, now: float) -> str | None:
        """The request whose deadline has passed, the earliest; None if there is none."""
        if not self._heap or self._heap[0][0] > now:
            return None
        self._drop_void()
        return None if not self._heap or self._heap[0][0] > now else self._heap[0][1]

    def _drop_void(self) -> None:
        while self._heap and not self._is_current(self._heap[0]):
            heappop(self._heap)

    def _is_current(self, entry: tuple[float, str]) -> bool:
        # The deadline is compared too: a later request may have the id of one that is gone.
        waiting = self.get(entry[1])
        return waiting is not None and waiting[1] == entry[0]
