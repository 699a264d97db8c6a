"""Records: the parts of a checkpoint, each encoded by itself, so that only changed records are sent.

A record has a key: a letter for its kind, its pool and its name.

    s  counters of a tenant            w  bookings against the limits per minute of a scope, and their time
    l  counters of tiers and groups    c  charges of a request that has not ended, by wire id
    a  a session of an agent, by tenant and session
    e  learnt values of the pool for sessions
    m  how much of a member's reports was processed, in no pool

Times are by the first leader's clock: each leader takes over the difference to its own clock from the one before. So a
record stays the same as long as its values do.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from struct import calcsize, pack, unpack
from typing import Final, NamedTuple

import msgspec

from policies.accounts.checkpoint import QueueCheckpoint, ServiceCheckpoint, TierCheckpoint, of_tenants
from policies.admission.rate_window import WINDOW_S, Booked, MinuteCheckpoint, WindowCheckpoint
from policies.sessions.checkpoint import SessionId, SessionRecord, SessionsCheckpoint
from policies.types import ReplicaShare, Usage

SERVICE, LEVELS, WINDOW, CHARGED, SESSION, LEARNT, MEMBER = "s", "l", "w", "c", "a", "e", "m"
GONE: Final = b""  # instead of a record that is no more
BOOKED_BYTES: Final = calcsize("<HQ")
SLICE_RECORDS: Final = 256
SLICE_BYTES: Final = 1 << 17

Records = dict[str, bytes]


class Taken(NamedTuple):
    """The position up to which the leader has processed the reports of one member (process): the numbers of the
    member's last request, and of its last entry in the ChargeLog, the log of its ended calls.
    """

    request: int = 0
    entry: int = 0


class PoolCheckpoint(NamedTuple):
    """The checkpoint of one pool: the service counters of its tenants, the use of their limits per minute, and the
    sessions of agents. `charged` is the usage that the counters contain for requests that had not ended, by wire id
    (`member.number`).
    """

    service: ServiceCheckpoint
    windows: WindowCheckpoint
    charged: Mapping[str, Usage] = {}
    sessions: SessionsCheckpoint = SessionsCheckpoint()


def part_of(minute: MinuteCheckpoint, share: ReplicaShare) -> MinuteCheckpoint:
    """The part of these bookings that a member with this part of every limit counts, so that the free parts of all
    members add up.
    """
    return MinuteCheckpoint(*[_part(booked, share) for booked in minute])


def _part(booked: Iterable[Booked], share: ReplicaShare) -> tuple[Booked, ...]:
    """The member's part of these bookings, oldest first: of all up to each one, so that it is rounded once."""
    parts, until_now, taken = [], 0, 0
    for age_s, amount in booked:
        until_now += amount
        parts.append(Booked(age_s, share.of(until_now) - taken))
        taken = share.of(until_now)
    return tuple(parts)


class ClusterCheckpoint(NamedTuple):
    """The checkpoint from which a new leader continues. It holds the checkpoints of all pools by name, and by member
    the position up to which the member's reports were processed (`taken`).
    """

    pools: Mapping[str, PoolCheckpoint]
    taken: Mapping[str, Taken]


class _Account(NamedTuple):
    """A tenant's counter in one queue."""

    fair_queue: str
    tier_id: str
    group_id: str | None
    counter: float


encode: Final = msgspec.msgpack.Encoder().encode
"""Encodes a record, a slice of records, or a Whole."""
_ACCOUNTS: Final = msgspec.msgpack.Decoder(tuple[_Account, ...])
_LEVELS: Final = msgspec.msgpack.Decoder(dict[str, QueueCheckpoint])
_MINUTE: Final = msgspec.msgpack.Decoder(tuple)  # when it was written, and the bookings of each kind, as `_packed`
_CHARGED: Final = msgspec.msgpack.Decoder(Usage)
decode_taken: Final = msgspec.msgpack.Decoder(Taken).decode
_SESSION: Final = msgspec.msgpack.Decoder(SessionRecord)
_LEARNT: Final = msgspec.msgpack.Decoder(SessionsCheckpoint)


