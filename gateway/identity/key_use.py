"""KeyUse: the day on which each API key was last used, by the stored usage of all gateways that share the state.

All days are read once; after that, only the days that can still change, at most every REFRESH_S.
"""

from collections.abc import Callable, Mapping
from datetime import date, timedelta

from gateway.store.base import Store

REFRESH_S = 5.0


class KeyUse:
    """The days of last use of all keys. Mutable; used on one loop."""

    def __init__(self, store: Store, *, clock: Callable[[], float], today: Callable[[], str]) -> None:
        """`clock` gives seconds of any clock that only grows; `today` gives the day in UTC."""
        self._store = store
        self._clock = clock
        self._today = today
        self._days: dict[str, str] = {}
        self._since = ""  # usage of earlier days does not change
        self._read_at: float | None = None

    async def last_days(self) -> Mapping[str, str]:
        """The last day of use (UTC, like 2026-11-20) by key, for keys in the stored usage. Raises StoreUnavailable."""
        now = self._clock()
        if self._read_at is None or now - self._read_at >= REFRESH_S:
            today = date.fromisoformat(self._today())
            self._days |= await self._store.last_days(self._since)
            self._read_at = now
            self._since = (today - timedelta(days=1)).isoformat()  # of yesterday some may still arrive
        return self._days
