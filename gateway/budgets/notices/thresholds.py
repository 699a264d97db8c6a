"""BudgetWatch: the budgets that have reached thresholds.

Every process checks the usage that it knows, its own and others'. So several find the same notice; claims.py decides
which of them sends it. A notice names its budget, period and threshold, and has an id made of these only: it is the
same notice in every process, however often it is sent.
"""

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gateway.budgets.accounts import BudgetUse, Holder, Period, Unit, group_of
from gateway.budgets.ledger import BudgetLedger
from gateway.config.amounts import to_text
from gateway.observability.metrics.instruments import GROUP_BUDGET, TENANT_BUDGET, Family, Values
from gateway.observability.metrics.tenant_series import OTHER

EVENT = "budget.threshold_reached"
ID_PREFIX, ID_CHARS = "budget_", 32
GROUPS_SHOWN_MAX = 200  # as metrics.tenants_max is by default


@dataclass(frozen=True, slots=True)
class Notice:
    """A notice that a budget's use has reached `threshold` percent, in the period whose first day is `start`."""

    use: BudgetUse
    start: str
    threshold: int

    @property
    def name(self) -> str:
        """The name of the budget, whatever its period. No part contains a space."""
        tenant, key = self.use.holder
        return f"{tenant} {key or '-'} {self.use.unit.value} {self.use.period}"

    @property
    def id(self) -> str:
        """The id of the notice, equal for the same budget, period and threshold in every process."""
        named = f"{self.name} {self.start} {self.threshold}"
        return ID_PREFIX + hashlib.sha256(named.encode()).hexdigest()[:ID_CHARS]

    def document(self, now_s: float, currency: str | None) -> dict[str, Any]:
        """The notice as it is sent. `now_s` is in seconds since 1970."""
        use = self.use
        is_cost, group = use.unit is Unit.COST, group_of(use.holder)
        return {
            "type": EVENT,
            "timestamp": datetime.fromtimestamp(int(now_s), UTC).isoformat().replace("+00:00", "Z"),
            "data": {
                "group": group or None,
                "tenant": None if group else use.holder[0],
                "key": use.holder[1] or None,
                "unit": use.unit.value,
                "currency": currency if is_cost else None,
                "period": use.period,
                "period_start": self.start,
                "threshold_percent": self.threshold,
                "limit": to_text(use.limit) if is_cost else use.limit,
                "used": to_text(use.used) if is_cost else use.used,
            },
        }


class BudgetWatch:
    """A watch on the use of budgets: when a budget reaches a threshold, it makes a Notice. Mutable."""

    def __init__(self, ledger: BudgetLedger, thresholds: Sequence[int], today: Callable[[], str]) -> None:
        """`thresholds` are percents; `today` gives the day in UTC."""
        self._ledger = ledger
        self._thresholds = tuple(thresholds)
        self._today = today
        self._found: dict[str, str] = {}  # first days of periods, by id of a notice
        self._reached: set[Holder] = set()  # tenants that have reached the first threshold of something
        self._groups: set[Holder] = set()
        self._day = ""

    def look(self) -> list[Notice]:
        """The new notices since the last call, by budget, the lowest threshold first."""
        today = self._today()
        if today != self._day:
            self._day = today
            starts = {_start(today, period) for period in ("day", "month")}
            self._found = {id_: start for id_, start in self._found.items() if start in starts}
            self._reached.clear()
        touched = self._ledger.take_touched()
        self._groups |= {holder for holder in touched if group_of(holder)}
        notices = [
            notice
            for holder in sorted(touched)
            for use in self._ledger.uses(holder)
            for notice in self._notices_of(use, today)
        ]
        self._found |= {notice.id: notice.start for notice in notices}
        return notices

    def values(self, shown: Collection[str]) -> Mapping[Family, Values]:
        """The used part of the budgets of these tenants, and of the first GROUPS_SHOWN_MAX groups. All others at a
        threshold share one label, with their largest part.
        """
        holders = {(tenant, "") for tenant in shown}
        tenants = {holder: holder[0] if holder in holders else OTHER for holder in holders | self._reached}
        groups = {
            holder: group_of(holder) if number < GROUPS_SHOWN_MAX else OTHER
            for number, holder in enumerate(sorted(self._groups))
        }
        return {TENANT_BUDGET: self._ratios(tenants), GROUP_BUDGET: self._ratios(groups)}

    def _ratios(self, labels: Mapping[Holder, str]) -> Values:
        """The used part of the holders' budgets; of several holders with one label, the largest part."""
        values: Values = {}
        for holder, label in labels.items():
            for use in self._ledger.uses(holder):
                if use.limit:
                    of = (label, use.unit.value, use.period)
                    values[of] = max(values.get(of, 0.0), use.used / use.limit)
        return values

    def _notices_of(self, use: BudgetUse, today: str) -> Iterator[Notice]:
        start = _start(today, use.period)
        for threshold in self._thresholds:
            if not use.limit or use.used * 100 < threshold * use.limit:
                return
            if not use.holder[1] and not group_of(use.holder):
                self._reached.add(use.holder)
            notice = Notice(use, start, threshold)
            if notice.id not in self._found:
                yield notice


def _start(day: str, period: Period) -> str:
    """The first day of the period that this day is in."""
    return day if period == "day" else f"{day[:7]}-01"
