"""Wire: the messages between the processes of one cluster, and their encoding.

A frame is one message of the transport: facts or actions of one pool, or of no pool (""), sent in one epoch (the number
of a leadership). A connection keeps its frames in order. A follower names its requests by a number, which it never uses
again; the leader knows a request as `member.number` (`wire_id`). Messages have ages instead of times: clocks differ.

A frame's bytes are msgpack, every message an array that begins with its tag. So fields are only ever added at the end,
and a change of meaning needs a new VERSION: processes of unequal versions do not join each other.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from policies.facts import FACTS, Fact, RunFact
from policies.types import Cause, LimitKind, Outcome, RateLimits, Reason, Request, Timing, Usage, Wait

VERSION: Final = 8
FRAME_BYTES_MAX: Final = 1 << 20  # rule 28
MESSAGES_MAX: Final = 500  # of one frame: with requests of the usual size, 100 KB, which take 2 ms to decode

Epoch = int


class LimitsOf(NamedTuple):
    """A follower's question to the leader for the present state of limits per minute: of this tenant, of its group and
    of this API key ("": of no key).
    """

    tenant_id: str
    key_id: str = ""


class WireMessage(msgspec.Struct, frozen=True, array_like=True, tag_field="type"):
    """The base of all messages between a leader and its followers. In all of them, `number` is the number by which the
    follower names a request. The rules that their docstrings cite are in gateway/cluster/__init__.py.
    """


# -- facts of a follower's requests, in one pool ----------------------------------------------------------------


class Submit(WireMessage, frozen=True, tag="s"):
    """The follower's message that a request arrived `age_s` seconds ago and asks for admission. `is_traced`: the
    leader's answer Dispatched also says by how much the tenant's counter (service received over weight) was lifted, and
    why the request waited.
    """

    number: int
    request: Request
    age_s: float = 0.0
    is_traced: bool = False


class Used(WireMessage, frozen=True, tag="p"):
    """The follower's message of the tokens that a dispatched request has used so far."""

    number: int
    usage: Usage


class Finish(WireMessage, frozen=True, tag="f"):
    """The follower's message that a dispatched request has ended. `usage` is its total usage; None: as last reported.
    `entry` is the number of its entry in the ChargeLog, the follower's log of ended calls.
    """

    number: int
    outcome: Outcome
    usage: Usage | None = None
    timing: Timing | None = None
    entry: int = 0


class Told(WireMessage, frozen=True, tag="t"):
    """The follower's message of a fact about a dispatched request, such as that it returned to its queue. In the fact,
    `request_id` is the follower's id of the request, and the time is by the follower's clock. (Rules 8, 15, 16 of
    gateway/cluster.)
    """

    number: int
    fact: RunFact


class Gone(WireMessage, frozen=True, tag="g"):
    """The follower's message that a client left before the follower knew of the dispatch of its request, so nothing was
    sent to a backend (rule 14 of gateway/cluster). `entry` is the number of the request's entry in the ChargeLog, the
    follower's log of ended calls.
    """

    number: int
    entry: int = 0


class Spend(WireMessage, frozen=True, tag="$"):
    """The follower's message of usage to be charged to this tenant and key: that of a call that was never queued, or a
    sum of old entries of the ChargeLog, the follower's log of ended calls. `entry` is the number of the (last) entry in
    this log.
    """

    tenant_id: str
    usage: Usage
    key_id: str = ""
    entry: int = 0


class Untold(WireMessage, frozen=True, tag="h"):
    """The follower's message of the KV tokens, by backend, that its requests hold beyond reported usage (rule 11)."""

    tokens: dict[str, int]


class Ended(WireMessage, frozen=True, tag="e"):
    """The joining follower's message of a request that has ended, and whose end no known checkpoint includes. `entry`
    is the number of its entry in the ChargeLog, the follower's log of ended calls. `backend_id` None: the request was
    waiting. `usage` is its total usage; None: it used nothing.
    """

    number: int
    entry: int
    request: Request
    backend_id: str | None = None
    outcome: Outcome = Outcome.CLIENT_DISCONNECTED
    usage: Usage | None = None
    timing: Timing | None = None


