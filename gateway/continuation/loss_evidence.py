"""LossEvidence: the search for the call that makes engines fail.

One request may end every engine that computes it. A loss of an engine is evidence against each call that was running on
it: it counts 1 against each. A call that has lost ENGINES_MAX engines is given up, whatever the others did, so no call
costs more. Its losses are then explained, and no longer count against the calls that shared them.

Other calls would reach the same count if they moved with this call from engine to engine. So a call whose next loss
would be its last runs apart: other such calls wait until it has left its engine, or has been there for much longer than
it took to lose an engine before.

Pure: facts come in with their times; it does no I/O and reads no clock. It covers the calls of one process.
"""

from collections import defaultdict
from typing import Final

ENGINES_MAX: Final = 3
"""The most engines that a call may lose. Two losses in a row happen to innocent calls: two engines are restarted."""
TRIAL_RATIO: Final = 2.0
"""The length of a trial over the longest loss: a call that ends engines takes about as long each time, and another
engine is hardly slower by more.
"""


class _Loss:
    """The loss of one engine: the calls that were aboard, and the calls for which it is the last loss. Among several
    such calls, only the one on trial counts.
    """

    __slots__ = ("aboard", "is_explained", "last_chances")

    def __init__(self, aboard: "set[Suspect]", now: float) -> None:
        self.aboard = aboard
        last_chances = {each for each in aboard if each.is_last_chance}
        self.last_chances = {each for each in last_chances if now < each.trial_ends_at} or last_chances
        self.is_explained = False
        for each in aboard:
            each.loss = self


class Suspect:
    """A call that may make engines fail, with its losses: the failures of engines while it was running on them."""

    __slots__ = ("backend_id", "longest_s", "loss", "losses", "sent_at")

    def __init__(self) -> None:
        self.losses: list[_Loss] = []
        self.loss: _Loss | None = None  # of the engine that it is at, which another call has noticed
        self.backend_id = ""
        self.sent_at = 0.0
        self.longest_s = 0.0  # that an engine lived which it lost

    @property
    def lost(self) -> int:
        """The number of engines that the call has lost, except losses that a given-up call explains."""
        return sum([not loss.is_explained for loss in self.losses])

    @property
    def is_last_chance(self) -> bool:
        """Whether the call's next loss ends it."""
        return self.lost >= ENGINES_MAX - 1

    @property
    def trial_ends_at(self) -> float:
        """The time at which the call has been at its engine too long to be the cause of the losses."""
        return self.sent_at + TRIAL_RATIO * self.longest_s


class LossEvidence:
    """The search for calls that make engines fail. It records which calls of this process were running on an engine
    when the engine failed, and gives up a call after ENGINES_MAX losses. Mutable.
    """

    def __init__(self) -> None:
        self._aboard: defaultdict[str, set[Suspect]] = defaultdict(set)  # by backend

    def sent(self, call: Suspect, backend_id: str, now: float) -> None:
        """The call runs at this backend from now on."""
        call.backend_id, call.sent_at, call.loss = backend_id, now, None
        self._aboard[backend_id].add(call)

    def left(self, call: Suspect) -> None:
        """The call has left its backend, because it ended or goes on elsewhere. Idempotent."""
        aboard = self._aboard[call.backend_id]
        aboard.discard(call)
        if not aboard:
            del self._aboard[call.backend_id]

    def lost(self, call: Suspect, now: float, *, resends_max: int | None) -> bool:
        """The call has lost the engine that it was at. Returns whether it is given up. `resends_max`: how often it may
        be sent again while its client has been sent nothing; beyond that it is sent only if another call on the same
        engine has lost as many engines. None: it is a stream that has begun.
        """
        self.left(call)
        loss = call.loss or _Loss({*self._aboard.get(call.backend_id, ()), call}, now)
        call.losses.append(loss)
        call.longest_s = max(call.longest_s, now - call.sent_at)
        is_given_up = call in loss.last_chances
        if resends_max is not None and call.lost > resends_max:
            is_given_up = is_given_up or not resends_max or not _is_shared(loss, call)
        if is_given_up:
            for each in call.losses:
                each.is_explained = True
        return is_given_up

    def ended(self, call: Suspect) -> None:
        """The call has ended: drop its losses."""
        call.losses.clear()
        call.loss = None

    def apart_until(self, call: Suspect, backend_id: str) -> float | None:
        """The time until which the call must not be sent to this backend, because another call is on trial there; None:
        it may be sent now.
        """
        if not call.is_last_chance:
            return None
        others = [each for each in self._aboard.get(backend_id, ()) if each.is_last_chance]
        return max((each.trial_ends_at for each in others), default=None)


def _is_shared(loss: _Loss, call: Suspect) -> bool:
    """Whether another call aboard has lost as many engines, including this loss."""
    return any(each.lost + (loss not in each.losses) >= call.lost for each in loss.aboard if each is not call)
