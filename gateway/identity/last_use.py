"""LastUse: the day on which each API key and each tenant was last used, by the usage of all gateways of one state.

All days are read once; after that, only the days that can still change, at most every REFRESH_S.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import date, timedelta

from gateway.store.base import Holder, Store

REFRESH_S = 5.0


class LastUse:
    """A finder of the last day of use of API keys and tenants, in stored usage. Mutable; used on one loop."""

    def __init__(self, store: Store, *, clock: Callable[[], float], today: Callable[[], str]) -> None:
        """`clock` gives seconds of any clock that only grows; `today` gives the day in UTC."""
        self._store = store
        self._clock = clock
        self._today = today
        self._days: dict[Holder, str] = {}
        self._since = ""  # usage of earlier days does not change
        self._read_at: float | None = None

    async def of_keys(self) -> Mapping[str, str]:
        """The last day of use (UTC, like 2026-11-20) by key, for keys in the stored usage. Raises StoreUnavailable."""
        return _latest((key, day) for (_, key), day in (await self._read()).items() if key)

    async def of_tenants(self) -> Mapping[str, str]:
        """The last day of use (UTC) by tenant, for calls with and without a key. Raises StoreUnavailable."""
        return _latest((tenant, day) for (tenant, _), day in (await self._read()).items())

    async def _read(self) -> Mapping[Holder, str]:
        now = self._clock()
        if self._read_at is None or now - self._read_at >= REFRESH_S:
            today = date.fromisoformat(self._today())
            self._days |= await self._store.last_days(self._since)
            self._read_at = now
            self._since = (today - timedelta(days=1)).isoformat()  # of yesterday some may still arrive
        return self._days


def _latest(days: Iterable[tuple[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, day in days:
        found[name] = max(day, found.get(name, ""))
    return found