def key_of(kind: str, pool: str, name: str = "") -> str:
    return f"{kind}{pool}\0{name}"


def parse_key(key: str) -> tuple[str, str, str]:
    """The kind, pool and name of a record."""
    pool, _, name = key[1:].partition("\0")
    return key[0], pool, name


def service_records(pool: str, service: ServiceCheckpoint, tenant_ids: Iterable[str]) -> Records:
    """The records with the counters of these tenants; the checkpoint has no other tenants."""
    accounts: dict[str, list[_Account]] = {tenant_id: [] for tenant_id in tenant_ids}
    for fair_queue, of in service.items():
        for tier_id, tier in of.tiers.items():
            for tenant_id, counter in tier.tenants.items():
                accounts[tenant_id].append(_Account(fair_queue, tier_id, None, counter))
            for group_id, group in tier.groups.items():
                for tenant_id, counter in group.tenants.items():
                    accounts[tenant_id].append(_Account(fair_queue, tier_id, group_id, counter))
    return {key_of(SERVICE, pool, each): encode(found) if found else GONE for each, found in accounts.items()}


def levels_record(pool: str, service: ServiceCheckpoint) -> Records:
    """The record with the counters of tiers and groups."""
    return {key_of(LEVELS, pool): encode(of_tenants(service, ()))}


def window_records(pool: str, windows: WindowCheckpoint, scopes: Iterable[str], at: float) -> Records:
    """The records with the bookings against the limits per minute of these scopes, as of `at`."""
    return {
        key_of(WINDOW, pool, scope): encode((at, *map(_packed, minute)))
        if (minute := windows.get(scope)) is not None
        else GONE
        for scope in scopes
    }


def charged_record(pool: str, id_: str, usage: Usage | None) -> Records:
    return {key_of(CHARGED, pool, id_): GONE if usage is None else encode(usage)}


def session_records(pool: str, changes: Mapping[SessionId, SessionRecord | None], later_s: float) -> Records:
    """The records of these sessions. The clock of records is `later_s` seconds ahead of this process's clock."""
    return {
        key_of(SESSION, pool, f"{tenant_id}\0{session_id}"): GONE
        if told is None
        else encode(told._replace(idle_since=told.idle_since + later_s))
        for (tenant_id, session_id), told in changes.items()
    }


def learnt_record(pool: str, learnt: SessionsCheckpoint) -> Records:
    """The record with the learnt values for sessions; empty where there are no sessions."""
    body = encode(learnt._replace(sessions={}, at=0.0)) if learnt.eta else GONE
    return {key_of(LEARNT, pool): body}


def member_record(member: str, taken: Taken | None) -> Records:
    return {key_of(MEMBER, "", member): GONE if taken is None else encode(taken)}


def slices(records: Iterable[tuple[str, bytes]]) -> Iterator[Records]:
    """Yield the records in slices that fit into a frame: at least one slice, and the last may be empty. A record is
    read only when its slice is asked for, so it may change until then.
    """
    part, size = Records(), 0
    for key, body in records:
        part[key] = body
        size += len(key) + len(body)
        if len(part) >= SLICE_RECORDS or size > SLICE_BYTES:
            yield part
            part, size = {}, 0
    yield part


def compose(records: Mapping[str, bytes], at: float) -> ClusterCheckpoint:
    """The checkpoint that consists of these records, as of this time."""
    kinds: dict[str, dict[str, dict[str, bytes]]] = defaultdict(lambda: defaultdict(dict))
    for key, body in records.items():
        kind, pool, name = parse_key(key)
        kinds[kind][pool][name] = body
    pools = {each for kind, of in kinds.items() if kind != MEMBER for each in of}
    return ClusterCheckpoint(
        {
            pool: PoolCheckpoint(
                _service(kinds[LEVELS][pool].get(""), kinds[SERVICE][pool]),
                _Windows(kinds[WINDOW][pool], at),
                {id_: _CHARGED.decode(body) for id_, body in kinds[CHARGED][pool].items()},
                _sessions(kinds[SESSION][pool], kinds[LEARNT][pool].get(""), at),
            )
            for pool in sorted(pools)
        },
        {member: decode_taken(body) for member, body in kinds[MEMBER][""].items()},
    )


