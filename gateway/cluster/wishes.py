"""Wishes: the tasks that a leader gives to the shell around it, besides sending frames."""

from dataclasses import dataclass

from gateway.cluster.wire import Epoch


@dataclass(frozen=True, slots=True)
class CloseMember:
    """A leader's instruction to its process: close the connection of this member (process), if it is still open."""

    member: str
    reason: str


@dataclass(frozen=True, slots=True)
class AskBackends:
    """A leader's instruction to its process: measure the load of these backends now (None: of all; rules 22, 27)."""

    backend_ids: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class StoreCheckpoint:
    """A leader's instruction to its process: put this encoded checkpoint into the store."""

    body: bytes


@dataclass(frozen=True, slots=True)
class StepDown:
    """A leader's instruction to its process: end the leadership. `reason` is for the log. `epoch` is the higher epoch
    of another leader, if one is known; else 0. `is_blind`: this process reaches no backend, so another process should
    lead.
    """

    reason: str
    epoch: Epoch = 0
    is_blind: bool = False


Wish = CloseMember | AskBackends | StoreCheckpoint | StepDown