class Has(WireMessage, frozen=True, tag="+"):
    """The joining follower's message of a request that has not ended. `age_s` and `dispatched_s` are seconds since its
    arrival and its dispatch. `backend_id` None: it waits. `usage` is its usage so far, also if it was interrupted and
    waits. A running request without a token yet has the usage that the leader assumed at its dispatch: its prompt
    tokens, a part of them cached. (Rules 18, 20, 21 of gateway/cluster.)
    """

    number: int
    request: Request
    age_s: float
    backend_id: str | None = None
    dispatched_s: float = 0.0  # ago
    output_tokens: float = 0.0
    usage: Usage | None = None
    is_traced: bool = False


# -- of a member, in no pool -------------------------------------------------------------------------------------


class Join(WireMessage, frozen=True, tag="J"):
    """The first message of a follower: its name, and the mark (a version) of the newest checkpoint that it holds."""

    member: str
    checkpoint: tuple[Epoch, int, str] = (0, 0, "")


class ToldPart(WireMessage, frozen=True, tag="a"):
    """The follower's message that one slice of its report after Join is complete. The leader asks for the next slice
    with TellMore. `has_told_running`: only waiting requests are left to report.
    """

    has_told_running: bool


class ToldAll(WireMessage, frozen=True, tag="A"):
    """The follower's message that its report after joining is complete."""


class Reach(WireMessage, frozen=True, tag="b"):
    """The follower's message of the backends that it cannot reach (rule 8); it reaches all others."""

    unreachable: tuple[str, ...] = ()


class Failed(WireMessage, frozen=True, tag="x"):
    """The follower's message that its call to this backend failed before the backend answered (rule 27)."""

    backend_id: str


class Ping(WireMessage, frozen=True, tag="i"):
    """The follower's ping. `at` is the time in seconds of the follower's clock, which the Pong returns. `granted`
    renews the leader's lease (promise.py): it is the `sent_at` of a Pong, from whose receipt the follower helps no
    other leader for LEASE_S. None: it grants nothing.
    """

    at: float
    granted: float | None = None


# -- actions and answers of the leader ---------------------------------------------------------------------------


class Dispatched(WireMessage, frozen=True, tag="D"):
    """The leader's message to send a request to a backend now; fields as in policies.types.Dispatch. `limits` is the
    state of the limits per minute for the request's tenant and key. If the request is traced, `lift` is the amount by
    which its tenant's counter (service received over weight) was lifted (raised to the level of the active tenants),
    and `wait` is the reason why the request waited.
    """

    number: int
    backend_id: str
    quiet_tokens: float = 0.0
    cached_tokens: int = 0
    may_be_preempted: bool = False
    backend_number: int = 0  # rule 13
    output_tokens: float = 0.0
    limits: RateLimits | None = None
    lift: float = 0.0
    wait: Wait | None = None
    expected_tokens: int = 0


class Refused(WireMessage, frozen=True, tag="R"):
    """The leader's message to reject a request, with the reason, and the seconds after which its client may retry;
    fields as in policies.types.Reject. `limits` is the state of the limits per minute for the request's tenant and key.
    """

    number: int
    reason: Reason
    retry_after_s: float
    limit: LimitKind | None = None
    limits: RateLimits | None = None


class Withdraw(WireMessage, frozen=True, tag="W"):
    """The leader's message to preempt a request, for the given cause. The follower answers with a Told, or not at all
    if the request has ended (rule 15 of gateway/cluster).
    """

    number: int
    cause: Cause = Cause.PREEMPTED


class Welcome(WireMessage, frozen=True, tag="w"):
    """The leader's message that a follower has joined. The leader first processes its report, then decides."""

    leader: str


class TellMore(WireMessage, frozen=True, tag="m"):
    """The leader's answer to a ToldPart: it asks for the next slice of the follower's report."""


class Pong(WireMessage, frozen=True, tag="o"):
    """The leader's answer to a Ping: the leader's lease lasts `lease_s` seconds from now (rule 3 of gateway/cluster).
    `sent_at` is the present time by the leader's clock; `at` repeats the field `at` of the Ping.
    """

    at: float
    lease_s: float
    sent_at: float = 0.0


class Release(WireMessage, frozen=True, tag="q"):
    """The leader's message that it stops leading: the followers carry out none of its actions any more, and it decides
    nothing more in this epoch. `returns`: it will report the requests of its own clients to the next leader. If not,
    the next leader need not wait for it.
    """

    returns: bool = False


