"""LeaderStore: the store of worker 0, asked by a worker that follows, which has no state file."""

from collections.abc import Sequence
from typing import Any, Final, NoReturn

import msgspec

from gateway.others import Others, Service
from gateway.store.base import AuditEntry, Change, Document, Learnt, News, Store, StoreUnavailable, UsagePlace, UsageRow

_pack: Final = msgspec.msgpack.Encoder().encode


class _UsageOf(msgspec.Struct, array_like=True):
    first_day: str
    last_day: str
    tenant: str | None
    writer: str | None
    after: UsagePlace | None = None
    limit: int | None = None


_NEWS: Final = msgspec.msgpack.Decoder(News)
_ROWS: Final = msgspec.msgpack.Decoder(tuple[UsageRow, ...])
_USAGE_OF: Final = msgspec.msgpack.Decoder(_UsageOf)
_LEARNT: Final[msgspec.msgpack.Decoder[Learnt | None]] = msgspec.msgpack.Decoder(Learnt | None)
_INT: Final = msgspec.msgpack.Decoder(int)
_TEXT: Final = msgspec.msgpack.Decoder(str)


def store_services(store: Store) -> dict[str, Service]:
    """What LeaderStore asks, answered by this store."""

    async def news(body: bytes) -> bytes:
        return _pack(await store.news(_INT.decode(body)))

    async def put_usage(body: bytes) -> bytes:
        await store.put_usage(_ROWS.decode(body))
        return b""

    async def usage(body: bytes) -> bytes:
        of = _USAGE_OF.decode(body)
        return _pack(
            await store.usage(
                first_day=of.first_day,
                last_day=of.last_day,
                tenant=of.tenant,
                writer=of.writer,
                after=of.after,
                limit=of.limit,
            )
        )

    async def learnt(body: bytes) -> bytes:
        return _pack(await store.learnt(_TEXT.decode(body)))

    return {"news": news, "put_usage": put_usage, "usage": usage, "learnt": learnt}


class LeaderStore:
    """Worker 0's store, as a follower uses it: it reads what the admin API has set, and writes its usage."""

    def __init__(self, others: Others) -> None:
        self._others = others
        self._is_available = True

    @property
    def is_available(self) -> bool:
        return self._is_available

    async def open(self) -> None:
        """It is open where worker 0 answers."""

    async def close(self) -> None:
        """It stays open for others."""

    async def news(self, since: int) -> News:
        return _NEWS.decode(await self._ask("news", since))

    async def put_usage(self, rows: Sequence[UsageRow]) -> None:
        await self._ask("put_usage", tuple(rows))

    async def usage(
        self,
        *,
        first_day: str,
        last_day: str,
        tenant: str | None = None,
        writer: str | None = None,
        after: UsagePlace | None = None,
        limit: int | None = None,
    ) -> tuple[UsageRow, ...]:
        return _ROWS.decode(await self._ask("usage", _UsageOf(first_day, last_day, tenant, writer, after, limit)))

    async def learnt(self, name: str) -> Learnt | None:
        return _LEARNT.decode(await self._ask("learnt", name))

    async def put_learnt(self, learnt: Learnt) -> None:
        _only_leader()

    async def commit(
        self, changes: Sequence[Change], *, actor: str, at_s: float, replica: str = ""
    ) -> tuple[Document, ...]:
        _only_leader()

    async def merge(self, documents: Sequence[Document], audit: Sequence[AuditEntry] = ()) -> None:
        _only_leader()

    async def last_days(self, since: str) -> dict[str, str]:
        _only_leader()

    async def audit(
        self, *, before: int | None = None, limit: int = 100, kind: str | None = None, name: str | None = None
    ) -> tuple[AuditEntry, ...]:
        _only_leader()

    async def _ask(self, service: str, of: Any) -> bytes:
        try:
            said = await self._others.ask_leader(service, _pack(of))
        except StoreUnavailable:
            self._is_available = False
            raise
        self._is_available = True
        return said


def _only_leader() -> NoReturn:
    raise StoreUnavailable("only worker 0 writes the state")
