"""Asking: when a member asks the election store, and whether the store answers."""

from math import inf
from typing import Final

from gateway.cluster.election_store import StoreCall

ASK_S: Final = 0.5  # between two calls of the store
HURRY_S: Final = 0.05  # and while the key of a leader that has resigned, ended or fallen silent is about to be free
ANSWER_S_MAX: Final = 1.0  # a call without an answer has failed
STANDALONE_S: Final = 1.0  # without the store and without a leader: then a member leads itself


class Asking:
    """The timing of the calls of one member (a process of the cluster) to the election store: when the next call is
    due, and whether the store still answers. At most one call waits for its answer. Mutable.
    """

    def __init__(self, now: float) -> None:
        """The store was just connected."""
        self._number = 0
        self._pending: StoreCall | None = None
        self._next_at = now
        self._hurries_until = -inf
        self._heard_at = now

    def next_number(self) -> int:
        """The number of a new call."""
        self._number += 1
        return self._number

    def is_due(self, now: float) -> bool:
        """Whether a call is to be made now."""
        if self._pending is not None:
            if now - self._pending.sent_at < ANSWER_S_MAX:
                return False
            self.failed(self._pending, now)
        return now >= self._next_at

    def begin(self, call: StoreCall) -> StoreCall:
        """Record that this call is made now, and return it."""
        self._pending = call
        return call

    def answered(self, call: StoreCall, now: float) -> bool:
        """The store answered; returns whether the answer came in time. A late answer counts as a failed call."""
        if call is not self._pending:
            return False
        self._pending, self._heard_at = None, now
        self._next_at = call.sent_at + (ASK_S if now >= self._hurries_until else HURRY_S)
        return True

    def failed(self, call: StoreCall, now: float) -> None:
        """The store did not answer this call, or answered with an error."""
        if call is self._pending:
            self._pending, self._next_at = None, now + ASK_S

    def hurry(self, now: float, seconds: float) -> None:
        """Ask at once, and often, until there is another leader, for at most `seconds`."""
        self._hurries_until = max(self._hurries_until, now + seconds)
        if self._pending is None:
            self._next_at = now

    def at_once(self, now: float) -> None:
        """Ask the store at once, after an answer."""
        self._next_at = now

    def calm(self, call: StoreCall) -> None:
        """End the haste with this call, which was answered."""
        self._hurries_until, self._next_at = -inf, call.sent_at + ASK_S

    def overslept(self, seconds: float, now: float) -> None:
        """Note that this process did not run for `seconds`: answers of the store may be unread."""
        self._heard_at = min(now, self._heard_at + seconds)

    def is_reached(self, now: float) -> bool:
        """Whether the store answers. A member that reaches neither the store nor a leader leads itself (rule 25)."""
        return now - self._heard_at < STANDALONE_S + ASK_S

    def wakeup(self) -> float:
        """The next time at which `is_due` may become true."""
        return self._next_at if self._pending is None else self._pending.sent_at + ANSWER_S_MAX