class HigherEpoch(WireMessage, frozen=True, tag="^"):
    """The message that a newer leadership, one with this higher epoch, is known (rule 1 of gateway/cluster). It is sent
    to a leader of a lower epoch, or to that leader's follower.
    """

    epoch: Epoch


class Shared(WireMessage, frozen=True, tag="="):
    """The leader's message with state that all followers need, such as the models of a backend; `topic` says which
    state. It is sent when a follower joins, and when the state changes. It precedes every Dispatched (the message to
    send a request to a backend) that needs the state.
    """

    topic: str
    body: bytes


class CheckpointPart(WireMessage, frozen=True, tag="c"):
    """A message with a part of a change to a checkpoint: the records that changed, where an empty record means that it
    is deleted (records.py). A mark is the version of a checkpoint. The last part of a change has `mark`, the version
    after it; the change applies to the version `base`. If the first part has `begins`, the parts are a whole checkpoint
    instead, and `base` means nothing. `at` is the checkpoint's time. `is_kept`: this version is also stored.
    """

    records: dict[str, bytes]
    mark: tuple[Epoch, int, str] | None = None
    base: tuple[Epoch, int, str] = (0, 0, "")
    at: float = 0.0
    begins: bool = False
    is_kept: bool = False


class WantCheckpoint(WireMessage, frozen=True, tag="C"):
    """The leader's message that asks a follower for its checkpoint, as it is newer than the leader's (rule 19)."""


AnyMessage = (
    Submit | Used | Finish | Told | Gone | Spend | Untold | Ended | Has
    | Join | ToldPart | ToldAll | Reach | Failed | Ping
    | Dispatched | Refused | Withdraw | Welcome | TellMore | Pong | Release | Shared | WantCheckpoint
    | CheckpointPart | HigherEpoch
)  # fmt: skip


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """One transport message between two processes. It carries messages of one pool in one epoch, in order (rule 5 of
    gateway/cluster). If `pool` is "", its messages belong to no pool.
    """

    epoch: Epoch
    pool: str
    messages: tuple[AnyMessage, ...]


class FrameError(ValueError):
    """An error: the received bytes are no frame of this version, so the connection is closed."""


def _fact(_base: type, given: Any) -> Fact:
    """A fact of a request, which was encoded as a map. Raises ValueError for what is none."""
    match given:
        case {"call": str(call)} if issubclass(FACTS.get(call, Fact), RunFact):
            return msgspec.convert(given, FACTS[call])
    raise ValueError("no fact of a request")


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Frame, dec_hook=_fact)


def encode(frame: Frame) -> Iterator[bytes]:
    """Yield the frame's bytes as one message of the transport, or as several in this order if one would exceed
    FRAME_BYTES_MAX. Raises FrameError if a single message of the frame exceeds it.
    """
    body = _ENCODER.encode(frame)
    if len(body) <= FRAME_BYTES_MAX:
        yield body
        return
    half = len(frame.messages) // 2
    if not half:
        raise FrameError(f"one message of {len(body)} bytes")
    yield from encode(Frame(frame.epoch, frame.pool, frame.messages[:half]))
    yield from encode(Frame(frame.epoch, frame.pool, frame.messages[half:]))


def decode(body: bytes) -> Frame:
    """The frame of one message of the transport. Raises FrameError."""
    if len(body) > FRAME_BYTES_MAX:
        raise FrameError(f"a frame of {len(body)} bytes")
    try:
        return _DECODER.decode(body)
    except msgspec.DecodeError as error:  # also ValidationError
        raise FrameError(str(error)) from error


def wire_id(member: str, number: int) -> str:
    """The id of a follower's request in the leader's Scheduler. It is never used again (rule 6)."""
    return f"{member}.{number}"


def frames_of(epoch: Epoch, said: Iterable[tuple[str, AnyMessage]]) -> Iterator[Frame]:
    """The frames for these messages, in this order; each run of messages of one pool is one frame (rule 9)."""
    pool, run = "", list[AnyMessage]()
    for of, message in said:
        if run and (of != pool or len(run) >= MESSAGES_MAX):
            yield Frame(epoch, pool, tuple(run))
            run = []
        pool = of
        run.append(message)
    if run:
        yield Frame(epoch, pool, tuple(run))
