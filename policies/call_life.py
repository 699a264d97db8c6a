"""The life of a call: its states, and which event takes it from one to the next.

                   DISPATCHED            ANSWERED
         QUEUED ----------------> SENT ----------------> ANSWERING
          |  ^                      |                        |
    PARKED|  |READMITTED            +-- PREEMPTED or MOVED --+-----> PREEMPTING or MOVING
          v  |                      |                        |               |
         PARKED                     +------------------------+----- KEPT ----+-----> FIXED

A call that runs (SENT, ANSWERING, PREEMPTING, MOVING, FIXED) goes back to QUEUED when it has RETURNED, with or without
a part of its answer. Each state may be followed by ENDED. Three objects hold a call's life: the ledger's InFlight in
the Scheduler, the OrderedRequest at the leader, the Lease in the process of the client. Each reads the table below, and
an event that a state does not have there is a LifeError.

Two things are no states. That a call is continued is a property of its request (`produced_tokens`): it is true in every
state from the first cut on. The charges and the reported usage of a call are in the accounts.
"""

from enum import StrEnum
from typing import Final

from policies.types import Cause


class Life(StrEnum):
    """The state of a call, from its arrival to its end."""

    QUEUED = "queued"
    """It waits for a backend, for the first time or again."""
    PARKED = "parked"
    """It waits outside of the queue: its process is away."""
    SENT = "sent"
    """A backend has it, and has not begun to answer."""
    ANSWERING = "answering"
    """Its backend answers."""
    PREEMPTING = "preempting"
    """It was asked to give way to another, and has not left its backend yet."""
    MOVING = "moving"
    """It was asked to leave a backend that drains, and has not left yet."""
    FIXED = "fixed"
    """It stays at its backend: its client has a part of an answer that cannot be continued, or was to stay."""
    ENDED = "ended"


class Event(StrEnum):
    """An event that changes the state of a call."""

    DISPATCHED = "dispatched"
    ANSWERED = "answered"
    """Its backend has begun to answer."""
    PREEMPTED = "preempted"
    """It is to give way to another call."""
    MOVED = "moved"
    """It is to leave its backend, which drains."""
    KEPT = "kept"
    """It stays where it is: a preemption is too late, from now on or at all."""
    RETURNED = "returned"
    """It has left its backend, and waits again; the Cause says why."""
    PARKED = "parked"
    READMITTED = "readmitted"
    ENDED = "ended"


class LifeError(Exception):
    """An error: a call got an event that its state does not allow."""


class _Table(dict[tuple[Life, Event], Life]):
    def __missing__(self, key: tuple[Life, Event]) -> Life:
        life, event = key
        raise LifeError(f"a call that is {life} cannot be {event}")


LIFE: Final = _Table(
    {
        (Life.QUEUED, Event.DISPATCHED): Life.SENT,
        (Life.QUEUED, Event.PARKED): Life.PARKED,
        (Life.QUEUED, Event.ENDED): Life.ENDED,
        (Life.PARKED, Event.READMITTED): Life.QUEUED,
        (Life.PARKED, Event.ENDED): Life.ENDED,
        (Life.SENT, Event.ANSWERED): Life.ANSWERING,
        (Life.SENT, Event.PREEMPTED): Life.PREEMPTING,
        (Life.SENT, Event.MOVED): Life.MOVING,
        (Life.SENT, Event.KEPT): Life.FIXED,
        (Life.SENT, Event.RETURNED): Life.QUEUED,
        (Life.SENT, Event.ENDED): Life.ENDED,
        (Life.ANSWERING, Event.ANSWERED): Life.ANSWERING,
        (Life.ANSWERING, Event.PREEMPTED): Life.PREEMPTING,
        (Life.ANSWERING, Event.MOVED): Life.MOVING,
        (Life.ANSWERING, Event.KEPT): Life.FIXED,
        (Life.ANSWERING, Event.RETURNED): Life.QUEUED,
        (Life.ANSWERING, Event.ENDED): Life.ENDED,
        (Life.PREEMPTING, Event.ANSWERED): Life.PREEMPTING,
        (Life.PREEMPTING, Event.KEPT): Life.FIXED,
        (Life.PREEMPTING, Event.RETURNED): Life.QUEUED,
        (Life.PREEMPTING, Event.ENDED): Life.ENDED,
        (Life.MOVING, Event.ANSWERED): Life.MOVING,
        (Life.MOVING, Event.KEPT): Life.FIXED,
        (Life.MOVING, Event.RETURNED): Life.QUEUED,
        (Life.MOVING, Event.ENDED): Life.ENDED,
        (Life.FIXED, Event.ANSWERED): Life.FIXED,
        (Life.FIXED, Event.KEPT): Life.FIXED,
        (Life.FIXED, Event.RETURNED): Life.QUEUED,
        (Life.FIXED, Event.ENDED): Life.ENDED,
    }
)
"""The state that follows a state by an event."""

ASKED: Final = {Cause.PREEMPTED: Event.PREEMPTED, Cause.DRAINED: Event.MOVED}
"""The event that a call was asked to leave its backend, by the cause."""

LEAVING: Final = {Life.PREEMPTING: Cause.PREEMPTED, Life.MOVING: Cause.DRAINED}
"""The states of a call that is asked to leave its backend, with the Cause for which it returns."""
