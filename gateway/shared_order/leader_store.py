"""LeaderStore: the store of worker 0, as other workers reach it, which have no state file."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

import msgspec

from gateway.others import Others, Service
from gateway.store.base import (
    AuditEntry,
    Change,
    Document,
    Holder,
    Learnt,
    News,
    Store,
    StoreUnavailable,
    UsageQuery,
    UsageRow,
)

_pack: Final = msgspec.msgpack.Encoder().encode
_ASKED: Final[Mapping[str, msgspec.msgpack.Decoder[Any]]] = {
    "news": msgspec.msgpack.Decoder(int),
    "put_usage": msgspec.msgpack.Decoder(tuple[UsageRow, ...]),
    "usage": msgspec.msgpack.Decoder(UsageQuery),
    "learnt": msgspec.msgpack.Decoder(str),
}
_NEWS: Final = msgspec.msgpack.Decoder(News)
_ROWS: Final = msgspec.msgpack.Decoder(tuple[UsageRow, ...])
_LEARNT: Final[msgspec.msgpack.Decoder[Learnt | None]] = msgspec.msgpack.Decoder(Learnt | None)


def store_services(store: Store) -> dict[str, Service]:
    """The services that answer LeaderStore's questions, by the store's methods of the same names."""

    def service(name: str, asked: msgspec.msgpack.Decoder[Any]) -> Service:
        method = getattr(store, name)

        async def answer(body: bytes) -> bytes:
            return _pack(await method(asked.decode(body)))

        return answer

    return {name: service(name, asked) for name, asked in _ASKED.items()}


class LeaderStore:
    """The store of a worker (one of several gateway processes on a machine) that is not worker 0. Only worker 0 has the
    stored state: this store reads the admin API's documents from it, and sends it the usage that this worker counted.
    """

    def __init__(self, others: Others) -> None:
        self._others = others
        self.is_available = True

    async def open(self) -> None:
        """Do nothing: the store is open if worker 0 answers."""

    async def close(self) -> None:
        """Do nothing: the store stays open for others."""

    async def news(self, since: int) -> News:
        return _NEWS.decode(await self._ask("news", since))

    async def put_usage(self, rows: Sequence[UsageRow]) -> None:
        await self._ask("put_usage", tuple(rows))

    async def usage(self, query: UsageQuery) -> tuple[UsageRow, ...]:
        return _ROWS.decode(await self._ask("usage", query))

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

    async def last_days(self, since: str) -> dict[Holder, str]:
        _only_leader()

    async def audit(
        self, *, before: int | None = None, limit: int = 100, kind: str | None = None
    ) -> tuple[AuditEntry, ...]:
        _only_leader()

    async def _ask(self, service: str, of: Any) -> bytes:
        try:
            said = await self._others.ask_leader(service, _pack(of))
        except StoreUnavailable:
            self.is_available = False
            raise
        self.is_available = True
        return said


def _only_leader() -> NoReturn:
    raise StoreUnavailable("only worker 0 writes the state")
