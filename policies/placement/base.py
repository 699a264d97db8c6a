"""Placement protocols: the interfaces of the policies that choose a request's backend, at one of two times.

Late placement decides when a request is sent. Requests wait in one shared queue, the next in order takes any backend
with room, and the pool is fair as a whole (VTC with one dispatcher).
Arrival placement decides before a request waits. It then waits in the gateway's queue for that one backend, where the
pool's fairness chooses among the requests for the same backend (D2LPM, Preble, round robin per tenant). The decision
can use what is cached where. Fairness bounds hold per backend: for the pool, times the number of backends.
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
    """Late placement: which of the candidates takes a request. Inherit from it: most placements look nothing up."""

    reads_prefixes: bool = False
    """Whether it asks what is cached where; `look_up_in` is called before anything else then."""

    def look_up_in(self, prefixes: PrefixIndex) -> None:
        """Ask this index."""
        return

    def place(
        self, request: Request, candidates: Sequence[BackendCapacity], fits: Fits = always
    ) -> BackendCapacity | None:
        """The best candidate that the request fits; None if it fits none. Asking `fits` costs more than comparing
        candidates.
        """
        ...


class Worker(NamedTuple):
    """A backend that a request may wait for: its capacity, and how many requests wait in the gateway's queue for it."""

    capacity: BackendCapacity
    queued_requests: int

    @property
    def id(self) -> str:
        return self.capacity.id


@mypyc_attr(allow_interpreted_subclasses=True)
class ArrivalPlacement(ABC):
    """Arrival placement: which of the workers a request waits for.

    Inherit from it and override only the calls that the placement needs. Each request is reported in this order: it is
    assigned; then it is dispatched, and ends or returns (and waits there again); or it is unassigned, because it
    left the queue unsent or was moved to another backend.
    """

    reads_prefixes: bool = False
    """Whether it asks what is cached where; `look_up_in` is called before anything else then."""

    def look_up_in(self, prefixes: PrefixIndex) -> None:
        """Ask this index."""
        return

    @abstractmethod
    def assign(self, request: Request, workers: Sequence[Worker]) -> str:
        """Choose one of the workers, of which there is at least one, and return its id. The request counts there from
        now on.
        """
        ...

    def unassigned(self, request: Request, backend_id: str) -> None:
        """The request does not wait for this backend any more and was not sent: it does not count any more."""
        return

    def dispatched(self, request: Request, backend_id: str) -> None:
        """The request was sent to the backend that it waited for."""
        return

    def returned(self, request: Request, backend_id: str) -> None:
        """The dispatched request came back to the queue: it waits for the same backend again."""
        return

    def ended(self, request: Request, backend_id: str, usage: Usage) -> None:
        """The request has ended there, for any reason, with this usage."""
        return

    def forget(self, tenant_id: str) -> None:
        """Drop the state of a removed tenant."""
        return