def _service(levels: bytes | None, tenants: Mapping[str, bytes]) -> ServiceCheckpoint:
    if levels is None:
        return {}
    accounts: dict[tuple[str, str, str | None], dict[str, float]] = defaultdict(dict)
    for tenant_id, body in tenants.items():
        for fair_queue, tier_id, group_id, counter in _ACCOUNTS.decode(body):
            accounts[fair_queue, tier_id, group_id][tenant_id] = counter

    def filled(fair_queue: str, tier_id: str, tier: TierCheckpoint) -> TierCheckpoint:
        groups = {
            group_id: TierCheckpoint(group.counter, group.level, accounts[fair_queue, tier_id, group_id])
            for group_id, group in tier.groups.items()
        }
        return TierCheckpoint(tier.counter, tier.level, accounts[fair_queue, tier_id, None], groups)

    return {
        fair_queue: QueueCheckpoint(
            of.level, {tier_id: filled(fair_queue, tier_id, tier) for tier_id, tier in of.tiers.items()}
        )
        for fair_queue, of in _LEVELS.decode(levels).items()
    }


def _sessions(sessions: Mapping[str, bytes], learnt: bytes | None, at: float) -> SessionsCheckpoint:
    told = {}
    for name, body in sessions.items():
        tenant_id, _, session_id = name.partition("\0")
        told[tenant_id, session_id] = _SESSION.decode(body)
    return (SessionsCheckpoint() if learnt is None else _LEARNT.decode(learnt))._replace(sessions=told, at=at)


class _Windows(Mapping[str, MinuteCheckpoint]):
    """What counts against the limits per minute of each scope at one time, read where it is asked for."""

    def __init__(self, minutes: Mapping[str, bytes], at: float) -> None:
        self._minutes, self._at = minutes, at

    def __getitem__(self, scope: str) -> MinuteCheckpoint:
        at, *kinds = _MINUTE.decode(self._minutes[scope])
        older_s = max(0.0, self._at - at)
        return MinuteCheckpoint(*[_unpacked(packed, older_s) for packed in kinds])

    def __iter__(self) -> Iterator[str]:
        return iter(self._minutes)

    def __len__(self) -> int:
        return len(self._minutes)


def _packed(booked: Collection[Booked]) -> bytes:
    """Ages in milliseconds, then amounts."""
    ages = [int(1e3 * age_s) for age_s, _ in booked]
    return pack(f"<{len(ages)}H{len(ages)}Q", *ages, *[amount for _, amount in booked])


def _unpacked(packed: bytes, older_s: float) -> tuple[Booked, ...]:
    """The bookings so much later, as far as they count then."""
    count = len(packed) // BOOKED_BYTES
    values = unpack(f"<{count}H{count}Q", packed)
    booked = (Booked(age_ms / 1e3 + older_s, amount) for age_ms, amount in zip(values, values[count:], strict=False))
    return tuple(each for each in booked if each.age_s < WINDOW_S)


class Whole(msgspec.Struct, frozen=True, array_like=True):
    """A whole checkpoint in the form in which a store keeps it: its `mark` (a version), its time in seconds of the
    first leader's clock, and `parts`, each an encoded dict of some records.
    """

    mark: tuple[int, int, str]
    at: float
    parts: list[bytes]

    def records(self) -> Records:
        """All records of the parts. Raises msgspec.DecodeError."""
        return {key: body for part in self.parts for key, body in _RECORDS.decode(part).items()}


_RECORDS: Final = msgspec.msgpack.Decoder(Records)
decode_whole: Final = msgspec.msgpack.Decoder(Whole).decode
"""Raises msgspec.DecodeError."""
