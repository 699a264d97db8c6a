"""PoolJournal: the records of one pool that have changed since they were last written."""

from collections import OrderedDict
from typing import Final

from gateway.cluster.leader.kept_charges import KeptCharges
from gateway.cluster.leader.kept_windows import KeptWindows
from gateway.cluster.leader.ordered_requests import OrderedRequests
from gateway.cluster.leader.pool_tenants import PoolTenants
from gateway.cluster.records import (
    GONE,
    WINDOW,
    PoolCheckpoint,
    Records,
    charged_record,
    key_of,
    learnt_record,
    levels_record,
    service_records,
    session_records,
    window_records,
)
from policies.accounts.checkpoint import SHARED_QUEUE, ServiceCheckpoint
from policies.admission.rate_window import WINDOW_S
from policies.admission.scopes import key_scope
from policies.facts import WindowsRestored
from policies.scheduler_protocol import SharedSchedulerProtocol
from policies.types import NO_USAGE, Request

CHANGES_MAX: Final = 64  # tenants that changed: then they are written, which takes 1 to 3 ms
REQUESTS_MAX: Final = 1_000  # likewise
ALL: Final = 1 << 30
WRITTEN_MAX: Final = 320
"""Tenants written in one turn: more than the facts of a turn change, so an end is reached however many come."""


class PoolJournal:
    """The list of one pool's checkpoint records that have changed, such as the counters of a tenant, and the writer of
    these records for the next checkpoint. Mutable.
    """

    def __init__(
        self,
        pool: str,
        scheduler: SharedSchedulerProtocol,
        tenants: PoolTenants,
        requests: OrderedRequests,
        charged: KeptCharges,
    ) -> None:
        """`charged` has the charges, already in the counters, of requests that are not known now."""
        self._pool, self._scheduler, self._known_tenants = pool, scheduler, tenants
        self._known, self._charged = requests, charged
        self._tenants: dict[str, None] = dict.fromkeys(_tenants_of(scheduler.checkpoint()))
        self._keys: set[str] = set()
        self._requests: set[str] = set()
        self._has: set[str] = set()  # tenants with a record
        self._is_divided = False  # into queues of backends
        self.kept = KeptWindows()
        """What the records have of limits per minute, and the Scheduler has not yet."""
        self._windows: OrderedDict[str, float] = (
            OrderedDict()
        )  # scopes with a record, and when it was written, the oldest first

    # -- what changes ----------------------------------------------------------------------------------------

    def request(self, id_: str, request: Request) -> None:
        """Mark the records of this request as changed."""
        self._requests.add(id_)
        self.tenant(request.tenant_id, request.key_id)

    def charged(self, id_: str) -> None:
        """Mark the known charge of this request as changed."""
        self._requests.add(id_)

    def tenant(self, tenant_id: str, key_id: str = "") -> None:
        """Mark the records of this tenant, and of this key, as changed."""
        self._tenants[tenant_id] = None
        if key_id:
            self._keys.add(key_id)

    def all_changed(self) -> None:
        """Mark the records of all tenants as changed."""
        self._tenants |= dict.fromkeys(sorted(self._has))
        self._tenants |= dict.fromkeys(each.id for each in self._known_tenants.all())

    def backends_changed(self) -> None:
        """The set of available backends has changed: requests may move between their queues."""
        if self._is_divided:
            self.all_changed()

    def meets_limits(self, tenant_id: str, key_id: str, now: float) -> None:
        """A request of this tenant and key is about to be checked against its limits per minute: restore the kept
        bookings against these limits in the Scheduler.
        """
        if self.kept:
            windows = self.kept.take(self._known_tenants.scopes(tenant_id, key_id), now)
            if windows:
                self._scheduler.told(WindowsRestored(now, windows))

    def restored(self, kept: PoolCheckpoint, windows: KeptWindows, now: float) -> None:
        """The pool continues from this checkpoint, whose records stay."""
        self.kept = windows
        self._has.update(_tenants_of(kept.service))
        self._windows.update(dict.fromkeys(kept.windows, now))

    def clear(self) -> None:
        """Mark all records as unchanged."""
        self._tenants.clear()
        self._keys.clear()
        self._requests.clear()

    # -- what is written ---------------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether no changed record is left to write."""
        return not self._tenants and not self._requests

    @property
    def is_full(self) -> bool:
        """Whether many changed records are left to write."""
        return len(self._tenants) >= CHANGES_MAX or len(self._requests) >= REQUESTS_MAX

    def write(self, now: float, at: float, *, all_of_it: bool = False) -> Records:
        """The changed records, as many as one turn has time for (with `all_of_it`, all), as of the time `at`."""
        most = len(self._tenants) if all_of_it else WRITTEN_MAX
        ids = [tenant_id for tenant_id, _ in zip(self._tenants, range(most), strict=False)]
        for tenant_id in ids:
            del self._tenants[tenant_id]
        records = service_records(self._pool, self._scheduler.checkpoint(ids), ids)
        for tenant_id, body in zip(ids, list(records.values()), strict=True):
            (self._has.discard if body == GONE else self._has.add)(tenant_id)
        scopes = {*map(key_scope, self._keys), *(scope for each in ids for scope in self._known_tenants.scopes(each))}
        self._keys.clear()
        records |= self._write_windows([each for each in scopes if each not in self.kept], now, at)
        gate = self._scheduler.parts.sessions
        if gate is not None:
            sessions = gate.ledger.checkpoint(now, ALL if all_of_it else WRITTEN_MAX)
            records |= session_records(self._pool, sessions.sessions, at - now)
            records |= learnt_record(self._pool, sessions)
        for id_ in self._requests:
            known = self._known.get(id_)
            usage = self._charged.get(id_) if known is None or known.told == NO_USAGE else known.told
            records |= charged_record(self._pool, id_, usage)
        self._requests.clear()
        return records

    def cut(self) -> Records:
        """The record with the counters of tiers and groups. Call it when all other records are written."""
        service = self._scheduler.checkpoint(())
        self._is_divided = service.keys() != {SHARED_QUEUE}
        return levels_record(self._pool, service)

    def _write_windows(self, scopes: list[str], now: float, at: float) -> Records:
        """What counts against limits per minute; what counts no more is dropped, at most as many as are written."""
        windows = self._scheduler.parts.admission_rules.windows(now, scopes)
        for scope in windows:
            self._windows[scope] = now
            self._windows.move_to_end(scope)
        changed = [scope for scope in scopes if scope in windows or self._windows.pop(scope, None) is not None]
        records = window_records(self._pool, windows, changed, at)
        for _ in range(WRITTEN_MAX):
            oldest = next(iter(self._windows), None)
            if oldest is None or now - self._windows[oldest] < WINDOW_S:
                break
            del self._windows[oldest]
            records[key_of(WINDOW, self._pool, oldest)] = GONE
        return records


def _tenants_of(service: ServiceCheckpoint) -> list[str]:
    tiers = [tier for of in service.values() for tier in of.tiers.values()]
    return [each for tier in tiers for part in (tier, *tier.groups.values()) for each in part.tenants]
