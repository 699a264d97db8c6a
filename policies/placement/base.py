"""The question of every placement, asked at one of two times.

Late: when a request is sent. It has waited in one queue before all backends, whoever is next takes whichever
backend has room, and the pool is fair as a whole (VTC with one dispatcher).
On arrival: before it waits. It waits here, in the queue of that one backend, where the pool's fairness picks among
those that wait for the same backend (D2LPM, Preble, round robin per tenant). What is cached where can then be known
and used, and bounds hold per backend: times the number of backends for the pool.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from policies.capacity.backend import BackendCapacity
from policies.capacity.prefix_index import PrefixIndex
from policies.types import Request, Usage

Fits = Callable[[BackendCapacity], bool]


def always(backend: BackendCapacity) -> bool:  # noqa: ARG001
    return True


class Placement(Protocol):
    """Which of these backends takes this request?

    Inherit from it: most placements look nothing up.
    """

    reads_prefixes: bool = False
    """Whether it asks what is cached where; `look_up_in` is called before anything else then."""

    def look_up_in(self, prefixes: PrefixIndex) -> None:
        """Ask this index."""
        return

    def place(
        self, request: Request, candidates: Sequence[BackendCapacity], fits: Fits = always
    ) -> BackendCapacity | None:
        """The best of the candidates that it fits; None: it fits none. To ask whether it fits costs more than to know
        who would be better.
        """
        ...


class Worker(NamedTuple):
    """A backend that a request may wait for: its books, and how many requests wait in its queue here."""

    capacity: BackendCapacity
    queued_requests: int

    @property
    def id(self) -> str:
        return self.capacity.id


@runtime_checkable
class ArrivalPlacement(Protocol):
    """Which of these backends does this request wait for?

    Inherit from it: what a placement does not want to hear it leaves out. A request is told of in this order: it is
    assigned; then it is dispatched, and ends or comes back (and waits there again); or it is unassigned, because it
    left the queue unsent or waits for another backend from now on.
    """

    reads_prefixes: bool = False
    """Whether it asks what is cached where; `look_up_in` is called before anything else then."""

    def look_up_in(self, prefixes: PrefixIndex) -> None:
        """Ask this index."""
        return

    def assign(self, request: Request, workers: Sequence[Worker]) -> str:
        """The id of one of the workers, of which there is at least one. It counts from now on."""
        ...

    def unassigned(self, request: Request, backend_id: str) -> None:
        """The request does not wait for this backend any more and was not sent: it counts no more."""
        return

    def dispatched(self, request: Request, backend_id: str) -> None:
        """The request was sent to the backend that it waited for."""
        return

    def returned(self, request: Request, backend_id: str) -> None:
        """The backend did not take the request: it waits for it again."""
        return

    def ended(self, request: Request, backend_id: str, usage: Usage) -> None:
        """The request has ended there, however it ended, and has used this much."""
        return

    def forget(self, tenant_id: str) -> None:
        """The tenant is gone."""
        return
