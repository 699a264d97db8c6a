"""ElectionStore: the store that elects the leader, and the calls that members make to it.

It holds one key, which lives LEASE_S, a counter of epochs, and one entry per member, which lives MEMBER_S. election.py
has the rules for making calls and for using their answers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from gateway.cluster.promise import WITHOUT_STORE_S

MEMBER_S: Final = 3.0  # a member that has not asked for so long is not listed
ABANDONED_S: Final = WITHOUT_STORE_S * 1.05  # since its last renewal: then members alone renew no lease any more


class Witnesses(NamedTuple):
    """A list of members: a majority of them may renew the lease of this epoch's leader while the store does not answer.
    If the list is empty, only the store renews the lease.
    """

    epoch: int = 0
    names: frozenset[str] = frozenset()


NO_WITNESSES: Final = Witnesses()


class Ask(StrEnum):
    """A kind of call to the election store. Each call also lists the asking member for MEMBER_S."""

    LOOK = "look"
    ACQUIRE = "acquire"  # take the key, if no member has it: epoch = max(counter, known) + 1
    RENEW = "renew"  # the key lives LEASE_S from now, if it is of this member and epoch, or was and is free
    RELEASE = "release"  # drop the key, if it is of this member and epoch, and list the member no more


@dataclass(frozen=True, slots=True)
class StoreCall:
    """One call of a member to the election store. Give the answer and this call to `Candidate.answered`. `epoch` is the
    highest known epoch; for RENEW and RELEASE it is the epoch that the member leads. `number` identifies the call, and
    grows. The caller helps no leader of `free_epoch` or of an earlier epoch; `has_ended`: because the process that
    leads in `free_epoch` has ended. `witnesses`: with RENEW, the list to agree on; with ACQUIRE, the last known list,
    for a store that has lost it.
    """

    ask: Ask
    member: str
    address: str
    epoch: int
    number: int
    sent_at: float
    free_epoch: int = 0
    has_ended: bool = False
    witnesses: Witnesses = NO_WITNESSES


@dataclass(frozen=True, slots=True)
class StoreView:
    """The election store's answer to a call: which member holds the key, and which members are listed. `counter` is the
    counter of epochs before the call.
    """

    leader: str | None
    epoch: int
    members: dict[str, str]  # name to address
    counter: int = 0
    strangers: frozenset[str] = frozenset()  # members of another version of the protocol
    silent_s: Mapping[str, float] = field(default_factory=dict)  # since each member's last call; not told: 0
    witnesses: Witnesses = NO_WITNESSES


class ElectionStore(Protocol):
    """The store that elects the leader: an interface, implemented by Redis. Any error counts as no answer."""

    async def call(self, call: StoreCall) -> StoreView: ...
    async def put_checkpoint(self, body: bytes) -> None: ...
    async def checkpoint(self) -> bytes | None: ...
