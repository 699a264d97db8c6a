"""OwnRequest: what a member knows of one request of its clients, enough to tell it all to another leader."""

from dataclasses import dataclass, replace
from math import inf

from gateway.cluster.wire import Dispatched, Has
from policies.types import Outcome, Request, Timing, Usage


@dataclass(slots=True, eq=False)
class OwnRequest:
    """A request of this member's clients. Without a `dispatch` it waits."""

    number: int
    pool: str
    request: Request
    is_traced: bool = False
    dispatch: Dispatched | None = None
    dispatched_at: float = 0.0
    sent_by: str = ""  # the leadership that dispatched it
    usage: Usage | None = None  # the newest
    told: Usage | None = None  # as the leader was last told; until then, what the Dispatch assumed
    told_at: float = -inf
    is_begun: bool = False  # its first usage was told
    is_withdrawn: bool = False  # its preemption is to be answered
    is_submitted: bool = False  # a leader that decides was told of it: it was admitted there, or is rejected
    outcome: Outcome | None = None  # it ended while there was no leader to tell
    timing: Timing | None = None
    lift: float = 0.0

    def dispatched(self, message: Dispatched, leadership: str, now: float) -> None:
        """A leadership has sent it to a backend."""
        self.dispatch, self.dispatched_at, self.lift = message, now, message.lift
        self.sent_by = leadership
        if not self.request.produced_tokens:  # else it is continued, and was charged for that
            self.told = Usage(self.request.prompt_tokens, message.cached_tokens, 0)
            self.usage = None
        self.is_begun = False

    def wait_again(self) -> None:
        """It has left its backend."""
        # What it was charged stays: it is prepaid (rule 21).
        if self.is_withdrawn:
            self.request = replace(self.request, preemptions=self.request.preemptions + 1)
        self.dispatch, self.is_begun, self.is_withdrawn = None, False, False
        if not self.request.produced_tokens:
            self.usage = None

    @property
    def untold_tokens(self) -> int:
        told = 0 if self.told is None else self.told.output_tokens
        return 0 if self.usage is None else max(0, self.usage.output_tokens - told)

    def has(self, leadership: str, now: float) -> Has:
        """What a new leader is told of it (rules 18, 20, 21). It is new if no leader that decided was told of it: one
        that still gathered may have gone without admitting it.
        """
        age_s, dispatch = now - self.request.arrived_at, self.dispatch
        if not self.is_submitted:
            return Has(self.number, self.request, age_s, is_new=True, is_traced=self.is_traced)
        if dispatch is None:
            has = Has(self.number, self.request, age_s, told=self.told, usage=self.usage)
            self.told = self.usage or self.told
            return has
        has = Has(
            self.number,
            self.request,
            age_s,
            dispatch.backend_id,
            now - self.dispatched_at,
            dispatch.output_tokens,
            self.told,
            self.usage,
            self.outcome,
            self.timing,
            sent_by="" if self.sent_by == leadership else self.sent_by,
        )
        self.told, self.told_at = self.usage or self.told, now
        self.is_begun = self.usage is not None
        return has
