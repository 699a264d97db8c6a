"""Placement protocols: the interfaces of the policies that choose a request's backend. There are two kinds.

A late placement decides when a request is sent. All requests wait in one shared queue, the next one takes any backend
with room, and the pool is fair as a whole (VTC with one dispatcher). An arrival placement decides when a request
arrives. The request then waits in the gateway's queue for that one backend, and the pool's fairness policy orders each
such queue (D2LPM, Preble, round robin per tenant). Fairness bounds then hold for each backend: for the pool, they are
multiplied by the number of backends.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from mypy_extensions import mypyc_attr

from policies.capacity.backend import BackendCapacity
from policies.capacity.prefix_index import PrefixIndex
from policies.types import Request, Usage

Fits = Callable[[BackendCapacity], bool]


def always(backend: BackendCapacity) -> bool:  # noqa: ARG001
    return True


class Placement(Protocol):
    """The base class of late placements. A late placement chooses one of the candidate backends when a request is sent.
    It reads the index of cached prefixes only if it sets `reads_prefixes`.
    """

    reads_prefixes: bool = False
    """Whether the placement reads the prefix index; `look_up_in` is then called first."""

    def look_up_in(self, prefixes: PrefixIndex) -> None:
        """Set the prefix index that the placement may ask."""
        return

    def place(
        self, request: Request, candidates: Sequence[BackendCapacity], fits: Fits = always
    ) -> BackendCapacity | None:
        """The best candidate with room for the request; None if none has room. `fits` tells whether a candidate has
        room, and costs more than a comparison of candidates.
        """
        ...


class Worker(NamedTuple):
    """A backend that an arrival placement may choose: the books of what the backend holds and has room for (slots, KV
    tokens, work per step), and the number of requests that wait for this backend in the gateway's queue.
    """

    capacity: BackendCapacity
    queued_requests: int

    @property
    def id(self) -> str:
        return self.capacity.id


@mypyc_attr(allow_interpreted_subclasses=True)
class ArrivalPlacement(ABC):
    """The base class of arrival placements. An arrival placement chooses, when a request arrives, the backend for which
    the request then waits. The other methods report what happens to the request, in this order; a subclass need not
    define them. The request is assigned. It is unassigned if it leaves the queue without being sent, or moves to
    another backend. Otherwise it is dispatched, and then ends, or returns to wait for the same backend.
    """

    reads_prefixes: bool = False
    """Whether the placement reads the prefix index; `look_up_in` is then called first."""

    def look_up_in(self, prefixes: PrefixIndex) -> None:
        """Set the prefix index that the placement may ask."""
        return

    @abstractmethod
    def assign(self, request: Request, workers: Sequence[Worker]) -> str:
        """Choose one of the workers, of which there is at least one, and return its id. The request counts at this
        worker from now on.
        """
        ...

    def unassigned(self, request: Request, backend_id: str) -> None:
        """The request no longer waits for this backend and was not sent, so it no longer counts there."""
        return

    def dispatched(self, request: Request, backend_id: str) -> None:
        """The request was sent to the backend that it waited for."""
        return

    def returned(self, request: Request, backend_id: str) -> None:
        """The dispatched request came back to the queue: it waits for the same backend again."""
        return

    def ended(self, request: Request, backend_id: str, usage: Usage) -> None:
        """The request has ended at the backend, for any reason, with this usage."""
        return

    def forget(self, tenant_id: str) -> None:
        """Drop the state of a removed tenant."""
        return
