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
    """The witnesses of one leadership, whose number is `epoch`: a list of members (processes of the cluster). While the
    store does not answer, a majority of them may renew the leader's lease (the time for which it may decide). If the
    list is empty, only the store renews the lease.
    """

    epoch: int = 0
    names: frozenset[str] = frozenset()


NO_WITNESSES: Final = Witnesses()


class Ask(StrEnum):
    """A kind of call to the election store. Each call except RELEASE also keeps the calling member on the store's list
    of members for MEMBER_S seconds.
    """

    LOOK = "look"
    ACQUIRE = "acquire"  # take the key, if no member has it: epoch = max(counter, known) + 1
    RENEW = "renew"  # the key lives LEASE_S from now, if it is of this member and epoch, or was and is free
    RELEASE = "release"  # drop the key, if it is of this member and epoch, and list the member no more


@dataclass(frozen=True, slots=True)
class StoreCall:
    """One call of a member (a process of the cluster) to the election store. Give the answer and this call to
    `Candidate.answered`.

    `epoch` is the highest epoch (number of a leadership) that the member knows; for RENEW and RELEASE, it is the epoch
    that the member leads (0: none). `number` grows with each call. `sent_at` is in seconds of the member's clock.
    `free_epoch`: the member is no longer bound to a leader of this or an earlier epoch, so it may help another one to
    lead (0: it may not). `has_ended`: the process that leads in `free_epoch` has ended. `witnesses` are the members of
    which a majority may renew the leader's lease (the time for which it may decide) without the store: with RENEW, the
    list that the store shall keep; with ACQUIRE, the last known list, in case the store has lost it.
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
    """The election store's answer to a call: the member that holds the leader's key (only this member may lead), in
    which epoch (number of a leadership), and the members that are listed. `leader` None: no member holds the key.
    `counter` is the highest epoch that the store had given before the call.
    """

    leader: str | None
    epoch: int
    members: dict[str, str]  # name to address
    counter: int = 0
    strangers: frozenset[str] = frozenset()  # members of another version of the protocol
    silent_s: Mapping[str, float] = field(default_factory=dict)  # since each member's last call; not told: 0
    witnesses: Witnesses = NO_WITNESSES


class ElectionStore(Protocol):
    """The interface of the store that elects the leader and keeps the newest checkpoint. Redis implements it
    (gateway/store/redis_election.py). Any error of a call counts as no answer.
    """

    async def call(self, call: StoreCall) -> StoreView: ...
    async def put_checkpoint(self, body: bytes) -> None: ...
    async def checkpoint(self) -> bytes | None: ...
