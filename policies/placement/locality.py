"""Locality: which backends hold, or are about to hold, the beginning of a prompt.

An arrival placement must know more than the blocks that backends hold: of ten prompts that begin alike and arrive
together, nine find nothing cached yet. So it uses two sources: the pool's index of the prompts sent to each backend,
and the prompts that wait in the gateway for a backend, which will have been sent before any new arrival.
"""

from collections.abc import Sequence

from policies.capacity.prefix_index import PrefixIndex, leading_blocks
from policies.placement.base import ArrivalPlacement, Worker
from policies.types import Request


class Locality:
    """The search for the backends that hold, or will soon hold, the longest beginning of a prompt. Mutable."""

    def __init__(self) -> None:
        self._sent: PrefixIndex | None = None
        self._waiting: dict[int, dict[str, int]] = {}  # block -> worker -> how many prompts with it wait there

    def look_up_in(self, sent: PrefixIndex) -> None:
        self._sent = sent

    def matched_blocks(self, request: Request, worker_id: str) -> int:
        """The number of leading blocks of the prompt that this worker holds or will hold."""
        sent = 0 if self._sent is None else self._sent.matched_blocks(request, worker_id)
        waiting = self._waiting
        return max(sent, leading_blocks(request.prefix, lambda block: worker_id in waiting.get(block, ())))

    def longest(self, request: Request, workers: Sequence[Worker]) -> tuple[int, list[Worker]]:
        """The most leading blocks that a worker holds or will hold, and the workers with as many; (0, []) if none."""
        matched, holders = (0, frozenset[str]()) if self._sent is None else self._sent.longest(request)
        waiting, waited_for = self._longest_waiting(request)
        if waiting >= matched:
            holders = waited_for | holders if waiting == matched else waited_for
            matched = waiting
        best = [worker for worker in workers if worker.id in holders]
        if best or not matched:
            return matched, best
        matches = [self.matched_blocks(request, worker.id) for worker in workers]
        matched = max(matches)
        return matched, [worker for worker, each in zip(workers, matches, strict=True) if each == matched > 0]

    def waits(self, request: Request, worker_id: str) -> None:
        """Record that the request waits for the worker from now on."""
        for block in request.prefix:
            counts = self._waiting.setdefault(block, {})
            counts[worker_id] = counts.get(worker_id, 0) + 1

    def left(self, request: Request, worker_id: str) -> None:
        """Record that the request no longer waits for the worker, because it was sent or left the queue."""
        for block in request.prefix:
            counts = self._waiting[block]
            counts[worker_id] -= 1
            if not counts[worker_id]:
                del counts[worker_id]
                if not counts:
                    del self._waiting[block]

    def _longest_waiting(self, request: Request) -> tuple[int, frozenset[str]]:
        matched = leading_blocks(request.prefix, self._waiting.__contains__)
        return matched, frozenset(self._waiting[request.prefix[matched - 1]]) if matched else frozenset()


class LocalPlacement(ArrivalPlacement):
    """The base class of arrival placements that ask a Locality. It reports to it the requests that were sent or came
    back; `assign` and `unassigned` report the others.
    """

    reads_prefixes = True

    def __init__(self) -> None:
        self._locality = Locality()

    def look_up_in(self, prefixes: PrefixIndex) -> None:
        self._locality.look_up_in(prefixes)

    def dispatched(self, request: Request, backend_id: str) -> None:
        self._locality.left(request, backend_id)

    def returned(self, request: Request, backend_id: str) -> None:
        self._locality.waits(request, backend_id)
