"""ChangeRate: a limit on the changes of each caller of the admin API, so that no caller fills the store, the audit log
and the disk for all others.

The administrators of one group count together: a group must not get a larger part by more keys. They make changes by
hand, so they have a smaller bucket than the programs of operators, which set up hundreds of tenants at once.
"""

from collections.abc import Mapping
from math import ceil
from typing import Final

from aiohttp import hdrs

from gateway.admin.problems import AdminProblem
from gateway.admin.routes import Caller, Role, Route
from gateway.identity.throttle import Buckets

TOO_MANY: Final = 429
RATES: Final[Mapping[bool, tuple[float, float]]] = {True: (100.0, 2.0), False: (1_000.0, 50.0)}
"""The burst and the changes per second: of a group's administrators, and of all other callers."""


class ChangeRate:
    """A limit on the changes per second that each caller of the admin API may make. The administrators of one group
    count as one caller. Mutable.
    """

    def __init__(self) -> None:
        self._buckets = {is_of_group: Buckets(*rate) for is_of_group, rate in RATES.items()}

    def count(self, route: Route, caller: Caller, now: float, changes: int = 1) -> None:
        """Count `changes` changes, if the route makes any. Raises AdminProblem where the caller has made too many."""
        if not route.changes or changes <= 0:
            return
        is_of_group = caller.role is Role.GROUP_ADMIN
        wait_s = self._buckets[is_of_group].take(caller.group or caller.name, now, changes)
        if wait_s is not None:
            headers: dict[str, str] = {hdrs.RETRY_AFTER: str(ceil(wait_s))}
            raise AdminProblem(TOO_MANY, "too many changes: the next one may be made in a moment", headers=headers)
