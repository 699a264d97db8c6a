"""MemberRequests: the requests of a member's clients, with all that another leader needs to know about them."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from gateway.cluster.wire import Dispatched, Ended, Has
from policies.facts import RunFact
from policies.types import NO_USAGE, Dispatch, Outcome, Request, Timing, Usage


@dataclass(slots=True, eq=False)
class OwnRequest:
    """The record that a member (a process of the cluster) has of a request of its clients, until the request ends.
    `dispatch` is the leader's message that sent the request to a backend; None: the request waits. Times are seconds of
    this process's clock.
    """

    number: int
    pool: str
    request: Request
    is_traced: bool = False
    dispatch: Dispatched | None = None
    dispatched_at: float = 0.0
    usage: Usage | None = None  # the newest
    told: Usage | None = None  # as the leader was last told; until then, what the Dispatch assumed
    told_at: float = -inf  # when its newest usage since its Dispatch was told; before: nothing was
    is_retold: bool = False  # a leader was told of it on joining, so another one may have dispatched it
    known_on: int = 0  # the connection on which the leader was told of it last

    def dispatched(self, message: Dispatched, now: float) -> Dispatch:
        """The leader has dispatched the request. Returns the action to carry out."""
        self.dispatch, self.dispatched_at = message, now
        if not self.request.produced_tokens:  # else it is continued, and was charged for that
            self.told = Usage(self.request.prompt_tokens, message.cached_tokens, 0)
            self.usage = None
        self.told_at = -inf
        return Dispatch(
            self.request.id,
            message.backend_id,
            message.quiet_tokens,
            message.cached_tokens,
            message.may_be_preempted,
            message.backend_number,
            message.output_tokens,
            message.expected_tokens,
        )

    def wait_again(self, fact: RunFact, backend_id: str) -> None:
        """The request has left this backend, and waits again."""
        # What it was charged stays: it is prepaid (rule 21).
        self.request = fact.waiting(self.request, backend_id)
        self.dispatch = None
        if fact.stopped_after is not None:
            self.usage = self.told = fact.stopped_after
        if not self.request.produced_tokens:
            self.usage = None

    @property
    def untold_tokens(self) -> int:
        told = 0 if self.told is None else self.told.output_tokens
        return 0 if self.usage is None else max(0, self.usage.output_tokens - told)

    def ended(self, entry: int, outcome: Outcome, timing: Timing | None = None, *, has_run: bool) -> Ended:
        """The report of the request's end for later leaders, under this number of the ChargeLog. Without `has_run` its
        client left before its Dispatch was carried out: nothing was sent, whatever the Dispatch assumed.
        """
        backend_id = None if self.dispatch is None else self.dispatch.backend_id
        was_sent = has_run or self.dispatch is None or bool(self.request.produced_tokens)
        usage = self._present if was_sent else NO_USAGE
        return Ended(self.number, entry, self.request, backend_id, outcome, usage, timing)

    def has(self, now: float) -> Has:
        """The report of the request to a new leader (rules 18, 20, 21)."""
        age_s, dispatch, self.is_retold = now - self.request.arrived_at, self.dispatch, True
        if dispatch is None:
            return Has(self.number, self.request, age_s, usage=self.usage, is_traced=self.is_traced)
        self.told, self.told_at = self._present, -inf if self.usage is None else now
        return Has(
            self.number,
            self.request,
            age_s,
            dispatch.backend_id,
            now - self.dispatched_at,
            dispatch.output_tokens,
            self._present,
        )

    @property
    def _present(self) -> Usage | None:
        """What it has used; where it runs and has used nothing yet, what its Dispatch assumed."""
        if self.usage is not None or self.dispatch is None:
            return self.usage
        return Usage(self.request.prompt_tokens, self.dispatch.cached_tokens, 0)


class MemberRequests:
    """The requests of the clients of one member (a process of the cluster) that have not ended, the oldest first.
    Mutable.
    """

    def __init__(self) -> None:
        self._all: dict[int, OwnRequest] = {}  # by number
        self._by_id: dict[str, OwnRequest] = {}
        self._last_number = 0

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[OwnRequest]:
        return iter(self._all.values())

    def __contains__(self, own: OwnRequest) -> bool:
        return own.number in self._all

    def find(self, request_id: str) -> OwnRequest | None:
        """The request of this id; None if it has ended."""
        return self._by_id.get(request_id)

    def numbered(self, number: int) -> OwnRequest | None:
        """The request of this number; None if it has ended."""
        return self._all.get(number)

    def arrived(self, pool: str, request: Request, *, is_traced: bool) -> OwnRequest:
        """Add a request that arrived, under the next number."""
        assert request.id not in self._by_id, "an id is in use once"
        self._last_number += 1
        own = OwnRequest(self._last_number, pool, request, is_traced)
        self._all[own.number] = self._by_id[request.id] = own
        return own

    def forget(self, own: OwnRequest) -> None:
        """Drop a request that has ended."""
        del self._all[own.number]
        del self._by_id[own.request.id]
