"""Accounts of one backend's queue, for pools in which every request waits for one backend.

The backend that a request waits for is neither a fact nor a decision of the Scheduler; the placement chooses it when
the request arrives. So the placement is watched, and the entries that concern one backend go to separate accounts and
checks: the rules of a pool with one queue hold for each of these queues.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from policies.capacity.prefix_index import PrefixIndex
from policies.facts import (
    Adopted,
    LoadChanged,
    Measured,
    PolicyChanged,
    Readmitted,
    Restored,
    Spent,
    Submitted,
    TakenOver,
    TenantsChanged,
    WindowsRestored,
)
from policies.placement.base import ArrivalPlacement, Worker
from policies.types import Dispatch, Request, Usage
from tests.simulation.recording import Entry, Listener, Polled
from tests.simulation.run_accounts import RunAccounts, require


class WatchedPlacement(ArrivalPlacement):
    """A placement on arrival that records its answers."""

    def __init__(self, placement: ArrivalPlacement) -> None:
        self._placement = placement
        self.reads_prefixes = placement.reads_prefixes
        self.backend_ids: dict[str, str] = {}
        """By request that waits or runs: the backend that it was assigned to."""

    def look_up_in(self, prefixes: PrefixIndex) -> None:
        self._placement.look_up_in(prefixes)

    def assign(self, request: Request, workers: Sequence[Worker]) -> str:
        backend_id = self.backend_ids[request.id] = self._placement.assign(request, workers)
        return backend_id

    def unassigned(self, request: Request, backend_id: str) -> None:
        del self.backend_ids[request.id]
        self._placement.unassigned(request, backend_id)

    def dispatched(self, request: Request, backend_id: str) -> None:
        self._placement.dispatched(request, backend_id)

    def returned(self, request: Request, backend_id: str) -> None:
        self._placement.returned(request, backend_id)

    def ended(self, request: Request, backend_id: str, usage: Usage) -> None:
        del self.backend_ids[request.id]
        self._placement.ended(request, backend_id, usage)

    def forget(self, tenant_id: str) -> None:
        self._placement.forget(tenant_id)


class QueueWatcher:
    """Passes the entries of one backend's queue to accounts and checks. Moves to another backend's queue are not
    followed: backends may be slow or full, but must stay.
    """

    def __init__(
        self, backend_id: str, placement: WatchedPlacement, accounts: RunAccounts, judges: Iterable[Listener] = ()
    ) -> None:
        self._backend_id = backend_id
        self._placement = placement
        self._accounts = accounts
        self._listeners: list[Listener] = [accounts, *judges]

    def __call__(self, entry: Entry) -> None:
        part = self._part(entry)
        if part is not None:
            for listener in self._listeners:
                listener(part)

    def _part(self, entry: Entry) -> Entry | None:
        """Return the part of an entry that concerns this backend, None if there is none."""
        match entry:
            case Polled():
                return self._polled(entry)
            case Adopted():
                return entry if entry.backend_id == self._backend_id else None
            case Submitted() | Readmitted():
                is_here = self._placement.backend_ids.get(entry.request.id) == self._backend_id
                return entry if is_here else None
            case LoadChanged() | Measured() | TenantsChanged() | PolicyChanged() | Restored() | TakenOver():
                return entry
            case Spent() | WindowsRestored():
                return None
            case _:
                return entry if entry.request_id in self._accounts.requests else None

    def _polled(self, entry: Polled) -> Polled:
        actions = tuple(each for each in entry.actions if each.request_id in self._accounts.requests)
        for action in actions:
            here = not isinstance(action, Dispatch) or action.backend_id == self._backend_id
            require(here, "{}: it waited for {}", action, self._backend_id)
        return replace(entry, actions=actions)
