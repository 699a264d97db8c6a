"""ActiveCalls: the calls of this process that wait in a queue or run, with their state so far."""

from collections.abc import Collection
from typing import NamedTuple

from gateway.observability.telemetry import CallTrace
from gateway.scheduling.dispatcher import Dispatcher, Lease


class ActiveCall(NamedTuple):
    """A call that has not ended: the Dispatcher of its pool, its lease (its place in the queue or at a backend), and
    its trace (the facts for logs).
    """

    dispatcher: Dispatcher
    lease: Lease
    trace: CallTrace


class ActiveCalls:
    """The calls of this process that wait in a queue or run, by request id. Mutable."""

    def __init__(self) -> None:
        self._calls: dict[str, tuple[Dispatcher, Lease, CallTrace]] = {}  # each an ActiveCall when it is read

    def begun(self, dispatcher: Dispatcher, lease: Lease, trace: CallTrace) -> None:
        self._calls[lease.request.id] = dispatcher, lease, trace

    def ended(self, request_id: str) -> None:
        self._calls.pop(request_id, None)

    def find(self, request_id: str) -> ActiveCall | None:
        found = self._calls.get(request_id)
        return None if found is None else ActiveCall(*found)

    def all(self) -> Collection[ActiveCall]:
        return [ActiveCall(*each) for each in self._calls.values()]
